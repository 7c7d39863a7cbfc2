/* Opens libcuda, loads images, launches kernels. */
#include "pc_cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "pc_mem.h"

static const char driver_name[] = "libcuda.so.1";

/* Required and optional functions. The suffixes of cuda.h (_v2) are part of the name. */
#define REQUIRED(_)                                                                   \
    _(cuInit, (unsigned flags))                                                       \
    _(cuDeviceGetCount, (int *count))                                                 \
    _(cuDeviceGet, (cu_device * device, int ordinal))                                 \
    _(cuDeviceGetAttribute, (int *value, int attribute, cu_device device))            \
    _(cuCtxGetDevice, (cu_device * device))                                           \
    _(cuCtxSetCurrent, (cu_context context))                                          \
    _(cuDevicePrimaryCtxRetain, (cu_context * context, cu_device device))             \
    _(cuLibraryLoadData,                                                              \
      (cu_library * library, const void *image, int *jit_options, void **jit_values,  \
       unsigned jit_count, int *options, void **values, unsigned count))              \
    _(cuLibraryGetKernel, (cu_kernel * kernel, cu_library library, const char *name)) \
    _(cuKernelGetParamInfo,                                                           \
      (cu_kernel kernel, size_t index, size_t *offset, size_t *size))                 \
    _(cuKernelSetAttribute,                                                           \
      (int attribute, int value, cu_kernel kernel, cu_device device))                 \
    _(cuLaunchKernelEx, (const cu_launch_config *config, cu_function function,        \
                         void **parameters, void **extra))

#define OPTIONAL(_)                                                                   \
    _(cuGetErrorName, (cu_result result, const char **name))                          \
    _(cuGetErrorString, (cu_result result, const char **text))                        \
    _(cuKernelSetCacheConfig, (cu_kernel kernel, int config, cu_device device))       \
    _(cuDriverGetVersion, (int *version))                                             \
    _(cuTensorMapEncodeTiled,                                                         \
      (void *map, int type, uint32_t rank, void *address, const uint64_t *shape,      \
       const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides, \
       int interleave, int swizzle, int promotion, int fill))

#define DECLARE(name, parameters) static cu_result(*name) parameters;
REQUIRED(DECLARE)
OPTIONAL(DECLARE)

enum { DEVICES = 64 }; /* more than a machine has */

