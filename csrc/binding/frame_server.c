/* FrameServer: the callable that torch's frame evaluator asks on a cache miss, and the
 * entry into a compiled region. FrameReturn: its answer.
 *
 * The evaluator (torch/csrc/dynamo) calls callback(frame, cache_entry, frame_state) and
 * reads .guarded_code, .apply_to_code and .frame_exec_strategy of the result. An accepted
 * entry is put into torch's own cache on the code object, so this file runs once per
 * entry and code; every later call is served by libtorch_python alone.
 *
 * One server per compiler configuration: torch keys its cache by the callback object.
 */
#include "state.h"

#include <stddef.h>
#include <structmember.h>

/* ------------------------------------------------------------- FrameReturn */

typedef struct {
    PyObject_HEAD
    PyObject *guarded_code; /* owned: object with code, guard_manager, ... or None */
    PyObject *strategy;     /* owned: torch's FrameExecStrategy */
    PyObject *skip_reason;  /* owned: str or None */
    char apply_to_code;
} FrameReturnObject;

#define FrameReturn_CAST(op) ((FrameReturnObject *)(op))

static PyMemberDef FrameReturn_members[] = {
    {"guarded_code", T_OBJECT_EX, offsetof(FrameReturnObject, guarded_code), READONLY,
     "Code and guards to install, or None."},
    {"frame_exec_strategy", T_OBJECT_EX, offsetof(FrameReturnObject, strategy),
     READONLY, "What torch does with this frame and the frames it calls."},
    {"skip_reason", T_OBJECT_EX, offsetof(FrameReturnObject, skip_reason), READONLY,
     "Why the frame runs as it is, or None."},
    {"apply_to_code", T_BOOL, offsetof(FrameReturnObject, apply_to_code), READONLY,
     "Whether the strategy holds for all later calls of the code."},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *
FrameReturn_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *const keywords[] = {"guarded_code", "strategy", "apply_to_code",
                                           "skip_reason", NULL};
    PyObject *guarded_code, *strategy, *skip_reason = Py_None; /* borrowed */
    int apply = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|pO:FrameReturn",
                                     (char **)keywords, &guarded_code, &strategy,
                                     &apply, &skip_reason)) {
        return NULL;
    }
    FrameReturnObject *self = FrameReturn_CAST(type->tp_alloc(type, 0));
    if (self == NULL) {
        return NULL;
    }
    self->guarded_code = Py_NewRef(guarded_code);
    self->strategy = Py_NewRef(strategy);
    self->skip_reason = Py_NewRef(skip_reason);
    self->apply_to_code = (char)apply;
    return (PyObject *)self;
}

static int
FrameReturn_traverse(PyObject *op, visitproc visit, void *arg)
{
    FrameReturnObject *self = FrameReturn_CAST(op);
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->guarded_code);
    Py_VISIT(self->strategy);
    Py_VISIT(self->skip_reason);
    return 0;
}

static int
FrameReturn_clear(PyObject *op)
{
    FrameReturnObject *self = FrameReturn_CAST(op);
    Py_CLEAR(self->guarded_code);
    Py_CLEAR(self->strategy);
    Py_CLEAR(self->skip_reason);
    return 0;
}

static void
FrameReturn_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    (void)FrameReturn_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

PyDoc_STRVAR(
    FrameReturn_doc,
    "FrameReturn(guarded_code, strategy, apply_to_code=True, skip_reason=None)\n"
    "--\n\n"
    "Answer to torch's frame evaluator. guarded_code None means: run the frame "
    "as it is.");

static PyType_Slot FrameReturn_slots[] = {
    {Py_tp_doc, (void *)FrameReturn_doc},
    {Py_tp_new, FrameReturn_new},
    {Py_tp_dealloc, FrameReturn_dealloc},
    {Py_tp_traverse, FrameReturn_traverse},
    {Py_tp_clear, FrameReturn_clear},
    {Py_tp_members, FrameReturn_members},
    {0, NULL},
};

static PyType_Spec FrameReturn_spec = {
    .name = "precomp._core.FrameReturn",
    .basicsize = sizeof(FrameReturnObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = FrameReturn_slots,
};

/* ------------------------------------------------------------- FrameServer */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *find; /* owned: code -> tuple of entry numbers, or FrameReturn */
    PyObject
        *build;     /* owned: (entry, code, f_globals) -> (check, FrameReturn) | None */
    PyObject *miss; /* owned: (frame, cache_entry, frame_state, entries) -> answer */
    PyObject *codes;  /* owned: dict id(code) -> (code, find's result) */
    PyObject *built;  /* owned: dict (entry, id(f_globals)) -> (result, f_globals) */
    PyObject *served; /* owned: dict entry -> number of times it was installed */
    PyObject *weakrefs;
} FrameServerObject;

