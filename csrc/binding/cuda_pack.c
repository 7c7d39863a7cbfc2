/* Packs Python arguments into kernel parameters, bit for bit as Triton does. */
#include "cuda.h"

#include <string.h>

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
        return core_cuda_tensor_address(torch, argument, slot, device);
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
