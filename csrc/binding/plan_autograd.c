/* Forward and backward of a plan's autograd function.
 *
 * Follows _AutogradSavedState, _AutogradForwardEpilogue and the generated
 * backward prologue and epilogue of torch's runtime_wrappers.py. Error texts are
 * torch's. Nothing here may hold a saved tensor or a gradient longer than torch
 * does: the list of arguments is the only owner while the graph runs.
 */
#include "plan.h"

static const char plan_transform_text[] =
    "It looks like you're trying to call a compiled backward function within "
    "vmap/grad/vjp, which isn't supported. Try wrapping vmap inside torch.compile, "
    "or skip compiling the backward function.";

static const char plan_deterministic_text[] =
    "This compiled backward function is being run with "
    "torch.use_deterministic_algorithms(True), but it was previously generated "
    "during the forward function while torch.use_deterministic_algorithms(False) "
    "was set.";

static const char plan_donated_text[] =
    "This backward function was compiled with non-empty donated buffers which "
    "requires create_graph=False and retain_graph=False. Please keep "
    "backward(create_graph=False, retain_graph=False) across all backward() function "
    "calls, or set torch._functorch.config.donated_buffer=False to disable donated "
    "buffer.";

/* -- forward ------------------------------------------------------------- */

/* Raises AssertionError with the types of all *items*, as torch does. */
static void
plan_bad_types(const char *what, const char *expected, PyObject *const *items,
               Py_ssize_t count)
{
    PyObject *types = PyList_New(count); /* owned */
    if (types == NULL) {
        return;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyList_SET_ITEM(types, i, Py_NewRef((PyObject *)Py_TYPE(items[i])));
    }
    PyErr_Format(PyExc_AssertionError, "expected all %s to be %s, got types: %R", what,
                 expected, types);
    Py_DECREF(types);
}

/* *items* as a list (or tuple if *as_tuple*) of tensors, views
   detached so that they keep neither their base nor its graph. *what* names them
   in an error. Returns a new reference or NULL. */
static PyObject *
plan_saved_tensors(PlanObject *self, PyObject *const *items, Py_ssize_t count,
                   int as_tuple, const char *what)
{
    PyObject *result = as_tuple ? PyTuple_New(count) : PyList_New(count); /* owned */
    if (result == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = items[i]; /* borrowed, then owned */
        if (!plan_is_tensor(self, item)) {
            plan_bad_types(what, "Tensors", items, count);
            goto error;
        }
        int is_view = plan_method_flag(item, self->name[NAME__is_view]);
        if (is_view < 0) {
            goto error;
        }
        item = is_view ? PyObject_CallMethodNoArgs(item, self->name[NAME_detach])
                       : Py_NewRef(item);
        if (item == NULL) {
            goto error;
        }
        if (as_tuple) {
            PyTuple_SET_ITEM(result, i, item);
        }
        else {
            PyList_SET_ITEM(result, i, item);
        }
    }
    return result;
error:
    Py_DECREF(result);
    return NULL;
}

