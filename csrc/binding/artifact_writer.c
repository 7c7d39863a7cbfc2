/* _core.write_artifact, strip_shared_object and sha256. */
#include "artifact.h"

#include "pc_elf.h"
#include "pc_sha256.h"
#include "pc_writer.h"

PyObject *
core_digest_text(const uint8_t digest[PC_DIGEST_SIZE])
{
    char text[PC_HEX_SIZE];
    pc_hex(digest, text);
    return PyUnicode_FromStringAndSize(text, PC_HEX_SIZE - 1);
}

PyDoc_STRVAR(core_write_artifact_doc,
             "write_artifact(path, environment, entries, level=9)\n--\n\n"
             "Write an artifact and return the sha256 (hex) of the file.\n\n"
             "*environment* is a dict str -> str, *entries* a sequence of\n"
             "(kind, name, bytes). *level* is that of zstd; 0 stores without\n"
             "compression. The order of entries does not matter and equal ones count\n"
             "once. Readers of *path* see the old file or the whole new one; a failed\n"
             "write leaves nothing behind. Raises OSError, ValueError or TypeError.");

/* The texts and bytes that the GIL-free part of a write uses. */
typedef struct {
    PyObject *kept; /* owned: list that keeps what the others point into */
    pc_pair *environment;
    size_t environment_count;
    pc_item *items;
    size_t item_count;
} write_request;

/* UTF-8 of a str without NUL, valid as long as *text* lives, or NULL with an error. */
static const char *
text_of(PyObject *text, const char *what)
{
    Py_ssize_t length = 0;
    if (!PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "write_artifact: %s: expected str, got %.100s",
                     what, Py_TYPE(text)->tp_name);
        return NULL;
    }
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &length);
    if (utf8 != NULL && strlen(utf8) != (size_t)length) {
        PyErr_Format(PyExc_ValueError, "write_artifact: %s: NUL in %R", what, text);
        return NULL;
    }
    return utf8;
}

/* Fills one pair. Keeps key and value alive. Returns 0 or -1. */
static int
take_pair(write_request *request, PyObject *key, PyObject *value)
{
    pc_pair *pair = &request->environment[request->environment_count];
    if (PyList_Append(request->kept, key) < 0 ||
        PyList_Append(request->kept, value) < 0) {
        return -1;
    }
    pair->key = text_of(key, "key of the environment");
    pair->value = pair->key == NULL ? NULL : text_of(value, "value of the environment");
    if (pair->value == NULL) {
        return -1;
    }
    request->environment_count++;
    return 0;
}

/* Fills one item from (kind, name, bytes). Keeps the tuple alive. Returns 0 or -1. */
static int
take_item(write_request *request, PyObject *entry)
{
    pc_item *item = &request->items[request->item_count];
    if (!PyTuple_Check(entry) || PyTuple_GET_SIZE(entry) != 3) {
        PyErr_Format(
            PyExc_TypeError,
            "write_artifact: entries[%zu]: expected (kind, name, bytes), got %R",
            request->item_count, entry);
        return -1;
    }
    PyObject *data = PyTuple_GET_ITEM(entry, 2); /* borrowed */
    if (!PyBytes_Check(data)) {
        PyErr_Format(PyExc_TypeError,
                     "write_artifact: entries[%zu]: expected bytes, got "
                     "%.100s",
                     request->item_count, Py_TYPE(data)->tp_name);
        return -1;
    }
    item->kind = text_of(PyTuple_GET_ITEM(entry, 0), "kind");
    item->name =
        item->kind == NULL ? NULL : text_of(PyTuple_GET_ITEM(entry, 1), "name");
    if (item->name == NULL) {
        return -1;
    }
    item->data = (const uint8_t *)PyBytes_AS_STRING(data);
    item->size = (size_t)PyBytes_GET_SIZE(data);
    request->item_count++;
    return PyList_Append(request->kept, entry);
}