#define FrameServer_CAST(op) ((FrameServerObject *)(op))

/* Returns a new reference to what is known of *code*: a tuple of entry numbers, or a
   FrameReturn for a frame that is always skipped; NULL with an exception set. */
static PyObject *
server_find(FrameServerObject *self, PyObject *code)
{
    PyObject *key = NULL, *row = NULL, *found = NULL;
    key = PyLong_FromVoidPtr(code);
    if (key == NULL) {
        goto done;
    }
    PyObject *known = PyDict_GetItemWithError(self->codes, key); /* borrowed */
    if (known != NULL) {
        found = Py_NewRef(PyTuple_GET_ITEM(known, 1));
        goto done;
    }
    if (PyErr_Occurred()) {
        goto done;
    }
    PyObject *answer = PyObject_CallOneArg(self->find, code);
    if (answer == NULL) {
        goto done;
    }
    /* The row keeps the code alive: its address stays its name. */
    row = PyTuple_Pack(2, code, answer);
    if (row == NULL || PyDict_SetItem(self->codes, key, row) < 0) {
        Py_DECREF(answer);
        goto done;
    }
    found = answer;
done:
    Py_XDECREF(key);
    Py_XDECREF(row);
    return found;
}

/* Returns a new reference to (check, FrameReturn) of *entry* for *f_globals*, to None
   when the entry is stale, or NULL with an exception set. */
static PyObject *
server_built(FrameServerObject *self, PyObject *entry, PyObject *code,
             PyObject *f_globals)
{
    PyObject *address = NULL, *key = NULL, *row = NULL, *result = NULL;
    address = PyLong_FromVoidPtr(f_globals);
    if (address == NULL) {
        goto done;
    }
    key = PyTuple_Pack(2, entry, address);
    if (key == NULL) {
        goto done;
    }
    PyObject *known = PyDict_GetItemWithError(self->built, key); /* borrowed */
    if (known != NULL) {
        result = Py_NewRef(PyTuple_GET_ITEM(known, 0));
        goto done;
    }
    if (PyErr_Occurred()) {
        goto done;
    }
    PyObject *made =
        PyObject_CallFunctionObjArgs(self->build, entry, code, f_globals, NULL);
    if (made == NULL) {
        goto done;
    }
    if (made != Py_None && !(PyTuple_Check(made) && PyTuple_GET_SIZE(made) == 2)) {
        PyErr_SetString(PyExc_TypeError,
                        "FrameServer: build must return (check, FrameReturn) or None");
        Py_DECREF(made);
        goto done;
    }
    row = PyTuple_Pack(2, made, f_globals);
    if (row == NULL || (made != Py_None && PyDict_SetItem(self->built, key, row) < 0)) {
        Py_DECREF(made);
        goto done;
    }
    result = made;
done:
    Py_XDECREF(address);
    Py_XDECREF(key);
    Py_XDECREF(row);
    return result;
}

static int
server_count(FrameServerObject *self, PyObject *entry)
{
    int result = -1;
    PyObject *number = NULL;
    PyObject *old = PyDict_GetItemWithError(self->served, entry); /* borrowed */
    if (old == NULL && PyErr_Occurred()) {
        return -1;
    }
    number = PyLong_FromLong(old == NULL ? 1 : PyLong_AsLong(old) + 1);
    if (number != NULL) {
        result = PyDict_SetItem(self->served, entry, number);
        Py_DECREF(number);
    }
    return result;
}

PyDoc_STRVAR(
    FrameServer_accept_doc,
    "accept($self, frame, /)\n--\n\n"
    "Look *frame* (object with f_code, f_locals, f_globals) up in the artifact.\n\n"
    "Returns a FrameReturn: the first entry whose guards accept the frame, or the\n"
    "recorded skip of its code; otherwise the tuple of entry numbers of its code\n"
    "(empty: the code is not in the artifact).");

static PyObject *
FrameServer_accept(PyObject *op, PyObject *frame)
{
    FrameServerObject *self = FrameServer_CAST(op);
    PyObject *code = NULL, *f_globals = NULL, *f_locals = NULL, *found = NULL;
    PyObject *result = NULL, *pair = NULL, *verdict = NULL;
    code = PyObject_GetAttrString(frame, "f_code");
    if (code == NULL) {
        goto done;
    }
    found = server_find(self, code);
    if (found == NULL || !PyTuple_Check(found) || PyTuple_GET_SIZE(found) == 0) {
        result = Py_XNewRef(found);
        goto done;
    }
    f_globals = PyObject_GetAttrString(frame, "f_globals");
    f_locals = PyObject_GetAttrString(frame, "f_locals");
    if (f_globals == NULL || f_locals == NULL) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(found); i++) {
        PyObject *entry = PyTuple_GET_ITEM(found, i); /* borrowed */
        Py_XSETREF(pair, server_built(self, entry, code, f_globals));
        if (pair == NULL) {
            goto done;
        }
        if (pair == Py_None) {
            continue;
        }
        Py_XSETREF(verdict, PyObject_CallOneArg(PyTuple_GET_ITEM(pair, 0), f_locals));
        if (verdict == NULL) {
            goto done;
        }
        int accepted = PyObject_IsTrue(verdict);
        if (accepted < 0) {
            goto done;
        }
        if (accepted) {
            if (server_count(self, entry) == 0) {
                result = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
            }
            goto done;
        }
    }
    result = Py_NewRef(found);
