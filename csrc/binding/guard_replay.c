/* Replays a GuardTape: decodes the arguments and calls the methods of torch's
 * guard classes, in the ambient state they were captured in.
 */
#include "guard_tape.h"

enum { CLASSES = 3 };

/* What one replay holds. */
typedef struct {
    core_state *state;
    GuardTapeObject *tape;          /* borrowed */
    PyObject *f_globals;            /* borrowed */
    PyObject *twins;                /* borrowed or NULL */
    PyObject *decode_function;      /* borrowed */
    PyObject *live;                 /* borrowed tuple or NULL */
    PyObject *plain_enum;           /* owned: member for GuardManager */
    PyObject *dict_enum;            /* owned: member for DictGuardManager */
    PyObject *memo;                 /* owned dict: identities found so far */
    PyObject *keep;                 /* owned list: what must outlive the tree */
    PyObject *object;               /* owned: example of no special kind */
    PyObject **nodes;               /* owned array of owned */
    PyTypeObject *classes[CLASSES]; /* borrowed */
    PyObject *callables[GUARD_METHODS][CLASSES]; /* owned, found on first use */
} replay_state;

/* ---- examples ------------------------------------------------------------ */

/* New reference to a tensor with that dtype, device and requires_grad. The
   guard's constructor reads these and nothing else. */
static PyObject *
make_tensor(core_state *state, PyObject *example)
{
    PyObject *shape = NULL;                       /* owned */
    PyObject *keywords = NULL;                    /* owned */
    PyObject *dtype = NULL;                       /* owned */
    PyObject *args = NULL;                        /* owned */
    PyObject *result = NULL;                      /* owned, returned */
    PyObject *empty = core_torch(state, "empty"); /* borrowed */
    PyObject *torch = core_torch(state, "torch"); /* borrowed */
    if (empty == NULL || torch == NULL) {
        goto done;
    }
    dtype = PyObject_GetAttr(torch, PyTuple_GET_ITEM(example, 1));
    shape = PyTuple_GET_ITEM(example, 3) == Py_True ? PyTuple_New(0)
                                                    : Py_BuildValue("(i)", 0);
    if (dtype == NULL || shape == NULL) {
        goto done;
    }
    keywords = Py_BuildValue("{sOsOsO}", "dtype", dtype, "device",
                             PyTuple_GET_ITEM(example, 0), "requires_grad",
                             PyTuple_GET_ITEM(example, 2));
    args = PyTuple_Pack(1, shape);
    if (keywords != NULL && args != NULL) {
        result = PyObject_Call(empty, args, keywords);
    }
done:
    Py_XDECREF(shape);
    Py_XDECREF(keywords);
    Py_XDECREF(dtype);
    Py_XDECREF(args);
    return result;
}

static PyObject *
make_parameter(core_state *state)
{
    PyObject *result = NULL;                              /* owned, returned */
    PyObject *tensor = NULL;                              /* owned */
    PyObject *parameter = core_torch(state, "Parameter"); /* borrowed */
    PyObject *empty = core_torch(state, "empty");         /* borrowed */
    if (parameter == NULL || empty == NULL) {
        return NULL;
    }
    tensor = PyObject_CallFunction(empty, "i", 0);
    if (tensor != NULL) {
        result = PyObject_CallOneArg(parameter, tensor);
        Py_DECREF(tensor);
    }
    return result;
}

/* Borrowed reference to the example tensor of *key*: (device, dtype,
   requires_grad, zero_dim) or "P" or "T". Made once per process. */
