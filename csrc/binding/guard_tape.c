/* GuardTape: replays the calls that built one of torch's C++ guard trees.
 *
 * The record is plain data (docs/internals.md, section 4.2). Building a tape
 * checks the whole record; replaying it decodes the arguments and calls the
 * methods of torch's guard classes. Nothing here knows what a guard means.
 */
#include "codec.h"

typedef enum {
    OP_MANAGER,
    OP_LEAF,
    OP_RELATION,
} op_kind;

/* How a method takes its arguments.
   Managers: "" no key, "k" encoded key, "g" the live globals, "f" a function.
   Leaves, in order: k encoded value, w verbose parts, u no user stack, i id of an
   encoded object, f function, t example tensor, m function modes.
   Relations: n list of nodes, o one node, s list of str, w, u. */
typedef struct {
    const char *name;
    op_kind kind;
    const char *spec;
} method_info;

static const method_info methods[] = {
    {"framelocals_manager", OP_MANAGER, "k"},
    {"globals_dict_manager", OP_MANAGER, "g"},
    {"lambda_manager", OP_MANAGER, "f"},
    {"dict_getitem_manager", OP_MANAGER, "k"},
    {"getitem_manager", OP_MANAGER, "k"},
    {"list_getitem_manager", OP_MANAGER, "k"},
    {"tuple_getitem_manager", OP_MANAGER, "k"},
    {"set_getitem_manager", OP_MANAGER, "k"},
    {"tuple_iterator_getitem_manager", OP_MANAGER, "k"},
    {"indexed_manager", OP_MANAGER, "k"},
    {"tensor_property_size_manager", OP_MANAGER, "k"},
    {"tensor_property_stride_manager", OP_MANAGER, "k"},
    {"tensor_property_storage_offset_manager", OP_MANAGER, "k"},
    {"generic_getattr_manager", OP_MANAGER, "k"},
    {"getattr_manager", OP_MANAGER, "k"},
    {"get_key_manager", OP_MANAGER, "k"},
    {"get_value_manager", OP_MANAGER, "k"},
    {"grad_manager", OP_MANAGER, ""},
    {"get_generic_dict_manager", OP_MANAGER, ""},
    {"func_defaults_manager", OP_MANAGER, ""},
    {"func_kwdefaults_manager", OP_MANAGER, ""},
    {"weakref_call_manager", OP_MANAGER, ""},
    {"call_function_no_args_manager", OP_MANAGER, ""},
    {"type_manager", OP_MANAGER, ""},
    {"type_dict_manager", OP_MANAGER, ""},
    {"type_mro_manager", OP_MANAGER, ""},
    {"code_manager", OP_MANAGER, ""},
    {"closure_manager", OP_MANAGER, ""},
    {"add_type_match_guard", OP_LEAF, "iwu"},
    {"add_id_match_guard", OP_LEAF, "iwu"},
    {"add_equals_match_guard", OP_LEAF, "kwu"},
    {"add_length_check_guard", OP_LEAF, "kwu"},
    {"add_dict_length_check_guard", OP_LEAF, "kwu"},
    {"add_tuple_iterator_length_guard", OP_LEAF, "kiwu"},
    {"add_range_iterator_match_guard", OP_LEAF, "kkkiwu"},
    {"add_none_match_guard", OP_LEAF, "wu"},
    {"add_true_match_guard", OP_LEAF, "wu"},
    {"add_false_match_guard", OP_LEAF, "wu"},
    {"add_not_none_guard", OP_LEAF, "wu"},
    {"add_float_is_nan_guard", OP_LEAF, "wu"},
    {"add_complex_is_nan_guard", OP_LEAF, "wu"},
    {"add_default_device_guard", OP_LEAF, "wu"},
    {"add_dispatch_key_set_guard", OP_LEAF, "kwu"},
    {"add_global_state_guard", OP_LEAF, "kwu"},
    {"add_torch_function_mode_stack_guard", OP_LEAF, "mwu"},
    {"add_no_hasattr_guard", OP_LEAF, "kwu"},
    {"add_dict_contains_guard", OP_LEAF, "kkwu"},
    {"add_set_contains_guard", OP_LEAF, "kkwu"},
    {"add_dual_level_match_guard", OP_LEAF, "kwu"},
    {"add_dimension_marking_guard", OP_LEAF, "kkkwu"},
    {"add_mapping_keys_guard", OP_LEAF, "kwu"},
    {"add_fake_script_type_match_guard", OP_LEAF, "kiwu"},
    {"add_tensor_match_guard", OP_LEAF, "tkkkwukk"},
    {"add_lambda_guard", OP_LEAF, "fwu"},
    {"add_epilogue_lambda_guard", OP_LEAF, "fwu"},
    {"mark_tag_safe", OP_LEAF, ""},
    {"mark_tag_safe_root", OP_LEAF, ""},
    {"install_no_tensor_aliasing_guard", OP_RELATION, "nswu"},
    {"install_object_aliasing_guard", OP_RELATION, "oowu"},
    {"install_storage_overlapping_guard", OP_RELATION, "nnwu"},
};

