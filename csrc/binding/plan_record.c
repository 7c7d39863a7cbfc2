/* From the record of a plan to the fields of PlanObject.
 *
 * Owns the meaning of the keys (precomp/freeze/plan.py explains them) and checks
 * every index against its range, so that the code that runs need not.
 */
#include "plan.h"

static const char *const plan_kind_names[KIND_COUNT] = {
    "non_alias",
    "unsafe_view_alias",
    "custom_function_view",
    "alias_of_input",
    "is_input",
    "alias_of_intermediate_save_as_output",
    "alias_of_intermediate",
    "alias_of_intermediate_base_is_user_output",
};

/* Always returns -1. */
static int
plan_bad(const char *key, const char *what)
{
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "plan record: '%s': %s", key, what);
    }
    return -1;
}

/* Borrowed value of *key*, or NULL with an exception. */
static PyObject *
plan_get(PyObject *record, const char *key)
{
    PyObject *name = PyUnicode_FromString(key); /* owned */
    if (name == NULL) {
        return NULL;
    }
    PyObject *value = PyDict_GetItemWithError(record, name); /* borrowed */
    Py_DECREF(name);
    if (value == NULL) {
        (void)plan_bad(key, "missing");
    }
    return value;
}

/* Borrowed tuple under *key*, or NULL with ValueError. */
static PyObject *
plan_get_tuple(PyObject *record, const char *key)
{
    PyObject *value = plan_get(record, key); /* borrowed */
    if (value != NULL && !PyTuple_Check(value)) {
        (void)plan_bad(key, "expected a tuple");
        return NULL;
    }
    return value;
}

static int
plan_get_count(PyObject *record, const char *key, Py_ssize_t *out)
{
    PyObject *value = plan_get(record, key); /* borrowed */
    if (value == NULL) {
        return -1;
    }
    if (!PyLong_Check(value)) {
        return plan_bad(key, "expected an int");
    }
    *out = PyLong_AsSsize_t(value);
    if (*out < 0) {
        return plan_bad(key, "expected a non-negative int");
    }
    return 0;
}

static int
plan_get_flag(PyObject *record, const char *key, char *out)
{
    PyObject *value = plan_get(record, key); /* borrowed */
    if (value == NULL) {
        return -1;
    }
    if (!PyBool_Check(value)) {
        return plan_bad(key, "expected a bool");
    }
    *out = value == Py_True;
    return 0;
}

/* Reads item *i* of *tuple* as an index below *limit*. Returns 0 or -1. */
static int
plan_index(PyObject *tuple, Py_ssize_t i, Py_ssize_t limit, const char *key,
           Py_ssize_t *out)
{
    if (i >= PyTuple_GET_SIZE(tuple) || !PyLong_Check(PyTuple_GET_ITEM(tuple, i))) {
        return plan_bad(key, "expected an int");
    }
    *out = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i));
    if (*out < 0 || *out >= limit) {
        return plan_bad(key, "index out of range");
    }
    return 0;
}

static int
plan_item_flag(PyObject *tuple, Py_ssize_t i, const char *key, char *out)
{
    if (i >= PyTuple_GET_SIZE(tuple) || !PyBool_Check(PyTuple_GET_ITEM(tuple, i))) {
        return plan_bad(key, "expected a bool");
    }
    *out = PyTuple_GET_ITEM(tuple, i) == Py_True;
    return 0;
}

/* Allocates *count* zeroed items (at least one). Returns NULL with MemoryError. */
static void *
plan_alloc(Py_ssize_t count, size_t size)
{
    void *memory = PyMem_Calloc(count > 0 ? (size_t)count : 1, size);
    if (memory == NULL) {
        PyErr_NoMemory();
    }
    return memory;
}

static int
plan_parse_indices(PyObject *record, const char *key, Py_ssize_t limit,
                   Py_ssize_t **out, Py_ssize_t *count)
{
    PyObject *tuple = plan_get_tuple(record, key); /* borrowed */
    if (tuple == NULL) {
        return -1;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    *out = plan_alloc(n, sizeof(**out));
    if (*out == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (plan_index(tuple, i, limit, key, &(*out)[i]) < 0) {
            return -1;
        }
    }
    *count = n;
    return 0;
}

/* Reads pairs (argument, write back). Only pairs below *limit* are accepted. */
static int
plan_parse_checked(PyObject *record, const char *key, Py_ssize_t limit,
                   plan_graph *graph)
{
    PyObject *tuple = plan_get_tuple(record, key); /* borrowed */
    if (tuple == NULL) {
        return -1;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    graph->checked = plan_alloc(n, sizeof(*graph->checked));
    if (graph->checked == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i); /* borrowed */
        plan_check *check = &graph->checked[i];
        if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2) {
            return plan_bad(key, "expected pairs (argument, write back)");
        }
        if (plan_index(item, 0, limit, key, &check->input) < 0 ||
            plan_item_flag(item, 1, key, &check->write_back) < 0) {
            return -1;
        }
    }
    graph->n_checked = n;
    return 0;
}

