/* The places from which libtorch_cuda calls NVRTC and hands images to the driver, and
 * pointers of ours in them.
 *
 * torch calls NVRTC and the driver through one table of function pointers,
 * at::cuda::detail::lazyNVRTC (aten/src/ATen/cuda/detail/LazyNVRTC.cpp). Each field
 * starts as a small function that resolves the real one by its name, writes it into the
 * field and calls it. The table has no exported symbol. It is found by what these small
 * functions are: code that is entered in the library's list of relocations for the
 * field, loads the name and stores into the very same field. Calls that libtorch_cuda
 * makes to libnvrtc directly (cuDNN's front end) go through its import table, by name.
 */
#ifndef PRECOMP_PC_NVRTC_H
#define PRECOMP_PC_NVRTC_H

#include <stdbool.h>

#include "pc_error.h"

typedef enum {
    PC_NVRTC_CREATE = 0,   /* nvrtcCreateProgram */
    PC_NVRTC_COMPILE,      /* nvrtcCompileProgram */
    PC_NVRTC_ERROR_STRING, /* nvrtcGetErrorString */
    PC_CU_MODULE_LOAD,     /* cuModuleLoadData */
    PC_CU_MODULE_LOAD_EX,  /* cuModuleLoadDataEx */
    PC_CU_LINK_ADD,        /* cuLinkAddData */
    PC_CU_ERROR_STRING,    /* cuGetErrorString */
    PC_NVRTC_CALLS,        /* how many there are */
} pc_nvrtc_call;

typedef void (*pc_function)(void); /* a function of any type */

/* Looks for libtorch_cuda unless it has been found. PC_OK: *found says whether it is
   loaded; PC_BAD_VERSION: it is, but its table is not where and what we know, and
   *error says what is different. Thread-safe. */
pc_status pc_nvrtc_find(bool *found, pc_error *error);

/* Puts *ours* (PC_NVRTC_CALLS functions of the real ones' types) into the places that
   were found, or takes them out again. What torch finds there then is what it would have
   found without us. Does nothing when nothing was found. Thread-safe. */
void pc_nvrtc_install(const pc_function *ours);
void pc_nvrtc_remove(void);

/* The function behind *call*: torch's resolver or the real one. Never NULL while one of
   our functions can be called. */
pc_function pc_nvrtc_real(pc_nvrtc_call call);

/* After a call of the function behind: a resolver has written over our function. */
void pc_nvrtc_refresh(void);

#endif
