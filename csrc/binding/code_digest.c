/* code_digest(code): what a code object does, as a sha256.
 *
 * The digest covers name, argument counts, flags, names, bytecode, exception
 * table and constants (nested code recursively, frozensets order-free). File
 * names, line numbers and specialised instructions never matter.
 */
#include "codec.h"

typedef struct {
    char *data; /* owned, PyMem */
    size_t size;
    size_t capacity;
} digest_buffer;

/* Returns 0, or -1 with MemoryError set. */
static int
buffer_add(digest_buffer *buffer, const void *data, size_t size)
{
    if (size > buffer->capacity - buffer->size) {
        size_t capacity = 2 * (buffer->size + size) + 256;
        char *grown = PyMem_Realloc(buffer->data, capacity);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        buffer->data = grown;
        buffer->capacity = capacity;
    }
    memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
    return 0;
}

/* One record: tag, length as text, bytes. Unambiguous, so no two values of
   different content can give the same bytes. */
static int
buffer_add_record(digest_buffer *buffer, char tag, const void *data, size_t size)
{
    char head[32];
    int length = PyOS_snprintf(head, sizeof(head), "%c%zu:", tag, size);
    if (buffer_add(buffer, head, (size_t)length) < 0) {
        return -1;
    }
    return buffer_add(buffer, data, size);
}

static int
buffer_add_text(digest_buffer *buffer, char tag, PyObject *text)
{
    PyObject *bytes = NULL; /* owned */
    int result = -1;
    bytes = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
    if (bytes == NULL) {
        goto done;
    }
    result = buffer_add_record(buffer, tag, PyBytes_AS_STRING(bytes),
                               (size_t)PyBytes_GET_SIZE(bytes));
done:
    Py_XDECREF(bytes);
    return result;
}

static int buffer_add_value(digest_buffer *buffer, PyObject *value);
static int buffer_add_code(digest_buffer *buffer, PyObject *code);

static int
buffer_add_repr(digest_buffer *buffer, char tag, PyObject *value)
{
    PyObject *text = NULL; /* owned */
    int result = -1;
    text = PyObject_Repr(value);
    if (text == NULL) {
        goto done;
    }
    result = buffer_add_text(buffer, tag, text);
done:
    Py_XDECREF(text);
    return result;
}

static int
buffer_add_tuple(digest_buffer *buffer, PyObject *tuple)
{
    char head[32];
    int length = PyOS_snprintf(head, sizeof(head), "t%zd:", PyTuple_GET_SIZE(tuple));
    if (buffer_add(buffer, head, (size_t)length) < 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        if (buffer_add_value(buffer, PyTuple_GET_ITEM(tuple, i)) < 0) {
            return -1;
        }
    }
    return 0;
}

/* The items by their own bytes, sorted: hashing may differ between processes. */
static int
buffer_add_frozenset(digest_buffer *buffer, PyObject *set)
{
    PyObject *iterator = NULL; /* owned */
    PyObject *parts = NULL;    /* owned */
    PyObject *item = NULL;     /* owned */
    PyObject *part = NULL;     /* owned */
    digest_buffer own = {NULL, 0, 0};
    int result = -1;
    iterator = PyObject_GetIter(set);
    parts = PyList_New(0);
    if (iterator == NULL || parts == NULL) {
        goto done;
    }
    while ((item = PyIter_Next(iterator)) != NULL) {
        own.size = 0;
        if (buffer_add_value(&own, item) < 0) {
            goto done;
        }
        part = PyBytes_FromStringAndSize(own.data, (Py_ssize_t)own.size);
        if (part == NULL || PyList_Append(parts, part) < 0) {
            goto done;
        }
        Py_CLEAR(part);
        Py_CLEAR(item);
    }
    if (PyErr_Occurred() || PyList_Sort(parts) < 0) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parts); i++) {
        PyObject *bytes = PyList_GET_ITEM(parts, i); /* borrowed */
        if (buffer_add_record(buffer, 'F', PyBytes_AS_STRING(bytes),
                              (size_t)PyBytes_GET_SIZE(bytes)) < 0) {
            goto done;
        }
    }
    result = buffer_add_record(buffer, 'f', "", 0);
done:
    Py_XDECREF(iterator);
    Py_XDECREF(parts);
    Py_XDECREF(item);
    Py_XDECREF(part);
    PyMem_Free(own.data);
    return result;
}

static int
buffer_add_slice(digest_buffer *buffer, PySliceObject *slice)
{
    if (buffer_add_record(buffer, 'S', "", 0) < 0 ||
        buffer_add_value(buffer, slice->start) < 0 ||
        buffer_add_value(buffer, slice->stop) < 0) {
        return -1;
    }
    return buffer_add_value(buffer, slice->step);
}

/* A constant that only Dynamo puts into code: a dtype, a type, an enum member.
   Its text must not hold an address. */
