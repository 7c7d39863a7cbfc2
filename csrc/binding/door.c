/* Door: a callable in front of a function that compiles.
 *
 * While no gate forbids its kinds a Door calls the function and nothing else. Otherwise
 * it asks *describe*, a Python function, whether this call compiles and what to say,
 * and trips the gate. *describe* runs with the thread exempt and with torch's frame
 * evaluator off, so that neither a gate nor Dynamo looks at it.
 */
#include "gate.h"

#include <stddef.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *original; /* owned */
    PyObject *describe; /* owned */
    PyObject *dict;     /* owned, for functools.update_wrapper */
    unsigned bits;
} DoorObject;

#define DoorObject_CAST(op) ((DoorObject *)(op))

/* Sets torch's frame evaluator to *callback* (borrowed). Returns a new reference to the
   one that was set, None if torch is not there, or NULL with an exception set. */
static PyObject *
set_eval_frame(PyObject *callback)
{
    PyObject *name = NULL;
    PyObject *module = NULL;
    PyObject *previous = NULL;

    name = PyUnicode_FromString("torch._C._dynamo.eval_frame");
    if (name == NULL) {
        return NULL;
    }
    module = PyImport_GetModule(name);
    if (module != NULL) {
        previous = PyObject_CallMethod(module, "set_eval_frame", "O", callback);
    }
    else if (!PyErr_Occurred()) {
        previous = Py_NewRef(Py_None);
    }
    Py_DECREF(name);
    Py_XDECREF(module);
    return previous;
}

/* Calls describe(args, kwargs). Returns a new reference, or NULL with an exception. */
static PyObject *
Door_describe(DoorObject *self, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames)
{
    PyObject *positional = NULL;
    PyObject *keywords = NULL;
    PyObject *evaluator = NULL;
    PyObject *description = NULL;

    positional = PyTuple_New(nargs);
    keywords = PyDict_New();
    if (positional == NULL || keywords == NULL) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    }
    for (Py_ssize_t i = 0; kwnames != NULL && i < PyTuple_GET_SIZE(kwnames); i++) {
        if (PyDict_SetItem(keywords, PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) <
            0) {
            goto done;
        }
    }
    evaluator = set_eval_frame(Py_None);
    if (evaluator == NULL) {
        goto done;
    }
    core_gate_exempt_enter();
    description =
        PyObject_CallFunctionObjArgs(self->describe, positional, keywords, NULL);
    core_gate_exempt_leave();
    if (evaluator != Py_None) {
        PyObject *type = NULL;
        PyObject *value = NULL;
        PyObject *traceback = NULL;
        PyErr_Fetch(&type, &value, &traceback);
        PyObject *ours = set_eval_frame(evaluator);
        if (ours == NULL) {
            Py_CLEAR(description);
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(traceback);
        }
        else {
            Py_DECREF(ours);
            PyErr_Restore(type, value, traceback);
        }
    }
done:
    Py_XDECREF(positional);
    Py_XDECREF(keywords);
    Py_XDECREF(evaluator);
    return description;
}

/* Returns 0 if the call may go on, -1 with the violation (or an error) set. */
static int
Door_check(DoorObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *description = NULL;
    int result = -1;
    const char *kind = NULL;
    PyObject *what = NULL; /* borrowed from description, as the next three */
    PyObject *why = NULL;
    PyObject *where = NULL;
    PyObject *hint = NULL;
    core_state *state = core_gate_state();

    if (state == NULL) {
        return 0;
    }
    description = Door_describe(self, args, nargs, kwnames);
    if (description == NULL) {
        goto done;
    }
    if (description == Py_None) {
        result = 0;
        goto done;
    }
    if (!PyTuple_Check(description)) {
        PyErr_Format(PyExc_TypeError, "describe returned %.100s, not a tuple or None",
                     Py_TYPE(description)->tp_name);
        goto done;
    }
    if (!PyArg_ParseTuple(description, "sOOOO:describe", &kind, &what, &why, &where,
                          &hint)) {
        goto done;
    }
    result = core_gate_trip(state, kind, what, why, where, hint);
done:
    Py_XDECREF(description);
    return result;
}

static PyObject *
Door_vectorcall(PyObject *op, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    DoorObject *self = DoorObject_CAST(op);
    if (core_gate_forbidden() & self->bits) {
        if (Door_check(self, args, PyVectorcall_NARGS(nargsf), kwnames) < 0) {
            return NULL;
        }
    }
    return PyObject_Vectorcall(self->original, args, nargsf, kwnames);
}

static PyObject *
Door_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"original", (char *)"describe", (char *)"kinds",
                            NULL};
    PyObject *original = NULL; /* borrowed, as the next two */
    PyObject *describe = NULL;
    PyObject *kinds = NULL;
    unsigned bits = 0;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!:Door", names, &original,
                                     &describe, &PyTuple_Type, &kinds)) {
        return NULL;
    }
    if (!PyCallable_Check(original) || !PyCallable_Check(describe)) {
        PyErr_SetString(PyExc_TypeError,
                        "Door: original and describe must be callable");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kinds); i++) {
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(kinds, i));
        if (name == NULL) {
            return NULL;
        }
        unsigned bit = core_gate_bit(name);
        if (bit == 0) {
            PyErr_Format(PyExc_ValueError, "Door: unknown kind '%s'", name);
            return NULL;
        }
        bits |= bit;
    }
    DoorObject *self = DoorObject_CAST(type->tp_alloc(type, 0));
    if (self != NULL) {
        self->vectorcall = Door_vectorcall;
        self->original = Py_NewRef(original);
        self->describe = Py_NewRef(describe);
        self->bits = bits;
    }
    return (PyObject *)self;
}

static int
Door_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(DoorObject_CAST(op)->original);
    Py_VISIT(DoorObject_CAST(op)->describe);
    Py_VISIT(DoorObject_CAST(op)->dict);
    return 0;
}

static int
Door_clear(PyObject *op)
{
    Py_CLEAR(DoorObject_CAST(op)->original);
    Py_CLEAR(DoorObject_CAST(op)->describe);
    Py_CLEAR(DoorObject_CAST(op)->dict);
    return 0;
}

static void
Door_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    (void)Door_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

/* Binds like a function does. */
static PyObject *
Door_get(PyObject *op, PyObject *instance, PyObject *Py_UNUSED(owner))
{
    if (instance == NULL || instance == Py_None) {
        return Py_NewRef(op);
    }
    return PyMethod_New(op, instance);
}

static PyMemberDef Door_members[] = {
    {"original", T_OBJECT, offsetof(DoorObject, original), READONLY,
     "The function behind the door."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(DoorObject, vectorcall), READONLY,
     NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(DoorObject, dict), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef Door_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    Door_doc,
    "Door(original, describe, kinds)\n--\n\n"
    "Callable that calls *original*, or trips the gate.\n\n"
    "*describe(args, kwargs)* is called only while a gate forbids one of *kinds*\n"
    "(tuple of str); it returns (kind, what, why, where, hint), or None if this\n"
    "call compiles nothing.");

static PyType_Slot Door_slots[] = {
    {Py_tp_doc, (void *)Door_doc},   {Py_tp_new, Door_new},
    {Py_tp_traverse, Door_traverse}, {Py_tp_clear, Door_clear},
    {Py_tp_dealloc, Door_dealloc},   {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, Door_get},     {Py_tp_members, Door_members},
    {Py_tp_getset, Door_getset},     {0, NULL},
};

static PyType_Spec Door_spec = {
    .name = "precomp._core.Door",
    .basicsize = sizeof(DoorObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = Door_slots,
};

int
core_add_door(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &Door_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int result = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return result;
}