static PyObject *
example_tensor(core_state *state, PyObject *key)
{
    PyObject *found;       /* borrowed, returned */
    PyObject *made = NULL; /* owned */
    if (state->examples == NULL) {
        state->examples = PyDict_New();
        if (state->examples == NULL) {
            return NULL;
        }
    }
    found = PyDict_GetItemWithError(state->examples, key);
    if (found != NULL || PyErr_Occurred()) {
        return found;
    }
    if (PyTuple_CheckExact(key)) {
        made = make_tensor(state, key);
    }
    else if (PyUnicode_CompareWithASCIIString(key, "P") == 0) {
        made = make_parameter(state);
    }
    else {
        PyObject *empty = core_torch(state, "empty"); /* borrowed */
        made = empty == NULL ? NULL : PyObject_CallFunction(empty, "i", 0);
    }
    if (made != NULL && PyDict_SetItem(state->examples, key, made) == 0) {
        found = PyDict_GetItemWithError(state->examples, key);
    }
    Py_XDECREF(made);
    return found;
}

/* All example tensors the tape needs, made before its ambient state is set. */
static int
prepare_examples(replay_state *self)
{
    GuardTapeObject *tape = self->tape;
    for (Py_ssize_t i = 0; i < tape->count; i++) {
        tape_op *op = &tape->ops[i];
        PyObject *key = NULL; /* borrowed */
        if (op->method->kind == OP_LEAF && op->method->spec[0] == 't') {
            key = PyTuple_GET_ITEM(op->arguments, 0);
        }
        else if (op->method->kind == OP_MANAGER && PyUnicode_CheckExact(op->category) &&
                 (PyUnicode_CompareWithASCIIString(op->category, "P") == 0 ||
                  PyUnicode_CompareWithASCIIString(op->category, "T") == 0)) {
            key = op->category;
        }
        if (key != NULL && example_tensor(self->state, key) == NULL) {
            return -1;
        }
    }
    return 0;
}

/* New dict (or instance of a dict type) of *length* items: C++ keeps its type
   and length. */
static PyObject *
example_dict(replay_state *self, PyObject *category)
{
    PyObject *type = NULL;   /* owned */
    PyObject *filler = NULL; /* owned */
    PyObject *result = NULL; /* owned, returned */
    PyObject *number = NULL; /* owned */
    Py_ssize_t length = PyLong_AsSsize_t(PyTuple_GET_ITEM(category, 2));
    if (length == -1 && PyErr_Occurred()) {
        return NULL;
    }
    filler = PyDict_New();
    for (Py_ssize_t i = 0; filler != NULL && i < length; i++) {
        number = PyLong_FromSsize_t(i);
        if (number == NULL || PyDict_SetItem(filler, number, Py_None) < 0) {
            goto done;
        }
        Py_CLEAR(number);
    }
    type = codec_decode(self->state, PyTuple_GET_ITEM(category, 1), self->twins,
                        self->memo);
    if (filler == NULL || type == NULL) {
        goto done;
    }
    if (type == (PyObject *)&PyDict_Type) {
        result = Py_NewRef(filler);
        goto done;
    }
    if (!PyType_Check(type) || PyList_Append(self->keep, type) < 0) {
        if (!PyErr_Occurred()) {
            codec_stale(self->state, "%R is no type any more", type);
        }
        goto done;
    }
    result = PyObject_CallMethod(type, "__new__", "O", type);
    if (result != NULL && !PyDict_Check(result)) {
        codec_stale(self->state, "%R is no dict type any more", type);
        Py_CLEAR(result);
    }
    if (result != NULL) {
        /* dict.update, not the subclass's: it may have a meaning of its own. */
        PyObject *done = PyObject_CallMethod((PyObject *)&PyDict_Type, "update", "OO",
                                             result, filler);
        if (done == NULL) {
            Py_CLEAR(result);
        }
        Py_XDECREF(done);
    }
done:
    Py_XDECREF(type);
    Py_XDECREF(filler);
    Py_XDECREF(number);
    return result;
}

/* New reference to a value of that category: C++ derives its fast paths from
   the kind of the example, so the kind must be the captured one. */
