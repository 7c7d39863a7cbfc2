/* precomp._core: module definition, state, and the mapping of errors. */
#include "state.h"

#include <stdarg.h>

core_state *
core_state_get(PyObject *module)
{
    return (core_state *)PyModule_GetState(module);
}

#if PY_VERSION_HEX < 0x030B0000
/* PyType_GetModuleByDef is public from 3.11. */
static PyObject *
type_get_module_by_def(PyTypeObject *type, struct PyModuleDef *def)
{
    PyObject *mro = type->tp_mro; /* borrowed */
    for (Py_ssize_t i = 0; mro != NULL && i < PyTuple_GET_SIZE(mro); i++) {
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(mro, i);
        if (!PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE)) {
            continue;
        }
        PyObject *module = ((PyHeapTypeObject *)base)->ht_module; /* borrowed */
        if (module != NULL && PyModule_GetDef(module) == def) {
            return module;
        }
    }
    PyErr_Format(PyExc_TypeError, "%s is not a type of precomp._core", type->tp_name);
    return NULL;
}
#define PyType_GetModuleByDef type_get_module_by_def
#endif

PyObject *
core_module_by_type(PyTypeObject *type)
{
    return PyType_GetModuleByDef(type, &core_module_def);
}

core_state *
core_state_by_type(PyTypeObject *type)
{
    PyObject *module = core_module_by_type(type); /* borrowed */
    return module == NULL ? NULL : core_state_get(module);
}

PyObject *
core_raise_named(core_state *state, const char *class_name, const char *format, ...)
{
    PyObject *cls = NULL;
    PyObject *message = NULL;
    va_list arguments;
    va_start(arguments, format);
    message = PyUnicode_FromFormatV(format, arguments);
    va_end(arguments);
    if (message == NULL) {
        goto done;
    }
    cls = PyObject_GetAttrString(state->errors, class_name);
    if (cls != NULL) {
        PyErr_SetObject(cls, message);
    }
done:
    Py_XDECREF(cls);
    Py_XDECREF(message);
    return NULL;
}

PyObject *
core_raise(core_state *state, const pc_error *error)
{
    PyObject *path = NULL;
    switch (error->status) {
        case PC_NO_MEMORY:
            return PyErr_NoMemory();
        case PC_IO:
            errno = error->sys_errno;
            path = PyUnicode_DecodeFSDefault(error->path);
            if (path != NULL) {
                PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
                Py_DECREF(path);
            }
            return NULL;
        case PC_BAD_VERSION:
            return core_raise_named(state, "ArtifactVersionError", "%s",
                                    error->message);
        case PC_BAD_ARGUMENT:
            PyErr_SetString(PyExc_ValueError, error->message);
            return NULL;
        case PC_CUDA:
            return core_raise_named(state, "CudaError", "%s", error->message);
        case PC_OK:
        case PC_CORRUPT:
        default:
            return core_raise_named(state, "ArtifactCorruptError", "%s",
                                    error->message);
    }
}

PyObject *
core_dict_get(PyObject *dict, const char *name)
{
    PyObject *value = NULL;                           /* borrowed */
    PyObject *key = PyUnicode_InternFromString(name); /* owned */
    if (key != NULL) {
        value = PyDict_GetItemWithError(dict, key);
        Py_DECREF(key);
    }
    return value;
}

PyObject *
core_torch(core_state *state, const char *name)
{
    PyObject *value = core_dict_get(state->torch, name); /* borrowed */
    if (value == NULL && !PyErr_Occurred()) {
        PyErr_Format(PyExc_RuntimeError,
                     "precomp: the torch name '%s' is not bound; "
                     "call precomp.torch_api.serve() first",
                     name);
    }
    return value;
}

PyDoc_STRVAR(core_bind_torch_doc,
             "bind_torch(names, /)\n--\n\n"
             "Add private torch names to the table that C code uses.\n\n"
             "*names* is a dict str -> object. Called by precomp.torch_api and\n"
             "precomp.serve.cuda.");

