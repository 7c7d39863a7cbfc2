/* How Triton specialises arguments, as text: what native_specialize_impl of libtriton and
 * the binder of triton.runtime.jit answer for them, without asking Triton.
 */
#include "triton.h"

#include <stdio.h>
#include <string.h>

enum { ALIGNMENT = 16 }; /* bytes, or the divisor of an int */

/* The second half of a specialisation. */
typedef enum { KEY_NONE, KEY_EMPTY, KEY_ALIGNED, KEY_ONE } key_kind;

typedef struct {
    PyObject *type; /* borrowed: Triton's name of the type; NULL if *plain* has it */
    const char *plain;
    bool pointer;
    bool constant;   /* the argument is a constant of the kernel; the rest is not set */
    bool descriptor; /* a tensor descriptor, likewise */
    key_kind key;
} word;

/* --- text --- */

void
core_triton_text_init(core_triton_text *text)
{
    text->at = text->own;
    text->length = 0;
    text->room = sizeof(text->own);
}

void
core_triton_text_free(core_triton_text *text)
{
    if (text->at != text->own) {
        PyMem_Free(text->at);
    }
}

int
core_triton_put(core_triton_text *text, const char *bytes, size_t length)
{
    if (length > text->room - text->length) {
        size_t room = 2 * (text->length + length);
        char *grown = PyMem_Malloc(room);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        memcpy(grown, text->at, text->length);
        core_triton_text_free(text);
        text->at = grown;
        text->room = room;
    }
    memcpy(text->at + text->length, bytes, length);
    text->length += length;
    return 0;
}

static int
put(core_triton_text *text, const char *bytes)
{
    return core_triton_put(text, bytes, strlen(bytes));
}

/* Appends a str (borrowed). */
static int
put_str(core_triton_text *text, PyObject *value)
{
    Py_ssize_t length = 0;
    const char *bytes = PyUnicode_AsUTF8AndSize(value, &length);
    return bytes == NULL ? -1 : core_triton_put(text, bytes, (size_t)length);
}

/* Appends *tag*, the length of a str (borrowed) and the str. */
static int
put_counted(core_triton_text *text, char tag, PyObject *value)
{
    char head[32];
    Py_ssize_t length = 0;
    const char *bytes = PyUnicode_AsUTF8AndSize(value, &length);
    if (bytes == NULL) {
        return -1;
    }
    (void)snprintf(head, sizeof(head), "%c%zd:", tag, length);
    return put(text, head) < 0 ? -1 : core_triton_put(text, bytes, (size_t)length);
}

/* --- constants --- */

static int
put_int(core_triton_text *text, PyObject *value)
{
    char digits[32];
    int overflow = 0;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow == 0) {
        (void)snprintf(digits, sizeof(digits), "i%lld", number);
        return put(text, digits);
    }
    PyObject *large = PyObject_Str(value);
    int result = large == NULL || put(text, "i") < 0 ? -1 : put_str(text, large);
    Py_XDECREF(large);
    return result;
}

