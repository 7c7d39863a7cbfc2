/* Compilers that libtorch calls from C++: NVRTC (jiterator, special functions on CUDA,
 * fusers) and the driver's compiler of PTX.
 *
 * While a gate is active, functions of this file stand in libtorch_cuda's table of NVRTC
 * and driver functions (pc_nvrtc.h). One that a gate forbids records the violation and
 * returns a status that nobody else uses; torch throws, with the text that
 * nvrtcGetErrorString or cuGetErrorString has for the status. The calling thread may have
 * the GIL, have let go of it inside torch, or be unknown to Python.
 */
#include "gate.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "pc_nvrtc.h"

enum { REFUSED = 0x5043 }; /* a status of ours, in both libraries */

typedef int (*create_function)(void **, const char *, const char *, int,
                               const char *const *, const char *const *);
typedef int (*compile_function)(void *, int, const char *const *);
typedef const char *(*nvrtc_text_function)(int);
typedef int (*load_function)(void **, const void *);
typedef int (*load_ex_function)(void **, const void *, unsigned, int *, void **);
typedef int (*link_function)(void *, int, void *, size_t, const char *, unsigned, int *,
                             void **);
typedef int (*cu_text_function)(int, const char **);

/* What the last refusal in this thread says. */
static _Thread_local char refusal[512];
/* This thread has compiled a program whose image it has not loaded yet. */
static _Thread_local int built;

/* Records the violation, with the GIL held. Returns whether a gate forbids it. */
static int
record(const char *kind, const char *what, const char *why, const char *hint)
{
    PyObject *type = NULL; /* an exception that was set, as the next two */
    PyObject *value = NULL;
    PyObject *traceback = NULL;
    PyObject *what_text = NULL;
    PyObject *why_text = NULL;
    PyObject *hint_text = NULL;
    PyObject *violation = NULL;
    core_state *state = NULL;
    int result = 0;

    PyErr_Fetch(&type, &value, &traceback);
    state = core_gate_state();
    if (state == NULL) {
        goto done;
    }
    what_text = PyUnicode_DecodeUTF8(what, (Py_ssize_t)strlen(what), "replace");
    why_text = PyUnicode_FromString(why);
    hint_text = PyUnicode_FromString(hint);
    if (what_text == NULL || why_text == NULL || hint_text == NULL) {
        result = -1;
        goto done;
    }
    result =
        core_gate_record(state, kind, what_text, why_text, NULL, hint_text, &violation);
done:
    if (result < 0) {
        PyErr_WriteUnraisable(what_text); /* refused all the same */
    }
    Py_XDECREF(what_text);
    Py_XDECREF(why_text);
    Py_XDECREF(hint_text);
    Py_XDECREF(violation);
    PyErr_Restore(type, value, traceback);
    return result != 0;
}

/* Returns whether a gate forbids *bit* in this thread; then the violation is recorded. */
static int
refuse(unsigned bit, const char *kind, const char *what, const char *why,
       const char *hint)
{
    if (!(core_gate_forbidden() & bit) || !Py_IsInitialized()) {
        return 0;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    /* No code of anybody may run here, and so no switch to another thread: the caller
       may hold a lock of torch that the other one waits for. */
    int collecting = PyGC_Disable();
    int refused = record(kind, what, why, hint);
    if (collecting) {
        PyGC_Enable();
    }
    PyGILState_Release(gil);
    if (refused) {
        (void)snprintf(refusal, sizeof(refusal),
                       "precomp.strict_no_compile forbids it: [%s] %s: %s (%s)", kind,
                       what, why, hint);
    }
    return refused;
}

static int
is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$';
}

/* Copies the identifier that starts at *text*. */
static void
copy_name(char *name, size_t room, const char *text)
{
    size_t length = 0;
    while (length + 1 < room && is_name(text[length])) {
        name[length] = text[length];
        length++;
    }
    name[length] = '\0';
}

/* Writes the name of the last function declared __global__ in CUDA C++ *source*: what is
   before it, a preamble, may declare others. *name* stays as it is if there is none. */
static void
kernel_of_source(char *name, size_t room, const char *source)
{
    static const char mark[] = "__global__";
    for (const char *at = strstr(source, mark); at != NULL; at = strstr(at, mark)) {
        at += strlen(mark);
        const char *word = NULL; /* the last one before a parenthesis */
        for (const char *c = at; *c != '\0' && *c != ';' && *c != '{'; c++) {
            if (*c == '(' && word != NULL) {
                if (strncmp(word, "__launch_bounds__", 17) != 0) {
                    copy_name(name, room, word);
                    break;
                }
                c += strcspn(c, ")");
                if (*c == '\0') {
                    break;
                }
                word = NULL;
            }
            else if (is_name(*c) && !is_name(c[-1])) {
                word = c;
            }
        }
    }
}

/* Writes the name of the first kernel of PTX text. */
static void
kernel_of_ptx(char *name, size_t room, const char *ptx)
{
    static const char mark[] = ".entry";
    const char *at = strstr(ptx, mark);
    if (at != NULL) {
        at += strlen(mark);
        copy_name(name, room, at + strspn(at, " \t\r\n"));
    }
}

/* Whether the driver compiles *image*: it is text, neither a cubin nor a fat binary. */
static int
is_ptx(const void *image)
{
    static const unsigned char cubin[] = {0x7f, 'E', 'L', 'F'};
    static const unsigned char fat[] = {0x50, 0xed, 0x55, 0xba};
    static const unsigned char fat_wrapper[] = {0xb1, 0x43, 0x62, 0x46};
    return memcmp(image, cubin, 4) != 0 && memcmp(image, fat, 4) != 0 &&
           memcmp(image, fat_wrapper, 4) != 0;
}

enum { NAME_ROOM = 200 };

