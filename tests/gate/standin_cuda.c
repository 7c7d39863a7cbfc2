/* Stand-in for libtorch_cuda and libnvrtc in the tests of the gate's hooks.
 *
 * With STANDIN_NVRTC it is a library that exports what libnvrtc and libcuda do, and
 * counts calls. Without, it is a library with a table of functions that resolve
 * themselves, as libtorch_cuda's lazyNVRTC, and functions that call through it.
 * MISSING, SWAPPED, TWICE and APART make tables that must be refused.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

typedef const char *const *texts;

#ifdef STANDIN_NVRTC

PUBLIC int calls[4]; /* create, compile, load, link */

PUBLIC int
nvrtcCreateProgram(void **program, const char *source, const char *name, int count,
                   texts headers, texts names)
{
    static int made;
    (void)source, (void)name, (void)count, (void)headers, (void)names;
    *program = &made;
    calls[0]++;
    return 0;
}

PUBLIC int
nvrtcCompileProgram(void *program, int count, texts options)
{
    (void)program, (void)count, (void)options;
    calls[1]++;
    return 0;
}

PUBLIC const char *
nvrtcGetErrorString(int status)
{
    return status == 0 ? "NVRTC_SUCCESS" : "NVRTC_ERROR unknown";
}

PUBLIC int
cuModuleLoadData(void **module, const void *image)
{
    static int loaded;
    (void)image;
    *module = &loaded;
    calls[2]++;
    return 0;
}

PUBLIC int
cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options,
                   void **values)
{
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}

PUBLIC int
cuLinkAddData_v2(void *state, int type, void *data, size_t size, const char *name,
                 unsigned count, int *options, void **values)
{
    (void)state, (void)type, (void)data, (void)size, (void)name, (void)count;
    (void)options, (void)values;
    calls[3]++;
    return 0;
}

PUBLIC int
cuGetErrorString(int status, const char **text)
{
    *text = "unknown error";
    return status == 0 ? 0 : 1;
}

PUBLIC int
cuLinkComplete(void *state)
{
    (void)state;
    return 0;
}

#else

int nvrtcCreateProgram(void **, const char *, const char *, int, texts, texts);

/* Like at::DynamicLibrary::sym: of another library, so that no compiler looks into it. */
PUBLIC void *
resolve(void *library, const char *name)
{
    return dlsym(library, name);
}

#define FIELDS(_)                                                                   \
    _(nvrtcCreateProgram, int,                                                      \
      (void **a, const char *b, const char *c, int d, texts e, texts f),            \
      (a, b, c, d, e, f))                                                           \
    _(nvrtcCompileProgram, int, (void *a, int b, texts c), (a, b, c))               \
    _(nvrtcGetErrorString, const char *, (int a), (a))                              \
    GAP _(cuModuleLoadData, int, (void **a, const void *b), (a, b))                 \
        _(cuModuleLoadDataEx, int,                                                  \
          (void **a, const void *b, unsigned c, int *d, void **e), (a, b, c, d, e)) \
            _(cuGetErrorString, int, (int a, const char **b), (a, b))               \
                _(LINK_NAME, int,                                                   \
                  (void *a, int b, void *c, size_t d, const char *e, unsigned f,    \
                   int *g, void **h),                                               \
                  (a, b, c, d, e, f, g, h)) _(cuLinkComplete, int, (void *a), (a))

#ifdef APART
#define GAP filler gap[100];
#else
#define GAP
#endif
#ifdef MISSING
#define LINK_NAME cuLinkAddDataNew
#else
#define LINK_NAME cuLinkAddData_v2
#endif
typedef void *filler;

#define FIELD(name, result, parameters, arguments) result(*name) parameters;
#define EXPAND(_, ...) _(__VA_ARGS__)
#define NAMED(name, ...) EXPAND(FIELD, name, __VA_ARGS__)

typedef struct {
    FIELDS(NAMED)
} functions;

#undef GAP
#define GAP

static functions table;
#ifdef TWICE
static functions second;
#endif

#ifdef SWAPPED
#define STORE(name, found) table.cuLinkComplete = (void *)(found)
#else
#define STORE(name, found) table.name = (found)
#endif

#define RESOLVER(name, result, parameters, arguments)          \
    static result resolve_##name parameters                    \
    {                                                          \
        result(*found) parameters = resolve(RTLD_NEXT, #name); \
        STORE(name, found);                                    \
        return found arguments;                                \
    }
#define NAMED_RESOLVER(name, ...) EXPAND(RESOLVER, name, __VA_ARGS__)
FIELDS(NAMED_RESOLVER)

#ifdef TWICE
#undef STORE
#define STORE(name, found) second.name = (found)
#define SECOND(name, result, parameters, arguments)            \
    static result second_##name parameters                     \
    {                                                          \
        result(*found) parameters = resolve(RTLD_NEXT, #name); \
        STORE(name, found);                                    \
        return found arguments;                                \
    }
#define NAMED_SECOND(name, ...) EXPAND(SECOND, name, __VA_ARGS__)
FIELDS(NAMED_SECOND)
#define SECOND_START(name, ...) .name = second_##name,
#define NAMED_SECOND_START(name, ...) EXPAND(SECOND_START, name, )
static functions second = {FIELDS(NAMED_SECOND_START)};
PUBLIC void *
second_table(void)
{
    return &second;
}
#endif

#define START(name, ...) .name = resolve_##name,
#define NAMED_START(name, ...) EXPAND(START, name, )
static functions table = {FIELDS(NAMED_START)};

PUBLIC size_t
table_copy(void *copy)
{
    memcpy(copy, &table, sizeof(table));
    return sizeof(table);
}

PUBLIC int
create(const char *source, const char *name)
{
    void *program = NULL;
    return table.nvrtcCreateProgram(&program, source, name, 0, NULL, NULL);
}

PUBLIC int
compile(void)
{
    return table.nvrtcCompileProgram(NULL, 0, NULL);
}

/* As cuDNN's front end: through the import table. */
PUBLIC int
create_directly(const char *source)
{
    void *program = NULL;
    return nvrtcCreateProgram(&program, source, NULL, 0, NULL, NULL);
}

PUBLIC int
load(const void *image)
{
    void *module = NULL;
    return table.cuModuleLoadData(&module, image);
}

PUBLIC int
load_ex(const void *image)
{
    void *module = NULL;
    return table.cuModuleLoadDataEx(&module, image, 0, NULL, NULL);
}

PUBLIC int
link_data(int type, void *data, size_t size, const char *name)
{
    return table.LINK_NAME(NULL, type, data, size, name, 0, NULL, NULL);
}

PUBLIC int
link_complete(void)
{
    return table.cuLinkComplete(NULL);
}

PUBLIC const char *
nvrtc_text(int status)
{
    return table.nvrtcGetErrorString(status);
}

PUBLIC const char *
cu_text(int status)
{
    const char *text = NULL;
    return table.cuGetErrorString(status, &text) == 0 ? text : "unknown error";
}

static void *
create_in(void *source)
{
    return (void *)(intptr_t)create(source, NULL);
}

/* In a thread that Python does not know. */
PUBLIC int
create_in_thread(const char *source)
{
    pthread_t thread;
    void *status = NULL;
    if (pthread_create(&thread, NULL, create_in, (void *)(uintptr_t)source) != 0) {
        return -1;
    }
    (void)pthread_join(thread, &status);
    return (int)(intptr_t)status;
}

#endif
