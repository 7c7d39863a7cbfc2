/* Outputs of a plan that are views of inputs or of intermediates.
 *
 * Follows gen_alias_from_base and mark_dynamo_propagated_dynamic_indices of
 * torch/_functorch/_aot_autograd.
 */
#include "plan.h"

PyObject *
plan_wrap_alias(PlanObject *self, PyObject *tensor)
{
    PlanAliasObject *alias =
        (PlanAliasObject *)self->alias_type->tp_alloc(self->alias_type, 0);
    if (alias == NULL) {
        Py_DECREF(tensor);
        return NULL;
    }
    alias->alias = tensor;
    return (PyObject *)alias;
}

PyObject *
plan_unwrap_alias(PlanObject *self, PyObject *value)
{
    if (!Py_IS_TYPE(value, self->alias_type)) {
        PyErr_Format(PyExc_AssertionError, "expected TensorAlias, got %R",
                     Py_TYPE(value));
        return NULL;
    }
    return PLAN_ALIAS_CAST(value)->alias;
}

static int
PlanAlias_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(PLAN_ALIAS_CAST(op)->alias);
    return 0;
}

static int
PlanAlias_clear(PyObject *op)
{
    Py_CLEAR(PLAN_ALIAS_CAST(op)->alias);
    return 0;
}

static void
PlanAlias_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    (void)PlanAlias_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyType_Slot plan_alias_slots[] = {
    {Py_tp_doc, (void *)"Hides an aliasing output from autograd.Function."},
    {Py_tp_traverse, PlanAlias_traverse},
    {Py_tp_clear, PlanAlias_clear},
    {Py_tp_dealloc, PlanAlias_dealloc},
    {0, NULL},
};

PyType_Spec plan_alias_spec = {
    .name = "precomp._core._PlanAlias",
    .basicsize = sizeof(PlanAliasObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = plan_alias_slots,
};

int
plan_mark_dynamic(PlanObject *self, PyObject *tensor, PyObject *dims)
{
    PyObject *name = self->fn[FN_DYNAMIC_DIMS];         /* borrowed */
    PyObject *present = PyObject_GetAttr(tensor, name); /* owned */
    PyObject *merged = NULL;                            /* owned */
    int status = -1;
    if (present == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            goto done;
        }
        PyErr_Clear();
        merged = PySet_New(dims);
    }
    else {
        merged = PyNumber_InPlaceOr(present, dims);
    }
    if (merged != NULL) {
        status = PyObject_SetAttr(tensor, name, merged);
    }
done:
    Py_XDECREF(present);
    Py_XDECREF(merged);
    return status;
}

/* Whether *name*() of *a* and *b* differ: 0, 1 or -1. Borrows. */
static int
plan_differs(PyObject *a, PyObject *b, PyObject *name)
{
    PyObject *x = PyObject_CallMethodNoArgs(a, name);                    /* owned */
    PyObject *y = x == NULL ? NULL : PyObject_CallMethodNoArgs(b, name); /* owned */
    int result = y == NULL ? -1 : PyObject_RichCompareBool(x, y, Py_NE);
    Py_XDECREF(x);
    Py_XDECREF(y);
    return result;
}

/* Whether sizes, strides or offset of *a* and *b* differ: 0, 1 or -1. */
static int
plan_geometry_differs(PlanObject *self, PyObject *a, PyObject *b)
{
    int result = plan_differs(a, b, self->name[NAME_size]);
    if (result == 0) {
        result = plan_differs(a, b, self->name[NAME_stride]);
    }
    if (result == 0) {
        result = plan_differs(a, b, self->name[NAME_storage_offset]);
    }
    return result;
}

/* Gives *out* the requires_grad that the output had. Steals *out*. */
static PyObject *
plan_patch_requires_grad(PlanObject *self, PyObject *base, PyObject *out, int wanted)
{
    PyObject *patched = NULL; /* owned */
    int has = plan_attribute_flag(base, self->name[NAME_requires_grad]);
    if (has < 0) {
        goto done;
    }
    if (has && !wanted) {
        patched = PyObject_CallMethodNoArgs(out, self->name[NAME_detach]);
    }
    else if (!has && wanted) {
        patched =
            PyObject_CallMethodOneArg(out, self->name[NAME_requires_grad_], Py_True);
    }
    else {
        patched = Py_NewRef(out);
    }
done:
    Py_DECREF(out);
    return patched;
}

/* The shape of *tensor* as a plain tuple, for a message. */
static PyObject *
plan_shape_tuple(PlanObject *self, PyObject *tensor)
{
    PyObject *size =
        PyObject_CallMethodNoArgs(tensor, self->name[NAME_size]); /* owned */
    PyObject *tuple = NULL;
    if (size != NULL) {
        tuple = PyTuple_Check(size) ? PyTuple_GetSlice(size, 0, PyTuple_GET_SIZE(size))
                                    : PySequence_Tuple(size);
        Py_DECREF(size);
    }
    return tuple;
}