static PyObject *
core_bind_torch(PyObject *module, PyObject *names)
{
    core_state *state = core_state_get(module);
    if (!PyDict_Check(names)) {
        PyErr_Format(PyExc_TypeError, "bind_torch: expected a dict, got %.100s",
                     Py_TYPE(names)->tp_name);
        return NULL;
    }
    if (PyDict_Update(state->torch, names) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    core_read_tensors_doc,
    "read_tensors_like(example, pointer, /)\n--\n\n"
    "Find out how to read the addresses of tensors without DLPack.\n\n"
    "*example* is a tensor, *pointer* the address of its implementation. The\n"
    "stable C interface of torch (torch/csrc/inductor/aoti_torch/c/shim.h) takes\n"
    "the address of an at::Tensor, which is one such pointer, and a tensor of\n"
    "Python holds one. Where it does is not promised, so it is searched for.\n"
    "Returns whether it was found; if not, launches ask DLPack for each address,\n"
    "which takes about ten times as long.");

static PyObject *
core_read_tensors(PyObject *module, PyObject *args)
{
    PyObject *example = NULL;
    PyObject *number = NULL;
    const void *pointer = NULL;
    if (!PyArg_ParseTuple(args, "OO!:read_tensors_like", &example, &PyLong_Type,
                          &number)) {
        return NULL;
    }
    pointer = PyLong_AsVoidPtr(number);
    if (pointer == NULL && PyErr_Occurred()) {
        return NULL;
    }
    return PyBool_FromLong(
        core_read_tensors_like(core_state_get(module), example, pointer));
}

static int
core_exec(PyObject *module)
{
    static int (*const parts[])(PyObject *) = {
        core_add_artifact, core_add_codec,   core_add_code_digest,  core_add_guard_tape,
        core_add_tap,      core_add_capture, core_add_frame_server, core_add_plan,
        core_add_kernel,   core_add_gate,    core_add_cuda,         core_add_bound_call,
        core_add_triton,
    };
    core_state *state = core_state_get(module);
    state->errors = PyImport_ImportModule("precomp.errors");
    if (state->errors == NULL) {
        return -1;
    }
    state->torch = PyDict_New();
    if (state->torch == NULL) {
        return -1;
    }
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        if (parts[i](module) < 0) {
            return -1;
        }
    }
    return PyModule_AddStringConstant(module, "__version__", PRECOMP_VERSION);
}

static int
core_traverse(PyObject *module, visitproc visit, void *arg)
{
    core_state *state = core_state_get(module);
    Py_VISIT(state->artifact_type);
    Py_VISIT(state->capture_type);
    Py_VISIT(state->tap_type);
    Py_VISIT(state->bound_call_type);
    Py_VISIT(state->guard_tape_type);
    Py_VISIT(state->frame_server_type);
    Py_VISIT(state->frame_return_type);
    Py_VISIT(state->plan_type);
    Py_VISIT(state->kernel_type);
    Py_VISIT(state->gate_type);
    Py_VISIT(state->cuda_library_type);
    Py_VISIT(state->cuda_launcher_type);
    Py_VISIT(state->errors);
    Py_VISIT(state->torch);
    Py_VISIT(state->stale);
    Py_VISIT(state->examples);
    Py_VISIT(state->listener);
    return 0;
}

static int
core_clear(PyObject *module)
{
    core_state *state = core_state_get(module);
    Py_CLEAR(state->artifact_type);
    Py_CLEAR(state->capture_type);
    Py_CLEAR(state->tap_type);
    Py_CLEAR(state->bound_call_type);
    Py_CLEAR(state->guard_tape_type);
    Py_CLEAR(state->frame_server_type);
    Py_CLEAR(state->frame_return_type);
    Py_CLEAR(state->plan_type);
    Py_CLEAR(state->kernel_type);
    Py_CLEAR(state->gate_type);
    Py_CLEAR(state->cuda_library_type);
    Py_CLEAR(state->cuda_launcher_type);
    Py_CLEAR(state->errors);
    Py_CLEAR(state->torch);
    Py_CLEAR(state->stale);
    Py_CLEAR(state->examples);
    Py_CLEAR(state->listener);
    return 0;
}

static void
core_free(void *module)
{
    (void)core_clear((PyObject *)module);
}

static PyMethodDef core_methods[] = {
    {"bind_torch", core_bind_torch, METH_O, core_bind_torch_doc},
    {"read_tensors_like", core_read_tensors, METH_VARARGS, core_read_tensors_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, core_exec},
#ifdef Py_mod_multiple_interpreters
    /* torch itself lives once per process. */
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

struct PyModuleDef core_module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "precomp._core",
    .m_doc = "The C part of precomp. Private: use the names of the package.",
    .m_size = sizeof(core_state),
    .m_methods = core_methods,
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
    .m_free = core_free,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&core_module_def);
}
