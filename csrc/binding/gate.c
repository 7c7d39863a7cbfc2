/* The strict gate: a process-wide veto on compiling.
 *
 * Active gates are held in one list. Whatever is about to compile calls
 * core_gate_trip(), which records a CompileViolation in each gate that forbids the
 * kind and raises it. A gate whose violation was swallowed raises it again when it is
 * left. The list and the union of forbidden kinds are per process, not per
 * interpreter: so is torch.
 */
#include "gate.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned bit;
} kinds[] = {
    {"trace", GATE_TRACE},       {"lower", GATE_LOWER}, {"build", GATE_BUILD},
    {"load", GATE_LOAD},         {"tune", GATE_TUNE},   {"record", GATE_RECORD},
    {"fallback", GATE_FALLBACK}, {"spawn", GATE_SPAWN}, {"driver_jit", GATE_DRIVER_JIT},
};

enum { KIND_COUNT = sizeof(kinds) / sizeof(*kinds) };

typedef struct {
    PyObject_HEAD
    unsigned forbidden;   /* bits of the forbidden kinds */
    Py_ssize_t depth;     /* how often it is entered and not yet left */
    Py_ssize_t mark;      /* len(violations) at the outermost entry */
    PyObject *violations; /* list, owned */
} GateObject;

#define GateObject_CAST(op) ((GateObject *)(op))

/* The active gates, in order of entry, each once. No Python API but Py_INCREF runs under
   the mutex. */
static struct {
    pthread_mutex_t lock;
    GateObject **gates; /* owned references, PyMem_Raw */
    size_t count;
    size_t room;
    atomic_uint forbidden; /* union over gates */
} active = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local unsigned exempt_depth;

unsigned
core_gate_bit(const char *name)
{
    for (size_t i = 0; i < KIND_COUNT; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            return kinds[i].bit;
        }
    }
    return 0;
}

unsigned
core_gate_forbidden(void)
{
    unsigned forbidden = atomic_load_explicit(&active.forbidden, memory_order_acquire);
    return forbidden != 0 && exempt_depth == 0 ? forbidden : 0;
}

void
core_gate_exempt_enter(void)
{
    exempt_depth++;
}

void
core_gate_exempt_leave(void)
{
    exempt_depth--;
}

/* Bit of the kind *name* (any object), or 0 with TypeError or ValueError set. */
static unsigned
kind_bit(PyObject *name)
{
    const char *text = NULL;
    if (!PyUnicode_Check(name)) {
        PyErr_Format(PyExc_TypeError, "a kind is a str, not %.100s",
                     Py_TYPE(name)->tp_name);
        return 0;
    }
    text = PyUnicode_AsUTF8(name);
    if (text == NULL) {
        return 0;
    }
    unsigned bit = core_gate_bit(text);
    if (bit == 0) {
        PyErr_Format(PyExc_ValueError,
                     "unknown kind %R; kinds are trace, lower, build, load, tune, "
                     "record, fallback, spawn and driver_jit",
                     name);
    }
    return bit;
}

static void
active_update_lock_held(void)
{
    unsigned forbidden = 0;
    for (size_t i = 0; i < active.count; i++) {
        forbidden |= active.gates[i]->forbidden;
    }
    atomic_store_explicit(&active.forbidden, forbidden, memory_order_release);
    core_gate_hook_nvrtc(active.count > 0);
}

void
core_gate_update(void)
{
    pthread_mutex_lock(&active.lock);
    active_update_lock_held();
    pthread_mutex_unlock(&active.lock);
}

/* Appends *gate* (takes a new reference). Returns 0, or -1 with MemoryError. */
static int
active_add(GateObject *gate)
{
    int result = 0;
    pthread_mutex_lock(&active.lock);
    if (active.count == active.room) {
        size_t room = active.room == 0 ? 8 : active.room * 2;
        GateObject **gates = PyMem_RawRealloc(active.gates, room * sizeof(*gates));
        if (gates == NULL) {
            result = -1;
        }
        else {
            active.gates = gates;
            active.room = room;
        }
    }
    if (result == 0) {
        active.gates[active.count++] = (GateObject *)Py_NewRef((PyObject *)gate);
        active_update_lock_held();
    }
    pthread_mutex_unlock(&active.lock);
    if (result < 0) {
        PyErr_NoMemory();
    }
    return result;
}