/* The state of the driver in this process. What is set under the lock stays. */
static struct {
    pthread_mutex_t lock;
    char path[4096]; /* in place of driver_name, if not empty */
    bool asked;      /* opened, or *error* says why not */
    pc_error error;
    bool started;       /* cuInit has succeeded */
    atomic_bool forked; /* in a child of the process in which it did */
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct pc_cuda_kernel {
    cu_kernel handle;
    pc_cuda_shape shape;
    atomic_uint_fast64_t prepared; /* devices whose attributes are set, by bit */
    pthread_mutex_t lock;
    char *label;
};

/* Fills *error* for the failed call *name* of the driver; sys_errno is its result. */
static pc_status
failed(pc_error *error, const char *label, const char *name, cu_result result)
{
    const char *symbol = NULL;
    const char *text = NULL;
    if (cuGetErrorName == NULL || cuGetErrorName(result, &symbol) != CU_SUCCESS) {
        symbol = NULL;
    }
    if (cuGetErrorString == NULL || cuGetErrorString(result, &text) != CU_SUCCESS) {
        text = NULL;
    }
    (void)pc_fail(error, PC_CUDA, "%s%s%s failed: CUDA error %d%s%s%s%s%s",
                  label == NULL ? "" : label, label == NULL ? "" : ": ", name, result,
                  symbol == NULL ? "" : " ", symbol == NULL ? "" : symbol,
                  text == NULL ? "" : ": ", text == NULL ? "" : text,
                  result == CU_NOT_INITIALIZED
                      ? " (a process that was forked after CUDA was used cannot use "
                        "it: start it with spawn)"
                      : "");
    error->sys_errno = result;
    return PC_CUDA;
}

pc_status
pc_cuda_use(const char *path, pc_error *error)
{
    pc_status status = PC_OK;
    pthread_mutex_lock(&driver.lock);
    if (driver.asked) {
        status = pc_fail(error, PC_BAD_ARGUMENT,
                         "cuda_driver: the driver is already in use");
    }
    else if (strlen(path) >= sizeof(driver.path)) {
        status = pc_fail(error, PC_BAD_ARGUMENT, "cuda_driver: the path is too long");
    }
    else {
        strcpy(driver.path, path);
    }
    pthread_mutex_unlock(&driver.lock);
    return status;
}

/* In the child. Another thread of the parent may have held the lock. */
static void
mark_forked(void)
{
    atomic_store(&driver.forked, driver.started);
    pthread_mutex_init(&driver.lock, NULL);
}

/* Finds the functions of an opened driver; *missing* lists the required ones that it does
   not have. */
static void
find_functions(void *handle, char *missing, size_t room)
{
    void *found = NULL; /* ISO C has no cast from it to a function */
#define FIND(name, parameters)    \
    found = dlsym(handle, #name); \
    memcpy(&(name), &found, sizeof(found));
#define NEED(name, parameters)                                         \
    if ((name) == NULL) {                                              \
        size_t length = strlen(missing);                               \
        (void)snprintf(missing + length, room - length, " %s", #name); \
    }
    REQUIRED(FIND)
    OPTIONAL(FIND)
    REQUIRED(NEED)
}

static void
open_lock_held(void)
{
    char missing[512] = "";
    const char *path = driver.path[0] == '\0' ? driver_name : driver.path;
    driver.asked = true;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* never closed */
    if (handle == NULL) {
        (void)pc_fail(
            &driver.error, PC_CUDA,
            "the CUDA driver cannot be loaded: %s; kernels for a GPU need the "
            "NVIDIA driver",
            dlerror());
        return;
    }
    find_functions(handle, missing, sizeof(missing));
    if (missing[0] != '\0') {
        (void)pc_fail(&driver.error, PC_CUDA,
                      "the CUDA driver (%s) is too old, it lacks%s: expected one for "
                      "CUDA 12.4 or newer",
                      path, missing);
        return;
    }
    if (pthread_atfork(NULL, NULL, mark_forked) != 0) {
        (void)pc_fail(&driver.error, PC_NO_MEMORY, "the CUDA driver: no memory");
    }
}

/* Opens and starts the driver unless it is running. */
static pc_status
start(pc_error *error)
{
    pc_status status = PC_OK;
    pthread_mutex_lock(&driver.lock);
    if (!driver.asked) {
        open_lock_held();
    }
    if (driver.error.status != PC_OK) {
        *error = driver.error;
        status = error->status;
    }
    else if (atomic_load(&driver.forked)) {
        status = failed(error, NULL, "cuInit", CU_NOT_INITIALIZED);
    }
    else if (!driver.started) {
        cu_result result = cuInit(0);
        driver.started = result == CU_SUCCESS;
        if (result != CU_SUCCESS) {
            status = failed(error, NULL, "cuInit", result);
        }
    }
    pthread_mutex_unlock(&driver.lock);
    return status;
}

/* The capability of the device *ordinal*. */
static pc_status
capability_of(int ordinal, pc_cuda_capability *capability, pc_error *error)
{
    cu_device device = 0;
    cu_result result = cuDeviceGet(&device, ordinal);
    if (result == CU_SUCCESS) {
        result = cuDeviceGetAttribute(&capability->major, CU_COMPUTE_CAPABILITY_MAJOR,
                                      device);
    }
    if (result == CU_SUCCESS) {
        result = cuDeviceGetAttribute(&capability->minor, CU_COMPUTE_CAPABILITY_MINOR,
                                      device);
    }
    return result == CU_SUCCESS ? PC_OK
                                : failed(error, NULL, "cuDeviceGetAttribute", result);
}

pc_status
pc_cuda_devices(pc_cuda_capability **capabilities, size_t *count, pc_error *error)
{
    int devices = 0;
    *capabilities = NULL;
    *count = 0;
    pc_status status = start(error);
    if (status != PC_OK) {
        return status == PC_CUDA && error->sys_errno == CU_NO_DEVICE ? PC_OK : status;
    }
    cu_result result = cuDeviceGetCount(&devices);
    if (result != CU_SUCCESS) {
        return failed(error, NULL, "cuDeviceGetCount", result);
    }
    pc_cuda_capability *found = pc_calloc((size_t)devices, sizeof(*found));
    if (found == NULL) {
        return pc_fail(error, PC_NO_MEMORY, "the CUDA driver: no memory");
    }
    for (int i = 0; i < devices; i++) {
        status = capability_of(i, &found[i], error);
        if (status != PC_OK) {
            pc_free(found);
            return status;
        }
    }
    *capabilities = found;
    *count = (size_t)devices;
    return PC_OK;
}

/* Refuses code that no visible device runs, or that wants more shared memory than any
   of those that could run it has. */
static pc_status
check_devices(const pc_cubin_info *info, const char *label, unsigned shared,
              pc_error *error)
{
    pc_cuda_capability *devices = NULL; /* owned */
    size_t count = 0;
    char listed[256] = "";
    bool runs = false;
    int most = 0;
    pc_status status = pc_cuda_devices(&devices, &count, error);
    for (size_t i = 0; status == PC_OK && i < count; i++) {
        size_t length = strlen(listed);
        (void)snprintf(listed + length, sizeof(listed) - length, "%s%d.%d",
                       length == 0 ? "" : ", ", devices[i].major, devices[i].minor);
        if (pc_cubin_runs_on(info, devices[i].major, devices[i].minor)) {
            cu_device device = 0;
            int limit = 0;
            cu_result result = cuDeviceGet(&device, (int)i);
            if (result == CU_SUCCESS) {
                result =
                    cuDeviceGetAttribute(&limit, CU_MAX_SHARED_MEMORY_OPTIN, device);
            }
            if (result != CU_SUCCESS) {
                status = failed(error, label, "cuDeviceGetAttribute", result);
            }
            runs = true;
            most = limit > most ? limit : most;
        }
    }
    pc_free(devices);
    if (status != PC_OK) {
        return status;
    }
    if (!runs) {
        return pc_fail(
            error, PC_CUDA,
            "%s: it is code for compute capability %u.%u%s, the devices here "
            "have %s: capture it on such a device",
            label, info->arch / 10, info->arch % 10,
            info->exact ? " exactly" : " or a later minor one",
            count == 0 ? "none" : listed);
    }
    if (shared > (unsigned)most) {
        return pc_fail(error, PC_CUDA,
                       "%s: it needs %u bytes of shared memory a block, the devices "
                       "here allow %d",
                       label, shared, most);
    }
    return PC_OK;
}

/* Compares the parameters of the kernel in the image with what will be passed. */
static pc_status
check_parameters(cu_kernel kernel, const char *label, const uint8_t *sizes,
                 size_t count, pc_error *error)
{
    size_t offset = 0;
    size_t size = 0;
    for (size_t i = 0; i <= count; i++) {
        cu_result result = cuKernelGetParamInfo(kernel, i, &offset, &size);
        if (result != CU_SUCCESS && result != CU_INVALID_VALUE) {
            return failed(error, label, "cuKernelGetParamInfo", result);
        }
        bool there = result == CU_SUCCESS;
        if (there && i == count) {
            return pc_fail(error, PC_CUDA,
                           "%s: the image has more parameters than the launch record, "
                           "%zu",
                           label, count);
        }
        if (!there && i < count) {
            return pc_fail(error, PC_CUDA,
                           "%s: the image has %zu parameters, the launch record %zu",
                           label, i, count);
        }
        if (there && size != sizes[i]) {
            return pc_fail(error, PC_CUDA,
                           "%s: parameter %zu has %zu bytes in the image, %d in the "
                           "launch record",
                           label, i, size, sizes[i]);
        }
    }
    return PC_OK;
}

/* What the driver said of an image, with the CUDA versions of both: a driver may be too old for
   it. */
static pc_status
not_loaded(pc_error *error, const char *label, const char *name, cu_result result,
           const pc_cubin_info *info)
{
    int version = 0;
    pc_status status = failed(error, label, name, result);
    if (info->toolkit > 0 && cuDriverGetVersion != NULL &&
        cuDriverGetVersion(&version) == CU_SUCCESS) {
        size_t length = strlen(error->message);
        (void)snprintf(
            error->message + length, sizeof(error->message) - length,
            "; the image was built by CUDA %u.%u, the driver is for CUDA %d.%d",
            info->toolkit / 10, info->toolkit % 10, version / 1000,
            version % 1000 / 10);
    }
    return status;
}

pc_status
pc_cuda_load(const void *image, const pc_cubin_info *info, cu_library *library,
             const char *symbol, const char *label, const uint8_t *sizes, size_t count,
             const pc_cuda_shape *shape, pc_cuda_kernel **kernel, pc_error *error)
{
    pc_cuda_kernel *made = NULL; /* owned */
    cu_result result = CU_SUCCESS;
    pc_status status = start(error);
    if (status == PC_OK) {
        status = check_devices(info, label, shape->shared, error);
    }
    if (status == PC_OK && shape->tensor_maps && cuTensorMapEncodeTiled == NULL) {
        status = pc_fail(error, PC_CUDA,
                         "%s: it takes tensor descriptors, but the CUDA driver lacks "
                         "cuTensorMapEncodeTiled: expected one for CUDA 12.0 or newer",
                         label);
    }
    if (status != PC_OK) {
        return status;
    }
    if (*library == NULL) {
        int option = CU_LIBRARY_BINARY_IS_PRESERVED;
        void *value = (void *)1;
        result = cuLibraryLoadData(library, image, NULL, NULL, 0, &option, &value, 1);
        if (result != CU_SUCCESS) {
            *library = NULL;
            return not_loaded(error, label, "cuLibraryLoadData", result, info);
        }
    }
    made = pc_calloc(1, sizeof(*made));
    if (made == NULL || (made->label = pc_strdup(label)) == NULL) {
        pc_free(made);
        return pc_fail(error, PC_NO_MEMORY, "%s: no memory", label);
    }
    made->shape = *shape;
    pthread_mutex_init(&made->lock, NULL);
    result = cuLibraryGetKernel(&made->handle, *library, symbol);
    status = result != CU_SUCCESS
                 ? not_loaded(error, label, "cuLibraryGetKernel", result, info)
                 : check_parameters(made->handle, label, sizes, count, error);
    if (status != PC_OK) {
        pc_cuda_kernel_free(made);
        return status;
    }
    *kernel = made;
    return PC_OK;
}

/* Drivers up to CUDA 13.1 set this bit of the map of a small tensor by mistake; CUTLASS and
   Triton 3.7 take it out. */
static void
mend_small_map(const pc_cuda_tensor *tensor, void *map)
{
    enum { LAST_VERSION = 13010, SMALL = 128 * 1024, WORD = 1, BIT = 21 };
    int version = 0;
    uint64_t last = 0; /* byte of the tensor, counted from 0 */
    uint64_t words[PC_CUDA_MAP_BYTES / sizeof(uint64_t)];
    if (cuDriverGetVersion == NULL || cuDriverGetVersion(&version) != CU_SUCCESS ||
        version > LAST_VERSION) {
        return;
    }
    for (unsigned i = 0; i < tensor->rank; i++) {
        uint64_t stride = i == 0 ? tensor->element_size : tensor->strides[i - 1];
        uint64_t span = 0;
        if (__builtin_mul_overflow(tensor->shape[i] - 1, stride, &span) ||
            __builtin_add_overflow(last, span, &last)) {
            return;
        }
    }
    if (last < SMALL - 1) {
        memcpy(words, map, sizeof(words));
        words[WORD] &= ~((uint64_t)1 << BIT);
        memcpy(map, words, sizeof(words));
    }
}

pc_status
pc_cuda_encode(const pc_cuda_kernel *kernel, const pc_cuda_tensor *tensor, void *map,
               pc_error *error)
{
    static const uint32_t dense[PC_CUDA_RANK] = {1, 1, 1, 1, 1};
    if (atomic_load_explicit(&driver.forked, memory_order_relaxed)) {
        return failed(error, kernel->label, "cuTensorMapEncodeTiled",
                      CU_NOT_INITIALIZED);
    }
    cu_result result = cuTensorMapEncodeTiled(
        map, tensor->type, tensor->rank, (void *)(uintptr_t)tensor->address,
        tensor->shape, tensor->strides, tensor->box, dense,
        CU_TENSOR_MAP_INTERLEAVE_NONE, tensor->swizzle, CU_TENSOR_MAP_L2_PROMOTION_128B,
        tensor->fill_nan ? CU_TENSOR_MAP_FILL_NAN : CU_TENSOR_MAP_FILL_NONE);
    if (result == CU_SUCCESS) {
        mend_small_map(tensor, map);
        return PC_OK;
    }
    pc_status status = failed(error, kernel->label, "cuTensorMapEncodeTiled", result);
    size_t used = strlen(error->message);
    used += (size_t)snprintf(
        error->message + used, sizeof(error->message) - used,
        "; address 0x%llx, type %d, swizzle %d, from the innermost "
        "dimension: size, bytes to the next, block",
        (unsigned long long)tensor->address, tensor->type, tensor->swizzle);
    for (unsigned i = 0; i < tensor->rank && used < sizeof(error->message); i++) {
        uint64_t stride = i == 0 ? tensor->element_size : tensor->strides[i - 1];
        used +=
            (size_t)snprintf(error->message + used, sizeof(error->message) - used,
                             " (%llu, %llu, %u)", (unsigned long long)tensor->shape[i],
                             (unsigned long long)stride, tensor->box[i]);
    }
    return status;
}

void
pc_cuda_kernel_free(pc_cuda_kernel *kernel)
{
    if (kernel != NULL) {
        pthread_mutex_destroy(&kernel->lock);
        pc_free(kernel->label);
        pc_free(kernel);
    }
}

/* Gives the current thread the primary context of the device *ordinal*. */
static cu_result
enter_context(int ordinal)
{
    cu_device device = 0;
    cu_context context = NULL;
    cu_result result = cuDeviceGet(&device, ordinal);
    if (result == CU_SUCCESS) {
        /* torch keeps it for the life of the process, and so do we. */
        result = cuDevicePrimaryCtxRetain(&context, device);
    }
    return result == CU_SUCCESS ? cuCtxSetCurrent(context) : result;
}

/* Sets on the current device what a launch cannot: once a device, since doing it for all
   of them at load would make contexts on devices that are never used. */
static pc_status
prepare_device(pc_cuda_kernel *kernel, pc_error *error)
{
    enum { DEFAULT_SHARED = 48 * 1024, PORTABLE_CLUSTER = 8 };
    const pc_cuda_shape *shape = &kernel->shape;
    const char *name = "cuKernelSetAttribute";
    cu_device device = 0;
    cu_result result = CU_SUCCESS;
    if (shape->shared <= DEFAULT_SHARED && shape->cluster <= PORTABLE_CLUSTER) {
        return PC_OK;
    }
    result = cuCtxGetDevice(&device);
    if (result != CU_SUCCESS) {
        return failed(error, kernel->label, "cuCtxGetDevice", result);
    }
    if (device < 0 || device >= DEVICES) {
        return pc_fail(error, PC_CUDA, "%s: device %d: expected at most %d devices",
                       kernel->label, device, DEVICES);
    }
    uint_fast64_t bit = (uint_fast64_t)1 << device;
    if (atomic_load(&kernel->prepared) & bit) {
        return PC_OK;
    }
    pthread_mutex_lock(&kernel->lock);
    if (shape->shared > DEFAULT_SHARED) {
        if (cuKernelSetCacheConfig != NULL) {
            name = "cuKernelSetCacheConfig";
            result =
                cuKernelSetCacheConfig(kernel->handle, CU_CACHE_PREFER_SHARED, device);
        }
        if (result == CU_SUCCESS) {
            name = "cuKernelSetAttribute";
            result = cuKernelSetAttribute(CU_MAX_DYNAMIC_SHARED, (int)shape->shared,
                                          kernel->handle, device);
        }
    }
    if (result == CU_SUCCESS && shape->cluster > PORTABLE_CLUSTER) {
        result =
            cuKernelSetAttribute(CU_NON_PORTABLE_CLUSTER, 1, kernel->handle, device);
    }
    if (result == CU_SUCCESS) {
        atomic_fetch_or(&kernel->prepared, bit);
    }
    pthread_mutex_unlock(&kernel->lock);
    return result == CU_SUCCESS ? PC_OK : failed(error, kernel->label, name, result);
}

/* Fills the attributes of a launch. Returns how many there are. */
static unsigned
fill_attributes(const pc_cuda_shape *shape, cu_launch_attribute attributes[4])
{
    unsigned count = 0;
    memset(attributes, 0, 4 * sizeof(*attributes));
    if (shape->programmatic_launch) {
        attributes[count].id = CU_LAUNCH_PROGRAMMATIC_STREAM;
        attributes[count++].value.number = 1;
    }
    if (shape->cooperative) {
        attributes[count].id = CU_LAUNCH_COOPERATIVE;
        attributes[count++].value.number = 1;
    }
    if (shape->cluster > 1) {
        attributes[count].id = CU_LAUNCH_CLUSTER;
        attributes[count].value.cluster.x = shape->cluster;
        attributes[count].value.cluster.y = 1;
        attributes[count++].value.cluster.z = 1;
        attributes[count].id = CU_LAUNCH_CLUSTER_SCHEDULING;
        attributes[count++].value.number = CU_CLUSTER_SCHEDULING_SPREAD;
    }
    return count;
}

pc_status
pc_cuda_launch(pc_cuda_kernel *kernel, const int64_t grid[3], uint64_t stream,
               void **parameters, int device, pc_error *error)
{
    static const int64_t limits[3] = {INT32_MAX, UINT16_MAX, UINT16_MAX};
    const pc_cuda_shape *shape = &kernel->shape;
    cu_launch_attribute attributes[4];
    pc_status status = PC_OK;
    if (atomic_load_explicit(&driver.forked, memory_order_relaxed)) {
        return failed(error, kernel->label, "cuLaunchKernelEx", CU_NOT_INITIALIZED);
    }
    for (int i = 0; i < 3; i++) {
        int64_t limit = i == 0 ? limits[i] / shape->cluster : limits[i];
        if (grid[i] > limit) {
            return pc_fail(
                error, PC_CUDA,
                "%s: the grid is %lld x %lld x %lld, its dimension %d may be "
                "at most %lld",
                kernel->label, (long long)grid[0], (long long)grid[1],
                (long long)grid[2], i, (long long)limit);
        }
    }
    cu_launch_config config = {
        .grid_x = (unsigned)grid[0] * shape->cluster,
        .grid_y = (unsigned)grid[1],
        .grid_z = (unsigned)grid[2],
        .block_x = shape->threads,
        .block_y = 1,
        .block_z = 1,
        .shared_bytes = shape->shared,
        .stream = (cu_stream)(uintptr_t)stream,
        .attributes = attributes,
        .attribute_count = fill_attributes(shape, attributes),
    };
    cu_result result = CU_INVALID_CONTEXT;
    for (int attempt = 0; attempt < 2 && result == CU_INVALID_CONTEXT; attempt++) {
        /* A thread that has used no CUDA yet has no context. */
        if (attempt > 0) {
            result = enter_context(device < 0 ? 0 : device);
            if (result != CU_SUCCESS) {
                return failed(error, kernel->label, "cuDevicePrimaryCtxRetain", result);
            }
        }
        status = prepare_device(kernel, error);
        if (status != PC_OK && attempt == 0 && error->sys_errno == CU_INVALID_CONTEXT) {
            result = CU_INVALID_CONTEXT;
            continue;
        }
        if (status != PC_OK) {
            return status;
        }
        /* The driver takes the handle of a kernel in place of a function's. */
        result = cuLaunchKernelEx(&config, (cu_function)(void *)kernel->handle,
                                  parameters, NULL);
    }
    if (result == CU_SUCCESS) {
        return PC_OK;
    }
    status = failed(error, kernel->label, "cuLaunchKernelEx", result);
    size_t length = strlen(error->message);
    (void)snprintf(error->message + length, sizeof(error->message) - length,
                   "; grid %u x %u x %u, %u threads, %u bytes of shared memory",
                   config.grid_x, config.grid_y, config.grid_z, config.block_x,
                   config.shared_bytes);
    return status;
}
