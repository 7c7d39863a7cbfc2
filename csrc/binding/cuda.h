/* What the files about CUDA share: cuda_library.c (images), cuda_launcher.c (kernels),
 * cuda_tensor.c (torch's tensors), cuda_pack.c (arguments), cuda_descriptor.c (tensor
 * descriptors).
 */
#ifndef PRECOMP_BINDING_CUDA_H
#define PRECOMP_BINDING_CUDA_H

#include "state.h"

#include "pc_cuda.h"

/* --- tensors (cuda_tensor.c) --- */

/* How the address of a tensor is found: torch's types and its DLPack exchange functions,
   as bound by torch_api. All may be NULL. */
typedef struct {
    PyObject *tensor;     /* type, owned */
    PyObject *parameter;  /* type, owned */
    PyObject *capsule;    /* owned, keeps *exchange* */
    const void *exchange; /* DLPackExchangeAPI of major version 1 */
    core_tensor_reader reader;
} core_cuda_torch;

/* Takes what is bound. Returns 0, or -1 with an exception set. */
int core_cuda_torch_init(core_cuda_torch *torch, core_state *state);
int core_cuda_torch_traverse(core_cuda_torch *torch, visitproc visit, void *arg);
void core_cuda_torch_clear(core_cuda_torch *torch);

/* Address and Triton's name of the element type of *argument* if its type is exactly one of
   torch's, on any device; *element* is NULL if only the tensor itself can tell. Returns 1,
   or 0 if it must be found otherwise. Sets no exception. */
int core_cuda_look(const core_cuda_torch *torch, PyObject *argument, uint64_t *address,
                   const char **element);

/* The address of the memory of *tensor* (borrowed), whose type is exactly one of torch's;
   *torch* has exchange functions. *device* gets the ordinal of its device. Returns 0, or -1
   with an exception set. */
int core_cuda_tensor_address(const core_cuda_torch *torch, PyObject *tensor,
                             uint64_t *slot, int *device);

/* --- arguments (cuda_pack.c) --- */

/* Bytes of a parameter with *code*, 0 if the code is not known. */
uint8_t core_cuda_size(char code);

/* Writes the parameter with *code* for *argument* (borrowed). *device* gets the ordinal of
   a tensor's device. Returns 0, or -1 with an exception set. */
int core_cuda_pack(const core_cuda_torch *torch, char code, PyObject *argument,
                   uint64_t *slot, int *device);

/* --- tensor descriptors (cuda_descriptor.c) --- */

/* What a launch record fixes of a tensor descriptor. */
typedef struct {
    bool map; /* code T; else code D, which has only *rank* and *flags* */
    int rank;
    int flags;   /* how many are passed */
    int type;    /* of the elements, as the driver numbers them */
    int rounded; /* the same for one that rounds to TF32; -1 if there are none */
    int element_size;
    int swizzle;
    unsigned scale;  /* elements in the map for one of the innermost dimension */
    unsigned passed; /* the same in the shape that is passed */
    uint32_t box[PC_CUDA_RANK]; /* from the innermost dimension */
} core_cuda_descriptor;

enum { CORE_CUDA_DESCRIPTOR_PARAMETERS = 1 + 4 * PC_CUDA_RANK + 2 }; /* at most */

/* Reads its *row* (borrowed) of a launch record. Returns 0, or -1 with an exception set. */
int core_cuda_descriptor_take(char code, PyObject *row, core_cuda_descriptor *out);

/* Writes the bytes of each parameter. Returns how many there are. */
size_t core_cuda_descriptor_sizes(const core_cuda_descriptor *descriptor,
                                  uint8_t *sizes);

/* Packs the parameters of the descriptor *argument* (borrowed) into *slots*, a tensor map
   into *map*, and points *pointers* at each. *device* as core_cuda_pack. Returns how many
   there are, or -1 with an exception set. */
int core_cuda_descriptor_pack(core_state *state, const core_cuda_torch *torch,
                              const pc_cuda_kernel *kernel,
                              const core_cuda_descriptor *descriptor,
                              PyObject *argument, void *map, uint64_t *slots,
                              void **pointers, int *device);

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
