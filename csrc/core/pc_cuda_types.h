/* The part of the CUDA driver's interface that precomp uses: types and constants whose
 * layout and values are fixed for all driver versions (cuda.h, CUDA driver API).
 */
#ifndef PRECOMP_PC_CUDA_TYPES_H
#define PRECOMP_PC_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef struct CUctx_st *cu_context;
typedef struct CUlib_st *cu_library;
typedef struct CUkern_st *cu_kernel;
typedef struct CUfunc_st *cu_function;
typedef struct CUstream_st *cu_stream;

enum {
    CU_SUCCESS = 0,
    CU_INVALID_VALUE = 1,
    CU_NOT_INITIALIZED = 3,
    CU_NO_DEVICE = 100,
    CU_INVALID_CONTEXT = 201,
};

enum { /* CUdevice_attribute */
       CU_COMPUTE_CAPABILITY_MAJOR = 75,
       CU_COMPUTE_CAPABILITY_MINOR = 76,
       CU_MAX_SHARED_MEMORY_OPTIN = 97,
};

enum { /* CUfunction_attribute */
       CU_MAX_DYNAMIC_SHARED = 8,
       CU_NON_PORTABLE_CLUSTER = 14,
};

enum { CU_CACHE_PREFER_SHARED = 1 };         /* CUfunc_cache */
enum { CU_LIBRARY_BINARY_IS_PRESERVED = 1 }; /* CUlibraryOption */

enum { /* CUlaunchAttributeID */
       CU_LAUNCH_COOPERATIVE = 2,
       CU_LAUNCH_CLUSTER = 4,
       CU_LAUNCH_CLUSTER_SCHEDULING = 5,
       CU_LAUNCH_PROGRAMMATIC_STREAM = 6,
};

enum { CU_CLUSTER_SCHEDULING_SPREAD = 1 };

enum { /* arguments of cuTensorMapEncodeTiled */
       CU_TENSOR_MAP_INTERLEAVE_NONE = 0,
       CU_TENSOR_MAP_L2_PROMOTION_128B = 2,
       CU_TENSOR_MAP_FILL_NONE = 0,
       CU_TENSOR_MAP_FILL_NAN = 1,
};

typedef struct {
    int id;
    char padding[4];
    union {
        char padding[64];
        int number;
        struct {
            unsigned x, y, z;
        } cluster;
    } value;
} cu_launch_attribute;

typedef struct {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    cu_stream stream;
    cu_launch_attribute *attributes;
    unsigned attribute_count;
} cu_launch_config;

#endif