static int
put_float(core_triton_text *text, double value)
{
    char *digits = PyOS_double_to_string(value, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
    if (digits == NULL) {
        return -1;
    }
    int result = put(text, "f") < 0 ? -1 : put(text, digits);
    PyMem_Free(digits);
    return result;
}

/* Begins a tuple: the name of its type, unless it is a plain one, and "(". */
static int
open_tuple(core_triton_text *text, PyObject *value)
{
    const char *name = Py_TYPE(value)->tp_name;
    const char *dot = strrchr(name, '.'); /* types of C have their module in front */
    if (!PyTuple_CheckExact(value) && put(text, dot == NULL ? name : dot + 1) < 0) {
        return -1;
    }
    return put(text, "(");
}

/* Appends what *words->constant* says of *value*. As core_triton_constant. */
static int
put_described(const core_triton_words *words, PyObject *value, bool declared,
              core_triton_text *text)
{
    int result = -1;
    PyObject *described = PyObject_CallFunctionObjArgs(
        words->constant, value, declared ? Py_True : Py_False, NULL);
    if (described == Py_None) {
        result = 0;
    }
    else if (described != NULL) {
        result = put_counted(text, 'o', described) < 0 ? -1 : 1;
    }
    Py_XDECREF(described);
    return result;
}

int
core_triton_constant(const core_triton_words *words, PyObject *value, bool declared,
                     core_triton_text *text)
{
    int result = 1;
    if (value == Py_None) {
        return put(text, "N") < 0 ? -1 : 1;
    }
    if (PyBool_Check(value)) {
        return put(text, value == Py_True ? "T" : "F") < 0 ? -1 : 1;
    }
    if (PyLong_CheckExact(value)) {
        return put_int(text, value) < 0 ? -1 : 1;
    }
    if (PyFloat_CheckExact(value)) {
        return put_float(text, PyFloat_AS_DOUBLE(value)) < 0 ? -1 : 1;
    }
    if (PyUnicode_CheckExact(value)) {
        return put_counted(text, 's', value) < 0 ? -1 : 1;
    }
    if (!PyTuple_Check(value)) {
        return put_described(words, value, declared, text);
    }
    if (open_tuple(text, value) < 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; result > 0 && i < PyTuple_GET_SIZE(value); i++) {
        result =
            core_triton_constant(words, PyTuple_GET_ITEM(value, i), declared, text);
        if (result > 0 && put(text, ",") < 0) {
            result = -1;
        }
    }
    return result > 0 && put(text, ")") < 0 ? -1 : result;
}

/* --- arguments --- */

static key_kind
key_of(const core_triton_parameter *parameter, uint64_t value)
{
    if (!parameter->specialize) {
        return KEY_NONE;
    }
    return parameter->align && value % ALIGNMENT == 0 ? KEY_ALIGNED : KEY_EMPTY;
}

/* Returns 1, 0 if the int does not fit 64 bits, or -1 with an exception set. */
static int
look_at_int(const core_triton_parameter *parameter, PyObject *argument, word *found)
{
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(argument, &overflow);
    uint64_t bits = (uint64_t)value;
    found->plain = value >= INT32_MIN && value <= INT32_MAX ? "i32" : "i64";
    if (overflow != 0) {
        bits = PyLong_AsUnsignedLongLong(argument);
        if (bits == UINT64_MAX && PyErr_Occurred()) {
            PyErr_Clear();
            return 0;
        }
        found->plain = "u64";
    }
    found->key = key_of(parameter, bits);
    if (overflow == 0 && value == 1 && parameter->specialize) {
        found->key = KEY_ONE;
        found->constant = true;
    }
    return 1;
}

/* Triton's name of the elements of *tensor*, by its attribute dtype. Borrowed, or NULL
   with an exception set. */
static PyObject *
element_of(const core_triton_words *words, PyObject *tensor)
{
    PyObject *dtype = PyObject_GetAttr(tensor, words->dtype);
    PyObject *name =
        dtype == NULL ? NULL : PyDict_GetItemWithError(words->elements, dtype);
    if (name == NULL && dtype != NULL && !PyErr_Occurred()) {
        PyObject *made = PyObject_CallOneArg(words->element, dtype);
        if (made != NULL && PyUnicode_Check(made) &&
            PyDict_SetItem(words->elements, dtype, made) == 0) {
            name = made; /* the dict keeps it */
        }
        Py_XDECREF(made);
    }
    Py_XDECREF(dtype);
    return name;
}

/* Whether *argument* is a triton.tools.tensor_descriptor.TensorDescriptor, of no subclass.
   Returns 1, 0, or -1 with an exception set. */
static int
is_descriptor(const core_triton_words *words, PyObject *argument)
{
    static const char name[] = "TensorDescriptor";
    if (strcmp(Py_TYPE(argument)->tp_name, name) != 0) {
        return 0; /* the name of a class that Python made has no module in front */
    }
    PyObject *module = PyImport_GetModule(words->descriptors);
    PyObject *type = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    int result = type != NULL       ? type == (PyObject *)Py_TYPE(argument)
                 : PyErr_Occurred() ? -1
                                    : 0;
    Py_XDECREF(module);
    Py_XDECREF(type);
    return result;
}

/* Appends the type of a tensor descriptor: its elements and the shape of its blocks.
   Returns 1, or -1 with an exception set. */
static int
put_descriptor(const core_triton_words *words, PyObject *argument,
               core_triton_text *text)
{
    PyObject *base = PyObject_GetAttrString(argument, "base");
    PyObject *shape =
        base == NULL ? NULL : PyObject_GetAttrString(argument, "block_shape");
    PyObject *list = shape == NULL ? NULL : PySequence_List(shape);
    PyObject *block = list == NULL ? NULL : PyObject_Repr(list);
    PyObject *element = block == NULL ? NULL : element_of(words, base); /* borrowed */
    int result = element == NULL || put(text, "tensordesc<") < 0 ||
                         put_str(text, element) < 0 || put_str(text, block) < 0 ||
                         put(text, ">") < 0
                     ? -1
                     : 1;
    Py_XDECREF(base);
    Py_XDECREF(shape);
    Py_XDECREF(list);
    Py_XDECREF(block);
    return result;
}

/* Whatever has an address: a tensor, or an object with data_ptr() and dtype. Returns 1, 0
   if it has none, or -1 with an exception set. */
static int
look_at_pointer(const core_triton_words *words, const core_triton_parameter *parameter,
                PyObject *argument, word *found)
{
    uint64_t address = 0;
    PyObject *value = NULL;
    int known =
        core_cuda_look(&words->torch, argument, &address, &found->plain); /* no error */
    int descriptor = known ? 0 : is_descriptor(words, argument);
    if (descriptor != 0) {
        found->descriptor = true;
        return descriptor;
    }
    found->pointer = true;
    if (!known) {
        value = PyObject_CallMethodNoArgs(argument, words->data_ptr);
        if (value == NULL) {
            if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
                PyErr_Clear();
                return 0;
            }
            return -1;
        }
        address = PyLong_AsUnsignedLongLong(value);
        Py_DECREF(value);
        if (address == UINT64_MAX && PyErr_Occurred()) {
            return -1;
        }
    }
    if (found->plain == NULL) {
        found->type = element_of(words, argument);
        if (found->type == NULL) {
            return -1;
        }
    }
    found->key = key_of(parameter, address);
    return 1;
}