static PyObject *
example_value(replay_state *self, PyObject *category)
{
    if (PyTuple_CheckExact(category)) {
        return example_dict(self, category);
    }
    const char *name = PyUnicode_AsUTF8(category);
    if (name == NULL) {
        return NULL;
    }
    switch (name[0]) {
        case 'o':
            return Py_NewRef(self->object);
        case 'n':
            return Py_NewRef(Py_None);
        case 'i':
            return PyLong_FromLong(0);
        case 'f':
            return PyFloat_FromDouble(0.0);
        case 's':
            return PyUnicode_FromStringAndSize(NULL, 0);
        case 'y':
            return PyBytes_FromStringAndSize(NULL, 0);
        case 'c':
            return (PyObject *)PyCode_NewEmpty("", "example", 1);
        case 'd':
            return PyDict_New();
        case 'P':
        case 'T':
            return Py_XNewRef(example_tensor(self->state, category));
        case 't':
            /* "tu": immutable throughout, "tm": holds something mutable. */
            return name[1] == 'm' ? Py_BuildValue("([])") : PyTuple_New(0);
        case 'b':
            if (name[1] == 'f') {
                return Py_XNewRef(core_dict_get(PyEval_GetBuiltins(), "len"));
            }
            return Py_NewRef(Py_True);
        default:
            core_raise_named(self->state, "ArtifactCorruptError",
                             "guard tape: unknown category %R", category);
            return NULL;
    }
}

/* ---- replay --------------------------------------------------------------- */

/* Borrowed reference to what is called for *method* on *node*: a function that
   takes the node first. Found once per class and replay. */
static PyObject *
find_callable(replay_state *self, const method_info *method, PyObject *node)
{
    size_t index = (size_t)(method - guard_methods);
    size_t which = 0;
    while (which < CLASSES && Py_TYPE(node) != self->classes[which]) {
        which++;
    }
    if (which == CLASSES) {
        PyErr_Format(PyExc_TypeError, "guard tape: %.100s is no guard manager",
                     Py_TYPE(node)->tp_name);
        return NULL;
    }
    PyObject **slot = &self->callables[index][which];
    if (*slot == NULL) {
        *slot = PyObject_GetAttrString((PyObject *)self->classes[which], method->name);
        if (*slot != NULL && PyInstanceMethod_Check(*slot)) {
            Py_SETREF(*slot, Py_NewRef(PyInstanceMethod_GET_FUNCTION(*slot)));
        }
    }
    return *slot;
}

/* New reference to the function of an encoded function, kept with the tree. */
static PyObject *
make_function(replay_state *self, PyObject *encoded)
{
    PyObject *function = PyObject_CallFunctionObjArgs(self->decode_function, encoded,
                                                      self->f_globals, NULL);
    if (function != NULL && PyList_Append(self->keep, function) < 0) {
        Py_CLEAR(function);
    }
    return function;
}

static PyObject *
decode_argument(replay_state *self, PyObject *encoded)
{
    return codec_decode(self->state, encoded, self->twins, self->memo);
}

/* New int: the id of live object ("live", number). The tree does not keep it: who
   replays drops the tree when the object dies. */
static PyObject *
make_live_id(replay_state *self, PyObject *encoded)
{
    Py_ssize_t count = self->live == NULL ? 0 : PyTuple_GET_SIZE(self->live);
    Py_ssize_t at = -1;
    if (PyTuple_GET_SIZE(encoded) == 2 &&
        PyLong_CheckExact(PyTuple_GET_ITEM(encoded, 1))) {
        at = PyLong_AsSsize_t(PyTuple_GET_ITEM(encoded, 1));
    }
    if (at < 0 || at >= count) {
        PyErr_Clear();
        return core_raise_named(self->state, "ArtifactCorruptError",
                                "guard tape: no live object %R", encoded);
    }
    return PyLong_FromVoidPtr(PyTuple_GET_ITEM(self->live, at));
}

/* New int: the id of the encoded object, which is kept with the tree. */
static PyObject *
make_id(replay_state *self, PyObject *encoded)
{
    PyObject *result = NULL; /* owned, returned */
    PyObject *object;        /* owned */
    if (codec_has_tag(encoded, "live")) {
        return make_live_id(self, encoded);
    }
    object = decode_argument(self, encoded);
    if (object != NULL && PyList_Append(self->keep, object) == 0) {
        result = PyLong_FromVoidPtr(object);
    }
    Py_XDECREF(object);
    return result;
}