/* Stores on *ctx* what backward needs of the *n* outputs *items*. 0 or -1. */
static int
plan_save(PlanObject *self, PyObject *ctx, PyObject *const *items, Py_ssize_t n)
{
    PyObject *checked = NULL;   /* owned, tuple */
    PyObject *unchecked = NULL; /* owned, list or NULL */
    PyObject *symints = NULL;   /* owned, list or NULL */
    PyObject *opaque = NULL;    /* owned, list or NULL */
    int status = -1;
    Py_ssize_t ints_start = n - self->n_symints;
    Py_ssize_t opaque_start = ints_start - self->n_opaque;
    Py_ssize_t unchecked_start = opaque_start - self->n_unchecked;
    Py_ssize_t n_checked = unchecked_start - self->n_returns;
    if (n_checked < 0) {
        PyErr_Format(
            PyExc_AssertionError, "expected at least %zd outputs, got %zd",
            self->n_returns + self->n_unchecked + self->n_opaque + self->n_symints, n);
        return -1;
    }
    checked = plan_saved_tensors(self, items + self->n_returns, n_checked, 1,
                                 "tensors_saved_with_vc_check");
    if (checked == NULL) {
        goto done;
    }
    if (self->n_unchecked > 0) {
        unchecked = plan_saved_tensors(self, items + unchecked_start, self->n_unchecked,
                                       0, "tensors_saved_no_vc_check");
        if (unchecked == NULL) {
            goto done;
        }
    }
    for (Py_ssize_t i = 0; i < self->n_dynamic; i++) {
        Py_ssize_t index = self->dynamic[i].index;
        PyObject *tensor = NULL; /* borrowed */
        if (index < n_checked) {
            tensor = PyTuple_GET_ITEM(checked, index);
        }
        else if (index - n_checked < self->n_unchecked) {
            tensor = PyList_GET_ITEM(unchecked, index - n_checked);
        }
        else {
            PyErr_SetString(PyExc_IndexError, "dynamic saved tensor out of range");
            goto done;
        }
        if (plan_mark_dynamic(self, tensor, self->dynamic[i].dims) < 0) {
            goto done;
        }
    }
    if (PyObject_SetAttr(ctx, self->name[NAME_to_save], checked) < 0) {
        goto done;
    }
    if (unchecked != NULL &&
        PyObject_SetAttr(ctx, self->name[NAME__tensors_no_vc_check], unchecked) < 0) {
        goto done;
    }
    if (self->n_opaque > 0) {
        opaque = PyList_New(self->n_opaque);
        if (opaque == NULL) {
            goto done;
        }
        for (Py_ssize_t i = 0; i < self->n_opaque; i++) {
            PyList_SET_ITEM(opaque, i, Py_NewRef(items[opaque_start + i]));
        }
        if (PyObject_SetAttr(ctx, self->name[NAME_opaque_objects], opaque) < 0) {
            goto done;
        }
    }
    if (self->n_symints > 0) {
        symints = PyList_New(self->n_symints);
        if (symints == NULL) {
            goto done;
        }
        for (Py_ssize_t i = 0; i < self->n_symints; i++) {
            PyObject *item = items[ints_start + i]; /* borrowed */
            if (!PyLong_Check(item) && !PyFloat_Check(item)) {
                plan_bad_types("symint_outs", "int/float/SymInt/SymFloat",
                               items + ints_start, self->n_symints);
                goto done;
            }
            PyList_SET_ITEM(symints, i, Py_NewRef(item));
        }
        if (PyObject_SetAttr(ctx, self->name[NAME_symints], symints) < 0) {
            goto done;
        }
    }
    status = 0;
done:
    Py_XDECREF(checked);
    Py_XDECREF(unchecked);
    Py_XDECREF(symints);
    Py_XDECREF(opaque);
    return status;
}

/* aten._unsafe_view(tensor, tensor.shape). Borrows. */
static PyObject *
plan_unsafe_view(PlanObject *self, PyObject *tensor)
{
    PyObject *shape = PyObject_GetAttr(tensor, self->name[NAME_shape]); /* owned */
    if (shape == NULL) {
        return NULL;
    }
    PyObject *args[] = {tensor, shape};
    PyObject *result = PyObject_Vectorcall(self->fn[FN_UNSAFE_VIEW], args, 2, NULL);
    Py_DECREF(shape);
    return result;
}

/* The tuple that forward returns: the first n_returns of *items*, aliases hidden
   from autograd. Returns a new reference or NULL. */