/* Replays the recorded views on *base*. */
static PyObject *
plan_replay_views(PlanObject *self, const plan_output *output, PyObject *base,
                  PyObject *target)
{
    PyObject *actual = NULL;   /* owned */
    PyObject *expected = NULL; /* owned */
    PyObject *args[] = {base, output->views};
    PyObject *out =
        PyObject_Vectorcall(self->fn[FN_APPLY_VIEWS], args, 2, NULL); /* owned */
    if (out == NULL) {
        return NULL;
    }
    int differs = plan_differs(out, target, self->name[NAME_size]);
    if (differs == 0) {
        return plan_patch_requires_grad(self, base, out, output->requires_grad);
    }
    if (differs < 0) {
        goto done;
    }
    actual = plan_shape_tuple(self, out);
    if (actual == NULL) {
        goto done;
    }
    expected = plan_shape_tuple(self, target);
    if (expected == NULL) {
        goto done;
    }
    PyErr_Format(PyExc_AssertionError,
                 "incorrect out shape after application of ViewMeta sequence: "
                 "%S (actual) vs %S (expected)",
                 actual, expected);
done:
    Py_XDECREF(actual);
    Py_XDECREF(expected);
    Py_DECREF(out);
    return NULL;
}

/* Replays the view that autograd recorded on *target* on *base*. Returns a new
   reference, None when that gives another shape, or NULL. */
static PyObject *
plan_replay_autograd(PlanObject *self, PyObject *base, PyObject *target,
                     PyObject *target_base)
{
    PyObject *reshaped = NULL; /* owned */
    PyObject *out = NULL;      /* owned */
    int differs = 0;
    if (base != target_base) {
        differs = plan_geometry_differs(self, base, target_base);
    }
    if (differs < 0) {
        return NULL;
    }
    reshaped = differs
                   ? plan_restride(self, self->name[NAME_as_strided], base, target_base)
                   : Py_NewRef(base);
    if (reshaped == NULL) {
        return NULL;
    }
    out = PyObject_CallMethodOneArg(target, self->name[NAME__view_func], reshaped);
    Py_DECREF(reshaped);
    if (out == NULL || out == Py_None) {
        return out;
    }
    differs = plan_differs(out, target, self->name[NAME_size]);
    if (differs == 0) {
        return out;
    }
    Py_DECREF(out);
    return differs < 0 ? NULL : Py_NewRef(Py_None);
}

/* as_strided of *base* with the geometry and dtype of *target*. */
static PyObject *
plan_restride_any(PlanObject *self, const plan_output *output, PyObject *base,
                  PyObject *target)
{
    PyObject *source = NULL; /* owned */
    PyObject *out = NULL;    /* owned */
    PyObject *dtype = NULL;  /* owned */
    PyObject *wanted = NULL; /* owned */
    PyObject *result = NULL; /* owned */
    int base_complex = plan_method_flag(base, self->name[NAME_is_complex]);
    int target_complex =
        base_complex < 0 ? -1 : plan_method_flag(target, self->name[NAME_is_complex]);
    if (target_complex < 0) {
        return NULL;
    }
    if (base_complex == target_complex) {
        source = Py_NewRef(base);
    }
    else {
        int index = base_complex ? FN_VIEW_AS_REAL : FN_VIEW_AS_COMPLEX;
        source = PyObject_CallOneArg(self->fn[index], base);
    }
    if (source == NULL) {
        goto done;
    }
    out = plan_restride(self, self->name[NAME_as_strided], source, target);
    if (out == NULL) {
        goto done;
    }
    out = plan_patch_requires_grad(self, base, out, output->requires_grad);
    if (out == NULL) {
        goto done;
    }
    dtype = PyObject_GetAttr(out, self->name[NAME_dtype]);
    if (dtype == NULL) {
        goto done;
    }
    wanted = PyObject_GetAttr(target, self->name[NAME_dtype]);
    if (wanted == NULL) {
        goto done;
    }
    result = dtype == wanted
                 ? Py_NewRef(out)
                 : PyObject_CallMethodOneArg(out, self->name[NAME_view], wanted);
done:
    Py_XDECREF(source);
    Py_XDECREF(out);
    Py_XDECREF(dtype);
    Py_XDECREF(wanted);
    return result;
}

PyObject *
plan_gen_alias(PlanObject *self, const plan_output *output, PyObject *base,
               PyObject *target)
{
    if (output->views != NULL) {
        return plan_replay_views(self, output, base, target);
    }
    PyObject *target_base =
        PyObject_GetAttr(target, self->name[NAME__base]); /* owned */
    if (target_base == NULL) {
        return NULL;
    }
    if (target_base != Py_None) {
        PyObject *out =
            plan_replay_autograd(self, base, target, target_base); /* owned */
        Py_DECREF(target_base);
        if (out == NULL) {
            return NULL;
        }
        if (out != Py_None) {
            return plan_patch_requires_grad(self, base, out, output->requires_grad);
        }
        Py_DECREF(out);
    }
    else {
        Py_DECREF(target_base);
    }
    return plan_restride_any(self, output, base, target);
}