/* New list of instances of the encoded types, not initialised: C++ keeps only
   their types. */
static PyObject *
make_modes(replay_state *self, PyObject *types)
{
    PyObject *list = PyList_New(0); /* owned, returned */
    for (Py_ssize_t i = 0; list != NULL && i < PyTuple_GET_SIZE(types); i++) {
        PyObject *mode = NULL;                                              /* owned */
        PyObject *type = decode_argument(self, PyTuple_GET_ITEM(types, i)); /* owned */
        if (type != NULL && PyList_Append(self->keep, type) == 0) {
            mode = PyObject_CallMethod(type, "__new__", "O", type);
        }
        if (mode == NULL || PyList_Append(list, mode) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(type);
        Py_XDECREF(mode);
    }
    return list;
}

static PyObject *
make_node_list(replay_state *self, PyObject *numbers)
{
    PyObject *list = PyList_New(PyTuple_GET_SIZE(numbers)); /* owned, returned */
    for (Py_ssize_t i = 0; list != NULL && i < PyTuple_GET_SIZE(numbers); i++) {
        Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(numbers, i));
        PyList_SET_ITEM(list, i, Py_NewRef(self->nodes[at]));
    }
    return list;
}

static PyObject *
make_argument(replay_state *self, char letter, PyObject *encoded)
{
    switch (letter) {
        case 'k':
            return decode_argument(self, encoded);
        case 'w':
        case 's':
            return PySequence_List(encoded);
        case 'i':
            return make_id(self, encoded);
        case 'f':
            return make_function(self, encoded);
        case 't':
            return Py_XNewRef(example_tensor(self->state, encoded));
        case 'm':
            return make_modes(self, encoded);
        case 'n':
            return make_node_list(self, encoded);
        case 'o':
            return Py_NewRef(self->nodes[PyLong_AsSsize_t(encoded)]);
        default:
            return Py_NewRef(Py_None); /* 'u': no user stack */
    }
}

static int
replay_manager(replay_state *self, tape_op *op)
{
    PyObject *args[5]; /* borrowed but for key and example */
    size_t count = 0;
    PyObject *key = NULL;     /* owned */
    PyObject *example = NULL; /* owned */
    PyObject *node = NULL;    /* owned */
    int result = -1;
    PyObject *parent = self->nodes[op->parent]; /* borrowed */
    PyObject *callable = find_callable(self, op->method, parent);
    if (callable == NULL) {
        goto done;
    }
    args[count++] = parent;
    switch (op->method->spec[0]) {
        case 'k':
            key = decode_argument(self, op->key);
            break;
        case 'f':
            key = make_function(self, op->key);
            break;
        case 'g':
            key = Py_NewRef(self->f_globals);
            break;
        default:
            break;
    }
    if (op->method->spec[0] != '\0') {
        if (key == NULL) {
            goto done;
        }
        args[count++] = key;
    }
    example = example_value(self, op->category);
    if (example == NULL) {
        goto done;
    }
    args[count++] = op->source;
    args[count++] = example;
    args[count++] =
        PyTuple_CheckExact(op->category) ? self->dict_enum : self->plain_enum;
    node = PyObject_Vectorcall(callable, args, count, NULL);
    if (node == NULL) {
        goto done;
    }
    Py_XSETREF(self->nodes[op->node], node);
    result = 0;
done:
    Py_XDECREF(key);
    Py_XDECREF(example);
    return result;
}

