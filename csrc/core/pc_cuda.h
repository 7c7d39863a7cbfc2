/* The CUDA driver: opened when it is first needed, by its soname alone, and kernels
 * that are loaded into it. The only place that sees libcuda.
 *
 * A library is one image for all devices; it stays loaded for the life of the process,
 * since its kernels may be running or recorded in a graph.
 */
#ifndef PRECOMP_PC_CUDA_H
#define PRECOMP_PC_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pc_cubin.h"
#include "pc_cuda_types.h"
#include "pc_error.h"

/* For tests: uses *path* in place of the driver's soname. PC_BAD_ARGUMENT once the driver
   has been asked for. */
pc_status pc_cuda_use(const char *path, pc_error *error);

typedef struct {
    int major;
    int minor;
} pc_cuda_capability;

/* Sets *capabilities* (pc_free) to those of all visible devices, by ordinal. Makes no
   context. PC_CUDA without a driver; no device is not an error. */
pc_status pc_cuda_devices(pc_cuda_capability **capabilities, size_t *count,
                          pc_error *error);

/* How a kernel is launched, apart from its grid and arguments. */
typedef struct {
    unsigned threads; /* of a block */
    unsigned shared;  /* bytes of dynamic shared memory */
    unsigned cluster; /* blocks of a cluster, 1 for none */
    bool programmatic_launch;
    bool cooperative;
    bool tensor_maps; /* among its parameters */
} pc_cuda_shape;

typedef struct pc_cuda_kernel pc_cuda_kernel;

/* Loads the image, unless *library* has been set by an earlier call, finds *symbol* and
   compares its parameters with *sizes* (bytes of each, in order). *image* was checked
   (*info* is its description) and must live and stay unchanged for the life of the
   process. *label* names the kernel in errors, also later: it is copied. Serialised by
   the caller for one *library*. *kernel* is to be released with pc_cuda_kernel_free. */
pc_status pc_cuda_load(const void *image, const pc_cubin_info *info,
                       cu_library *library, const char *symbol, const char *label,
                       const uint8_t *sizes, size_t count, const pc_cuda_shape *shape,
                       pc_cuda_kernel **kernel, pc_error *error);

enum { PC_CUDA_RANK = 5, PC_CUDA_MAP_BYTES = 128, PC_CUDA_MAP_ALIGNMENT = 64 };

/* What a tensor map describes: a tensor, and the boxes of it that a kernel moves. Dimensions
   from the innermost one. */
typedef struct {
    int type; /* CUtensorMapDataType */
    int swizzle;
    bool fill_nan; /* outside the tensor */
    unsigned rank; /* 1 to PC_CUDA_RANK */
    unsigned element_size;
    uint64_t address;
    uint64_t shape[PC_CUDA_RANK];
    uint64_t strides[PC_CUDA_RANK]; /* bytes, from the second dimension on */
    uint32_t box[PC_CUDA_RANK];
} pc_cuda_tensor;

/* Writes the tensor map, of PC_CUDA_MAP_BYTES, for a kernel with tensor maps. Needs no
   context. Thread-safe. */
pc_status pc_cuda_encode(const pc_cuda_kernel *kernel, const pc_cuda_tensor *tensor,
                         void *map, pc_error *error);

/* Accepts NULL. Leaves the code in the driver. */
void pc_cuda_kernel_free(pc_cuda_kernel *kernel);

/* Launches on *stream* with *parameters*, one pointer to each. *grid* counts programs: with
   clusters the driver gets grid[0] times their size. *device* is the ordinal that gets its
   primary context in a thread that has none, or -1 if it is not known. Thread-safe. */
pc_status pc_cuda_launch(pc_cuda_kernel *kernel, const int64_t grid[3], uint64_t stream,
                         void **parameters, int device, pc_error *error);

#endif