static int
plan_parse_mutated(PlanObject *self, PyObject *record)
{
    static const char key[] = "mutated";
    PyObject *tuple = plan_get_tuple(record, key); /* borrowed */
    if (tuple == NULL) {
        return -1;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    self->mutated = plan_alloc(n, sizeof(*self->mutated));
    if (self->mutated == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i); /* borrowed */
        plan_mutation *mutation = &self->mutated[i];
        if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 5) {
            return plan_bad(key, "expected tuples of 5");
        }
        if (plan_index(item, 0, self->n_inputs, key, &mutation->input) < 0 ||
            plan_item_flag(item, 1, key, &mutation->data) < 0 ||
            plan_item_flag(item, 2, key, &mutation->metadata) < 0 ||
            plan_item_flag(item, 3, key, &mutation->storage) < 0 ||
            plan_item_flag(item, 4, key, &mutation->leaf) < 0) {
            return -1;
        }
    }
    self->n_mutated = n;
    return 0;
}

static int
plan_parse_output(PlanObject *self, PyObject *item, Py_ssize_t n, plan_output *output)
{
    static const char key[] = "outputs";
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 5 ||
        !PyUnicode_Check(PyTuple_GET_ITEM(item, 0))) {
        return plan_bad(key,
                        "expected tuples (kind, base, dims, requires_grad, views)");
    }
    int kind = 0;
    while (kind < KIND_COUNT &&
           PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(item, 0),
                                            plan_kind_names[kind]) != 0) {
        kind++;
    }
    if (kind == KIND_COUNT) {
        return plan_bad(key, "unknown kind");
    }
    output->kind = (plan_kind)kind;
    if (plan_item_flag(item, 3, key, &output->requires_grad) < 0) {
        return -1;
    }
    if (PLAN_IS_ALIAS(output->kind)) {
        Py_ssize_t limit = self->n_inputs;
        Py_ssize_t shift = 0;
        self->has_alias = 1;
        if (kind == KIND_INTERMEDIATE || kind == KIND_INTERMEDIATE_SAVED) {
            limit = self->n_bases;
            shift = n;
        }
        else if (kind == KIND_INTERMEDIATE_IS_OUTPUT) {
            limit = n;
        }
        if (plan_index(item, 1, limit, key, &output->base) < 0) {
            return -1;
        }
        output->base += shift;
    }
    PyObject *dims = PyTuple_GET_ITEM(item, 2); /* borrowed */
    if (dims != Py_None) {
        output->dims = PySet_New(dims);
        if (output->dims == NULL) {
            return -1;
        }
        self->has_dims = 1;
    }
    PyObject *views = PyTuple_GET_ITEM(item, 4); /* borrowed */
    if (views != Py_None) {
        if (!PyList_Check(views)) {
            return plan_bad(key, "views: expected a list of ViewMeta");
        }
        output->views = Py_NewRef(views);
    }
    return 0;
}

static int
plan_parse_outputs(PlanObject *self, PyObject *record)
{
    static const char key[] = "outputs";
    PyObject *tuple = plan_get_tuple(record, key); /* borrowed */
    if (tuple == NULL) {
        return -1;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    self->outputs = plan_alloc(n, sizeof(*self->outputs));
    if (self->outputs == NULL) {
        return -1;
    }
    self->n_outputs = n;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (plan_parse_output(self, PyTuple_GET_ITEM(tuple, i), n, &self->outputs[i]) <
            0) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        plan_output *output = &self->outputs[i];
        if (output->kind == KIND_INTERMEDIATE_IS_OUTPUT) {
            output->unwrap_base =
                self->joint && PLAN_IS_ALIAS(self->outputs[output->base].kind);
        }
    }
    return 0;
}

static int
plan_parse_tangent(PlanObject *self, PyObject *item, plan_tangent *tangent)
{
    static const char key[] = "tangents";
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2) {
        return plan_bad(key, "expected pairs (position, format)");
    }
    if (plan_index(item, 0, self->n_returns, key, &tangent->grad) < 0) {
        return -1;
    }
    PyObject *format = PyTuple_GET_ITEM(item, 1); /* borrowed */
    if (format == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(format)) {
        tangent->format = Py_NewRef(format);
        return 0;
    }
    if (PyTuple_GET_SIZE(format) != 2 || !PyTuple_Check(PyTuple_GET_ITEM(format, 0)) ||
        !PyTuple_Check(PyTuple_GET_ITEM(format, 1))) {
        return plan_bad(key, "expected (size, stride)");
    }
    tangent->size = Py_NewRef(PyTuple_GET_ITEM(format, 0));
    tangent->stride = Py_NewRef(PyTuple_GET_ITEM(format, 1));
    return 0;
}