/* Removes *gate* by identity, wherever it stands, and gives its reference back. */
static void
active_remove(GateObject *gate)
{
    int found = 0;
    pthread_mutex_lock(&active.lock);
    for (size_t i = 0; i < active.count; i++) {
        if (active.gates[i] == gate) {
            active.count--;
            memmove(active.gates + i, active.gates + i + 1,
                    (active.count - i) * sizeof(*active.gates));
            found = 1;
            break;
        }
    }
    active_update_lock_held();
    pthread_mutex_unlock(&active.lock);
    if (found) {
        Py_DECREF(gate);
    }
}

/* The active gates that forbid *bit*: an array of *count new references from
   PyMem_RawMalloc, or NULL if there are none (*count == 0) or memory is short
   (*count == -1, MemoryError set). */
static GateObject **
active_that_forbid(unsigned bit, Py_ssize_t *count)
{
    GateObject **found = NULL;
    *count = 0;
    pthread_mutex_lock(&active.lock);
    if (active.count > 0) {
        found = PyMem_RawMalloc(active.count * sizeof(*found));
        if (found == NULL) {
            *count = -1;
        }
        for (size_t i = 0; found != NULL && i < active.count; i++) {
            if (active.gates[i]->forbidden & bit) {
                found[(*count)++] =
                    (GateObject *)Py_NewRef((PyObject *)active.gates[i]);
            }
        }
    }
    pthread_mutex_unlock(&active.lock);
    if (*count < 0) {
        PyErr_NoMemory();
    }
    else if (*count == 0) {
        PyMem_RawFree(found);
        found = NULL;
    }
    return found;
}

core_state *
core_gate_state(void)
{
    PyTypeObject *type = NULL; /* kept alive by the gate, the gate by its list */
    pthread_mutex_lock(&active.lock);
    if (active.count > 0) {
        type = Py_TYPE(active.gates[0]);
    }
    pthread_mutex_unlock(&active.lock);
    if (type == NULL) {
        return NULL;
    }
    core_state *state = core_state_by_type(type);
    if (state == NULL) {
        PyErr_Clear();
    }
    return state;
}

/* Returns a new CompileViolation, or NULL with an exception set. Runs no Python code, so
   that the calling thread keeps the GIL: it may hold a lock of torch. */
static PyObject *
new_violation(core_state *state, const char *kind, PyObject *what, PyObject *why,
              PyObject *where, PyObject *hint)
{
    static const char *const names[] = {"kind", "what", "why", "where", "hint"};
    PyObject *type = NULL;
    PyObject *empty = NULL;
    PyObject *place = NULL;
    PyObject *fields = NULL;
    PyObject *violation = NULL;

    type = PyObject_GetAttrString(state->errors, "CompileViolation");
    empty = PyUnicode_FromString("");
    if (type == NULL || empty == NULL) {
        goto done;
    }
    if (where == NULL || where == Py_None) {
        place = core_gate_where();
        if (place == NULL) {
            goto done;
        }
    }
    else {
        place = Py_NewRef(where);
    }
    fields = Py_BuildValue("sOOOO", kind, what == NULL ? empty : what,
                           why == NULL || why == Py_None ? empty : why, place,
                           hint == NULL || hint == Py_None ? empty : hint);
    if (fields == NULL) {
        goto done;
    }
    violation = ((PyTypeObject *)type)->tp_new((PyTypeObject *)type, fields, NULL);
    for (Py_ssize_t i = 0; violation != NULL && i < PyTuple_GET_SIZE(fields); i++) {
        if (PyObject_SetAttrString(violation, names[i], PyTuple_GET_ITEM(fields, i)) <
            0) {
            Py_CLEAR(violation);
        }
    }
done:
    Py_XDECREF(type);
    Py_XDECREF(empty);
    Py_XDECREF(place);
    Py_XDECREF(fields);
    return violation;
}

