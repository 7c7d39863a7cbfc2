/* CudaLibrary: the image of a kernel, loaded into the driver when its first launcher is
 * made. Also the functions of _core about the driver and about cubins.
 */
#include "cuda.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

#include "pc_mem.h"

typedef struct {
    PyObject_HEAD
    PyObject *image; /* bytes, owned; kept for ever once it is loaded */
    PyObject *label; /* str, owned */
    pc_cubin_info info;
    cu_library handle; /* NULL until it is loaded */
    pthread_mutex_t lock;
} LibraryObject;

#define LibraryObject_CAST(op) ((LibraryObject *)(op))

static PyObject *
Library_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"image", (char *)"label", NULL};
    core_state *state = core_state_by_type(type);
    PyObject *image = NULL; /* borrowed, as the next */
    PyObject *label = NULL;
    pc_cubin_info info;
    pc_error error;

    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O!U:CudaLibrary", names,
                                     &PyBytes_Type, &image, &label)) {
        return NULL;
    }
    if (pc_cubin_check((const uint8_t *)PyBytes_AS_STRING(image),
                       (size_t)PyBytes_GET_SIZE(image), &info, &error) != PC_OK) {
        return core_raise_named(state,
                                error.status == PC_BAD_VERSION ? "ArtifactVersionError"
                                                               : "ArtifactCorruptError",
                                "kernel %U: %s", label, error.message);
    }
    LibraryObject *self = LibraryObject_CAST(type->tp_alloc(type, 0));
    if (self != NULL) {
        self->image = Py_NewRef(image);
        self->label = Py_NewRef(label);
        self->info = info;
        pthread_mutex_init(&self->lock, NULL);
    }
    return (PyObject *)self;
}

static int
Library_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    return 0;
}

static void
Library_dealloc(PyObject *op)
{
    LibraryObject *self = LibraryObject_CAST(op);
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (self->handle == NULL) {
        Py_CLEAR(self->image); /* else the driver reads it */
    }
    Py_CLEAR(self->label);
    pthread_mutex_destroy(&self->lock);
    type->tp_free(op);
    Py_DECREF(type);
}

PyObject *
core_cuda_library_label(PyObject *library)
{
    return LibraryObject_CAST(library)->label;
}

pc_cuda_kernel *
core_cuda_library_kernel(core_state *state, PyObject *library, unsigned arch,
                         const char *symbol, const char *label, const uint8_t *sizes,
                         size_t count, const pc_cuda_shape *shape)
{
    LibraryObject *self = LibraryObject_CAST(library);
    pc_cuda_kernel *kernel = NULL;
    pc_status status = PC_OK;
    pc_error error;
    const void *image = PyBytes_AS_STRING(self->image);
    if (arch != self->info.arch) {
        (void)core_raise_named(
            state, "CudaError",
            "%s: the launch record is for sm_%u, the image for sm_%u", label, arch,
            self->info.arch);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&self->lock);
    status = pc_cuda_load(image, &self->info, &self->handle, symbol, label, sizes,
                          count, shape, &kernel, &error);
    pthread_mutex_unlock(&self->lock);
    Py_END_ALLOW_THREADS
    if (status != PC_OK) {
        (void)core_raise(state, &error);
        return NULL;
    }
    return kernel;
}

/* tuple of the names of the kernels of a checked image. */
static PyObject *
kernel_names(const uint8_t *image)
{
    PyObject *names = PyList_New(0);
    PyObject *result = NULL;
    const char *name = NULL;
    size_t cursor = 0;
    while (names != NULL && (name = pc_cubin_kernel(image, &cursor)) != NULL) {
        PyObject *text =
            PyUnicode_DecodeUTF8(name, (Py_ssize_t)strlen(name), "replace");
        if (text == NULL || PyList_Append(names, text) < 0) {
            Py_CLEAR(names);
        }
        Py_XDECREF(text);
    }
    if (names != NULL) {
        result = PyList_AsTuple(names);
    }
    Py_XDECREF(names);
    return result;
}

static PyObject *
Library_get_arch(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(LibraryObject_CAST(op)->info.arch);
}

static PyObject *
Library_get_toolkit(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(LibraryObject_CAST(op)->info.toolkit);
}

static PyObject *
Library_get_symbols(PyObject *op, void *Py_UNUSED(closure))
{
    PyObject *image = LibraryObject_CAST(op)->image;
    return kernel_names((const uint8_t *)PyBytes_AS_STRING(image));
}

static PyObject *
Library_get_loaded(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(LibraryObject_CAST(op)->handle != NULL);
}