enum { METHODS = sizeof(methods) / sizeof(*methods), MAX_ARGUMENTS = 10, CLASSES = 3 };

/* One call. Everything is borrowed from the record, which the tape owns. */
typedef struct {
    const method_info *method;
    Py_ssize_t parent;  /* manager: the node it is called on; leaf: its node */
    Py_ssize_t node;    /* manager: the node it makes */
    PyObject *key;      /* manager */
    PyObject *source;   /* manager: str */
    PyObject *category; /* manager: str or ("D", encoded type, length) */
    PyObject *arguments; /* leaf, relation: tuple */
} tape_op;

typedef struct {
    PyObject_HEAD
    PyObject *ops_record; /* owned: tuple of tuples */
    PyObject *tls;        /* owned: None or (include, exclude) */
    PyObject *device;     /* owned: encoded CURRENT_DEVICE */
    tape_op *ops;         /* owned */
    Py_ssize_t count;
    Py_ssize_t nodes;
    int binds;
} GuardTapeObject;

#define GUARDTAPE_CAST(op) ((GuardTapeObject *)(op))

/* What one replay holds. */
typedef struct {
    core_state *state;
    GuardTapeObject *tape;    /* borrowed */
    PyObject *f_globals;      /* borrowed */
    PyObject *twins;          /* borrowed or NULL */
    PyObject *decode_function; /* borrowed */
    PyObject *plain_enum;     /* owned: member for GuardManager */
    PyObject *dict_enum;      /* owned: member for DictGuardManager */
    PyObject *memo;           /* owned dict: identities found so far */
    PyObject *keep;           /* owned list: what must outlive the tree */
    PyObject *object;         /* owned: example of no special kind */
    PyObject **nodes;         /* owned array of owned */
    PyTypeObject *classes[CLASSES];         /* borrowed */
    PyObject *callables[METHODS][CLASSES];  /* owned, found on first use */
} replay_state;

/* ---- the record ---------------------------------------------------------- */

static const method_info *
find_method(PyObject *name)
{
    if (!PyUnicode_CheckExact(name)) {
        return NULL;
    }
    for (size_t i = 0; i < METHODS; i++) {
        if (PyUnicode_CompareWithASCIIString(name, methods[i].name) == 0) {
            return &methods[i];
        }
    }
    return NULL;
}

static int
bad_record(core_state *state, Py_ssize_t index, const char *what)
{
    core_raise_named(state, "ArtifactCorruptError", "guard tape: ops[%zd]: %s", index,
                     what);
    return -1;
}