int
core_gate_record(core_state *state, const char *kind, PyObject *what, PyObject *why,
                 PyObject *where, PyObject *hint, PyObject **violation)
{
    GateObject **gates = NULL;
    Py_ssize_t count = 0;
    int result = -1;

    *violation = NULL;
    unsigned bit = core_gate_bit(kind);
    if (bit == 0) {
        PyErr_Format(PyExc_ValueError, "unknown kind '%s'", kind);
        return -1;
    }
    if (!(core_gate_forbidden() & bit)) {
        return 0;
    }
    gates = active_that_forbid(bit, &count);
    if (gates == NULL) {
        return count < 0 ? -1 : 0;
    }
    /* What describing the violation sets off (the collector) must not trip for itself. */
    core_gate_exempt_enter();
    *violation = new_violation(state, kind, what, why, where, hint);
    for (Py_ssize_t i = 0; *violation != NULL && i < count; i++) {
        if (PyList_Append(gates[i]->violations, *violation) < 0) {
            goto done;
        }
    }
    if (*violation != NULL) {
        result = 1;
    }
done:
    core_gate_exempt_leave();
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_DECREF(gates[i]);
    }
    PyMem_RawFree(gates);
    if (result < 0) {
        Py_CLEAR(*violation);
    }
    return result;
}

/* Tells the listener, if there is one. The violation counts whatever becomes of it. */
static void
tell_listener(core_state *state, PyObject *violation)
{
    if (state->listener == NULL) {
        return;
    }
    PyObject *listener = Py_NewRef(state->listener); /* it may replace itself */
    PyObject *answer = PyObject_CallOneArg(listener, violation);
    if (answer == NULL) {
        PyErr_WriteUnraisable(listener);
    }
    Py_DECREF(listener);
    Py_XDECREF(answer);
}

int
core_gate_trip(core_state *state, const char *kind, PyObject *what, PyObject *why,
               PyObject *where, PyObject *hint)
{
    PyObject *violation = NULL;
    int result = core_gate_record(state, kind, what, why, where, hint, &violation);
    if (result > 0) {
        tell_listener(state, violation);
        PyErr_SetObject((PyObject *)Py_TYPE(violation), violation);
        Py_DECREF(violation);
        result = -1;
    }
    return result;
}

/* --- Gate --- */

static PyObject *
Gate_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"allow", NULL};
    PyObject *allow = NULL; /* borrowed */
    PyObject *iterator = NULL;
    PyObject *item = NULL;
    GateObject *self = NULL;
    unsigned forbidden = GATE_ALL;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Gate", names, &allow)) {
        return NULL;
    }
    if (allow != NULL) {
        if (PyUnicode_Check(allow)) {
            PyErr_SetString(
                PyExc_TypeError,
                "allow takes several kinds, such as allow=('load',), not a str");
            return NULL;
        }
        iterator = PyObject_GetIter(allow);
        if (iterator == NULL) {
            return NULL;
        }
        while ((item = PyIter_Next(iterator)) != NULL) {
            unsigned bit = kind_bit(item);
            Py_DECREF(item);
            if (bit == 0) {
                goto done;
            }
            forbidden &= ~bit;
        }
        if (PyErr_Occurred()) {
            goto done;
        }
    }
    self = GateObject_CAST(type->tp_alloc(type, 0));
    if (self == NULL) {
        goto done;
    }
    self->forbidden = forbidden;
    self->violations = PyList_New(0);
    if (self->violations == NULL) {
        Py_CLEAR(self);
    }
done:
    Py_XDECREF(iterator);
    return (PyObject *)self;
}

static int
Gate_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(GateObject_CAST(op)->violations);
    return 0;
}

static int
Gate_clear(PyObject *op)
{
    Py_CLEAR(GateObject_CAST(op)->violations);
    return 0;
}

static void
Gate_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    (void)Gate_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

PyDoc_STRVAR(Gate_enter_doc,
             "__enter__($self, /)\n--\n\n"
             "Start to forbid; watch compiler processes from the first entry on.");

static PyObject *
Gate_enter(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    GateObject *self = GateObject_CAST(op);
    if (core_gate_watch_spawn() < 0) {
        return NULL;
    }
    if (self->depth == 0) {
        self->mark = PyList_GET_SIZE(self->violations);
        if (active_add(self) < 0) {
            return NULL;
        }
    }
    self->depth++;
    return Py_NewRef(op);
}

/* Makes *earlier* the context of *violation*, without making a ring. Borrows both. */
static void
set_context(PyObject *violation, PyObject *earlier)
{
    PyObject *at = Py_NewRef(earlier);
    while (at != NULL) {
        PyObject *context = PyException_GetContext(at); /* new reference or NULL */
        if (context == violation) {
            PyException_SetContext(at, NULL);
            Py_CLEAR(context);
        }
        Py_SETREF(at, context);
    }
    PyException_SetContext(violation, Py_NewRef(earlier));
}

