/* Kernels: shared objects that are loaded from memory.
 *
 * Inductor's C++ kernels are extension modules: PyInit_<name> makes a module
 * with one function <name>. They are loaded from an anonymous file (pc_library), so
 * that no path, cache directory or file name takes part in a prepared process. A loaded
 * library stays for the life of the process (its code may be on any stack); only
 * the Python module that it made is owned by the function that is returned.
 */
#include "state.h"

#include "pc_library.h"
#include "pc_pool.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kernels find torch's accessor of tensor data by this variable, at PyInit. */
#define DATA_PTR_VARIABLE "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
#define DATA_PTR_NAME "tensor_data_ptr"

typedef struct {
    const void *data; /* borrowed */
    size_t size;      /* bytes */
    void *handle;     /* of dlopen, or NULL */
    pc_error error;   /* why handle is NULL */
} image;

/* Runs without the GIL. */
static pc_status
open_task(void *context, size_t worker, size_t index, pc_error *error)
{
    image *self = (image *)context + index;
    (void)worker;
    (void)error; /* every image keeps its own */
    (void)pc_library_open(self->data, self->size, &self->handle, &self->error);
    return PC_OK;
}

/* Raises PrecompError(message) with the pending exception as its cause. */
static void
raise_with_cause(core_state *state, const char *label, const char *what)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *cause = PyErr_GetRaisedException();
#else
    PyObject *type = NULL;
    PyObject *cause = NULL;
    PyObject *traceback = NULL;
    PyErr_Fetch(&type, &cause, &traceback);
    PyErr_NormalizeException(&type, &cause, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
#endif
    (void)core_raise_named(state, "PrecompError", "kernel %s: %s: %S", label, what,
                           cause);
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *error = PyErr_GetRaisedException();
    PyException_SetCause(error, cause); /* steals *cause* */
    PyErr_SetRaisedException(error);
#else
    PyObject *error = NULL;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    PyException_SetCause(error, cause); /* steals *cause* */
    PyErr_Restore(type, error, traceback);
#endif
}

/* Tells kernels where torch's accessor of tensor data is. The variable is set in
   the C environment only, and not again while it holds the right value. Returns
   0, or -1 with an exception set. */
static int
export_data_ptr(core_state *state)
{
    int result = -1;
    PyObject *text = NULL;                              /* owned */
    PyObject *value = core_torch(state, DATA_PTR_NAME); /* borrowed */
    if (value == NULL) {
        goto done;
    }
    text = PyObject_Str(value);
    const char *address = text == NULL ? NULL : PyUnicode_AsUTF8(text);
    if (address == NULL) {
        goto done;
    }
    const char *current = getenv(DATA_PTR_VARIABLE);
    if ((current == NULL || strcmp(current, address) != 0) &&
        setenv(DATA_PTR_VARIABLE, address, 1) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        goto done;
    }
    result = 0;
done:
    Py_XDECREF(text);
    return result;
}

/* Runs a two-phase initialisation: *definition* is what PyInit returned.
   Returns a new reference. */
static PyObject *
module_from_definition(PyObject *definition, const char *name)
{
    PyObject *module = NULL;
    PyObject *spec = NULL; /* owned */
    PyObject *machinery = PyImport_ImportModule("importlib.machinery");
    if (machinery != NULL) {
        spec = PyObject_CallMethod(machinery, "ModuleSpec", "sO", name, Py_None);
    }
    if (spec != NULL) {
        module = PyModule_FromDefAndSpec((PyModuleDef *)definition, spec);
    }
    if (module != NULL && PyModule_ExecDef(module, (PyModuleDef *)definition) < 0) {
        Py_CLEAR(module);
    }
    Py_XDECREF(machinery);
    Py_XDECREF(spec);
    return module;
}

/* Runs PyInit_<name> of an opened library and returns its function <name>, a new
   reference that owns the module. *label* names the kernel in errors. */