/* 0 and the value, or -1 with an error set. */
static int
take_index(core_state *state, PyObject *number, Py_ssize_t limit, Py_ssize_t index,
           Py_ssize_t *value)
{
    if (!PyLong_CheckExact(number)) {
        return bad_record(state, index, "expected a node number");
    }
    *value = PyLong_AsSsize_t(number);
    if (*value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (*value < 0 || *value >= limit) {
        return bad_record(state, index, "node number out of range");
    }
    return 0;
}

static int
check_texts(PyObject *texts)
{
    if (!PyTuple_CheckExact(texts)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(texts); i++) {
        if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(texts, i))) {
            return 0;
        }
    }
    return 1;
}

/* 1 when *example* is (device, dtype, requires_grad, zero_dim). */
static int
check_example(PyObject *example)
{
    return PyTuple_CheckExact(example) && PyTuple_GET_SIZE(example) == 4 &&
           PyUnicode_CheckExact(PyTuple_GET_ITEM(example, 0)) &&
           PyUnicode_CheckExact(PyTuple_GET_ITEM(example, 1)) &&
           PyBool_Check(PyTuple_GET_ITEM(example, 2)) &&
           PyBool_Check(PyTuple_GET_ITEM(example, 3));
}

static int
check_nodes(PyObject *numbers, const char *made, Py_ssize_t limit)
{
    if (!PyTuple_CheckExact(numbers)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); i++) {
        PyObject *number = PyTuple_GET_ITEM(numbers, i); /* borrowed */
        Py_ssize_t value = PyLong_CheckExact(number) ? PyLong_AsSsize_t(number) : -1;
        if (value < 0 || value >= limit || !made[value]) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}

/* 0 when the arguments of a leaf or relation fit its method. */
static int
check_arguments(core_state *state, tape_op *op, const char *made, Py_ssize_t limit,
                Py_ssize_t index)
{
    Py_ssize_t at = 0;
    PyObject *arguments = op->arguments; /* borrowed */
    if (!PyTuple_CheckExact(arguments)) {
        return bad_record(state, index, "expected a tuple of arguments");
    }
    for (const char *letter = op->method->spec; *letter != '\0'; letter++) {
        int fits;
        if (*letter == 'u') {
            continue;
        }
        if (at >= PyTuple_GET_SIZE(arguments)) {
            return bad_record(state, index, "too few arguments");
        }
        PyObject *argument = PyTuple_GET_ITEM(arguments, at); /* borrowed */
        at++;
        switch (*letter) {
            case 'w':
            case 's':
                fits = check_texts(argument);
                break;
            case 't':
                fits = check_example(argument);
                break;
            case 'n':
                fits = check_nodes(argument, made, limit);
                break;
            case 'o': {
                PyObject *one = PyTuple_Pack(1, argument); /* owned */
                if (one == NULL) {
                    return -1;
                }
                fits = check_nodes(one, made, limit);
                Py_DECREF(one);
                break;
            }
            default:
                fits = PyTuple_CheckExact(argument);
                break;
        }
        if (!fits) {
            return bad_record(state, index, "malformed argument");
        }
    }
    if (at != PyTuple_GET_SIZE(arguments)) {
        return bad_record(state, index, "too many arguments");
    }
    return 0;
}

static int
read_manager(core_state *state, tape_op *op, PyObject *item, char *made,
             Py_ssize_t limit, Py_ssize_t index)
{
    if (PyTuple_GET_SIZE(item) != 6) {
        return bad_record(state, index, "a manager has six fields");
    }
    if (take_index(state, PyTuple_GET_ITEM(item, 1), limit, index, &op->parent) < 0 ||
        take_index(state, PyTuple_GET_ITEM(item, 2), limit, index, &op->node) < 0) {
        return -1;
    }
    if (!made[op->parent] || made[op->node]) {
        return bad_record(state, index, "nodes are not in order");
    }
    op->key = PyTuple_GET_ITEM(item, 3);
    op->source = PyTuple_GET_ITEM(item, 4);
    op->category = PyTuple_GET_ITEM(item, 5);
    int keyed = op->method->spec[0] == 'k' || op->method->spec[0] == 'f';
    if (keyed != PyTuple_CheckExact(op->key) || (!keyed && op->key != Py_None)) {
        return bad_record(state, index, "malformed key");
    }
    if (!PyUnicode_CheckExact(op->source)) {
        return bad_record(state, index, "expected the text of a source");
    }
    int dict_like = codec_has_tag(op->category, "D");
    if (dict_like ? PyTuple_GET_SIZE(op->category) != 3 ||
                        !PyLong_CheckExact(PyTuple_GET_ITEM(op->category, 2))
                  : !PyUnicode_CheckExact(op->category)) {
        return bad_record(state, index, "malformed category");
    }
    made[op->node] = 1;
    return 0;
}

