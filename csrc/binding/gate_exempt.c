/* gate_exempt: a context in which the calling thread trips no gate. */
#include "gate.h"

typedef struct {
    PyObject_HEAD
    unsigned long thread; /* that entered it */
    Py_ssize_t depth;
} ExemptObject;

#define ExemptObject_CAST(op) ((ExemptObject *)(op))

static int
Exempt_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    return 0;
}

static void
Exempt_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *
Exempt_enter(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    ExemptObject *self = ExemptObject_CAST(op);
    unsigned long thread = PyThread_get_thread_ident();
    if (self->depth > 0 && self->thread != thread) {
        PyErr_SetString(PyExc_RuntimeError, "gate_exempt is entered in another thread");
        return NULL;
    }
    self->thread = thread;
    self->depth++;
    core_gate_exempt_enter();
    return Py_NewRef(op);
}

static PyObject *
Exempt_exit(PyObject *op, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs))
{
    ExemptObject *self = ExemptObject_CAST(op);
    if (self->depth == 0 || self->thread != PyThread_get_thread_ident()) {
        PyErr_SetString(PyExc_RuntimeError,
                        "gate_exempt is left where it was not entered");
        return NULL;
    }
    self->depth--;
    core_gate_exempt_leave();
    Py_RETURN_FALSE;
}

static PyMethodDef Exempt_methods[] = {
    {"__enter__", Exempt_enter, METH_NOARGS, "__enter__($self, /)\n--\n\n"},
    {"__exit__", PC_METHOD(Exempt_exit), METH_FASTCALL,
     "__exit__($self, /, *args)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(
    Exempt_doc,
    "gate_exempt()\n--\n\n"
    "Context in which the calling thread trips no gate: for precomp's own loader.\n"
    "Enter and leave it in one thread, without an await or yield in between.");

static PyType_Slot Exempt_slots[] = {
    {Py_tp_doc, (void *)Exempt_doc},
    {Py_tp_methods, Exempt_methods},
    {Py_tp_traverse, Exempt_traverse},
    {Py_tp_dealloc, Exempt_dealloc},
    {0, NULL},
};

static PyType_Spec Exempt_spec = {
    .name = "precomp._core.gate_exempt",
    .basicsize = sizeof(ExemptObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = Exempt_slots,
};

int
core_add_gate_exempt(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &Exempt_spec, NULL);
    int result = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return result;
}