static PyObject *
image_function(core_state *state, const image *self, const char *name,
               const char *label)
{
    char symbol[256];
    PyObject *(*init)(void) = NULL;
    PyObject *made = NULL;     /* owned: module or definition */
    PyObject *module = NULL;   /* owned */
    PyObject *function = NULL; /* owned */
    PyObject *result = NULL;
    if (self->handle == NULL) {
        return core_raise_named(state, "PrecompError",
                                "kernel %s: cannot be loaded: %s", label,
                                self->error.message);
    }
    int length = snprintf(symbol, sizeof(symbol), "PyInit_%s", name);
    if (length < 0 || (size_t)length >= sizeof(symbol)) {
        PyErr_Format(PyExc_ValueError, "load_kernel: the name is too long: %.100s...",
                     name);
        return NULL;
    }
    void *address = dlsym(self->handle, symbol);
    if (address == NULL) {
        return core_raise_named(state, "PrecompError", "kernel %s: it has no symbol %s",
                                label, symbol);
    }
    memcpy(&init, &address, sizeof(init)); /* ISO C has no cast for this */
    made = init();
    if (made == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_SystemError, "no exception was set");
        }
        raise_with_cause(state, label, "its initialisation failed");
        goto done;
    }
    if (PyErr_Occurred()) {
        raise_with_cause(state, label, "its initialisation left an exception");
        goto done;
    }
    if (PyObject_TypeCheck(made, &PyModuleDef_Type)) {
        module = module_from_definition(made, name); /* *made* is borrowed here */
        made = NULL;
        if (module == NULL) {
            raise_with_cause(state, label, "its initialisation failed");
            goto done;
        }
    }
    else {
        module = made;
        made = NULL;
    }
    function = PyObject_GetAttrString(module, name);
    if (function == NULL) {
        raise_with_cause(state, label, "its module is not a kernel");
        goto done;
    }
    if (!PyCFunction_Check(function) || PyCFunction_GET_SELF(function) != module) {
        (void)core_raise_named(state, "PrecompError",
                               "kernel %s: its attribute '%s' is a %.100s, expected a "
                               "function of the module",
                               label, name, Py_TYPE(function)->tp_name);
        goto done;
    }
    result = function;
    function = NULL;
done:
    Py_XDECREF(made);
    Py_XDECREF(module);
    Py_XDECREF(function);
    return result;
}

PyDoc_STRVAR(core_load_kernel_doc,
             "load_kernel(data, name='kernel', label=None, /)\n--\n\n"
             "Load a shared object from memory and return its function.\n\n"
             "*data* (bytes-like) is an extension module whose PyInit_<name> makes a\n"
             "module with a function <name>, as Inductor's C++ kernels are. *label*\n"
             "(str, default *name*) stands for the kernel in errors, normally its\n"
             "digest. Nothing is left in the file system, no file descriptor stays\n"
             "open, and the library stays loaded for the life of the process. Each\n"
             "call loads a fresh copy. The GIL is released while the linker works.\n\n"
             "Raises PrecompError when the bytes are not a whole shared object for\n"
             "this machine, with the linker's text when it refuses them, when the\n"
             "entry is missing or when its initialisation fails.");

static PyObject *
core_load_kernel(PyObject *module, PyObject *args)
{
    core_state *state = core_state_get(module);
    Py_buffer buffer = {0};
    const char *name = "kernel";
    const char *label = NULL;
    PyObject *result = NULL;
    image self = {0};
    if (!PyArg_ParseTuple(args, "y*|sz:load_kernel", &buffer, &name, &label)) {
        return NULL;
    }
    if (export_data_ptr(state) < 0) {
        goto done;
    }
    self.data = buffer.buf;
    self.size = (size_t)buffer.len;
    Py_BEGIN_ALLOW_THREADS(void)
    pc_library_open(self.data, self.size, &self.handle, &self.error);
    Py_END_ALLOW_THREADS
    result = image_function(state, &self, name, label == NULL ? name : label);
done:
    PyBuffer_Release(&buffer);
    return result;
}

