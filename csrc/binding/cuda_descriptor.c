/* Tensor descriptors among the arguments of a launch: objects with base, shape, strides and
 * padding, as triton.tools.tensor_descriptor has them. Each becomes a run of parameters,
 * like in Triton's own launcher: code T the tensor map, shape and strides; code D, for
 * devices without tensor maps, the base, shape, strides, flags, shape and strides.
 */
#include "cuda.h"

#include <string.h>

enum { MOST_FLAGS = 2 }; /* padding with NaN; rounding to TF32 */

/* --- the launch record --- */

static int
take_block(PyObject *block, core_cuda_descriptor *out)
{
    Py_ssize_t rank = PyTuple_GET_SIZE(block);
    for (Py_ssize_t i = 0; i < rank && rank <= PC_CUDA_RANK; i++) {
        unsigned long size = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(block, i));
        if (size == (unsigned long)-1 && PyErr_Occurred()) {
            return -1;
        }
        out->box[rank - 1 - i] = (uint32_t)size;
    }
    out->rank = (int)rank;
    return 0;
}

int
core_cuda_descriptor_take(char code, PyObject *row, core_cuda_descriptor *out)
{
    PyObject *block = NULL; /* borrowed */
    *out = (core_cuda_descriptor){.map = code == 'T', .scale = 1, .passed = 1};
    if (!PyTuple_Check(row)) {
        PyErr_SetString(PyExc_ValueError,
                        "launch record: 'tensormaps': expected a tuple of tuples");
        return -1;
    }
    bool right =
        out->map ? PyArg_ParseTuple(row, "iiiO!iII:tensormaps", &out->type,
                                    &out->rounded, &out->element_size, &PyTuple_Type,
                                    &block, &out->swizzle, &out->scale, &out->passed) &&
                       take_block(block, out) == 0
                 : PyArg_ParseTuple(row, "ii:tensormaps", &out->rank, &out->flags);
    if (!right) {
        return -1;
    }
    if (out->rank < 1 || out->rank > PC_CUDA_RANK || out->flags < 0 ||
        out->flags > MOST_FLAGS || (out->map && out->element_size < 1)) {
        PyErr_Format(
            PyExc_ValueError,
            "launch record: 'tensormaps': %d dimensions, %d flags, elements of "
            "%d bytes",
            out->rank, out->flags, out->element_size);
        return -1;
    }
    return 0;
}

size_t
core_cuda_descriptor_sizes(const core_cuda_descriptor *descriptor, uint8_t *sizes)
{
    size_t rank = (size_t)descriptor->rank;
    size_t count = 0;
    sizes[count++] = descriptor->map ? PC_CUDA_MAP_BYTES : sizeof(uint64_t);
    if (!descriptor->map) {
        memset(sizes + count, sizeof(int64_t), 2 * rank);
        memset(sizes + count + 2 * rank, 1, (size_t)descriptor->flags);
        count += 2 * rank + (size_t)descriptor->flags;
    }
    memset(sizes + count, sizeof(int32_t), rank);
    memset(sizes + count + rank, sizeof(int64_t), rank);
    return count + 2 * rank;
}

/* --- a launch --- */

/* What a descriptor says, from the outermost dimension. */
typedef struct {
    uint64_t address;
    int64_t shape[PC_CUDA_RANK];
    int64_t strides[PC_CUDA_RANK]; /* elements */
    bool nan;
    bool rounds;
} description;

/* Reads the sequence *name* of the descriptor. */
static int
read_numbers(PyObject *argument, const char *name, int rank, int64_t *out)
{
    PyObject *value = PyObject_GetAttrString(argument, name);
    PyObject *items =
        value == NULL ? NULL
                      : PySequence_Fast(value, "shape and strides must be sequences");
    int result = items == NULL ? -1 : 0;
    if (result == 0 && PySequence_Fast_GET_SIZE(items) != rank) {
        PyErr_Format(PyExc_ValueError, "expected a %s of %d dimensions, found %zd",
                     name, rank, PySequence_Fast_GET_SIZE(items));
        result = -1;
    }
    for (int i = 0; result == 0 && i < rank; i++) {
        out[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(items, i));
        if (out[i] == -1 && PyErr_Occurred()) {
            result = -1;
        }
    }
    Py_XDECREF(value);
    Py_XDECREF(items);
    return result;
}

static int
read_base(const core_cuda_torch *torch, PyObject *argument, uint64_t *address,
          int *device)
{
    PyObject *base = PyObject_GetAttrString(argument, "base");
    if (base == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Format(PyExc_TypeError, "expected a tensor descriptor, found %.100s",
                     Py_TYPE(argument)->tp_name);
    }
    int result = base == NULL ? -1 : core_cuda_pack(torch, 'P', base, address, device);
    Py_XDECREF(base);
    return result;
}

