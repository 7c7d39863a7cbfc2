/* SplitPlan: one Dynamo graph that was compiled as several (DDPOptimizer cuts it
 * at bucket borders). Owns the order of the calls and the life of values between
 * them; each call is a Plan.
 */
#include "plan.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *program;        /* owned, tuple of ops */
    PyObject *plans;          /* owned, tuple of callables */
    PyObject *set_eval_frame; /* owned */
    Py_ssize_t n_inputs;
} SplitPlanObject;

#define SPLIT_CAST(op) ((SplitPlanObject *)(op))

static PyObject *
split_bad(const char *what)
{
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "split plan: %s", what);
    }
    return NULL;
}

/* Borrowed str tag of *op*, or NULL with ValueError. */
static const char *
split_tag(PyObject *op, Py_ssize_t size)
{
    if (!PyTuple_Check(op) || PyTuple_GET_SIZE(op) < size ||
        !PyUnicode_Check(PyTuple_GET_ITEM(op, 0))) {
        (void)split_bad("malformed operation");
        return NULL;
    }
    return PyUnicode_AsUTF8(PyTuple_GET_ITEM(op, 0));
}

static PyObject *split_value(PyObject *expression, PyObject *values);

/* Values of a tuple of expressions, as a new tuple. */
static PyObject *
split_values(PyObject *expressions, PyObject *values)
{
    if (!PyTuple_Check(expressions)) {
        return split_bad("expected a tuple of expressions");
    }
    Py_ssize_t n = PyTuple_GET_SIZE(expressions);
    PyObject *tuple = PyTuple_New(n); /* owned */
    for (Py_ssize_t i = 0; tuple != NULL && i < n; i++) {
        PyObject *value = split_value(PyTuple_GET_ITEM(expressions, i), values);
        if (value == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, value);
    }
    return tuple;
}

/* Evaluates ("n", i), ("c", constant) or ("t", expressions). New reference. */
static PyObject *
split_value(PyObject *expression, PyObject *values)
{
    const char *tag = split_tag(expression, 2);
    if (tag == NULL) {
        return NULL;
    }
    PyObject *rest = PyTuple_GET_ITEM(expression, 1); /* borrowed */
    if (tag[0] == 'n') {
        Py_ssize_t i = PyLong_AsSsize_t(rest);
        if (i < 0 || i >= PyList_GET_SIZE(values)) {
            return split_bad("value out of range");
        }
        return Py_NewRef(PyList_GET_ITEM(values, i));
    }
    if (tag[0] == 't') {
        return split_values(rest, values);
    }
    return Py_NewRef(rest);
}

/* ("call", plan, expressions, unwrap, free). New reference. */
static PyObject *
split_call(SplitPlanObject *self, PyObject *op, PyObject *values)
{
    if (PyTuple_GET_SIZE(op) != 5) {
        return split_bad("malformed call");
    }
    Py_ssize_t k = PyLong_AsSsize_t(PyTuple_GET_ITEM(op, 1));
    if (k < 0 || k >= PyTuple_GET_SIZE(self->plans)) {
        return split_bad("plan out of range");
    }
    PyObject *args = split_values(PyTuple_GET_ITEM(op, 2), values); /* owned */
    if (args == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_Call(PyTuple_GET_ITEM(self->plans, k), args, NULL);
    Py_DECREF(args);
    if (result == NULL || PyTuple_GET_ITEM(op, 3) != Py_True ||
        !(PyTuple_Check(result) || PyList_Check(result))) {
        return result;
    }
    PyObject *first = PySequence_GetItem(result, 0);
    Py_DECREF(result);
    return first;
}

/* ("get", expression, index, free). New reference. */
static PyObject *
split_get(PyObject *op, PyObject *values)
{
    if (PyTuple_GET_SIZE(op) != 4) {
        return split_bad("malformed get");
    }
    PyObject *source = split_value(PyTuple_GET_ITEM(op, 1), values); /* owned */
    if (source == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_GetItem(source, PyTuple_GET_ITEM(op, 2));
    Py_DECREF(source);
    return result;
}

/* Drops the values whose last use was this operation. Returns 0 or -1. */
static int
split_free(PyObject *indices, PyObject *values)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(indices); i++) {
        Py_ssize_t k = PyLong_AsSsize_t(PyTuple_GET_ITEM(indices, i));
        if (k < 0 || PyList_SetItem(values, k, Py_NewRef(Py_None)) < 0) {
            (void)split_bad("freed value out of range");
            return -1;
        }
    }
    return 0;
}

