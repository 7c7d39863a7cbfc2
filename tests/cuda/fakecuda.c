/* Stand-in for libcuda in tests: records what it is asked, fails the n-th call, and has
 * kernels whose parameters the test sets. Also stands in for torch's DLPack functions.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

enum { PARAMETERS = 512, BYTES = 128, LAUNCHES = 64 };

typedef struct {
    int id;
    char padding[4];
    union {
        char padding[64];
        unsigned words[16];
    } value;
} attribute;

typedef struct {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared;
    uint64_t stream;
    attribute *attributes;
    unsigned attribute_count;
} config;

typedef struct {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared;
    unsigned attribute_count;
    uint64_t stream;
    uint64_t kernel;
    attribute attributes[8];
    unsigned char parameters[PARAMETERS][BYTES];
} launch;

/* What a test sets. */
PUBLIC int fake_devices = 1;
PUBLIC int fake_capability[16][2] = {{9, 0}, {9, 0}, {9, 0}, {9, 0}};
PUBLIC int fake_optin = 232448; /* bytes of shared memory a block */
PUBLIC int fake_parameter_count;
PUBLIC uint64_t fake_sizes[PARAMETERS];
PUBLIC int fake_fail_at;    /* the call that fails, counted from 1; 0 for none */
PUBLIC int fake_fail_with;  /* its result */
PUBLIC int fake_no_context; /* launches fail until a context is set */
PUBLIC int fake_device;     /* current */
PUBLIC int fake_version = 13020;

/* What it records. */
PUBLIC int fake_calls;
PUBLIC char fake_log[1 << 16]; /* names of the calls, each with a blank behind */
PUBLIC int fake_loads;
PUBLIC int fake_launches;
PUBLIC launch fake_launch[LAUNCHES];
PUBLIC int fake_attributes[LAUNCHES][3]; /* attribute, value, device */
PUBLIC int fake_attribute_count;
PUBLIC uint64_t fake_image; /* address of the last one */

/* Counts a call. Returns what it must return at once, or 0. */
static int
call(const char *name)
{
    size_t length = strlen(fake_log);
    if (length + strlen(name) + 2 < sizeof(fake_log)) {
        strcpy(fake_log + length, name);
        strcat(fake_log + length, " ");
    }
    return ++fake_calls == fake_fail_at ? fake_fail_with : 0;
}

#define CALL()                        \
    do {                              \
        int failed_ = call(__func__); \
        if (failed_ != 0) {           \
            return failed_;           \
        }                             \
    } while (0)

PUBLIC int
cuInit(unsigned flags)
{
    (void)flags;
    CALL();
    return fake_devices == 0 ? 100 : 0;
}

PUBLIC int
cuDeviceGetCount(int *count)
{
    CALL();
    *count = fake_devices;
    return 0;
}

PUBLIC int
cuDeviceGet(int *device, int ordinal)
{
    CALL();
    *device = ordinal;
    return ordinal < fake_devices ? 0 : 101;
}

PUBLIC int
cuDeviceGetAttribute(int *value, int what, int device)
{
    CALL();
    *value = what == 75   ? fake_capability[device][0]
             : what == 76 ? fake_capability[device][1]
             : what == 97 ? fake_optin
                          : 0;
    return 0;
}

PUBLIC int
cuCtxGetDevice(int *device)
{
    CALL();
    *device = fake_device;
    return fake_no_context ? 201 : 0;
}

PUBLIC int
cuCtxSetCurrent(void *context)
{
    CALL();
    fake_device = (int)(uintptr_t)context - 1;
    fake_no_context = 0;
    return 0;
}

PUBLIC int
cuDevicePrimaryCtxRetain(void **context, int device)
{
    CALL();
    *context = (void *)(uintptr_t)(device + 1);
    return 0;
}

PUBLIC int
cuLibraryLoadData(void **library, const void *image, int *jit, void **jit_values,
                  unsigned jit_count, int *options, void **values, unsigned count)
{
    CALL();
    (void)jit, (void)jit_values;
    fake_loads++;
    fake_image = (uintptr_t)image;
    *library = (void *)(uintptr_t)(1000 + fake_loads);
    return jit_count == 0 && count == 1 && options[0] == 1 && values[0] != NULL ? 0 : 1;
}

PUBLIC int
cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    CALL();
    *kernel = (void *)(uintptr_t)((uintptr_t)library + 1000);
    return strcmp(name, "absent") == 0 ? 500 : 0;
}

#ifndef OLD
PUBLIC int
cuKernelGetParamInfo(void *kernel, size_t index, size_t *offset, size_t *size)
{
    (void)kernel;
    CALL();
    if (index >= (size_t)fake_parameter_count) {
        return 1;
    }
    *offset = 8 * index;
    *size = fake_sizes[index];
    return 0;
}
#endif

PUBLIC int
cuKernelSetAttribute(int what, int value, void *kernel, int device)
{
    (void)kernel;
    CALL();
    fake_attributes[fake_attribute_count % LAUNCHES][0] = what;
    fake_attributes[fake_attribute_count % LAUNCHES][1] = value;
    fake_attributes[fake_attribute_count++ % LAUNCHES][2] = device;
    return 0;
}