static PyObject *
plan_returns(PlanObject *self, PyObject *const *items)
{
    PyObject *tuple = PyTuple_New(self->n_returns); /* owned */
    if (tuple == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < self->n_returns; i++) {
        Py_ssize_t o = i - self->n_mutated;
        PyObject *value = NULL; /* owned */
        int wrap = 0;
        if (o < 0) {
            wrap = self->mutated[i].metadata && !self->mutated[i].data;
        }
        else if (o < self->n_outputs) {
            wrap = PLAN_IS_ALIAS(self->outputs[o].kind);
        }
        if (o >= 0 && o < self->n_outputs &&
            self->outputs[o].kind == KIND_UNSAFE_VIEW) {
            value = plan_unsafe_view(self, items[i]);
        }
        else {
            value = Py_NewRef(items[i]);
        }
        if (value != NULL && wrap) {
            value = plan_wrap_alias(self, value);
        }
        if (value == NULL) {
            Py_DECREF(tuple);
            return NULL;
        }
        PyTuple_SET_ITEM(tuple, i, value);
    }
    return tuple;
}

/* ctx.mark_non_differentiable(...) of the *returns* without gradient. 0 or -1. */
static int
plan_mark_non_differentiable(PlanObject *self, PyObject *ctx, PyObject *returns)
{
    int status = 0;
    PyObject *list = PyList_New(0); /* owned */
    if (list == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; status == 0 && i < self->n_non_diff; i++) {
        PyObject *value = PyTuple_GET_ITEM(returns, self->non_diff[i]); /* borrowed */
        if (plan_is_tensor(self, value)) {
            status = PyList_Append(list, value);
        }
    }
    if (status == 0 && PyList_GET_SIZE(list) > 0) {
        PyObject *tuple = PyList_AsTuple(list); /* owned */
        status = tuple == NULL ? -1
                               : PyObject_SetAttr(
                                     ctx, self->name[NAME_non_differentiable], tuple);
        Py_XDECREF(tuple);
    }
    Py_DECREF(list);
    if (status == 0) {
        status = PyObject_SetAttr(ctx, self->name[NAME__materialize_non_diff_grads],
                                  Py_False);
    }
    return status;
}

PyObject *
Plan_forward_autograd(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    PlanObject *self = PLAN_CAST(op);
    PyObject *outs = NULL;    /* owned */
    PyObject *returns = NULL; /* owned */
    if (!self->joint || nargs != 1 + self->n_inputs) {
        PyErr_SetString(PyExc_TypeError,
                        "forward_autograd takes (ctx, *args) of a "
                        "training plan");
        return NULL;
    }
    PyObject *ctx = args[0]; /* borrowed */
    /* owned, stolen by plan_call_graph */
    PyObject *list = plan_graph_args(self, args + 1);
    if (list == NULL) {
        return NULL;
    }
    outs = plan_call_graph(self, &self->forward, list);
    if (outs == NULL) {
        return NULL;
    }
    PyObject *const *items = PySequence_Fast_ITEMS(outs); /* borrowed */
    if (plan_save(self, ctx, items, PySequence_Fast_GET_SIZE(outs)) < 0) {
        goto done;
    }
    returns = plan_returns(self, items);
    if (returns != NULL && plan_mark_non_differentiable(self, ctx, returns) < 0) {
        Py_CLEAR(returns);
    }
done:
    Py_DECREF(outs);
    return returns;
}

/* -- backward ------------------------------------------------------------ */

/* *tensor* in the memory format that the graph was compiled for. Borrows. Returns
   a new reference (often to *tensor*) or NULL. */
