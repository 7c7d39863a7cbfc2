/* Capture: the context manager behind precomp.capture().
 *
 * Owns the life of a capture (new, active, done, failed) and every replacement of an
 * attribute that recording needs, which it undoes exactly and in reverse order. What is
 * recorded, and in which form, is the business of the Python subclass, which it asks
 * through _begin(), _end() and _abandon().
 */
#include "state.h"

#include <stddef.h>
#include <structmember.h>

enum { CAPTURE_NEW, CAPTURE_ACTIVE, CAPTURE_DONE, CAPTURE_FAILED };

static const char *const capture_states[] = {"new", "active", "done", "failed"};

typedef struct {
    PyObject_HEAD
    int phase;
    PyObject *module;  /* owned: the type may be cleared before its instances are */
    PyObject *patches; /* owned: list of (owner, name, had, old value or None) */
} CaptureObject;

#define Capture_CAST(op) ((CaptureObject *)(op))

static PyObject *
Capture_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyObject *module = core_module_by_type(type); /* borrowed */
    if (module == NULL) {
        return NULL;
    }
    CaptureObject *self = Capture_CAST(type->tp_alloc(type, 0));
    if (self == NULL) {
        return NULL;
    }
    self->phase = CAPTURE_NEW;
    self->module = Py_NewRef(module);
    self->patches = PyList_New(0);
    if (self->patches == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

PyDoc_STRVAR(
    Capture_patch_doc,
    "patch($self, owner, name, new, /)\n--\n\n"
    "Set attribute *name* of *owner* (module, class or object) until the capture\n"
    "leaves; then the old value comes back, or the attribute goes if *owner* itself\n"
    "had none. Raises RuntimeError when the capture is not active.");

static PyObject *
Capture_patch(PyObject *op, PyObject *args)
{
    CaptureObject *self = Capture_CAST(op);
    PyObject *owner, *name, *new_value; /* borrowed */
    PyObject *namespace = NULL, *old = NULL, *row = NULL, *result = NULL;
    if (!PyArg_ParseTuple(args, "OUO:patch", &owner, &name, &new_value)) {
        return NULL;
    }
    if (self->phase != CAPTURE_ACTIVE) {
        PyErr_Format(PyExc_RuntimeError, "Capture.patch: the capture is %s, not active",
                     capture_states[self->phase]);
        return NULL;
    }
    namespace = PyObject_GetAttrString(owner, "__dict__");
    if (namespace == NULL) {
        goto done;
    }
    /* The raw value: a staticmethod must come back as a staticmethod. */
    old = PyObject_GetItem(namespace, name);
    if (old == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_KeyError)) {
            goto done;
        }
        PyErr_Clear();
    }
    row = Py_BuildValue("(OOOO)", owner, name, old == NULL ? Py_False : Py_True,
                        old == NULL ? Py_None : old);
    if (row == NULL || PyList_Append(self->patches, row) < 0 ||
        PyObject_SetAttr(owner, name, new_value) < 0) {
        goto done;
    }
    result = Py_NewRef(Py_None);
done:
    Py_XDECREF(namespace);
    Py_XDECREF(old);
    Py_XDECREF(row);
    return result;
}

/* Undoes all patches, last first. Returns 0, or -1 with the first error set; the others
   are undone all the same. */
static int
capture_undo(CaptureObject *self)
{
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    for (Py_ssize_t i = PyList_GET_SIZE(self->patches); i-- > 0;) {
        PyObject *row = PyList_GET_ITEM(self->patches, i); /* borrowed */
        PyObject *owner = PyTuple_GET_ITEM(row, 0);
        PyObject *name = PyTuple_GET_ITEM(row, 1);
        int failed = PyTuple_GET_ITEM(row, 2) == Py_True
                         ? PyObject_SetAttr(owner, name, PyTuple_GET_ITEM(row, 3))
                         : PyObject_DelAttr(owner, name);
        if (failed < 0) {
            if (type == NULL) {
                PyErr_Fetch(&type, &value, &trace);
            }
            PyErr_Clear();
        }
    }
    if (PyList_SetSlice(self->patches, 0, PyList_GET_SIZE(self->patches), NULL) < 0 ||
        type != NULL) {
        if (type != NULL) {
            PyErr_Restore(type, value, trace);
        }
        return -1;
    }
    return 0;
}

static void
capture_leave(CaptureObject *self, int phase)
{
    core_state *state = core_state_get(self->module);
    self->phase = phase;
    if (state->active_capture == (PyObject *)self) {
        state->active_capture = NULL;
    }
}