PUBLIC int
cuKernelSetCacheConfig(void *kernel, int what, int device)
{
    (void)kernel, (void)device;
    CALL();
    return what == 1 ? 0 : 1;
}

PUBLIC int
cuLaunchKernelEx(const config *how, void *kernel, void **parameters, void **extra)
{
    CALL();
    if (fake_no_context) {
        return 201;
    }
    launch *to = &fake_launch[fake_launches++ % LAUNCHES];
    memset(to, 0, sizeof(*to));
    memcpy(to->grid, how->grid, sizeof(to->grid));
    memcpy(to->block, how->block, sizeof(to->block));
    to->shared = how->shared;
    to->stream = how->stream;
    to->kernel = (uintptr_t)kernel;
    to->attribute_count = how->attribute_count;
    memcpy(to->attributes, how->attributes,
           how->attribute_count * sizeof(*how->attributes));
    for (int i = 0; i < fake_parameter_count; i++) {
        memcpy(to->parameters[i], parameters[i], fake_sizes[i]);
    }
    return extra == NULL ? 0 : 1;
}

/* A tensor map holds the arguments of the call, and all ones in its second word. */
#ifndef NO_TENSOR_MAPS
PUBLIC int
cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address,
                       const uint64_t *shape, const uint64_t *strides,
                       const uint32_t *box, const uint32_t *element_strides,
                       int interleave, int swizzle, int promotion, int fill)
{
    struct {
        int type;
        uint32_t rank;
        uint64_t ones;
        void *address;
        uint64_t shape[5];
        uint64_t strides[4];
        uint32_t box[5];
        unsigned char modes[4];
        uint64_t element_strides;
    } made = {.type = type, .rank = rank, .ones = UINT64_MAX, .address = address};
    CALL();
    for (uint32_t i = 0; i < rank; i++) {
        made.shape[i] = shape[i];
        made.strides[i == 0 ? 0 : i - 1] = i == 0 ? 0 : strides[i - 1];
        made.box[i] = box[i];
        made.element_strides += (uint64_t)element_strides[i] << 8 * i;
    }
    made.modes[0] = (unsigned char)interleave;
    made.modes[1] = (unsigned char)swizzle;
    made.modes[2] = (unsigned char)promotion;
    made.modes[3] = (unsigned char)fill;
    _Static_assert(sizeof(made) == 128, "a tensor map");
    memcpy(map, &made, sizeof(made));
    return (uintptr_t)map % 64 == 0 ? 0 : 1;
}
#endif

PUBLIC int
cuDriverGetVersion(int *version)
{
    *version = fake_version;
    return 0;
}

PUBLIC int
cuGetErrorName(int result, const char **name)
{
    *name = result == 201 ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_FAKE";
    return 0;
}

PUBLIC int
cuGetErrorString(int result, const char **text)
{
    (void)result;
    *text = "as the test wanted";
    return 0;
}

/* --- what Triton's own driver module asks for besides --- */

PUBLIC int
cuCtxGetCurrent(void **context)
{
    *context = (void *)1;
    return 0;
}

PUBLIC int
cuModuleLoadData(void **module, const void *image)
{
    *module = (void *)(uintptr_t)image;
    return 0;
}

PUBLIC int
cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = module;
    return name == NULL;
}

PUBLIC int
cuFuncGetAttribute(int *value, int what, void *function)
{
    *value = what == 0 ? 1024 : 0; /* threads of a block, at most */
    return function == NULL;
}

PUBLIC int
cuFuncSetAttribute(void *function, int what, int value)
{
    (void)what, (void)value;
    return function == NULL;
}

PUBLIC int
cuFuncSetCacheConfig(void *function, int what)
{
    (void)what;
    return function == NULL;
}

PUBLIC int
cuPointerGetAttribute(void *value, int what, uint64_t pointer)
{
    memcpy(value, &pointer, sizeof(pointer));
    return what == 3 ? 0 : 1; /* the address on the device */
}

PUBLIC int
cuCtxGetLimit(size_t *value, int what)
{
    *value = (size_t)what;
    return 0;
}

PUBLIC int
cuCtxSetLimit(int what, size_t value)
{
    (void)what, (void)value;
    return 0;
}

/* --- DLPack --- */

typedef struct {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t dimensions;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} tensor;

PUBLIC tensor fake_tensor = {.data = (void *)0x7000, .device_type = 2};
PUBLIC int fake_tensor_status;

static int
tensor_from(void *object, tensor *out)
{
    (void)object;
    *out = fake_tensor;
    return fake_tensor_status;
}

PUBLIC struct {
    uint32_t major, minor;
    void *previous, *allocate, *managed_from, *managed_to;
    int (*tensor_from)(void *, tensor *);
    int (*current_stream)(int32_t, int32_t, void **);
} fake_exchange = {1, 3, NULL, NULL, NULL, NULL, tensor_from, NULL};