static PyObject *
plan_coerce_format(PlanObject *self, const plan_tangent *tangent, PyObject *tensor)
{
    PyObject *shape = NULL;  /* owned */
    PyObject *stride = NULL; /* owned */
    PyObject *dtype = NULL;  /* owned */
    PyObject *device = NULL; /* owned */
    PyObject *layout = NULL; /* owned */
    PyObject *needs = NULL;  /* owned */
    PyObject *kwargs = NULL; /* owned */
    PyObject *empty = NULL;  /* owned */
    PyObject *result = NULL; /* owned */
    if (tangent->format != NULL) {
        kwargs = PyTuple_Pack(1, self->name[NAME_memory_format]);
        if (kwargs == NULL) {
            goto done;
        }
        PyObject *args[] = {tensor, tangent->format};
        PyObject *is = PyObject_VectorcallMethod(self->name[NAME_is_contiguous], args,
                                                 1, kwargs); /* owned */
        int same = is == NULL ? -1 : PyObject_IsTrue(is);
        Py_XDECREF(is);
        if (same > 0) {
            result = Py_NewRef(tensor);
        }
        else if (same == 0) {
            result =
                PyObject_VectorcallMethod(self->name[NAME_contiguous], args, 1, kwargs);
        }
        goto done;
    }
    if (tangent->size == NULL) {
        PyErr_SetString(PyExc_AssertionError, "meta.memory_format must not be None");
        goto done;
    }
    shape = PyObject_GetAttr(tensor, self->name[NAME_shape]);
    int same =
        shape == NULL ? -1 : PyObject_RichCompareBool(shape, tangent->size, Py_EQ);
    if (same > 0) {
        stride = PyObject_CallMethodNoArgs(tensor, self->name[NAME_stride]);
        same = stride == NULL
                   ? -1
                   : PyObject_RichCompareBool(stride, tangent->stride, Py_EQ);
    }
    if (same < 0) {
        goto done;
    }
    if (same) {
        result = Py_NewRef(tensor);
        goto done;
    }
    dtype = PyObject_GetAttr(tensor, self->name[NAME_dtype]);
    if (dtype == NULL) {
        goto done;
    }
    device = PyObject_GetAttr(tensor, self->name[NAME_device]);
    if (device == NULL) {
        goto done;
    }
    layout = PyObject_GetAttr(tensor, self->name[NAME_layout]);
    if (layout == NULL) {
        goto done;
    }
    needs = PyObject_GetAttr(tensor, self->name[NAME_requires_grad]);
    if (needs == NULL) {
        goto done;
    }
    kwargs = PyTuple_Pack(4, self->name[NAME_dtype], self->name[NAME_device],
                          self->name[NAME_layout], self->name[NAME_requires_grad]);
    if (kwargs == NULL) {
        goto done;
    }
    PyObject *args[] = {tangent->size, tangent->stride, dtype, device, layout, needs};
    empty = PyObject_Vectorcall(self->fn[FN_EMPTY_STRIDED], args, 2, kwargs);
    if (empty == NULL) {
        goto done;
    }
    PyObject *copied = PyObject_CallMethodOneArg(empty, self->name[NAME_copy_], tensor);
    if (copied != NULL) {
        Py_DECREF(copied);
        result = Py_NewRef(empty);
    }
done:
    Py_XDECREF(shape);
    Py_XDECREF(stride);
    Py_XDECREF(dtype);
    Py_XDECREF(device);
    Py_XDECREF(layout);
    Py_XDECREF(needs);
    Py_XDECREF(kwargs);
    Py_XDECREF(empty);
    return result;
}

/* The gradient as the graph wants it. Borrows. Returns a new reference or NULL. */
static PyObject *
plan_coerce_tangent(PlanObject *self, const plan_tangent *tangent, PyObject *value)
{
    if (!plan_is_tensor(self, value)) {
        return Py_NewRef(value);
    }
    if (Py_IS_TYPE(value, (PyTypeObject *)self->fn[FN_TENSOR])) {
        return plan_coerce_format(self, tangent, value);
    }
    if (self->coerce_subclass == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "Plan: bind() was not called");
        return NULL;
    }
    /* The helper gives a plain tensor, or raises as torch does. */
    PyObject *plain = PyObject_CallOneArg(self->coerce_subclass, value); /* owned */
    if (plain == NULL) {
        return NULL;
    }
    PyObject *result = plan_coerce_format(self, tangent, plain);
    Py_DECREF(plain);
    return result;
}