done:
    Py_XDECREF(code);
    Py_XDECREF(f_globals);
    Py_XDECREF(f_locals);
    Py_XDECREF(found);
    Py_XDECREF(pair);
    Py_XDECREF(verdict);
    return result;
}

static PyObject *
FrameServer_vectorcall(PyObject *op, PyObject *const *args, size_t nargsf,
                       PyObject *kwnames)
{
    FrameServerObject *self = FrameServer_CAST(op);
    if (PyVectorcall_NARGS(nargsf) != 3 ||
        (kwnames && PyTuple_GET_SIZE(kwnames) != 0)) {
        PyErr_SetString(PyExc_TypeError,
                        "FrameServer: expected (frame, cache_entry, frame_state)");
        return NULL;
    }
    PyObject *answer = FrameServer_accept(op, args[0]);
    if (answer == NULL || !PyTuple_Check(answer)) {
        return answer;
    }
    PyObject *result = PyObject_CallFunctionObjArgs(self->miss, args[0], args[1],
                                                    args[2], answer, NULL);
    Py_DECREF(answer);
    return result;
}

/* Calls bound torch name *name* with one argument (NULL: none). New reference or NULL. */
static PyObject *
torch_call(core_state *state, const char *name, PyObject *argument)
{
    PyObject *function = core_torch(state, name); /* borrowed */
    if (function == NULL) {
        return NULL;
    }
    return argument == NULL ? PyObject_CallNoArgs(function)
                            : PyObject_CallOneArg(function, argument);
}

PyDoc_STRVAR(
    FrameServer_run_doc,
    "run($self, function, args, kwargs, /)\n--\n\n"
    "Call function(*args, **kwargs) as a compiled region served by this object.\n\n"
    "Restores the evaluator's callback, the functorch layer stack and the dispatch\n"
    "keys whatever happens. kwargs is a dict or None.");

static PyObject *
FrameServer_run(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *prior = NULL, *depth = NULL, *include = NULL, *exclude = NULL;
    PyObject *guard = NULL, *entered = NULL, *result = NULL, *step = NULL;
    PyObject *error_type = NULL, *error_value = NULL, *error_trace = NULL;
    core_state *state = core_state_by_type(Py_TYPE(op));
    if (state == NULL) {
        return NULL;
    }
    if (nargs != 3 || !PyTuple_Check(args[1]) ||
        !(args[2] == Py_None || PyDict_Check(args[2]))) {
        PyErr_SetString(PyExc_TypeError,
                        "run: expected (function, tuple, dict or None)");
        return NULL;
    }
    prior = torch_call(state, "set_eval_frame", Py_None);
    if (prior == NULL) {
        return NULL;
    }
    depth = torch_call(state, "dynamic_layer_depth", NULL);
    include = torch_call(state, "tls_include", NULL);
    exclude = torch_call(state, "tls_exclude", NULL);
    PyObject *guard_type = core_torch(state, "ForceDispatchKeyGuard"); /* borrowed */
    if (depth == NULL || include == NULL || exclude == NULL || guard_type == NULL) {
        goto restore;
    }
    guard = PyObject_CallFunctionObjArgs(guard_type, include, exclude, NULL);
    if (guard == NULL) {
        goto restore;
    }
    entered = PyObject_CallMethod(guard, "__enter__", NULL);
    if (entered == NULL) {
        goto restore;
    }
    step = torch_call(state, "set_eval_frame", op);
    if (step != NULL) {
        Py_DECREF(step);
        result = PyObject_Call(args[0], args[1], args[2] == Py_None ? NULL : args[2]);
    }
restore:
    PyErr_Fetch(&error_type, &error_value, &error_trace);
    step = torch_call(state, "set_eval_frame", Py_None);
    Py_XDECREF(step);
    if (step != NULL && entered != NULL) {
        step = torch_call(state, "undo_dynamic_layers", depth);
        Py_XDECREF(step);
    }
    if (entered != NULL) {
        PyObject *left =
            PyObject_CallMethod(guard, "__exit__", "OOO", Py_None, Py_None, Py_None);
        Py_XDECREF(left);
        step = left == NULL ? NULL : step;
    }
    PyObject *back = torch_call(state, "set_eval_frame", prior);
    Py_XDECREF(back);
    if (error_type != NULL) {
        /* The user's error counts; one of the restoring calls is only its echo. */
        PyErr_Clear();
        PyErr_Restore(error_type, error_value, error_trace);
    }
    else if (step == NULL || back == NULL) {
        Py_CLEAR(result);
    }
    Py_XDECREF(prior);
    Py_XDECREF(depth);
    Py_XDECREF(include);
    Py_XDECREF(exclude);
    Py_XDECREF(guard);
    Py_XDECREF(entered);
    return result;
}