static PyObject *
Capture_enter(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    CaptureObject *self = Capture_CAST(op);
    PyObject *begun = NULL;
    core_state *state = core_state_get(self->module);
    if (self->phase != CAPTURE_NEW) {
        PyErr_Format(PyExc_RuntimeError,
                     "precomp.capture: this capture is %s and cannot be entered again; "
                     "make a new one",
                     capture_states[self->phase]);
        return NULL;
    }
    if (state->active_capture != NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "precomp.capture: another capture is active in this process; "
                        "leave it first");
        return NULL;
    }
    self->phase = CAPTURE_ACTIVE;
    state->active_capture = op;
    begun = PyObject_CallMethod(op, "_begin", NULL);
    if (begun == NULL) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        if (capture_undo(self) < 0) {
            PyErr_Clear();
        }
        capture_leave(self, CAPTURE_FAILED);
        PyErr_Restore(type, value, trace);
        return NULL;
    }
    Py_DECREF(begun);
    return Py_NewRef(op);
}

static PyObject *
Capture_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    CaptureObject *self = Capture_CAST(op);
    if (self->phase != CAPTURE_ACTIVE) {
        PyErr_Format(PyExc_RuntimeError, "precomp.capture: left while %s",
                     capture_states[self->phase]);
        return NULL;
    }
    int clean = nargs < 1 || args[0] == Py_None;
    int undone = capture_undo(self);
    capture_leave(self, clean && undone == 0 ? CAPTURE_DONE : CAPTURE_FAILED);
    if (undone < 0) {
        return NULL;
    }
    PyObject *result = PyObject_CallMethod(op, clean ? "_end" : "_abandon", NULL);
    if (result == NULL) {
        self->phase = CAPTURE_FAILED;
        return NULL;
    }
    Py_DECREF(result);
    Py_RETURN_FALSE;
}

static PyObject *
Capture_get_state(PyObject *op, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(capture_states[Capture_CAST(op)->phase]);
}

static PyObject *
Capture_hook(PyObject *Py_UNUSED(op), PyObject *Py_UNUSED(ignored))
{
    Py_RETURN_NONE;
}

/* A capture that nobody can leave any more, dropped while it was active, leaves as one
   that an exception left: its hooks go. */
static void
Capture_finalize(PyObject *op)
{
    CaptureObject *self = Capture_CAST(op);
    PyObject *type = NULL, *value = NULL, *trace = NULL; /* an exception that was set */
    PyObject *answer = NULL;
    if (self->phase != CAPTURE_ACTIVE) {
        return;
    }
    PyErr_Fetch(&type, &value, &trace);
    if (capture_undo(self) < 0) {
        PyErr_WriteUnraisable(op);
    }
    capture_leave(self, CAPTURE_FAILED);
    answer = PyObject_CallMethod(op, "_abandon", NULL);
    if (answer == NULL) {
        PyErr_WriteUnraisable(op);
    }
    Py_XDECREF(answer);
    PyErr_Restore(type, value, trace);
}

static int
Capture_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(Capture_CAST(op)->module);
    Py_VISIT(Capture_CAST(op)->patches);
    return 0;
}

static int
Capture_clear(PyObject *op)
{
    CaptureObject *self = Capture_CAST(op);
    if (self->module != NULL) {
        capture_leave(self, CAPTURE_FAILED); /* nothing may find it from now on */
    }
    Py_CLEAR(self->module);
    Py_CLEAR(self->patches);
    return 0;
}

static void
Capture_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    if (PyObject_CallFinalizerFromDealloc(op) < 0) {
        return; /* it lives on */
    }
    PyObject_GC_UnTrack(op);
    (void)Capture_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef Capture_methods[] = {
    {"patch", Capture_patch, METH_VARARGS, Capture_patch_doc},
    {"__enter__", Capture_enter, METH_NOARGS, "Start recording."},
    {"__exit__", PC_METHOD(Capture_exit), METH_FASTCALL, "Stop recording."},
    {"_begin", Capture_hook, METH_NOARGS, "Called when the capture becomes active."},
    {"_end", Capture_hook, METH_NOARGS, "Called after a clean exit."},
    {"_abandon", Capture_hook, METH_NOARGS, "Called after an exit by exception."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef Capture_getset[] = {
    {"state", Capture_get_state, NULL, "'new', 'active', 'done' or 'failed'.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    Capture_doc,
    "Base of precomp.Capture: the life of a capture and the exact undo of its hooks.");

static PyType_Slot Capture_slots[] = {
    {Py_tp_doc, (void *)Capture_doc},
    {Py_tp_new, Capture_new},
    {Py_tp_dealloc, Capture_dealloc},
    {Py_tp_finalize, Capture_finalize},
    {Py_tp_traverse, Capture_traverse},
    {Py_tp_clear, Capture_clear},
    {Py_tp_methods, Capture_methods},
    {Py_tp_getset, Capture_getset},
    {0, NULL},
};

static PyType_Spec Capture_spec = {
    .name = "precomp._core.Capture",
    .basicsize = sizeof(CaptureObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = Capture_slots,
};

int
core_add_capture(PyObject *module)
{
    core_state *state = core_state_get(module);
    state->capture_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &Capture_spec, NULL);
    if (state->capture_type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->capture_type);
}