static int
read_descriptor(const core_cuda_torch *torch, const core_cuda_descriptor *descriptor,
                PyObject *argument, description *out, int *device)
{
    int rank = descriptor->rank;
    PyObject *padding = NULL;
    if (read_base(torch, argument, &out->address, device) < 0 ||
        read_numbers(argument, "shape", rank, out->shape) < 0 ||
        read_numbers(argument, "strides", rank, out->strides) < 0 ||
        (padding = PyObject_GetAttrString(argument, "padding")) == NULL) {
        return -1;
    }
    out->nan = PyUnicode_Check(padding) &&
               PyUnicode_CompareWithASCIIString(padding, "nan") == 0;
    Py_DECREF(padding);
    out->rounds = false;
    if (descriptor->map ? descriptor->rounded >= 0 : descriptor->flags > 1) {
        PyObject *rounds = PyObject_GetAttrString(argument, "round_f32_to_tf32");
        int truth = rounds == NULL ? -1 : PyObject_IsTrue(rounds);
        Py_XDECREF(rounds);
        if (truth < 0) {
            return -1;
        }
        out->rounds = truth != 0;
    }
    for (int i = 0; i < rank; i++) {
        int64_t size = out->shape[i] * (i == rank - 1 ? descriptor->passed : 1);
        if (size < 0 || size > INT32_MAX) {
            PyErr_Format(
                PyExc_OverflowError,
                "dimension %d of its shape does not fit an integer of 32 bits: "
                "%lld",
                i, (long long)out->shape[i]);
            return -1;
        }
    }
    if (descriptor->map && out->strides[rank - 1] != 1) {
        PyErr_Format(PyExc_ValueError, "its last stride is %lld, expected 1",
                     (long long)out->strides[rank - 1]);
        return -1;
    }
    return 0;
}

/* Encodes the tensor map. */
static int
encode(core_state *state, const pc_cuda_kernel *kernel,
       const core_cuda_descriptor *descriptor, const description *found, void *map)
{
    int rank = descriptor->rank;
    pc_error error;
    pc_cuda_tensor tensor = {
        .type = found->rounds ? descriptor->rounded : descriptor->type,
        .swizzle = descriptor->swizzle,
        .fill_nan = found->nan,
        .rank = (unsigned)rank,
        .element_size = (unsigned)descriptor->element_size,
        .address = found->address,
    };
    for (int i = 0; i < rank; i++) {
        int at = rank - 1 - i;
        tensor.shape[i] = (uint64_t)found->shape[at] * (i == 0 ? descriptor->scale : 1);
        tensor.box[i] = descriptor->box[i];
        if (i > 0 &&
            __builtin_mul_overflow((uint64_t)found->strides[at], tensor.element_size,
                                   &tensor.strides[i - 1])) {
            PyErr_Format(PyExc_OverflowError, "stride %d does not fit 64 bits", at);
            return -1;
        }
    }
    if (pc_cuda_encode(kernel, &tensor, map, &error) != PC_OK) {
        (void)core_raise(state, &error);
        return -1;
    }
    return 0;
}

int
core_cuda_descriptor_pack(core_state *state, const core_cuda_torch *torch,
                          const pc_cuda_kernel *kernel,
                          const core_cuda_descriptor *descriptor, PyObject *argument,
                          void *map, uint64_t *slots, void **pointers, int *device)
{
    int rank = descriptor->rank;
    int count = 0;
    description found;
    if (read_descriptor(torch, descriptor, argument, &found, device) < 0) {
        return -1;
    }
    if (descriptor->map) {
        if (encode(state, kernel, descriptor, &found, map) < 0) {
            return -1;
        }
        pointers[count++] = map;
    }
    else {
        slots[count++] = found.address;
        for (int i = 0; i < 2 * rank; i++) {
            slots[count++] =
                (uint64_t)(i < rank ? found.shape[i] : found.strides[i - rank]);
        }
        for (int i = 0; i < descriptor->flags; i++) {
            slots[count++] = i == 0 ? found.nan : found.rounds;
        }
    }
    for (int i = 0; i < rank; i++) {
        unsigned factor = i == rank - 1 ? descriptor->passed : 1;
        slots[count++] = (uint64_t)found.shape[i] * factor;
    }
    for (int i = 0; i < rank; i++) {
        slots[count++] = (uint64_t)found.strides[i];
    }
    for (int i = descriptor->map ? 1 : 0; i < count; i++) {
        pointers[i] = &slots[i];
    }
    return count;
}