/* Fills *request* from the arguments. Returns 0 or -1; the caller clears it. */
static int
take_request(write_request *request, PyObject *environment, PyObject *entries)
{
    PyObject *sequence = NULL; /* owned */
    PyObject *key = NULL;      /* borrowed */
    PyObject *value = NULL;    /* borrowed */
    Py_ssize_t position = 0;
    int result = -1;

    sequence = PySequence_Tuple(entries);
    request->kept = PyList_New(0);
    request->environment = PyMem_Calloc((size_t)PyDict_GET_SIZE(environment) + 1,
                                        sizeof(*request->environment));
    if (sequence == NULL || request->kept == NULL || request->environment == NULL) {
        goto done;
    }
    request->items =
        PyMem_Calloc((size_t)PyTuple_GET_SIZE(sequence) + 1, sizeof(*request->items));
    if (request->items == NULL) {
        goto done;
    }
    while (PyDict_Next(environment, &position, &key, &value)) {
        if (take_pair(request, key, value) < 0) {
            goto done;
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sequence); i++) {
        if (take_item(request, PyTuple_GET_ITEM(sequence, i)) < 0) {
            goto done;
        }
    }
    result = 0;
done:
    if (result < 0 && !PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    Py_XDECREF(sequence);
    return result;
}

static void
clear_request(write_request *request)
{
    Py_CLEAR(request->kept);
    PyMem_Free(request->environment);
    PyMem_Free(request->items);
}

static PyObject *
core_write_artifact(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"path", "environment", "entries", "level",
                                        NULL};
    core_state *state = core_state_get(module);
    write_request request = {NULL, NULL, 0, NULL, 0};
    uint8_t digest[PC_DIGEST_SIZE];
    PyObject *path = NULL;        /* owned: bytes */
    PyObject *environment = NULL; /* borrowed */
    PyObject *entries = NULL;     /* borrowed */
    PyObject *result = NULL;
    int level = 9;
    pc_error error;
    pc_status status;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O!O|i:write_artifact",
                                     (char **)names, PyUnicode_FSConverter, &path,
                                     &PyDict_Type, &environment, &entries, &level)) {
        return NULL;
    }
    if (take_request(&request, environment, entries) < 0) {
        goto done;
    }
    const char *file = PyBytes_AS_STRING(path);
    Py_BEGIN_ALLOW_THREADS
    status = pc_writer_write(file, request.environment, request.environment_count,
                             request.items, request.item_count, level, digest, &error);
    Py_END_ALLOW_THREADS
    if (status != PC_OK) {
        core_raise(state, &error);
        goto done;
    }
    result = core_digest_text(digest);
done:
    clear_request(&request);
    Py_XDECREF(path);
    return result;
}

PyDoc_STRVAR(
    core_strip_shared_object_doc,
    "strip_shared_object(image, /)\n--\n\n"
    "The bytes of an ELF shared object without what dlopen does not need.\n\n"
    "Drops everything behind the last segment (debug information, symbols of\n"
    "the static linker, section headers) and zeroes the build id, so that two\n"
    "builds of one source give equal bytes wherever they were made. Raises\n"
    "precomp.ArtifactCorruptError when *image* is no such object.");

static PyObject *
core_strip_shared_object(PyObject *module, PyObject *argument)
{
    core_state *state = core_state_get(module);
    Py_buffer image = {.obj = NULL};
    PyObject *stripped = NULL; /* owned */
    PyObject *result = NULL;
    size_t kept = 0;
    pc_error error;

    if (PyObject_GetBuffer(argument, &image, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (pc_elf_measure(image.buf, (size_t)image.len, &kept, &error) != PC_OK) {
        core_raise(state, &error);
        goto done;
    }
    stripped = PyBytes_FromStringAndSize(image.buf, (Py_ssize_t)kept);
    if (stripped == NULL) {
        goto done;
    }
    if (pc_elf_strip((uint8_t *)PyBytes_AS_STRING(stripped), kept, &error) != PC_OK) {
        core_raise(state, &error);
        goto done;
    }
    result = Py_NewRef(stripped);
done:
    PyBuffer_Release(&image);
    Py_XDECREF(stripped);
    return result;
}

PyDoc_STRVAR(core_sha256_doc,
             "sha256(data, /)\n--\n\n"
             "The sha256 of bytes-like *data* as 64 hexadecimal digits.\n\n"
             "As hashlib.sha256(data).hexdigest(), without importing OpenSSL.");

static PyObject *
core_sha256(PyObject *module, PyObject *argument)
{
    uint8_t digest[PC_DIGEST_SIZE];
    Py_buffer data = {.obj = NULL};
    (void)module;
    if (PyObject_GetBuffer(argument, &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    pc_sha256_of(data.buf, (size_t)data.len, digest);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return core_digest_text(digest);
}

static PyMethodDef writer_functions[] = {
    {"write_artifact", PC_METHOD(core_write_artifact), METH_VARARGS | METH_KEYWORDS,
     core_write_artifact_doc},
    {"strip_shared_object", core_strip_shared_object, METH_O,
     core_strip_shared_object_doc},
    {"sha256", core_sha256, METH_O, core_sha256_doc},
    {NULL, NULL, 0, NULL},
};

int
core_add_writer(PyObject *module)
{
    return PyModule_AddFunctions(module, writer_functions);
}