/* Raises the recorded *violation* (borrowed), with the exception *earlier* (borrowed,
   may be NULL or None) that is on its way out as context. Always returns NULL. */
static PyObject *
raise_again(PyObject *violation, PyObject *earlier)
{
    if (earlier != NULL && PyExceptionInstance_Check(earlier) && earlier != violation) {
        set_context(violation, earlier);
    }
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(violation)), Py_NewRef(violation),
                  PyException_GetTraceback(violation));
    return NULL;
}

PyDoc_STRVAR(
    Gate_exit_doc,
    "__exit__($self, exc_type=None, exc=None, traceback=None, /)\n--\n\n"
    "Stop forbidding. Raises the first violation of this stretch again unless a\n"
    "CompileViolation is already on its way out.");

static PyObject *
Gate_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    GateObject *self = GateObject_CAST(op);
    PyObject *expected = NULL;
    PyObject *result = NULL;
    core_state *state = core_state_by_type(Py_TYPE(op));

    if (state == NULL) {
        return NULL;
    }
    if (self->depth == 0) {
        PyErr_SetString(PyExc_RuntimeError, "the gate is left more often than entered");
        return NULL;
    }
    self->depth--;
    if (self->depth == 0) {
        active_remove(self);
    }
    if (PyList_GET_SIZE(self->violations) > self->mark) {
        PyObject *current = nargs > 1 && args[1] != Py_None ? args[1]
                            : nargs > 0                     ? args[0]
                                                            : Py_None; /* borrowed */
        expected = PyObject_GetAttrString(state->errors, "CompileViolation");
        if (expected == NULL) {
            goto done;
        }
        if (current == Py_None || !PyErr_GivenExceptionMatches(current, expected)) {
            raise_again(PyList_GET_ITEM(self->violations, self->mark), current);
            goto done;
        }
    }
    result = Py_NewRef(Py_False);
done:
    Py_XDECREF(expected);
    return result;
}

static PyObject *
Gate_get_violations(PyObject *op, void *Py_UNUSED(closure))
{
    return PyList_AsTuple(GateObject_CAST(op)->violations);
}

static PyObject *
Gate_get_allow(PyObject *op, void *Py_UNUSED(closure))
{
    PyObject *allow = PyFrozenSet_New(NULL);
    for (size_t i = 0; allow != NULL && i < KIND_COUNT; i++) {
        if (!(GateObject_CAST(op)->forbidden & kinds[i].bit)) {
            PyObject *name = PyUnicode_FromString(kinds[i].name);
            if (name == NULL || PySet_Add(allow, name) < 0) {
                Py_CLEAR(allow);
            }
            Py_XDECREF(name);
        }
    }
    return allow;
}

static PyObject *
Gate_get_active(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(GateObject_CAST(op)->depth > 0);
}