static int
refuse_build(const char *source, const char *program)
{
    char name[NAME_ROOM] = "";
    char what[NAME_ROOM + 20];
    if (!(core_gate_forbidden() & GATE_BUILD)) {
        return 0;
    }
    if (program != NULL) {
        copy_name(name, sizeof(name), program);
    }
    if (source != NULL) {
        kernel_of_source(name, sizeof(name), source);
    }
    (void)snprintf(what, sizeof(what), "CUDA kernel %s", name[0] ? name : "(no name)");
    return refuse(GATE_BUILD, "build", what,
                  "libtorch is about to compile it with NVRTC",
                  "call it once before the gate");
}

static int
refuse_jit(const char *ptx, const char *program)
{
    char name[NAME_ROOM] = "";
    char what[NAME_ROOM + 20];
    if (!(core_gate_forbidden() & GATE_DRIVER_JIT)) {
        return 0;
    }
    if (program != NULL) {
        copy_name(name, sizeof(name), program);
    }
    kernel_of_ptx(name, sizeof(name), ptx);
    (void)snprintf(what, sizeof(what), "CUDA kernel %s", name[0] ? name : "(no name)");
    return refuse(GATE_DRIVER_JIT, "driver_jit", what,
                  "the CUDA driver is about to compile its PTX",
                  "load code for this GPU, or call it once before the gate");
}

static int
refuse_load(const void *image)
{
    int fresh = built;
    built = 0;
    if (image == NULL) {
        return 0;
    }
    if (is_ptx(image) && refuse_jit(image, NULL)) {
        return 1;
    }
    return !fresh && refuse(GATE_LOAD, "load", "CUDA kernel of libtorch",
                            "it is loaded, from torch's kernel cache on disk "
                            "(PYTORCH_KERNEL_CACHE_PATH) or by an extension",
                            "call it once before the gate");
}

static int
our_create(void **program, const char *source, const char *name, int headers,
           const char *const *contents, const char *const *names)
{
    if (refuse_build(source, name)) {
        return REFUSED;
    }
    int status = ((create_function)pc_nvrtc_real(PC_NVRTC_CREATE))(
        program, source, name, headers, contents, names);
    pc_nvrtc_refresh();
    return status;
}

static int
our_compile(void *program, int count, const char *const *options)
{
    if (refuse_build(NULL, NULL)) {
        return REFUSED;
    }
    int status =
        ((compile_function)pc_nvrtc_real(PC_NVRTC_COMPILE))(program, count, options);
    built = status == 0;
    pc_nvrtc_refresh();
    return status;
}

static const char *
our_nvrtc_text(int status)
{
    if (status == REFUSED) {
        return refusal;
    }
    const char *text =
        ((nvrtc_text_function)pc_nvrtc_real(PC_NVRTC_ERROR_STRING))(status);
    pc_nvrtc_refresh();
    return text;
}

static int
our_load(void **module, const void *image)
{
    if (refuse_load(image)) {
        return REFUSED;
    }
    int status = ((load_function)pc_nvrtc_real(PC_CU_MODULE_LOAD))(module, image);
    pc_nvrtc_refresh();
    return status;
}

static int
our_load_ex(void **module, const void *image, unsigned count, int *options,
            void **values)
{
    if (refuse_load(image)) {
        return REFUSED;
    }
    int status = ((load_ex_function)pc_nvrtc_real(PC_CU_MODULE_LOAD_EX))(
        module, image, count, options, values);
    pc_nvrtc_refresh();
    return status;
}

static int
our_link(void *state, int type, void *data, size_t size, const char *name,
         unsigned count, int *options, void **values)
{
    enum { INPUT_PTX = 1 };
    if (type == INPUT_PTX && data != NULL && refuse_jit(data, name)) {
        return REFUSED;
    }
    int status = ((link_function)pc_nvrtc_real(PC_CU_LINK_ADD))(
        state, type, data, size, name, count, options, values);
    pc_nvrtc_refresh();
    return status;
}

static int
our_cu_text(int status, const char **text)
{
    if (status == REFUSED) {
        *text = refusal;
        return 0;
    }
    int result = ((cu_text_function)pc_nvrtc_real(PC_CU_ERROR_STRING))(status, text);
    pc_nvrtc_refresh();
    return result;
}

void
core_gate_hook_nvrtc(int wanted)
{
    static const pc_function ours[PC_NVRTC_CALLS] = {
        [PC_NVRTC_CREATE] = (pc_function)our_create,
        [PC_NVRTC_COMPILE] = (pc_function)our_compile,
        [PC_NVRTC_ERROR_STRING] = (pc_function)our_nvrtc_text,
        [PC_CU_MODULE_LOAD] = (pc_function)our_load,
        [PC_CU_MODULE_LOAD_EX] = (pc_function)our_load_ex,
        [PC_CU_LINK_ADD] = (pc_function)our_link,
        [PC_CU_ERROR_STRING] = (pc_function)our_cu_text,
    };
    if (wanted) {
        pc_nvrtc_install(ours);
    }
    else {
        pc_nvrtc_remove();
    }
}

const char core_gate_watch_nvrtc_doc[] = PyDoc_STR(
    "gate_watch_nvrtc()\n--\n\n"
    "Watch the compilers that libtorch_cuda calls from C++, if it is loaded.\n\n"
    "Returns None, or a str: why that is not possible with this libtorch_cuda.");

PyObject *
core_gate_watch_nvrtc(PyObject *module, PyObject *ignored)
{
    pc_error error;
    bool found = false;
    (void)module;
    (void)ignored;
    if (pc_nvrtc_find(&found, &error) != PC_OK) {
        return PyUnicode_FromString(error.message);
    }
    if (found) {
        core_gate_update();
    }
    Py_RETURN_NONE;
}
