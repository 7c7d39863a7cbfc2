/* Tap: a callable that calls another one and then tells a sink what happened.
 *
 * It replaces a function of a module or a method of a class (also one that
 * pybind11 made) while a capture runs. It owns both callables and knows nothing
 * of what the sink does.
 */
#include "state.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *original; /* owned */
    PyObject *sink;     /* owned */
} TapObject;

#define TAP_CAST(op) ((TapObject *)(op))

/* New dict of the keyword values that follow the *nargs* positional ones. */
static PyObject *
collect_keywords(PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    PyObject *dict = PyDict_New(); /* owned, returned */
    for (Py_ssize_t i = 0; dict != NULL && i < PyTuple_GET_SIZE(names); i++) {
        if (PyDict_SetItem(dict, PyTuple_GET_ITEM(names, i), args[nargs + i]) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

static PyObject *
Tap_vectorcall(PyObject *op, PyObject *const *args, size_t nargsf, PyObject *names)
{
    TapObject *self = TAP_CAST(op);
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    PyObject *original = NULL;   /* owned: the sink may drop the tap */
    PyObject *sink = NULL;       /* owned */
    PyObject *positional = NULL; /* owned */
    PyObject *keywords = NULL;   /* owned */
    PyObject *answer = NULL;     /* owned */
    PyObject *result = NULL;     /* owned, returned */
    if (self->original == NULL || self->sink == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "Tap: called after it was cleared");
        return NULL;
    }
    original = Py_NewRef(self->original);
    sink = Py_NewRef(self->sink);
    result = PyObject_Vectorcall(original, args, nargsf, names);
    if (result == NULL) {
        goto done;
    }
    positional = PyTuple_New(nargs);
    if (positional == NULL) {
        goto fail;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    }
    keywords = names == NULL || PyTuple_GET_SIZE(names) == 0
                   ? Py_NewRef(Py_None)
                   : collect_keywords(args, nargs, names);
    if (keywords == NULL) {
        goto fail;
    }
    answer = PyObject_CallFunctionObjArgs(sink, positional, keywords, result, NULL);
    if (answer == NULL) {
        goto fail;
    }
    goto done;
fail:
    Py_CLEAR(result);
done:
    Py_XDECREF(original);
    Py_XDECREF(sink);
    Py_XDECREF(positional);
    Py_XDECREF(keywords);
    Py_XDECREF(answer);
    return result;
}

static PyObject *
Tap_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"original", (char *)"sink", NULL};
    PyObject *original = NULL; /* borrowed */
    PyObject *sink = NULL;     /* borrowed */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Tap", names, &original, &sink)) {
        return NULL;
    }
    if (!PyCallable_Check(original) || !PyCallable_Check(sink)) {
        PyErr_SetString(PyExc_TypeError, "Tap: expected two callables");
        return NULL;
    }
    TapObject *self = TAP_CAST(type->tp_alloc(type, 0));
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = Tap_vectorcall;
    self->original = Py_NewRef(original);
    self->sink = Py_NewRef(sink);
    return (PyObject *)self;
}

static PyObject *
Tap_descr_get(PyObject *op, PyObject *instance, PyObject *type)
{
    (void)type;
    if (instance == NULL || instance == Py_None) {
        return Py_NewRef(op);
    }
    return PyMethod_New(op, instance);
}

/* What a Tap has not, its original answers: __name__, __code__ and the like. */
static PyObject *
Tap_getattro(PyObject *op, PyObject *name)
{
    TapObject *self = TAP_CAST(op);
    PyObject *found = PyObject_GenericGetAttr(op, name);
    if (found != NULL || self->original == NULL ||
        !PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return found;
    }
    PyErr_Clear();
    return PyObject_GetAttr(self->original, name);
}

static PyObject *
Tap_repr(PyObject *op)
{
    return PyUnicode_FromFormat("<Tap of %R>", TAP_CAST(op)->original);
}

static int
Tap_traverse(PyObject *op, visitproc visit, void *arg)
{
    TapObject *self = TAP_CAST(op);
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->original);
    Py_VISIT(self->sink);
    return 0;
}

static int
Tap_clear(PyObject *op)
{
    TapObject *self = TAP_CAST(op);
    Py_CLEAR(self->original);
    Py_CLEAR(self->sink);
    return 0;
}

static void
Tap_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    (void)Tap_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMemberDef Tap_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(TapObject, vectorcall), READONLY,
     NULL},
    {"__wrapped__", T_OBJECT, offsetof(TapObject, original), READONLY,
     "The callable that is called."},
    {"sink", T_OBJECT, offsetof(TapObject, sink), READONLY,
     "Called as sink(args, kwargs or None, result) after each call that succeeded."},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(
    Tap_doc,
    "Tap(original, sink)\n--\n\n"
    "Callable that calls *original*, then sink(args, kwargs, result).\n\n"
    "*args* is the tuple of positional arguments (with the instance when the tap\n"
    "is a method), *kwargs* a dict or None. The sink is not called when *original*\n"
    "raises; what the sink raises propagates. Placed in a class it binds like a\n"
    "function.");

static PyType_Slot tap_slots[] = {
    {Py_tp_doc, (void *)Tap_doc},
    {Py_tp_new, Tap_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, Tap_descr_get},
    {Py_tp_getattro, Tap_getattro},
    {Py_tp_repr, Tap_repr},
    {Py_tp_members, Tap_members},
    {Py_tp_traverse, Tap_traverse},
    {Py_tp_clear, Tap_clear},
    {Py_tp_dealloc, Tap_dealloc},
    {0, NULL},
};

static PyType_Spec tap_spec = {
    .name = "precomp._core.Tap",
    .basicsize = sizeof(TapObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = tap_slots,
};

int
core_add_tap(PyObject *module)
{
    core_state *state = core_state_get(module);
    state->tap_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &tap_spec, NULL);
    if (state->tap_type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->tap_type);
}