/* Runs the program. Returns the outputs, a new reference, or NULL. */
static PyObject *
split_run(SplitPlanObject *self, PyObject *const *args)
{
    Py_ssize_t next = 0;
    PyObject *result = NULL;          /* owned */
    PyObject *values = PyList_New(0); /* owned */
    if (values == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->program); i++) {
        PyObject *op = PyTuple_GET_ITEM(self->program, i); /* borrowed */
        const char *tag = split_tag(op, 1);
        if (tag == NULL) {
            goto done;
        }
        PyObject *value = NULL; /* owned */
        if (tag[0] == 'o') {
            result = PyTuple_GET_SIZE(op) == 2
                         ? split_value(PyTuple_GET_ITEM(op, 1), values)
                         : split_bad("malformed output");
            goto done;
        }
        if (tag[0] == 'i') {
            value = Py_NewRef(args[next++]);
        }
        else {
            value =
                tag[0] == 'c' ? split_call(self, op, values) : split_get(op, values);
        }
        if (value == NULL) {
            goto done;
        }
        int status = PyList_Append(values, value);
        Py_DECREF(value);
        if (status < 0) {
            goto done;
        }
        PyObject *last = PyTuple_GET_ITEM(op, PyTuple_GET_SIZE(op) - 1); /* borrowed */
        if (PyTuple_Check(last) && split_free(last, values) < 0) {
            goto done;
        }
    }
    (void)split_bad("no output");
done:
    Py_DECREF(values);
    return result;
}

static PyObject *
SplitPlan_vectorcall(PyObject *op, PyObject *const *args, size_t nargsf,
                     PyObject *kwnames)
{
    SplitPlanObject *self = SPLIT_CAST(op);
    if (PyVectorcall_NARGS(nargsf) != self->n_inputs ||
        (kwnames != NULL && PyTuple_GET_SIZE(kwnames) != 0)) {
        PyErr_Format(PyExc_TypeError, "SplitPlan takes %zd positional arguments",
                     self->n_inputs);
        return NULL;
    }
    PyObject *prior = PyObject_CallOneArg(self->set_eval_frame, Py_None); /* owned */
    if (prior == NULL) {
        return NULL;
    }
    PyObject *result = plan_finally(self->set_eval_frame, prior, split_run(self, args));
    Py_DECREF(prior);
    return result;
}

static PyObject *
SplitPlan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *const keywords[] = {"program", "plans", NULL};
    PyObject *program, *plans; /* borrowed */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!:SplitPlan", (char **)keywords,
                                     &PyTuple_Type, &program, &PyTuple_Type, &plans)) {
        return NULL;
    }
    core_state *state = core_state_by_type(type);
    PyObject *set_eval_frame =
        state == NULL ? NULL : core_torch(state, "set_eval_frame"); /* borrowed */
    if (set_eval_frame == NULL) {
        return NULL;
    }
    Py_ssize_t n_inputs = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(program); i++) {
        const char *tag = split_tag(PyTuple_GET_ITEM(program, i), 1);
        if (tag == NULL) {
            return NULL;
        }
        if (strcmp(tag, "in") == 0) {
            n_inputs++;
        }
        else if (strcmp(tag, "call") != 0 && strcmp(tag, "get") != 0 &&
                 strcmp(tag, "out") != 0) {
            return split_bad("unknown operation");
        }
    }
    SplitPlanObject *self = (SplitPlanObject *)type->tp_alloc(type, 0); /* owned */
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = SplitPlan_vectorcall;
    self->program = Py_NewRef(program);
    self->plans = Py_NewRef(plans);
    self->set_eval_frame = Py_NewRef(set_eval_frame);
    self->n_inputs = n_inputs;
    return (PyObject *)self;
}

static int
SplitPlan_traverse(PyObject *op, visitproc visit, void *arg)
{
    SplitPlanObject *self = SPLIT_CAST(op);
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->program);
    Py_VISIT(self->plans);
    Py_VISIT(self->set_eval_frame);
    return 0;
}

static int
SplitPlan_clear(PyObject *op)
{
    SplitPlanObject *self = SPLIT_CAST(op);
    Py_CLEAR(self->program);
    Py_CLEAR(self->plans);
    Py_CLEAR(self->set_eval_frame);
    return 0;
}

static void
SplitPlan_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    (void)SplitPlan_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMemberDef SplitPlan_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(SplitPlanObject, vectorcall),
     READONLY, NULL},
    {"inputs", T_PYSSIZET, offsetof(SplitPlanObject, n_inputs), READONLY,
     PyDoc_STR("Number of arguments.")},
    {"plans", T_OBJECT, offsetof(SplitPlanObject, plans), READONLY,
     PyDoc_STR("The plans, in the order of the program.")},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(
    SplitPlan_doc,
    "SplitPlan(program, plans)\n--\n\n"
    "Calls several plans as one graph.\n\n"
    "*program* is a tuple of operations (\"in\",), (\"call\", plan, expressions,\n"
    "unwrap, free), (\"get\", expression, index, free) and a final\n"
    "(\"out\", expression); see precomp/freeze/plan.py.");

static PyType_Slot split_plan_slots[] = {
    {Py_tp_doc, (void *)SplitPlan_doc}, {Py_tp_new, SplitPlan_new},
    {Py_tp_call, PyVectorcall_Call},    {Py_tp_traverse, SplitPlan_traverse},
    {Py_tp_clear, SplitPlan_clear},     {Py_tp_dealloc, SplitPlan_dealloc},
    {Py_tp_members, SplitPlan_members}, {0, NULL},
};

static PyType_Spec split_plan_spec = {
    .name = "precomp._core.SplitPlan",
    .basicsize = sizeof(SplitPlanObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = split_plan_slots,
};

int
core_add_plan_split(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &split_plan_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int status = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return status;
}