static PyMemberDef Library_members[] = {
    {"label", T_OBJECT, offsetof(LibraryObject, label), READONLY,
     "What stands for the image in errors."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef Library_getset[] = {
    {"arch", Library_get_arch, NULL, "90 for compute capability 9.0.", NULL},
    {"toolkit", Library_get_toolkit, NULL,
     "128 for an image that CUDA 12.8 built, 0 if it does not say.", NULL},
    {"symbols", Library_get_symbols, NULL, "Names of its kernels: tuple of str.", NULL},
    {"loaded", Library_get_loaded, NULL, "Whether the driver has it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    Library_doc,
    "CudaLibrary(image, label)\n--\n\n"
    "The code of kernels for all devices of its architecture.\n\n"
    "*image* (bytes) is a cubin; *label* (str) names it in errors. The driver\n"
    "gets it when the first launcher is made, and keeps it for the life of the\n"
    "process. Raises ArtifactCorruptError when it is not a whole cubin, and\n"
    "ArtifactVersionError when it is of an ABI that is not known.");

static PyType_Slot Library_slots[] = {
    {Py_tp_doc, (void *)Library_doc},
    {Py_tp_new, Library_new},
    {Py_tp_traverse, Library_traverse},
    {Py_tp_dealloc, Library_dealloc},
    {Py_tp_members, Library_members},
    {Py_tp_getset, Library_getset},
    {0, NULL},
};

static PyType_Spec Library_spec = {
    .name = "precomp._core.CudaLibrary",
    .basicsize = sizeof(LibraryObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = Library_slots,
};

/* --- functions --- */

PyDoc_STRVAR(core_cuda_devices_doc,
             "cuda_devices()\n--\n\n"
             "Compute capability of every visible GPU: tuple of (major, minor).\n\n"
             "Starts the driver, but makes no context. Raises CudaError when there is\n"
             "no driver that can be used.");

static PyObject *
core_cuda_devices(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    core_state *state = core_state_get(module);
    pc_cuda_capability *devices = NULL; /* owned */
    size_t count = 0;
    pc_status status = PC_OK;
    pc_error error;
    PyObject *result = NULL;

    Py_BEGIN_ALLOW_THREADS
    status = pc_cuda_devices(&devices, &count, &error);
    Py_END_ALLOW_THREADS
    if (status != PC_OK) {
        return core_raise(state, &error);
    }
    result = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; result != NULL && i < count; i++) {
        PyObject *pair = Py_BuildValue("ii", devices[i].major, devices[i].minor);
        if (pair == NULL) {
            Py_CLEAR(result);
        }
        else {
            PyTuple_SET_ITEM(result, (Py_ssize_t)i, pair); /* steals *pair* */
        }
    }
    pc_free(devices);
    return result;
}

PyDoc_STRVAR(core_cuda_driver_doc,
             "cuda_driver(path, /)\n--\n\n"
             "Use *path* in place of libcuda.so.1. For tests.\n\n"
             "Raises ValueError once the driver has been asked for.");

static PyObject *
core_cuda_driver(PyObject *module, PyObject *argument)
{
    core_state *state = core_state_get(module);
    PyObject *path = NULL; /* owned: bytes */
    PyObject *result = NULL;
    pc_error error;
    if (!PyUnicode_FSConverter(argument, &path)) {
        return NULL;
    }
    if (pc_cuda_use(PyBytes_AS_STRING(path), &error) != PC_OK) {
        (void)core_raise(state, &error);
    }
    else {
        result = Py_NewRef(Py_None);
    }
    Py_DECREF(path);
    return result;
}

PyDoc_STRVAR(
    core_strip_cubin_doc,
    "strip_cubin(image, /)\n--\n\n"
    "The bytes of a cubin without embedded PTX, line tables and debug data.\n\n"
    "Code and everything that the driver reads stay as they are. Raises\n"
    "ArtifactCorruptError when *image* is not a whole cubin.");

static PyObject *
core_strip_cubin(PyObject *module, PyObject *argument)
{
    core_state *state = core_state_get(module);
    Py_buffer image = {.obj = NULL};
    uint8_t *stripped = NULL; /* owned */
    size_t size = 0;
    PyObject *result = NULL;
    pc_error error;
    if (PyObject_GetBuffer(argument, &image, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (pc_cubin_strip(image.buf, (size_t)image.len, &stripped, &size, &error) !=
        PC_OK) {
        (void)core_raise(state, &error);
    }
    else {
        result = PyBytes_FromStringAndSize((const char *)stripped, (Py_ssize_t)size);
    }
    pc_free(stripped);
    PyBuffer_Release(&image);
    return result;
}

static PyMethodDef cuda_functions[] = {
    {"cuda_devices", core_cuda_devices, METH_NOARGS, core_cuda_devices_doc},
    {"cuda_driver", core_cuda_driver, METH_O, core_cuda_driver_doc},
    {"strip_cubin", core_strip_cubin, METH_O, core_strip_cubin_doc},
    {NULL, NULL, 0, NULL},
};

int
core_add_cuda(PyObject *module)
{
    core_state *state = core_state_get(module);
    state->cuda_library_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &Library_spec, NULL);
    if (state->cuda_library_type == NULL ||
        PyModule_AddType(module, state->cuda_library_type) < 0 ||
        PyModule_AddFunctions(module, cuda_functions) < 0) {
        return -1;
    }
    return core_add_cuda_launcher(module);
}