static int
plan_parse_tangents(PlanObject *self, PyObject *record)
{
    PyObject *tuple = plan_get_tuple(record, "tangents"); /* borrowed */
    if (tuple == NULL) {
        return -1;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    self->tangents = plan_alloc(n, sizeof(*self->tangents));
    if (self->tangents == NULL) {
        return -1;
    }
    self->n_tangents = n;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (plan_parse_tangent(self, PyTuple_GET_ITEM(tuple, i), &self->tangents[i]) <
            0) {
            return -1;
        }
    }
    return 0;
}

static int
plan_parse_dynamic(PlanObject *self, PyObject *record)
{
    static const char key[] = "dynamic_saved";
    PyObject *tuple = plan_get_tuple(record, key); /* borrowed */
    if (tuple == NULL) {
        return -1;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    self->dynamic = plan_alloc(n, sizeof(*self->dynamic));
    if (self->dynamic == NULL) {
        return -1;
    }
    self->n_dynamic = n;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i); /* borrowed */
        if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2) {
            return plan_bad(key, "expected pairs (index, dims)");
        }
        if (plan_index(item, 0, PY_SSIZE_T_MAX, key, &self->dynamic[i].index) < 0) {
            return -1;
        }
        self->dynamic[i].dims = PySet_New(PyTuple_GET_ITEM(item, 1));
        if (self->dynamic[i].dims == NULL) {
            return -1;
        }
    }
    return 0;
}

/* One flag for each input whose index is listed under *key*, NULL when none is. */
static int
plan_parse_flags(PlanObject *self, PyObject *record, const char *key, char **flags,
                 Py_ssize_t *count)
{
    Py_ssize_t *indices = NULL; /* owned */
    int status = plan_parse_indices(record, key, self->n_inputs, &indices, count);
    if (status == 0 && *count > 0) {
        *flags = plan_alloc(self->n_inputs, sizeof(**flags));
        status = *flags == NULL ? -1 : 0;
        for (Py_ssize_t i = 0; status == 0 && i < *count; i++) {
            (*flags)[indices[i]] = 1;
        }
    }
    PyMem_Free(indices);
    return status;
}

static int
plan_parse_gradients(PlanObject *self, PyObject *record)
{
    static const char key[] = "gradients";
    PyObject *tuple = plan_get_tuple(record, key); /* borrowed */
    if (tuple == NULL) {
        return -1;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    self->gradients = plan_alloc(n, sizeof(*self->gradients));
    if (self->gradients == NULL) {
        return -1;
    }
    self->n_gradients = n;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i); /* borrowed */
        if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2) {
            return plan_bad(key, "expected pairs (index, how it is wrapped)");
        }
        if (plan_index(item, 0, PY_SSIZE_T_MAX, key, &self->gradients[i].index) < 0) {
            return -1;
        }
        if (PyTuple_GET_ITEM(item, 1) != Py_None) {
            self->gradients[i].wrap = Py_NewRef(PyTuple_GET_ITEM(item, 1));
        }
    }
    return 0;
}

static int
plan_parse_training(PlanObject *self, PyObject *record)
{
    Py_ssize_t n = 0;
    if (plan_parse_flags(self, record, "detach", &self->detach, &n) < 0 ||
        plan_parse_indices(record, "non_differentiable",
                           self->n_mutated + self->n_outputs, &self->non_diff,
                           &self->n_non_diff) < 0 ||
        plan_get_count(record, "saved_unchecked", &self->n_unchecked) < 0 ||
        plan_get_count(record, "saved_opaque", &self->n_opaque) < 0 ||
        plan_parse_gradients(self, record) < 0 ||
        plan_get_count(record, "saved_symints", &self->n_symints) < 0 ||
        plan_parse_dynamic(self, record) < 0 || plan_parse_tangents(self, record) < 0 ||
        plan_get_flag(record, "inputs_require_grad", &self->inputs_require_grad) < 0 ||
        plan_get_flag(record, "mutates_in_backward", &self->mutates_in_backward) < 0 ||
        plan_get_flag(record, "donated", &self->donated) < 0 ||
        plan_parse_checked(record, "backward_aligned", PY_SSIZE_T_MAX,
                           &self->backward) < 0) {
        return -1;
    }
    PyObject *deterministic = plan_get(record, "deterministic"); /* borrowed */
    if (deterministic == NULL) {
        return -1;
    }
    self->refuse_deterministic = deterministic == Py_False;
    return 0;
}

