/* BoundCall: a callable with its first arguments fixed, which it holds weakly.
 *
 * A graph that holds parameters and optimizer state as attributes takes them as its
 * first arguments. The program owns these tensors; a strong reference here would
 * keep a model alive that the program has dropped.
 */
#include "state.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function; /* owned */
    PyObject *first;    /* owned: tuple of weak references */
    PyObject *weakrefs;
} BoundCallObject;

#define BOUND_CALL_CAST(op) ((BoundCallObject *)(op))

/* New reference to what *reference* (a weak reference) leads to; NULL without an
   error when that is gone. */
static PyObject *
referent(PyObject *reference)
{
    PyObject *object = NULL;
#if PY_VERSION_HEX >= 0x030D0000
    if (PyWeakref_GetRef(reference, &object) < 0) {
        PyErr_Clear();
    }
#else
    object = PyWeakref_GetObject(reference); /* borrowed */
    object = object == Py_None ? NULL : Py_XNewRef(object);
#endif
    return object;
}

static PyObject *
BoundCall_vectorcall(PyObject *op, PyObject *const *args, size_t nargsf,
                     PyObject *names)
{
    BoundCallObject *self = BOUND_CALL_CAST(op);
    Py_ssize_t fixed = PyTuple_GET_SIZE(self->first);
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    Py_ssize_t keywords = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    Py_ssize_t held = 0;
    PyObject *result = NULL; /* owned, returned */
    PyObject **all = PyMem_Calloc((size_t)(fixed + given + keywords) + 1, sizeof(*all));
    if (all == NULL) {
        return PyErr_NoMemory();
    }
    for (; held < fixed; held++) {
        all[held] = referent(PyTuple_GET_ITEM(self->first, held)); /* owned */
        if (all[held] == NULL) {
            PyErr_Format(PyExc_ReferenceError, "BoundCall: first argument %zd is gone",
                         held);
            goto done;
        }
    }
    for (Py_ssize_t i = 0; i < given + keywords; i++) {
        all[fixed + i] = args[i];
    }
    result = PyObject_Vectorcall(self->function, all, (size_t)(fixed + given), names);
done:
    for (Py_ssize_t i = 0; i < held; i++) {
        Py_DECREF(all[i]);
    }
    PyMem_Free(all);
    return result;
}

static PyObject *
BoundCall_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"function", (char *)"first", NULL};
    PyObject *function = NULL;  /* borrowed */
    PyObject *first = NULL;     /* borrowed */
    PyObject *reference = NULL; /* owned */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!:BoundCall", names, &function,
                                     &PyTuple_Type, &first)) {
        return NULL;
    }
    if (!PyCallable_Check(function)) {
        PyErr_SetString(PyExc_TypeError, "BoundCall: expected a callable");
        return NULL;
    }
    BoundCallObject *self = BOUND_CALL_CAST(type->tp_alloc(type, 0));
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = BoundCall_vectorcall;
    self->function = Py_NewRef(function);
    self->first = PyTuple_New(PyTuple_GET_SIZE(first));
    if (self->first == NULL) {
        goto error;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(first); i++) {
        reference = PyWeakref_NewRef(PyTuple_GET_ITEM(first, i), NULL);
        if (reference == NULL) {
            goto error;
        }
        PyTuple_SET_ITEM(self->first, i, reference);
    }
    return (PyObject *)self;
error:
    Py_DECREF(self);
    return NULL;
}

static PyObject *
BoundCall_repr(PyObject *op)
{
    BoundCallObject *self = BOUND_CALL_CAST(op);
    return PyUnicode_FromFormat("<precomp._core.BoundCall of %R, %zd fixed>",
                                self->function, PyTuple_GET_SIZE(self->first));
}

static int
BoundCall_traverse(PyObject *op, visitproc visit, void *arg)
{
    BoundCallObject *self = BOUND_CALL_CAST(op);
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->function);
    Py_VISIT(self->first);
    return 0;
}

static void
BoundCall_dealloc(PyObject *op)
{
    BoundCallObject *self = BOUND_CALL_CAST(op);
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    Py_XDECREF(self->function);
    Py_XDECREF(self->first);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMemberDef BoundCall_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(BoundCallObject, vectorcall),
     READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(BoundCallObject, weakrefs), READONLY,
     NULL},
    {"function", T_OBJECT, offsetof(BoundCallObject, function), READONLY,
     "What is called."},
    {"first", T_OBJECT, offsetof(BoundCallObject, first), READONLY,
     "Weak references to its first arguments."},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(BoundCall_doc,
             "BoundCall(function, first)\n--\n\n"
             "Callable that calls function(*first, *args) and holds *first* weakly.\n\n"
             "ReferenceError when one of *first* is gone.");

static PyType_Slot bound_call_slots[] = {
    {Py_tp_doc, (void *)BoundCall_doc}, {Py_tp_new, BoundCall_new},
    {Py_tp_call, PyVectorcall_Call},    {Py_tp_repr, BoundCall_repr},
    {Py_tp_members, BoundCall_members}, {Py_tp_traverse, BoundCall_traverse},
    {Py_tp_dealloc, BoundCall_dealloc}, {0, NULL},
};

static PyType_Spec bound_call_spec = {
    .name = "precomp._core.BoundCall",
    .basicsize = sizeof(BoundCallObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = bound_call_slots,
};

int
core_add_bound_call(PyObject *module)
{
    core_state *state = core_state_get(module);
    state->bound_call_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &bound_call_spec, NULL);
    if (state->bound_call_type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->bound_call_type);
}