/* Leaves and relations: decode the arguments in order, then call. */
static int
replay_guard(replay_state *self, tape_op *op)
{
    PyObject *args[GUARD_MAX_ARGUMENTS] = {NULL}; /* owned but for the node */
    size_t count = 0;
    size_t first = 0;
    Py_ssize_t at = 0;
    PyObject *callable;      /* borrowed */
    PyObject *answer = NULL; /* owned */
    if (op->method->kind == OP_LEAF) {
        args[count++] = self->nodes[op->parent];
        callable = find_callable(self, op->method, args[0]);
        first = 1;
    }
    else {
        callable = core_torch(self->state, op->method->name);
    }
    if (callable == NULL) {
        return -1;
    }
    for (const char *letter = op->method->spec; *letter != '\0'; letter++) {
        PyObject *encoded = NULL; /* borrowed */
        if (*letter != 'u') {
            encoded = PyTuple_GET_ITEM(op->arguments, at);
            at++;
        }
        args[count] = make_argument(self, *letter, encoded);
        if (args[count] == NULL) {
            goto done;
        }
        count++;
    }
    answer = PyObject_Vectorcall(callable, args, count, NULL);
done:
    for (size_t i = first; i < count; i++) {
        Py_DECREF(args[i]);
    }
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

static int
replay_ops(replay_state *self)
{
    GuardTapeObject *tape = self->tape;
    self->nodes[0] = PyObject_CallNoArgs((PyObject *)self->classes[0]);
    if (self->nodes[0] == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < tape->count; i++) {
        tape_op *op = &tape->ops[i];
        int failed = op->method->kind == OP_MANAGER ? replay_manager(self, op)
                                                    : replay_guard(self, op);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

/* New reference to the context manager that sets the recorded dispatch keys, or
   None when the tape has none. */
static PyObject *
make_key_guard(replay_state *self)
{
    PyObject *sets[2] = {NULL, NULL}; /* owned */
    PyObject *result = NULL;          /* owned, returned */
    PyObject *guard_class;            /* borrowed */
    PyObject *set_class;              /* borrowed */
    if (self->tape->tls == Py_None) {
        return Py_NewRef(Py_None);
    }
    guard_class = core_torch(self->state, "ForceDispatchKeyGuard");
    set_class = core_torch(self->state, "DispatchKeySet");
    if (guard_class == NULL || set_class == NULL) {
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        sets[i] = PyObject_CallMethod(set_class, "from_raw_repr", "O",
                                      PyTuple_GET_ITEM(self->tape->tls, i));
    }
    if (sets[0] != NULL && sets[1] != NULL) {
        result = PyObject_CallFunctionObjArgs(guard_class, sets[0], sets[1], NULL);
    }
    Py_XDECREF(sets[0]);
    Py_XDECREF(sets[1]);
    return result;
}

/* Calls *work* under *manager* (None: plainly). Whatever happens, the manager is
   left as it was entered. */
static int
run_inside(PyObject *manager, int (*work)(replay_state *), replay_state *self)
{
    PyObject *type, *value, *traceback; /* owned: the error of *work* */
    PyObject *answer;                   /* owned */
    int result;
    if (manager == Py_None) {
        return work(self);
    }
    answer = PyObject_CallMethod(manager, "__enter__", NULL);
    if (answer == NULL) {
        return -1;
    }
    Py_DECREF(answer);
    result = work(self);
    PyErr_Fetch(&type, &value, &traceback);
    answer = PyObject_CallMethod(manager, "__exit__", "OOO", Py_None, Py_None, Py_None);
    if (answer == NULL) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        return -1;
    }
    Py_DECREF(answer);
    PyErr_Restore(type, value, traceback);
    return result;
}

/* Constructors of some guards read the dispatch keys of the thread and
   torch.utils._device.CURRENT_DEVICE: both are the recorded ones meanwhile. */
static int
replay_ambient(replay_state *self)
{
    PyObject *key_guard = NULL; /* owned */
    PyObject *device = NULL;    /* owned */
    PyObject *before = NULL;    /* owned */
    PyObject *type, *value, *traceback;
    int result = -1;
    PyObject *module = core_torch(self->state, "device_module"); /* borrowed */
    if (module == NULL) {
        return -1;
    }
    device = decode_argument(self, self->tape->device);
    before = device == NULL ? NULL : PyObject_GetAttrString(module, "CURRENT_DEVICE");
    key_guard = before == NULL ? NULL : make_key_guard(self);
    if (key_guard == NULL ||
        PyObject_SetAttrString(module, "CURRENT_DEVICE", device) < 0) {
        goto done;
    }
    result = run_inside(key_guard, replay_ops, self);
    PyErr_Fetch(&type, &value, &traceback);
    if (PyObject_SetAttrString(module, "CURRENT_DEVICE", before) < 0) {
        result = -1;
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        goto done;
    }
    PyErr_Restore(type, value, traceback);
done:
    Py_XDECREF(key_guard);
    Py_XDECREF(device);
    Py_XDECREF(before);
    return result;
}

static int
replay_examples(replay_state *self)
{
    PyObject *manager; /* owned */
    int result;
    PyObject *cls = core_torch(self->state, "DisableTorchFunction"); /* borrowed */
    if (cls == NULL) {
        return -1;
    }
    manager = PyObject_CallNoArgs(cls);
    if (manager == NULL) {
        return -1;
    }
    result = run_inside(manager, prepare_examples, self);
    Py_DECREF(manager);
    return result;
}

/* 0 when everything but the nodes is there. */
static int
replay_begin(replay_state *self, PyObject *enum_type)
{
    static const char *const classes[CLASSES] = {"RootGuardManager", "GuardManager",
                                                 "DictGuardManager"};
    for (int i = 0; i < CLASSES; i++) {
        PyObject *cls = core_torch(self->state, classes[i]); /* borrowed */
        if (cls == NULL) {
            return -1;
        }
        self->classes[i] = (PyTypeObject *)cls;
    }
    self->plain_enum = PyObject_GetAttrString(enum_type, "GUARD_MANAGER");
    if (self->plain_enum == NULL) {
        return -1;
    }
    self->dict_enum = PyObject_GetAttrString(enum_type, "DICT_GUARD_MANAGER");
    if (self->dict_enum == NULL) {
        return -1;
    }
    self->memo = PyDict_New();
    self->keep = PyList_New(0);
    self->object = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    self->nodes = PyMem_Calloc((size_t)self->tape->nodes, sizeof(*self->nodes));
    if (self->memo == NULL || self->keep == NULL || self->object == NULL) {
        return -1;
    }
    if (self->nodes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static void
replay_end(replay_state *self)
{
    for (Py_ssize_t i = self->tape->nodes - 1; self->nodes != NULL && i >= 0; i--) {
        Py_XDECREF(self->nodes[i]);
    }
    PyMem_Free(self->nodes);
    for (int i = 0; i < GUARD_METHODS; i++) {
        for (int j = 0; j < CLASSES; j++) {
            Py_XDECREF(self->callables[i][j]);
        }
    }
    Py_XDECREF(self->plain_enum);
    Py_XDECREF(self->dict_enum);
    Py_XDECREF(self->memo);
    Py_XDECREF(self->keep);
    Py_XDECREF(self->object);
}

PyObject *
guard_tape_replay(core_state *state, GuardTapeObject *tape, PyObject *f_globals,
                  PyObject *enum_type, PyObject *twins, PyObject *decode_function,
                  PyObject *live)
{
    replay_state self = {
        .state = state,
        .tape = tape,
        .f_globals = f_globals,
        .twins = twins,
        .decode_function = decode_function,
        .live = live,
    };
    PyObject *result = NULL; /* owned, returned */
    /* Thousands of short-lived tuples and lists: a collection of the whole heap
       in between would take longer than all the rest. */
    int collecting = PyGC_Disable();
    if (replay_begin(&self, enum_type) == 0 && replay_examples(&self) == 0 &&
        replay_ambient(&self) == 0) {
        result = PyTuple_Pack(2, self.nodes[0], self.keep);
    }
    replay_end(&self);
    if (collecting) {
        PyGC_Enable();
    }
    return result;
}