static int
buffer_add_object(digest_buffer *buffer, PyObject *value)
{
    PyObject *text = NULL; /* owned */
    int result = -1;
    text = PyObject_Repr(value);
    if (text == NULL) {
        goto done;
    }
    const char *plain = PyUnicode_AsUTF8(text);
    if (plain == NULL) {
        goto done;
    }
    if (strstr(plain, "0x") != NULL) {
        PyErr_Format(
            PyExc_TypeError,
            "code_digest: a constant of type %.100s has no stable text: %.100s",
            Py_TYPE(value)->tp_name, plain);
        goto done;
    }
    if (buffer_add_record(buffer, 'o', Py_TYPE(value)->tp_name,
                          strlen(Py_TYPE(value)->tp_name)) < 0) {
        goto done;
    }
    result = buffer_add_text(buffer, 'O', text);
done:
    Py_XDECREF(text);
    return result;
}

static int
buffer_add_value(digest_buffer *buffer, PyObject *value)
{
    if (PyUnicode_CheckExact(value)) {
        return buffer_add_text(buffer, 's', value);
    }
    if (value == Py_None) {
        return buffer_add_record(buffer, 'n', "", 0);
    }
    if (value == Py_True || value == Py_False) {
        return buffer_add_record(buffer, 'b', value == Py_True ? "1" : "0", 1);
    }
    if (value == Py_Ellipsis) {
        return buffer_add_record(buffer, 'e', "", 0);
    }
    if (PyLong_CheckExact(value)) {
        return buffer_add_repr(buffer, 'i', value);
    }
    if (PyFloat_CheckExact(value)) {
        double number = PyFloat_AS_DOUBLE(value);
        return buffer_add_record(buffer, 'd', &number, sizeof(number));
    }
    if (PyComplex_CheckExact(value)) {
        Py_complex number = PyComplex_AsCComplex(value);
        double parts[2] = {number.real, number.imag};
        return buffer_add_record(buffer, 'c', parts, sizeof(parts));
    }
    if (PyBytes_CheckExact(value)) {
        return buffer_add_record(buffer, 'y', PyBytes_AS_STRING(value),
                                 (size_t)PyBytes_GET_SIZE(value));
    }
    int result;
    if (Py_EnterRecursiveCall(" while digesting code")) {
        return -1;
    }
    if (PyTuple_CheckExact(value)) {
        result = buffer_add_tuple(buffer, value);
    }
    else if (PyFrozenSet_CheckExact(value)) {
        result = buffer_add_frozenset(buffer, value);
    }
    else if (PyCode_Check(value)) {
        result = buffer_add_code(buffer, value);
    }
    else if (PySlice_Check(value)) {
        result = buffer_add_slice(buffer, (PySliceObject *)value);
    }
    else {
        result = buffer_add_object(buffer, value);
    }
    Py_LeaveRecursiveCall();
    return result;
}

static int
buffer_add_code(digest_buffer *buffer, PyObject *code)
{
    static const char *const fields[] = {
        "co_name",
#if PY_VERSION_HEX >= 0x030B0000
        "co_qualname", "co_exceptiontable",
#endif
        "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags",
        "co_names",    "co_varnames",        "co_freevars",       "co_cellvars",
        "co_code",     "co_consts",
    };
    if (buffer_add_record(buffer, 'C', "", 0) < 0) {
        return -1;
    }
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
        PyObject *value = PyObject_GetAttrString(code, fields[i]); /* owned */
        int failed = value == NULL || buffer_add_value(buffer, value) < 0;
        Py_XDECREF(value);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

PyObject *
codec_code_digest(PyObject *code)
{
    digest_buffer buffer = {NULL, 0, 0};
    PyObject *hashlib = NULL; /* owned */
    PyObject *bytes = NULL;   /* owned */
    PyObject *hash = NULL;    /* owned */
    PyObject *result = NULL;  /* owned, returned */
    if (!PyCode_Check(code)) {
        PyErr_Format(PyExc_TypeError, "code_digest: expected a code object, got %.100s",
                     Py_TYPE(code)->tp_name);
        goto done;
    }
    if (buffer_add_code(&buffer, code) < 0) {
        goto done;
    }
    bytes = PyBytes_FromStringAndSize(buffer.data, (Py_ssize_t)buffer.size);
    hashlib = PyImport_ImportModule("hashlib");
    if (bytes == NULL || hashlib == NULL) {
        goto done;
    }
    hash = PyObject_CallMethod(hashlib, "sha256", "O", bytes);
    if (hash == NULL) {
        goto done;
    }
    result = PyObject_CallMethod(hash, "hexdigest", NULL);
done:
    PyMem_Free(buffer.data);
    Py_XDECREF(hashlib);
    Py_XDECREF(bytes);
    Py_XDECREF(hash);
    return result;
}

PyDoc_STRVAR(core_code_digest_doc,
             "code_digest(code, /)\n--\n\n"
             "The sha256 (hex) of what a code object does.\n\n"
             "Covers name, qualified name, argument counts, flags, names, bytecode,\n"
             "exception table and constants (nested code recursively, frozensets\n"
             "order-free); no file name, no line numbers. Raises TypeError for a\n"
             "constant that has no stable text.");

static PyObject *
core_code_digest(PyObject *module, PyObject *code)
{
    (void)module;
    return codec_code_digest(code);
}

static PyMethodDef code_digest_methods[] = {
    {"code_digest", core_code_digest, METH_O, core_code_digest_doc},
    {NULL, NULL, 0, NULL},
};

int
core_add_code_digest(PyObject *module)
{
    return PyModule_AddFunctions(module, code_digest_methods);
}