PyDoc_STRVAR(core_load_kernels_doc,
             "load_kernels(kernels, threads=0, /)\n--\n\n"
             "Load many kernels at once: the GIL is released a single time.\n\n"
             "*kernels* is a sequence of (label, bytes); returns the list of their\n"
             "functions, in order. *threads* (int) is the number of threads; 0\n"
             "chooses one, since the dynamic linker opens one library at a time and\n"
             "writing the images is a small part of the work. Raises as load_kernel\n"
             "does, for the first that fails; the others stay in the process.");

static PyObject *
core_load_kernels(PyObject *module, PyObject *args)
{
    core_state *state = core_state_get(module);
    int threads = 0;
    pc_error error;
    size_t workers = 0;
    PyObject *kernels = NULL; /* borrowed */
    PyObject *result = NULL;
    PyObject *functions = NULL; /* owned */
    PyObject *sequence = NULL;  /* owned, keeps all data alive */
    image *images = NULL;       /* owned */
    Py_ssize_t count = 0;
    if (!PyArg_ParseTuple(args, "O|i:load_kernels", &kernels, &threads)) {
        return NULL;
    }
    if (threads < 0) {
        PyErr_Format(PyExc_ValueError, "load_kernels: threads: expected >= 0, got %d",
                     threads);
        return NULL;
    }
    sequence = PySequence_Tuple(kernels);
    if (sequence == NULL || export_data_ptr(state) < 0) {
        goto done;
    }
    count = PyTuple_GET_SIZE(sequence);
    functions = PyList_New(count);
    images = PyMem_Calloc(count == 0 ? 1 : (size_t)count, sizeof(*images));
    if (functions == NULL || images == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(sequence, i); /* borrowed */
        if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2 ||
            !PyUnicode_Check(PyTuple_GET_ITEM(item, 0)) ||
            !PyBytes_Check(PyTuple_GET_ITEM(item, 1))) {
            PyErr_Format(PyExc_TypeError,
                         "load_kernels: item %zd: expected (str, bytes), got %.100s", i,
                         Py_TYPE(item)->tp_name);
            goto done;
        }
        images[i].data = PyBytes_AS_STRING(PyTuple_GET_ITEM(item, 1));
        images[i].size = (size_t)PyBytes_GET_SIZE(PyTuple_GET_ITEM(item, 1));
    }
    workers = threads == 0
                  ? 1
                  : pc_pool_workers((size_t)threads, (size_t)count, (size_t)count, 1);
    Py_BEGIN_ALLOW_THREADS(void)
    pc_pool_run(workers, (size_t)count, open_task, images, &error);
    Py_END_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *label = PyTuple_GET_ITEM(PyTuple_GET_ITEM(sequence, i), 0);
        const char *text = PyUnicode_AsUTF8(label);
        PyObject *function =
            text == NULL ? NULL : image_function(state, &images[i], "kernel", text);
        if (function == NULL) {
            goto done;
        }
        PyList_SET_ITEM(functions, i, function); /* steals *function* */
    }
    result = functions;
    functions = NULL;
done:
    PyMem_Free(images);
    Py_XDECREF(functions);
    Py_XDECREF(sequence);
    return result;
}

PyDoc_STRVAR(
    core_check_kernel_doc,
    "check_kernel(data, /)\n--\n\n"
    "Raise precomp.ArtifactCorruptError unless *data* (bytes-like) is a whole\n"
    "shared object for this machine. Runs nothing of it.");

static PyObject *
core_check_kernel(PyObject *module, PyObject *argument)
{
    Py_buffer data = {.obj = NULL};
    pc_error error;
    pc_status status;
    if (PyObject_GetBuffer(argument, &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = pc_library_check(data.buf, (size_t)data.len, &error);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    if (status != PC_OK) {
        return core_raise(core_state_get(module), &error);
    }
    Py_RETURN_NONE;
}

static PyMethodDef kernel_functions[] = {
    {"check_kernel", core_check_kernel, METH_O, core_check_kernel_doc},
    {"load_kernel", core_load_kernel, METH_VARARGS, core_load_kernel_doc},
    {"load_kernels", core_load_kernels, METH_VARARGS, core_load_kernels_doc},
    {NULL, NULL, 0, NULL},
};

int
core_add_kernel(PyObject *module)
{
    return PyModule_AddFunctions(module, kernel_functions);
}