/* Whether an element of *list* requires grad: 0, 1 or -1. */
static int
plan_any_requires_grad(PlanObject *self, PyObject *list)
{
    int any = 0;
    for (Py_ssize_t i = 0; any == 0 && i < PyList_GET_SIZE(list); i++) {
        PyObject *item = PyList_GET_ITEM(list, i); /* borrowed */
        if (plan_is_tensor(self, item)) {
            any = plan_attribute_flag(item, self->name[NAME_requires_grad]);
        }
    }
    return any;
}

/* Checks that torch makes before a compiled backward. Returns 0 or -1. */
static int
plan_check_backward(PlanObject *self, Py_ssize_t n_grads)
{
    PyObject *stack = PyObject_CallNoArgs(self->fn[FN_INTERPRETER_STACK]); /* owned */
    if (stack == NULL) {
        return -1;
    }
    int inside = stack != Py_None;
    Py_DECREF(stack);
    if (inside) {
        PyErr_SetString(PyExc_RuntimeError, plan_transform_text);
        return -1;
    }
    if (self->refuse_deterministic) {
        int deterministic = plan_flag(self, FN_IS_DETERMINISTIC);
        if (deterministic != 0) {
            if (deterministic > 0) {
                PyErr_SetString(PyExc_RuntimeError, plan_deterministic_text);
            }
            return -1;
        }
    }
    if (n_grads != self->n_returns) {
        PyErr_Format(PyExc_AssertionError, "expected %zd grad_outs, got %zd",
                     self->n_returns, n_grads);
        return -1;
    }
    return 0;
}

/* Appends the items of the attribute *name* of *ctx* to *list*. Returns 0 or -1. */
static int
plan_extend_from(PyObject *list, PyObject *ctx, PyObject *name)
{
    PyObject *values = PyObject_GetAttr(ctx, name); /* owned */
    if (values == NULL) {
        return -1;
    }
    Py_ssize_t n = PyList_GET_SIZE(list);
    int status = PyList_SetSlice(list, n, n, values);
    Py_DECREF(values);
    return status;
}

/* The arguments of the backward graph: SymInts, saved tensors, gradients. Empties
   *grads*. Returns a new list or NULL. */
static PyObject *
plan_backward_args(PlanObject *self, PyObject *ctx, PyObject *grads)
{
    PyObject *list = PyList_New(0); /* owned */
    if (list == NULL) {
        return NULL;
    }
    /* First, as in torch: raises when the graph was freed or a tensor changed. */
    if (plan_extend_from(list, ctx, self->name[NAME_saved_tensors]) < 0 ||
        (self->n_unchecked > 0 &&
         plan_extend_from(list, ctx, self->name[NAME__tensors_no_vc_check]) < 0) ||
        (self->n_opaque > 0 &&
         plan_extend_from(list, ctx, self->name[NAME_opaque_objects]) < 0) ||
        plan_check_backward(self, PyList_GET_SIZE(grads)) < 0) {
        goto error;
    }
    if (self->n_symints > 0) {
        PyObject *symints = PyObject_GetAttr(ctx, self->name[NAME_symints]); /* owned */
        int status = symints == NULL ? -1 : PyList_SetSlice(list, 0, 0, symints);
        Py_XDECREF(symints);
        if (status < 0) {
            goto error;
        }
    }
    Py_ssize_t start = PyList_GET_SIZE(list);
    for (Py_ssize_t j = 0; j < self->n_tangents; j++) {
        PyObject *grad = PyList_GET_ITEM(grads, self->tangents[j].grad); /* borrowed */
        if (PyList_Append(list, grad) < 0) {
            goto error;
        }
    }
    if (PyList_SetSlice(grads, 0, PyList_GET_SIZE(grads), NULL) < 0) {
        goto error;
    }
    for (Py_ssize_t j = 0; j < self->n_tangents; j++) {
        PyObject *grad = PyList_GET_ITEM(list, start + j); /* borrowed */
        PyObject *coerced = plan_coerce_tangent(self, &self->tangents[j], grad);
        if (coerced == NULL || PyList_SetItem(list, start + j, coerced) < 0) {
            goto error;
        }
    }
    if (self->mutates_in_backward) {
        int grad_enabled = plan_flag(self, FN_IS_GRAD_ENABLED);
        if (grad_enabled > 0) {
            PyErr_SetString(PyExc_RuntimeError,
                            "aot_autograd does not support input mutations with "
                            "requires_grad in backward for create_graph=True");
        }
        if (grad_enabled != 0) {
            goto error;
        }
    }
    return list;
error:
    Py_DECREF(list);
    return NULL;
}

