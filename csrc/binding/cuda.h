/* What the files about CUDA share: cuda_library.c (images), cuda_launcher.c (kernels),
 * cuda_pack.c (arguments).
 */
#ifndef PRECOMP_BINDING_CUDA_H
#define PRECOMP_BINDING_CUDA_H

#include "state.h"

#include "pc_cuda.h"

/* --- arguments (cuda_pack.c) --- */

/* How the address of a tensor is found: torch's types and its DLPack exchange functions,
   as bound by torch_api. All may be NULL. */
typedef struct {
    PyObject *tensor;     /* type, owned */
    PyObject *parameter;  /* type, owned */
    PyObject *capsule;    /* owned, keeps *exchange* */
    const void *exchange; /* DLPackExchangeAPI of major version 1 */
} core_cuda_torch;

/* Bytes of a parameter with *code*, 0 if the code is not known. */
uint8_t core_cuda_size(char code);

/* Takes what is bound. Returns 0, or -1 with an exception set. */
int core_cuda_torch_init(core_cuda_torch *torch, core_state *state);
int core_cuda_torch_traverse(core_cuda_torch *torch, visitproc visit, void *arg);
void core_cuda_torch_clear(core_cuda_torch *torch);

/* Writes the parameter with *code* for *argument* (borrowed). *device* gets the ordinal of
   a tensor's device. Returns 0, or -1 with an exception set. */
int core_cuda_pack(const core_cuda_torch *torch, char code, PyObject *argument,
                   uint64_t *slot, int *device);

/* Address and Triton's name of the element type of *argument* if its type is exactly one of
   torch's, on any device; *element* is NULL if only the tensor itself can tell. Returns 1,
   or 0 if it must be found otherwise. Sets no exception. */
int core_cuda_look(const core_cuda_torch *torch, PyObject *argument, uint64_t *address,
                   const char **element);

/* Gives the pending exception the name of the kernel and the position of the argument. */
void core_cuda_explain(const char *label, Py_ssize_t position);

/* --- images (cuda_library.c) --- */

/* Loads the kernel *symbol* of *library* (borrowed, a CudaLibrary) and compares its
   parameters. Releases the GIL. Returns it, or NULL with an exception set. */
pc_cuda_kernel *core_cuda_library_kernel(core_state *state, PyObject *library,
                                         unsigned arch, const char *symbol,
                                         const char *label, const uint8_t *sizes,
                                         size_t count, const pc_cuda_shape *shape);

/* Label of *library* (borrowed): borrowed str. */
PyObject *core_cuda_library_label(PyObject *library);

int core_add_cuda_launcher(PyObject *module);

#endif
