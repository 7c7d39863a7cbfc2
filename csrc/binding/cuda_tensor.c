/* Where the memory of torch's tensors is, read in C. */
#include "cuda.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

/* DLPack's exchange functions (dlpack.h, version 1). */
typedef struct {
    int32_t type;
    int32_t id;
} dl_device;

typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    uint8_t type_code;
    uint8_t type_bits;
    uint16_t type_lanes;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct {
    uint32_t major;
    uint32_t minor;
    void *previous;
    void *allocate;
    void *managed_from;
    void *managed_to;
    int (*tensor_from)(void *object, dl_tensor *tensor); /* or NULL */
    int (*current_stream)(int32_t type, int32_t id, void **stream);
} dl_exchange;

enum { DL_CPU = 1, DL_CUDA = 2 };

/* New reference to the bound name, or NULL without an exception if it is not bound. */
static PyObject *
bound(core_state *state, const char *name)
{
    return Py_XNewRef(PyDict_GetItemString(state->torch, name));
}

/* Where *tensor* holds *pointer*, in bytes from its start; 0 if nowhere near it. */
static ptrdiff_t
offset_of(PyObject *tensor, const void *pointer)
{
    enum { SEARCHED = 64 }; /* bytes */
    const void *word = NULL;
    ptrdiff_t size = (ptrdiff_t)Py_TYPE(tensor)->tp_basicsize;
    ptrdiff_t end = size < SEARCHED ? size : SEARCHED;
    ptrdiff_t offset = (ptrdiff_t)sizeof(PyObject);
    for (; offset + (ptrdiff_t)sizeof(word) <= end; offset += (ptrdiff_t)sizeof(word)) {
        memcpy(&word, (const char *)tensor + offset, sizeof(word));
        if (word == pointer) {
            return offset;
        }
    }
    return 0;
}

bool
core_read_tensors_like(core_state *state, PyObject *example, const void *pointer)
{
    core_tensor_reader reader = {0};
    int32_t (*cuda)(void) = NULL;
    void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD); /* owned */
    if (library != NULL) {
        *(void **)&reader.data_ptr = dlsym(library, "aoti_torch_get_data_ptr");
        *(void **)&reader.device_type = dlsym(library, "aoti_torch_get_device_type");
        *(void **)&reader.device_index = dlsym(library, "aoti_torch_get_device_index");
        *(void **)&cuda = dlsym(library, "aoti_torch_device_type_cuda");
        (void)dlclose(library); /* torch has it open */
    }
    if (reader.data_ptr != NULL && reader.device_type != NULL &&
        reader.device_index != NULL && cuda != NULL) {
        reader.cuda = cuda();
        reader.offset = offset_of(example, pointer);
    }
    state->tensor_reader = reader;
    return reader.offset != 0;
}

int
core_cuda_torch_init(core_cuda_torch *torch, core_state *state)
{
    torch->tensor = bound(state, "Tensor");
    torch->parameter = bound(state, "Parameter");
    torch->capsule = bound(state, "dlpack_exchange");
    torch->exchange = NULL;
    if (torch->capsule != NULL) {
        const dl_exchange *exchange =
            PyCapsule_GetPointer(torch->capsule, "dlpack_exchange_api");
        if (exchange == NULL) {
            return -1;
        }
        if (exchange->major == 1 && exchange->tensor_from != NULL) {
            torch->exchange = exchange;
        }
    }
    torch->reader = state->tensor_reader;
    return 0;
}

int
core_cuda_torch_traverse(core_cuda_torch *torch, visitproc visit, void *arg)
{
    Py_VISIT(torch->tensor);
    Py_VISIT(torch->parameter);
    Py_VISIT(torch->capsule);
    return 0;
}

void
core_cuda_torch_clear(core_cuda_torch *torch)
{
    torch->exchange = NULL;
    Py_CLEAR(torch->tensor);
    Py_CLEAR(torch->parameter);
    Py_CLEAR(torch->capsule);
}

/* Triton's names of the element types of DLPack (DLDataTypeCode). */
static const struct {
    uint8_t code;
    uint8_t bits;
    const char *name;
} elements[] = {
    {0, 8, "i8"},    {0, 16, "i16"},  {0, 32, "i32"}, {0, 64, "i64"},  {1, 8, "u8"},
    {1, 16, "u16"},  {1, 32, "u32"},  {1, 64, "u64"}, {2, 16, "fp16"}, {2, 32, "fp32"},
    {2, 64, "fp64"}, {4, 16, "bf16"}, {6, 8, "u1"},
};

int
core_cuda_look(const core_cuda_torch *torch, PyObject *argument, uint64_t *address,
               const char **element)
{
    dl_tensor view;
    const dl_exchange *exchange = torch->exchange;
    PyObject *type = (PyObject *)Py_TYPE(argument);
    if (exchange == NULL || (type != torch->tensor && type != torch->parameter)) {
        return 0;
    }
    if (exchange->tensor_from(argument, &view) != 0) {
        PyErr_Clear();
        return 0;
    }
    *address = (uint64_t)(uintptr_t)view.data + view.byte_offset;
    *element = NULL;
    for (size_t i = 0; i < sizeof(elements) / sizeof(*elements); i++) {
        if (view.type_lanes == 1 && elements[i].code == view.type_code &&
            elements[i].bits == view.type_bits) {
            *element = elements[i].name;
        }
    }
    return 1;
}

/* The same through the functions of a compiled torch, ten times as fast. Returns 0, or -1
   without an exception if they cannot tell. */
static int
address_by_handle(const core_tensor_reader *reader, PyObject *tensor, uint64_t *slot,
                  int *device)
{
    void *handle = (char *)tensor + reader->offset;
    void *data = NULL;
    int32_t type = 0;
    int32_t index = 0;
    if (reader->device_type(handle, &type) != 0 || type != reader->cuda ||
        reader->device_index(handle, &index) != 0 ||
        reader->data_ptr(handle, &data) != 0) {
        return -1;
    }
    *device = index;
    *slot = (uint64_t)(uintptr_t)data;
    return 0;
}

int
core_cuda_tensor_address(const core_cuda_torch *torch, PyObject *tensor, uint64_t *slot,
                         int *device)
{
    dl_tensor view;
    const dl_exchange *exchange = torch->exchange;
    if (torch->reader.offset != 0 &&
        address_by_handle(&torch->reader, tensor, slot, device) == 0) {
        return 0;
    }
    if (exchange->tensor_from(tensor, &view) != 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "the tensor has no address");
        }
        return -1;
    }
    if (view.device.type == DL_CPU && view.data != NULL) {
        PyErr_SetString(PyExc_ValueError,
                        "expected a tensor on a GPU, found one on cpu");
        return -1;
    }
    if (view.device.type == DL_CUDA) {
        *device = view.device.id;
    }
    *slot = (uint64_t)(uintptr_t)view.data + view.byte_offset;
    return 0;
}