int
plan_parse(PlanObject *self, PyObject *record)
{
    if (!PyDict_Check(record)) {
        PyErr_Format(PyExc_TypeError, "plan record: expected a dict, got %.100s",
                     Py_TYPE(record)->tp_name);
        return -1;
    }
    PyObject *kind = plan_get(record, "kind"); /* borrowed */
    if (kind == NULL) {
        return -1;
    }
    if (!PyUnicode_Check(kind)) {
        return plan_bad("kind", "expected a str");
    }
    if (PyUnicode_CompareWithASCIIString(kind, "training") == 0) {
        self->joint = 1;
    }
    else if (PyUnicode_CompareWithASCIIString(kind, "inference") != 0) {
        return plan_bad("kind", "expected 'inference' or 'training'");
    }
    self->kind_name = Py_NewRef(kind);
    if (plan_get_count(record, "inputs", &self->n_inputs) < 0 ||
        plan_get_count(record, "bases", &self->n_bases) < 0 ||
        plan_get_flag(record, "disable_autocast", &self->disable_autocast) < 0 ||
        plan_parse_flags(self, record, "unwrap", &self->unwrap, &self->n_unwrap) < 0 ||
        plan_parse_checked(record, "forward_aligned", self->n_inputs + self->n_unwrap,
                           &self->forward) < 0 ||
        plan_parse_mutated(self, record) < 0 || plan_parse_outputs(self, record) < 0 ||
        plan_parse_indices(record, "version_bumps", self->n_inputs, &self->bump,
                           &self->n_bump) < 0) {
        return -1;
    }
    self->n_returns = self->n_mutated + self->n_outputs + self->n_bases;
    PyObject *mode = plan_get(record, "grad_mode"); /* borrowed */
    if (mode == NULL) {
        return -1;
    }
    self->sets_grad_mode = mode != Py_None;
    self->grad_mode = mode == Py_True;
    return self->joint ? plan_parse_training(self, record) : 0;
}

void
plan_parse_clear(PlanObject *self)
{
    for (Py_ssize_t i = 0; self->outputs != NULL && i < self->n_outputs; i++) {
        Py_CLEAR(self->outputs[i].dims);
        Py_CLEAR(self->outputs[i].views);
    }
    for (Py_ssize_t i = 0; self->tangents != NULL && i < self->n_tangents; i++) {
        Py_CLEAR(self->tangents[i].format);
        Py_CLEAR(self->tangents[i].size);
        Py_CLEAR(self->tangents[i].stride);
    }
    for (Py_ssize_t i = 0; self->gradients != NULL && i < self->n_gradients; i++) {
        Py_CLEAR(self->gradients[i].wrap);
    }
    for (Py_ssize_t i = 0; self->dynamic != NULL && i < self->n_dynamic; i++) {
        Py_CLEAR(self->dynamic[i].dims);
    }
    Py_CLEAR(self->kind_name);
    PyMem_Free(self->forward.checked);
    PyMem_Free(self->backward.checked);
    self->forward.checked = NULL;
    self->backward.checked = NULL;
    PyMem_Free(self->mutated);
    PyMem_Free(self->outputs);
    PyMem_Free(self->tangents);
    PyMem_Free(self->dynamic);
    PyMem_Free(self->bump);
    PyMem_Free(self->unwrap);
    PyMem_Free(self->gradients);
    PyMem_Free(self->detach);
    PyMem_Free(self->non_diff);
    self->mutated = NULL;
    self->outputs = NULL;
    self->tangents = NULL;
    self->dynamic = NULL;
    self->bump = NULL;
    self->unwrap = NULL;
    self->gradients = NULL;
    self->detach = NULL;
    self->non_diff = NULL;
}

int
plan_parse_traverse(PlanObject *self, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; self->outputs != NULL && i < self->n_outputs; i++) {
        Py_VISIT(self->outputs[i].dims);
        Py_VISIT(self->outputs[i].views);
    }
    for (Py_ssize_t i = 0; self->tangents != NULL && i < self->n_tangents; i++) {
        Py_VISIT(self->tangents[i].format);
        Py_VISIT(self->tangents[i].size);
        Py_VISIT(self->tangents[i].stride);
    }
    for (Py_ssize_t i = 0; self->gradients != NULL && i < self->n_gradients; i++) {
        Py_VISIT(self->gradients[i].wrap);
    }
    for (Py_ssize_t i = 0; self->dynamic != NULL && i < self->n_dynamic; i++) {
        Py_VISIT(self->dynamic[i].dims);
    }
    return 0;
}