/* Finds the word of an argument that is no tuple. Returns 1, 0 if it has no frozen form,
   or -1 with an exception set. */
static int
look(const core_triton_words *words, const core_triton_parameter *parameter,
     PyObject *argument, word *found)
{
    *found = (word){.key = KEY_NONE};
    if (PyLong_CheckExact(argument)) {
        return look_at_int(parameter, argument, found);
    }
    if (PyBool_Check(argument)) {
        found->plain = "u1";
        return 1;
    }
    if (PyFloat_CheckExact(argument)) {
        found->plain = "fp32";
        return 1;
    }
    if (argument == Py_None) {
        found->constant = true;
        return 1;
    }
    int result = look_at_pointer(words, parameter, argument, found);
    if (result == 0) { /* a constexpr, a kernel; everything else is refused */
        *found = (word){.constant = true};
        result = 1;
    }
    return result;
}

static int
put_key(core_triton_text *text, key_kind key)
{
    static const char *const keys[] = {"", ":", ":D", ":1"};
    return put(text, keys[key]);
}

/* Whether Triton ignores the argument of a parameter declared with *type*. */
static bool
fixed(const char *type)
{
    return strcmp(type, "u1") == 0 || strncmp(type, "fp", 2) == 0 ||
           strncmp(type, "bf", 2) == 0;
}

/* The word for a parameter with a declared type: that type, and the key as found. */
static int
put_declared(const core_triton_words *words, const core_triton_parameter *parameter,
             PyObject *argument, core_triton_text *text)
{
    const char *type = PyUnicode_AsUTF8(parameter->type);
    word found;
    if (type == NULL) {
        return -1;
    }
    if (fixed(type)) {
        return put(text, type) < 0 ? -1 : 1;
    }
    if (PyTuple_Check(argument)) {
        return 0;
    }
    int result = look(words, parameter, argument, &found);
    if (result <= 0) {
        return result;
    }
    if (found.descriptor ||
        (found.constant && found.key != KEY_ONE && argument != Py_None)) {
        return 0;
    }
    return put(text, type) < 0 || put_key(text, found.key) < 0 ? -1 : 1;
}

static int
put_tuple(const core_triton_words *words, PyObject *argument, core_triton_text *text)
{
    static const core_triton_parameter item = {.specialize = true, .align = true};
    int result = open_tuple(text, argument) < 0 ? -1 : 1;
    for (Py_ssize_t i = 0; result > 0 && i < PyTuple_GET_SIZE(argument); i++) {
        result = core_triton_word(words, &item, PyTuple_GET_ITEM(argument, i), text);
        if (result > 0 && put(text, ",") < 0) {
            result = -1;
        }
    }
    return result > 0 && put(text, ")") < 0 ? -1 : result;
}

int
core_triton_word(const core_triton_words *words, const core_triton_parameter *parameter,
                 PyObject *argument, core_triton_text *text)
{
    word found;
    if (parameter->constant) {
        return put(text, "=") < 0 ? -1
                                  : core_triton_constant(words, argument, true, text);
    }
    if (parameter->type != NULL) {
        return put_declared(words, parameter, argument, text);
    }
    if (PyTuple_Check(argument)) {
        return put_tuple(words, argument, text);
    }
    int result = look(words, parameter, argument, &found);
    if (result <= 0) {
        return result;
    }
    if (found.constant) {
        bool plain = argument == Py_None || found.key == KEY_ONE;
        if (put(text, "=") < 0) {
            return -1;
        }
        return plain ? core_triton_constant(words, argument, false, text)
                     : put_described(words, argument, false, text);
    }
    if (found.descriptor) {
        return put_descriptor(words, argument, text);
    }
    if (found.pointer && put(text, parameter->read_only ? "*k" : "*") < 0) {
        return -1;
    }
    result = found.type != NULL ? put_str(text, found.type) : put(text, found.plain);
    return result < 0 || put_key(text, found.key) < 0 ? -1 : 1;
}