/* Runs the backward graph. Steals *args*. Returns a new tuple or NULL. */
static PyObject *
plan_run_backward(PlanObject *self, PyObject *ctx, PyObject *args)
{
    PyObject *outs = NULL; /* owned */
    PyObject *done =
        PyObject_CallMethodNoArgs(ctx, self->name[NAME_maybe_clear_saved_tensors]);
    if (done == NULL) {
        Py_DECREF(args);
        return NULL;
    }
    Py_DECREF(done);
    if (self->donated) {
        int keep = plan_flag(self, FN_KEEP_GRAPH);
        if (keep > 0) {
            PyErr_SetString(PyExc_RuntimeError, plan_donated_text);
        }
        if (keep != 0) {
            Py_DECREF(args);
            return NULL;
        }
    }
    outs = plan_call_graph(self, &self->backward, args);
    if (outs != NULL && !PyTuple_Check(outs)) {
        PyObject *tuple = PyList_AsTuple(outs);
        Py_DECREF(outs);
        outs = tuple;
    }
    if (outs == NULL || self->n_gradients == 0) {
        return outs;
    }
    return plan_wrap_gradients(self, outs);
}

/* A callable that runs the backward graph once. Borrows. */
static PyObject *
plan_make_run(PlanObject *self, PyObject *ctx, PyObject *args)
{
    PlanRunObject *run = (PlanRunObject *)self->run_type->tp_alloc(self->run_type, 0);
    if (run == NULL) {
        return NULL;
    }
    run->plan = (PlanObject *)Py_NewRef((PyObject *)self);
    run->ctx = Py_NewRef(ctx);
    run->args = Py_NewRef(args);
    return (PyObject *)run;
}

/* The context that an engine thread was given (torch.autograd.graph), a new
   reference, None (always, if torch gives it none), or NULL with an exception. */
static PyObject *
plan_tls_context(PlanObject *self)
{
    PyObject *name = self->name[NAME_context]; /* borrowed */
    if (self->fn[FN_IS_KEY_IN_TLS] == Py_None) {
        return Py_NewRef(Py_None);
    }
    PyObject *known = PyObject_CallOneArg(self->fn[FN_IS_KEY_IN_TLS], name); /* owned */
    int truth = known == NULL ? -1 : PyObject_IsTrue(known);
    Py_XDECREF(known);
    if (truth < 0) {
        return NULL;
    }
    return truth ? PyObject_CallOneArg(self->fn[FN_GET_OBJ_IN_TLS], name)
                 : Py_NewRef(Py_None);
}

/* Decides how the backward graph runs. Steals *list*. */
static PyObject *
plan_dispatch_backward(PlanObject *self, PyObject *ctx, PyObject *list)
{
    PyObject *context = NULL; /* owned */
    PyObject *run = NULL;     /* owned */
    PyObject *result = NULL;  /* owned */
    int differentiable = plan_flag(self, FN_IS_GRAD_ENABLED);
    if (differentiable > 0 && !self->inputs_require_grad) {
        differentiable = plan_any_requires_grad(self, list);
    }
    if (differentiable < 0) {
        goto done;
    }
    context = plan_tls_context(self);
    if (context == NULL) {
        goto done;
    }
    if (!differentiable && context == Py_None) {
        Py_DECREF(context);
        return plan_run_backward(self, ctx, list);
    }
    run = plan_make_run(self, ctx, list);
    if (run == NULL) {
        goto done;
    }
    if (!differentiable) {
        result = PyObject_CallMethodOneArg(context, self->name[NAME_run], run);
    }
    else {
        PyObject *args[] = {run, list, ctx, context};
        result = PyObject_Vectorcall(self->double_backward, args, 4, NULL);
    }
done:
    Py_XDECREF(context);
    Py_XDECREF(run);
    Py_DECREF(list);
    return result;
}