PyDoc_STRVAR(FrameServer_forget_doc,
             "forget($self, /)\n--\n\n"
             "Drop what is known of code and all built guard trees; frames ask again.");

static PyObject *
FrameServer_forget(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    PyDict_Clear(FrameServer_CAST(op)->codes);
    PyDict_Clear(FrameServer_CAST(op)->built);
    Py_RETURN_NONE;
}

static PyObject *
FrameServer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *const keywords[] = {"find", "build", "miss", NULL};
    PyObject *find, *build, *miss; /* borrowed */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:FrameServer", (char **)keywords,
                                     &find, &build, &miss)) {
        return NULL;
    }
    FrameServerObject *self = FrameServer_CAST(type->tp_alloc(type, 0));
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = FrameServer_vectorcall;
    self->find = Py_NewRef(find);
    self->build = Py_NewRef(build);
    self->miss = Py_NewRef(miss);
    self->codes = PyDict_New();
    self->built = PyDict_New();
    self->served = PyDict_New();
    if (self->codes == NULL || self->built == NULL || self->served == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
FrameServer_traverse(PyObject *op, visitproc visit, void *arg)
{
    FrameServerObject *self = FrameServer_CAST(op);
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->find);
    Py_VISIT(self->build);
    Py_VISIT(self->miss);
    Py_VISIT(self->codes);
    Py_VISIT(self->built);
    Py_VISIT(self->served);
    return 0;
}

static int
FrameServer_clear(PyObject *op)
{
    FrameServerObject *self = FrameServer_CAST(op);
    Py_CLEAR(self->find);
    Py_CLEAR(self->build);
    Py_CLEAR(self->miss);
    Py_CLEAR(self->codes);
    Py_CLEAR(self->built);
    Py_CLEAR(self->served);
    return 0;
}

static void
FrameServer_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (FrameServer_CAST(op)->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    (void)FrameServer_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef FrameServer_methods[] = {
    {"accept", FrameServer_accept, METH_O, FrameServer_accept_doc},
    {"run", PC_METHOD(FrameServer_run), METH_FASTCALL, FrameServer_run_doc},
    {"forget", FrameServer_forget, METH_NOARGS, FrameServer_forget_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef FrameServer_members[] = {
    {"served", T_OBJECT_EX, offsetof(FrameServerObject, served), READONLY,
     "dict entry number -> how often it was installed."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(FrameServerObject, vectorcall),
     READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(FrameServerObject, weakrefs), READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(
    FrameServer_doc,
    "FrameServer(find, build, miss)\n--\n\n"
    "Callback for torch's frame evaluator that serves frames of an artifact.\n\n"
    "find(code) -> tuple of entry numbers in the order they are tried, or a\n"
    "FrameReturn; asked once per code object. build(entry, code, f_globals) ->\n"
    "(check, FrameReturn), check(f_locals) being the guards, or None for a stale\n"
    "entry. miss(frame, cache_entry, frame_state, entries) answers for a frame that\n"
    "no entry accepts; what it raises reaches the user's call.");

static PyType_Slot FrameServer_slots[] = {
    {Py_tp_doc, (void *)FrameServer_doc},
    {Py_tp_new, FrameServer_new},
    {Py_tp_dealloc, FrameServer_dealloc},
    {Py_tp_traverse, FrameServer_traverse},
    {Py_tp_clear, FrameServer_clear},
    {Py_tp_methods, FrameServer_methods},
    {Py_tp_members, FrameServer_members},
    {Py_tp_call, PyVectorcall_Call},
    {0, NULL},
};

static PyType_Spec FrameServer_spec = {
    .name = "precomp._core.FrameServer",
    .basicsize = sizeof(FrameServerObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = FrameServer_slots,
};

int
core_add_frame_server(PyObject *module)
{
    core_state *state = core_state_get(module);
    state->frame_return_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &FrameReturn_spec, NULL);
    if (state->frame_return_type == NULL ||
        PyModule_AddType(module, state->frame_return_type) < 0) {
        return -1;
    }
    state->frame_server_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &FrameServer_spec, NULL);
    if (state->frame_server_type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->frame_server_type);
}