static PyMethodDef Gate_methods[] = {
    {"__enter__", Gate_enter, METH_NOARGS, Gate_enter_doc},
    {"__exit__", PC_METHOD(Gate_exit), METH_FASTCALL, Gate_exit_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef Gate_getset[] = {
    {"violations", Gate_get_violations, NULL,
     "All violations since the gate was made, oldest first: tuple of CompileViolation.",
     NULL},
    {"allow", Gate_get_allow, NULL, "The allowed kinds: frozenset of str.", NULL},
    {"active", Gate_get_active, NULL, "Whether the gate is entered.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    Gate_doc,
    "Gate(allow=())\n--\n\n"
    "Forbids compiling in the whole process while it is entered.\n\n"
    "*allow*: iterable of kinds that stay allowed. Gates nest, may be entered again\n"
    "while entered, and may be left in any order.");

static PyType_Slot Gate_slots[] = {
    {Py_tp_doc, (void *)Gate_doc},   {Py_tp_new, Gate_new},
    {Py_tp_traverse, Gate_traverse}, {Py_tp_clear, Gate_clear},
    {Py_tp_dealloc, Gate_dealloc},   {Py_tp_methods, Gate_methods},
    {Py_tp_getset, Gate_getset},     {0, NULL},
};

static PyType_Spec Gate_spec = {
    .name = "precomp._core.Gate",
    .basicsize = sizeof(GateObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = Gate_slots,
};

/* --- functions --- */

PyDoc_STRVAR(core_gate_trip_doc,
             "gate_trip(kind, what, why=None, where=None, hint=None)\n--\n\n"
             "Raise and record a CompileViolation if an active gate forbids *kind*.\n\n"
             "*where* is found from the stack when it is None.");

static PyObject *
core_gate_trip_py(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"kind",  (char *)"what", (char *)"why",
                            (char *)"where", (char *)"hint", NULL};
    PyObject *kind = NULL; /* borrowed, as all of them */
    PyObject *what = NULL;
    PyObject *why = NULL;
    PyObject *where = NULL;
    PyObject *hint = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|OOO:gate_trip", names, &kind,
                                     &what, &why, &where, &hint)) {
        return NULL;
    }
    if (kind_bit(kind) == 0) {
        return NULL;
    }
    if (core_gate_trip(core_state_get(module), PyUnicode_AsUTF8(kind), what, why, where,
                       hint) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    core_gate_active_doc,
    "gate_active(kind=None, /)\n--\n\n"
    "Whether an active gate forbids *kind* (any kind if None) in this thread.");

static PyObject *
core_gate_active_py(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    unsigned bits = GATE_ALL;
    if (nargs > 1) {
        PyErr_Format(PyExc_TypeError, "gate_active takes at most 1 argument, got %zd",
                     nargs);
        return NULL;
    }
    if (nargs == 1 && args[0] != Py_None) {
        bits = kind_bit(args[0]);
        if (bits == 0) {
            return NULL;
        }
    }
    return PyBool_FromLong((core_gate_forbidden() & bits) != 0);
}

PyDoc_STRVAR(
    core_gate_where_doc,
    "gate_where()\n--\n\n"
    "``file:line`` of the innermost frame outside torch, Triton, precomp and the\n"
    "standard library, or ''.");

static PyObject *
core_gate_where_py(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    (void)module;
    return core_gate_where();
}

PyDoc_STRVAR(
    core_gate_record_doc,
    "gate_record(violation, /)\n--\n\n"
    "Add a CompileViolation of another process to the active gates that forbid\n"
    "its kind: they raise it when they are left. Returns how many do.");

static PyObject *
core_gate_record_py(PyObject *module, PyObject *violation)
{
    (void)module;
    GateObject **gates = NULL;
    PyObject *result = NULL;
    Py_ssize_t count = 0;

    PyObject *kind = PyObject_GetAttrString(violation, "kind");
    unsigned bit = kind == NULL ? 0 : kind_bit(kind);
    if (bit == 0) {
        goto done;
    }
    gates = active_that_forbid(bit, &count);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyList_Append(gates[i]->violations, violation) < 0) {
            goto done;
        }
    }
    result = count < 0 ? NULL : PyLong_FromSsize_t(count);
done:
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_DECREF(gates[i]);
    }
    PyMem_RawFree(gates);
    Py_XDECREF(kind);
    return result;
}

PyDoc_STRVAR(core_gate_listen_doc,
             "gate_listen(listener, /)\n--\n\n"
             "Call *listener* (None: nobody) with each violation before it is raised.");

static PyObject *
core_gate_listen_py(PyObject *module, PyObject *listener)
{
    core_state *state = core_state_get(module);
    Py_XSETREF(state->listener, listener == Py_None ? NULL : Py_NewRef(listener));
    Py_RETURN_NONE;
}

static PyMethodDef gate_functions[] = {
    {"gate_trip", PC_METHOD(core_gate_trip_py), METH_VARARGS | METH_KEYWORDS,
     core_gate_trip_doc},
    {"gate_active", PC_METHOD(core_gate_active_py), METH_FASTCALL,
     core_gate_active_doc},
    {"gate_record", core_gate_record_py, METH_O, core_gate_record_doc},
    {"gate_listen", core_gate_listen_py, METH_O, core_gate_listen_doc},
    {"gate_where", core_gate_where_py, METH_NOARGS, core_gate_where_doc},
    {"gate_watch_nvrtc", core_gate_watch_nvrtc, METH_NOARGS, core_gate_watch_nvrtc_doc},
    {NULL, NULL, 0, NULL},
};

int
core_add_gate(PyObject *module)
{
    core_state *state = core_state_get(module);
    state->gate_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &Gate_spec, NULL);
    if (state->gate_type == NULL || PyModule_AddType(module, state->gate_type) < 0 ||
        core_add_gate_exempt(module) < 0 ||
        PyModule_AddFunctions(module, gate_functions) < 0) {
        return -1;
    }
    return core_add_door(module);
}