static int
read_op(core_state *state, GuardTapeObject *self, char *made, Py_ssize_t index)
{
    tape_op *op = &self->ops[index];
    PyObject *item = PyTuple_GET_ITEM(self->ops_record, index); /* borrowed */
    if (!PyTuple_CheckExact(item) || PyTuple_GET_SIZE(item) < 3) {
        return bad_record(state, index, "expected a tuple");
    }
    op->method = find_method(PyTuple_GET_ITEM(item, 0));
    if (op->method == NULL) {
        core_raise_named(state, "ArtifactCorruptError",
                         "guard tape: ops[%zd]: unknown method %R", index,
                         PyTuple_GET_ITEM(item, 0));
        return -1;
    }
    if (op->method->kind == OP_MANAGER) {
        return read_manager(state, op, item, made, self->nodes, index);
    }
    if (PyTuple_GET_SIZE(item) != 3) {
        return bad_record(state, index, "a guard has three fields");
    }
    op->arguments = PyTuple_GET_ITEM(item, 2);
    if (op->method->kind == OP_LEAF) {
        if (take_index(state, PyTuple_GET_ITEM(item, 1), self->nodes, index,
                       &op->parent) < 0) {
            return -1;
        }
        if (!made[op->parent]) {
            return bad_record(state, index, "nodes are not in order");
        }
    }
    if (check_arguments(state, op, made, self->nodes, index) < 0) {
        return -1;
    }
    if (op->method->spec[0] == 'f' &&
        codec_has_tag(PyTuple_GET_ITEM(op->arguments, 0), "rel")) {
        self->binds = 1;
    }
    return 0;
}

/* New reference to record[name], or NULL with ArtifactCorruptError set. */
static PyObject *
take_field(core_state *state, PyObject *record, const char *name)
{
    PyObject *value = PyDict_GetItemString(record, name); /* borrowed */
    if (value == NULL) {
        return core_raise_named(state, "ArtifactCorruptError", "guard tape: no field '%s'",
                                name);
    }
    return Py_NewRef(value);
}

static int
read_record(core_state *state, GuardTapeObject *self, PyObject *record)
{
    char *made = NULL;       /* owned */
    PyObject *number = NULL; /* owned */
    int result = -1;
    number = take_field(state, record, "nodes");
    self->ops_record = take_field(state, record, "ops");
    self->tls = take_field(state, record, "tls");
    self->device = take_field(state, record, "device");
    if (number == NULL || self->ops_record == NULL || self->tls == NULL ||
        self->device == NULL) {
        goto done;
    }
    if (!PyTuple_CheckExact(self->ops_record) || !PyLong_CheckExact(number) ||
        !PyTuple_CheckExact(self->device) ||
        (self->tls != Py_None && (!PyTuple_CheckExact(self->tls) ||
                                  PyTuple_GET_SIZE(self->tls) != 2))) {
        core_raise_named(state, "ArtifactCorruptError", "guard tape: malformed field");
        goto done;
    }
    self->count = PyTuple_GET_SIZE(self->ops_record);
    self->nodes = PyLong_AsSsize_t(number);
    if (self->nodes < 1 || self->nodes > self->count + 1) {
        PyErr_Clear();
        core_raise_named(state, "ArtifactCorruptError", "guard tape: bad number of nodes");
        goto done;
    }
    self->ops = PyMem_Calloc((size_t)self->count + 1, sizeof(*self->ops));
    made = PyMem_Calloc((size_t)self->nodes, 1);
    if (self->ops == NULL || made == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    made[0] = 1;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        if (read_op(state, self, made, i) < 0) {
            goto done;
        }
    }
    result = 0;
done:
    PyMem_Free(made);
    Py_XDECREF(number);
    return result;
}