PyObject *
Plan_backward_autograd(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    PlanObject *self = PLAN_CAST(op);
    PyObject *grads = NULL;  /* owned */
    PyObject *result = NULL; /* owned */
    if (!self->joint || self->double_backward == NULL || nargs < 1) {
        PyErr_SetString(PyExc_TypeError,
                        "backward_autograd takes (ctx, grads) of a "
                        "bound training plan");
        return NULL;
    }
    if (self->boxed && (nargs != 2 || !PyList_Check(args[1]))) {
        PyErr_Format(
            PyExc_AssertionError,
            "Compiled backward expects grads as a single mutable list argument, "
            "but got %zd args. Grads must be passed as [grad0, grad1, ...] to "
            "allow freeing individual grads mid-backward.",
            nargs - 1);
        return NULL;
    }
    if (self->boxed) {
        grads = Py_NewRef(args[1]);
    }
    else {
        grads = PyList_New(nargs - 1);
        for (Py_ssize_t i = 1; grads != NULL && i < nargs; i++) {
            PyList_SET_ITEM(grads, i - 1, Py_NewRef(args[i]));
        }
    }
    if (grads == NULL) {
        return NULL;
    }
    PyObject *prior = PyObject_CallOneArg(self->fn[FN_SET_EVAL_FRAME], Py_None);
    if (prior == NULL) {
        Py_DECREF(grads);
        return NULL;
    }
    PyObject *list = plan_backward_args(self, args[0], grads); /* owned */
    Py_DECREF(grads);
    if (list != NULL) {
        result = plan_dispatch_backward(self, args[0], list);
    }
    result = plan_finally(self->fn[FN_SET_EVAL_FRAME], prior, result);
    Py_DECREF(prior);
    return result;
}

/* -- _PlanRun ------------------------------------------------------------ */

static PyObject *
PlanRun_call(PyObject *op, PyObject *args, PyObject *kwargs)
{
    PlanRunObject *self = PLAN_RUN_CAST(op);
    (void)args; /* the context of the double backward, unused */
    (void)kwargs;
    return plan_run_backward(self->plan, self->ctx, Py_NewRef(self->args));
}

static int
PlanRun_traverse(PyObject *op, visitproc visit, void *arg)
{
    PlanRunObject *self = PLAN_RUN_CAST(op);
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->plan);
    Py_VISIT(self->ctx);
    Py_VISIT(self->args);
    return 0;
}

static int
PlanRun_clear(PyObject *op)
{
    PlanRunObject *self = PLAN_RUN_CAST(op);
    Py_CLEAR(self->plan);
    Py_CLEAR(self->ctx);
    Py_CLEAR(self->args);
    return 0;
}

static void
PlanRun_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    (void)PlanRun_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyType_Slot plan_run_slots[] = {
    {Py_tp_doc, (void *)"A pending call of a backward graph."},
    {Py_tp_call, PlanRun_call},
    {Py_tp_traverse, PlanRun_traverse},
    {Py_tp_clear, PlanRun_clear},
    {Py_tp_dealloc, PlanRun_dealloc},
    {0, NULL},
};

PyType_Spec plan_run_spec = {
    .name = "precomp._core._PlanRun",
    .basicsize = sizeof(PlanRunObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = plan_run_slots,
};
