/* Packs Python arguments into kernel parameters, bit for bit as Triton does. */
#include "cuda.h"

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

uint8_t
core_cuda_size(char code)
{
    switch (code) {
        case 'b':
        case 'B':
            return 1;
        case 'h':
        case 'H':
        case 'e':
        case 'y':
            return 2;
        case 'i':
        case 'I':
        case 'f':
            return 4;
        case 'l':
        case 'K':
        case 'd':
        case 'P':
            return 8;
        default:
            return 0;
    }
}

/* New reference to the bound name, or NULL without an exception if it is not bound. */
static PyObject *
bound(core_state *state, const char *name)
{
    return Py_XNewRef(PyDict_GetItemString(state->torch, name));
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

/* The address of the memory of *tensor*, whose type is exactly torch's. */
static int
tensor_address(const core_cuda_torch *torch, PyObject *tensor, uint64_t *slot,
               int *device)
{
    dl_tensor view;
    const dl_exchange *exchange = torch->exchange;
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

/* The address that *argument* stands for: a tensor, an object with data_ptr(), an int, or
   None for a null pointer. */
static int
address(const core_cuda_torch *torch, PyObject *argument, uint64_t *slot, int *device)
{
    PyObject *type = (PyObject *)Py_TYPE(argument);
    PyObject *value = NULL;
    int result = -1;
    if (torch->exchange != NULL &&
        (type == torch->tensor || type == torch->parameter)) {
        return tensor_address(torch, argument, slot, device);
    }
    if (argument == Py_None) {
        *slot = 0;
        return 0;
    }
    if (PyLong_Check(argument)) {
        value = Py_NewRef(argument);
    }
    else {
        value = PyObject_CallMethod(argument, "data_ptr", NULL);
        if (value == NULL) {
            if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
                PyErr_Format(PyExc_TypeError,
                             "expected a tensor, an address or None, found %.100s",
                             Py_TYPE(argument)->tp_name);
            }
            return -1;
        }
    }
    *slot = PyLong_AsUnsignedLongLong(value);
    result = *slot == UINT64_MAX && PyErr_Occurred() ? -1 : 0;
    Py_DECREF(value);
    return result;
}

/* A signed integer of *bits* bits. */
static int
pack_signed(PyObject *argument, int bits, uint64_t *slot)
{
    long long value = PyLong_AsLongLong(argument);
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    long long limit = INT64_MAX >> (64 - bits);
    if (value > limit || value < -limit - 1) {
        PyErr_Format(PyExc_OverflowError,
                     "%lld does not fit a signed integer of %d bits", value, bits);
        return -1;
    }
    *slot = (uint64_t)value;
    return 0;
}

/* An unsigned integer of *bits* bits. */
static int
pack_unsigned(PyObject *argument, int bits, uint64_t *slot)
{
    PyObject *integer = PyNumber_Index(argument);
    if (integer == NULL) {
        return -1;
    }
    unsigned long long value = PyLong_AsUnsignedLongLong(integer);
    Py_DECREF(integer);
    if (value == UINT64_MAX && PyErr_Occurred()) {
        return -1;
    }
    if (bits < 64 && value >> bits != 0) {
        PyErr_Format(PyExc_OverflowError,
                     "%llu does not fit an unsigned integer of %d bits", value, bits);
        return -1;
    }
    *slot = value;
    return 0;
}

/* A floating-point number. bfloat16 is float cut off, as Triton's launcher does. */
static int
pack_real(PyObject *argument, char code, uint64_t *slot)
{
    double value = PyFloat_AsDouble(argument);
    float single = (float)value;
    uint32_t word = 0;
    if (value == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    *slot = 0;
    switch (code) {
        case 'd':
            memcpy(slot, &value, sizeof(value));
            return 0;
        case 'e':
#if PY_VERSION_HEX >= 0x030B0000
            return PyFloat_Pack2(value, (char *)slot, 1);
#else
            return _PyFloat_Pack2(value, (unsigned char *)slot, 1);
#endif
        case 'y':
            memcpy(&word, &single, sizeof(word));
            *slot = word >> 16;
            return 0;
        default:
            memcpy(slot, &single, sizeof(single));
            return 0;
    }
}

int
core_cuda_pack(const core_cuda_torch *torch, char code, PyObject *argument,
               uint64_t *slot, int *device)
{
    switch (code) {
        case 'P':
            return address(torch, argument, slot, device);
        case 'b':
            return pack_signed(argument, 8, slot);
        case 'h':
            return pack_signed(argument, 16, slot);
        case 'i':
            return pack_signed(argument, 32, slot);
        case 'l':
            return pack_signed(argument, 64, slot);
        case 'B':
            return pack_unsigned(argument, 8, slot);
        case 'H':
            return pack_unsigned(argument, 16, slot);
        case 'I':
            return pack_unsigned(argument, 32, slot);
        case 'K':
            return pack_unsigned(argument, 64, slot);
        default:
            return pack_real(argument, code, slot);
    }
}

void
core_cuda_explain(const char *label, Py_ssize_t position)
{
    PyObject *type = NULL; /* owned, as the next two */
    PyObject *value = NULL;
    PyObject *traceback = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    if (type == PyExc_TypeError || type == PyExc_ValueError ||
        type == PyExc_OverflowError) {
        PyErr_NormalizeException(&type, &value, &traceback);
        PyErr_Format(type, "%s: argument %zd: %S", label, position, value);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    }
    else {
        PyErr_Restore(type, value, traceback);
    }
}