/* ---- examples ------------------------------------------------------------ */

/* New reference to a tensor with that dtype, device and requires_grad. The
   guard's constructor reads these and nothing else. */
static PyObject *
make_tensor(core_state *state, PyObject *example)
{
    PyObject *shape = NULL;    /* owned */
    PyObject *keywords = NULL; /* owned */
    PyObject *dtype = NULL;    /* owned */
    PyObject *args = NULL;     /* owned */
    PyObject *result = NULL;   /* owned, returned */
    PyObject *empty = core_torch(state, "empty");      /* borrowed */
    PyObject *torch = core_torch(state, "torch");      /* borrowed */
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
    PyObject *result = NULL; /* owned, returned */
    PyObject *tensor = NULL; /* owned */
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
    PyObject *type = NULL;    /* owned */
    PyObject *filler = NULL;  /* owned */
    PyObject *result = NULL;  /* owned, returned */
    PyObject *number = NULL;  /* owned */
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
        PyObject *done =
            PyObject_CallMethod((PyObject *)&PyDict_Type, "update", "OO", result, filler);
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
                return Py_XNewRef(PyDict_GetItemString(PyEval_GetBuiltins(), "len"));
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
    size_t index = (size_t)(method - methods);
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

/* New int: the id of the encoded object, which is kept with the tree. */
static PyObject *
make_id(replay_state *self, PyObject *encoded)
{
    PyObject *result = NULL;                           /* owned, returned */
    PyObject *object = decode_argument(self, encoded); /* owned */
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
        PyObject *mode = NULL;                                               /* owned */
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
    args[count++] = PyTuple_CheckExact(op->category) ? self->dict_enum : self->plain_enum;
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
    PyObject *args[MAX_ARGUMENTS] = {NULL}; /* owned but for the node */
    size_t count = 0;
    size_t first = 0;
    Py_ssize_t at = 0;
    PyObject *callable; /* borrowed */
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
    if (key_guard == NULL || PyObject_SetAttrString(module, "CURRENT_DEVICE", device) < 0) {
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
    self->dict_enum = PyObject_GetAttrString(enum_type, "DICT_GUARD_MANAGER");
    self->memo = PyDict_New();
    self->keep = PyList_New(0);
    self->object = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    self->nodes = PyMem_Calloc((size_t)self->tape->nodes, sizeof(*self->nodes));
    if (self->nodes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return self->plain_enum == NULL || self->dict_enum == NULL || self->memo == NULL ||
                   self->keep == NULL || self->object == NULL
               ? -1
               : 0;
}

static void
replay_end(replay_state *self)
{
    for (Py_ssize_t i = self->tape->nodes - 1; self->nodes != NULL && i >= 0; i--) {
        Py_XDECREF(self->nodes[i]);
    }
    PyMem_Free(self->nodes);
    for (int i = 0; i < METHODS; i++) {
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

PyDoc_STRVAR(GuardTape_replay_doc,
             "replay(f_globals, enum_type, twins, decode_function)\n--\n\n"
             "Build the guard tree anew: returns (root, keep).\n\n"
             "*f_globals* is the live dict of the frame, *enum_type* the GuardManagerType\n"
             "that torch's guard classes know, *twins* a dict or None (see decode),\n"
             "decode_function(encoded, f_globals) makes the Python callables inside guards.\n"
             "*keep* is a list of all objects whose id the tree holds: it must live as long\n"
             "as the root. Raises Stale when something the guards name is gone or changed.");

static PyObject *
GuardTape_replay(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    replay_state self = {NULL};
    PyObject *result = NULL; /* owned, returned */
    if (nargs != 4) {
        PyErr_Format(PyExc_TypeError, "replay: expected 4 arguments, got %zd", nargs);
        return NULL;
    }
    if (!PyDict_Check(args[0]) || (args[2] != Py_None && !PyDict_Check(args[2]))) {
        PyErr_SetString(PyExc_TypeError, "replay: f_globals and twins must be dicts");
        return NULL;
    }
    self.state = core_state_by_type(Py_TYPE(op));
    if (self.state == NULL) {
        return NULL;
    }
    self.tape = GUARDTAPE_CAST(op);
    self.f_globals = args[0];
    self.twins = args[2] == Py_None ? NULL : args[2];
    self.decode_function = args[3];
    if (replay_begin(&self, args[1]) == 0 && replay_examples(&self) == 0 &&
        replay_ambient(&self) == 0) {
        result = PyTuple_Pack(2, self.nodes[0], self.keep);
    }
    replay_end(&self);
    return result;
}

/* ---- the type -------------------------------------------------------------- */

static PyObject *
GuardTape_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"record", NULL};
    PyObject *record = NULL; /* borrowed */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:GuardTape", names, &PyDict_Type,
                                     &record)) {
        return NULL;
    }
    core_state *state = core_state_by_type(type);
    if (state == NULL) {
        return NULL;
    }
    GuardTapeObject *self = GUARDTAPE_CAST(type->tp_alloc(type, 0));
    if (self != NULL && read_record(state, self, record) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int
GuardTape_traverse(PyObject *op, visitproc visit, void *arg)
{
    GuardTapeObject *self = GUARDTAPE_CAST(op);
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->ops_record);
    Py_VISIT(self->tls);
    Py_VISIT(self->device);
    return 0;
}

static void
GuardTape_dealloc(PyObject *op)
{
    GuardTapeObject *self = GUARDTAPE_CAST(op);
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    PyMem_Free(self->ops);
    Py_XDECREF(self->ops_record);
    Py_XDECREF(self->tls);
    Py_XDECREF(self->device);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *
GuardTape_get_ops(PyObject *op, void *closure)
{
    (void)closure;
    return PyLong_FromSsize_t(GUARDTAPE_CAST(op)->count);
}

static PyObject *
GuardTape_get_binds(PyObject *op, void *closure)
{
    (void)closure;
    return PyBool_FromLong(GUARDTAPE_CAST(op)->binds);
}

static PyMethodDef GuardTape_methods[] = {
    {"replay", PC_METHOD(GuardTape_replay), METH_FASTCALL, GuardTape_replay_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef GuardTape_getset[] = {
    {"ops", GuardTape_get_ops, NULL, "Number of calls on the tape.", NULL},
    {"binds", GuardTape_get_binds, NULL,
     "True when a tree of this tape binds to the objects of its first accepted call: a\n"
     "second set of objects needs a tree of its own.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(GuardTape_doc,
             "GuardTape(record)\n--\n\n"
             "A guard tree as data (docs/internals.md, section 4.2).\n\n"
             "Raises ArtifactCorruptError, with the index of the call, for a malformed record.");

static PyType_Slot guard_tape_slots[] = {
    {Py_tp_doc, (void *)GuardTape_doc},
    {Py_tp_new, GuardTape_new},
    {Py_tp_methods, GuardTape_methods},
    {Py_tp_getset, GuardTape_getset},
    {Py_tp_traverse, GuardTape_traverse},
    {Py_tp_dealloc, GuardTape_dealloc},
    {0, NULL},
};

static PyType_Spec guard_tape_spec = {
    .name = "precomp._core.GuardTape",
    .basicsize = sizeof(GuardTapeObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = guard_tape_slots,
};

int
core_add_guard_tape(PyObject *module)
{
    core_state *state = core_state_get(module);
    state->guard_tape_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &guard_tape_spec, NULL);
    if (state->guard_tape_type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->guard_tape_type);
}
