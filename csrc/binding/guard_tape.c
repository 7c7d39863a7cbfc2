/* GuardTape: the calls that built one of torch's C++ guard trees, as data.
 *
 * The record is plain data (docs/internals.md, section 4.2). Building a tape
 * checks the whole record; guard_replay.c makes the calls. Nothing here knows
 * what a guard means.
 */
#include "guard_tape.h"

const method_info guard_methods[GUARD_METHODS + 1] = {
    {"framelocals_manager", OP_MANAGER, "k"},
    {"globals_dict_manager", OP_MANAGER, "g"},
    {"global_weakref_manager", OP_MANAGER, "k"},
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
    {"add_dynamic_indices_guard", OP_LEAF, "kwu"}, /* torch 2.11 */
    {"add_mapping_keys_guard", OP_LEAF, "kwu"},
    {"add_fake_script_type_match_guard", OP_LEAF, "kiwu"},
    {"add_tensor_match_guard", OP_LEAF, "tkkkwukk"},
    {"add_lambda_guard", OP_LEAF, "fwu"},
    {"add_epilogue_lambda_guard", OP_LEAF, "fwu"},
    {"install_no_tensor_aliasing_guard", OP_RELATION, "nswu"},
    {"install_object_aliasing_guard", OP_RELATION, "oowu"},
    {"install_storage_overlapping_guard", OP_RELATION, "nnwu"},
    {NULL, OP_LEAF, NULL},
};

/* ---- the record ---------------------------------------------------------- */

static const method_info *
find_method(PyObject *name)
{
    if (!PyUnicode_CheckExact(name)) {
        return NULL;
    }
    for (const method_info *method = guard_methods; method->name != NULL; method++) {
        if (PyUnicode_CompareWithASCIIString(name, method->name) == 0) {
            return method;
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
    PyObject *value = core_dict_get(record, name); /* borrowed */
    if (value == NULL && !PyErr_Occurred()) {
        return core_raise_named(state, "ArtifactCorruptError",
                                "guard tape: no field '%s'", name);
    }
    return Py_XNewRef(value);
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
        (self->tls != Py_None &&
         (!PyTuple_CheckExact(self->tls) || PyTuple_GET_SIZE(self->tls) != 2))) {
        core_raise_named(state, "ArtifactCorruptError", "guard tape: malformed field");
        goto done;
    }
    self->count = PyTuple_GET_SIZE(self->ops_record);
    self->nodes = PyLong_AsSsize_t(number);
    if (self->nodes < 1 || self->nodes > self->count + 1) {
        PyErr_Clear();
        core_raise_named(state, "ArtifactCorruptError",
                         "guard tape: bad number of nodes");
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

PyDoc_STRVAR(
    GuardTape_replay_doc,
    "replay($self, f_globals, enum_type, twins, decode_function, live=(), /)\n--\n\n"
    "Build the guard tree anew: returns (root, keep).\n\n"
    "*f_globals* is the live dict of the frame, *enum_type* the GuardManagerType\n"
    "that torch's guard classes know, *twins* a dict or None (see decode),\n"
    "decode_function(encoded, f_globals) makes the Python callables inside guards.\n"
    "*live* are the objects that ('live', number) stands for. *keep* is a list of\n"
    "all other objects whose id the tree holds: it must live as long as the root.\n"
    "Raises Stale when something the guards name is gone or changed.");

static PyObject *
GuardTape_replay(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 && nargs != 5) {
        PyErr_Format(PyExc_TypeError, "replay: expected 4 or 5 arguments, got %zd",
                     nargs);
        return NULL;
    }
    if (!PyDict_Check(args[0]) || (args[2] != Py_None && !PyDict_Check(args[2]))) {
        PyErr_SetString(PyExc_TypeError, "replay: f_globals and twins must be dicts");
        return NULL;
    }
    if (nargs == 5 && !PyTuple_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "replay: live must be a tuple");
        return NULL;
    }
    core_state *state = core_state_by_type(Py_TYPE(op));
    if (state == NULL) {
        return NULL;
    }
    return guard_tape_replay(state, GUARDTAPE_CAST(op), args[0], args[1],
                             args[2] == Py_None ? NULL : args[2], args[3],
                             nargs == 5 ? args[4] : NULL);
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
     "True when a tree of this tape binds to the objects of its first accepted call: "
     "a\n"
     "second set of objects needs a tree of its own.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    GuardTape_doc,
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
