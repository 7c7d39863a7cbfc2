/* Plan: runs a compiled graph with everything AOTAutograd does around it.
 *
 * Owns the call itself: state of grad mode, autocast, view replay and frame
 * evaluator around the graph, and the list of outputs. It knows nothing of records
 * (plan_record.c) or of the backward (plan_autograd.c). The order of the steps is
 * that of torch's runtime wrapper and must stay so: users see it through exceptions
 * and version counters.
 */
#include "plan.h"

#include <structmember.h>

int
plan_flag(PlanObject *self, int index)
{
    PyObject *value = PyObject_CallNoArgs(self->fn[index]); /* owned */
    if (value == NULL) {
        return -1;
    }
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

int
plan_attribute_flag(PyObject *value, PyObject *name)
{
    PyObject *item = PyObject_GetAttr(value, name); /* owned */
    if (item == NULL) {
        return -1;
    }
    int truth = PyObject_IsTrue(item);
    Py_DECREF(item);
    return truth;
}

int
plan_method_flag(PyObject *value, PyObject *name)
{
    PyObject *item = PyObject_CallMethodNoArgs(value, name); /* owned */
    if (item == NULL) {
        return -1;
    }
    int truth = PyObject_IsTrue(item);
    Py_DECREF(item);
    return truth;
}

PyObject *
plan_finally(PyObject *function, PyObject *value, PyObject *result)
{
    PyObject *done = NULL; /* owned */
    if (result != NULL) {
        done = PyObject_CallOneArg(function, value);
        if (done == NULL) {
            Py_CLEAR(result);
        }
        Py_XDECREF(done);
        return result;
    }
    PyObject *type = NULL;      /* owned */
    PyObject *error = NULL;     /* owned */
    PyObject *traceback = NULL; /* owned */
    PyErr_Fetch(&type, &error, &traceback);
    done = PyObject_CallOneArg(function, value);
    if (done == NULL) {
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(traceback);
        return NULL;
    }
    Py_DECREF(done);
    PyErr_Restore(type, error, traceback);
    return NULL;
}

/* Disables autocast: a new manager to give to plan_exit, or NULL. */
static PyObject *
plan_enter(PlanObject *self)
{
    PyObject *manager = PyObject_CallNoArgs(self->fn[FN_DISABLE_AUTOCAST]); /* owned */
    if (manager == NULL) {
        return NULL;
    }
    PyObject *entered =
        PyObject_CallMethodNoArgs(manager, self->name[NAME___enter__]); /* owned */
    if (entered == NULL) {
        Py_DECREF(manager);
        return NULL;
    }
    Py_DECREF(entered);
    return manager;
}

/* Leaves the context *manager* without telling it about an exception. Steals both;
   *manager* may be NULL. Returns *result* as plan_finally does. */
static PyObject *
plan_exit(PlanObject *self, PyObject *manager, PyObject *result)
{
    if (manager == NULL) {
        return result;
    }
    PyObject *type = NULL;      /* owned */
    PyObject *error = NULL;     /* owned */
    PyObject *traceback = NULL; /* owned */
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *args[] = {manager, Py_None, Py_None, Py_None};
    PyObject *done =
        PyObject_VectorcallMethod(self->name[NAME___exit__], args, 4, NULL);
    Py_DECREF(manager);
    if (done == NULL) {
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(traceback);
        Py_XDECREF(result);
        return NULL;
    }
    Py_DECREF(done);
    PyErr_Restore(type, error, traceback);
    return result;
}

/* A list or tuple: *value* itself, or a list of it. Steals. */
static PyObject *
plan_normalize(PyObject *value)
{
    if (value == NULL || PyTuple_Check(value) || PyList_Check(value)) {
        return value;
    }
    PyObject *list = PyList_New(1); /* owned */
    if (list == NULL) {
        Py_DECREF(value);
        return NULL;
    }
    PyList_SET_ITEM(list, 0, value);
    return list;
}

PyObject *
plan_call_graph(PlanObject *self, const plan_graph *graph, PyObject *args)
{
    PyObject *manager = NULL; /* owned */
    PyObject *result = NULL;  /* owned */
    PyObject *old = NULL;     /* owned */
    PyObject *fresh = NULL;   /* owned */
    /* The forward of a training plan runs inside plan_run_training, which has
       disabled autocast already. */
    if (self->disable_autocast && (!self->joint || graph == &self->backward)) {
        manager = plan_enter(self);
        if (manager == NULL) {
            goto done;
        }
    }
    if (graph->n_checked == 0 || plan_align(self, graph, args, &old, &fresh) == 0) {
        result = plan_normalize(PyObject_CallOneArg(graph->call, args));
    }
    result = plan_copy_back(self, old, fresh, result);
    result = plan_exit(self, manager, result);
done:
    Py_DECREF(args);
    return result;
}

PyObject *
plan_restride(PlanObject *self, PyObject *name, PyObject *base, PyObject *target)
{
    PyObject *result = NULL; /* owned */
    PyObject *stride = NULL; /* owned */
    PyObject *offset = NULL; /* owned */
    PyObject *size =
        PyObject_CallMethodNoArgs(target, self->name[NAME_size]); /* owned */
    if (size == NULL) {
        goto done;
    }
    stride = PyObject_CallMethodNoArgs(target, self->name[NAME_stride]);
    if (stride == NULL) {
        goto done;
    }
    offset = PyObject_CallMethodNoArgs(target, self->name[NAME_storage_offset]);
    if (offset == NULL) {
        goto done;
    }
    PyObject *args[] = {base, size, stride, offset};
    result = PyObject_VectorcallMethod(name, args, 4, NULL);
done:
    Py_XDECREF(size);
    Py_XDECREF(stride);
    Py_XDECREF(offset);
    return result;
}

/* The inference graph runs with grad mode off. Returns a new list or tuple. */
static PyObject *
plan_run_inference(PlanObject *self, PyObject *const *args)
{
    int grad = plan_flag(self, FN_IS_GRAD_ENABLED);
    if (grad < 0) {
        return NULL;
    }
    PyObject *list = plan_graph_args(self, args); /* owned */
    if (list == NULL) {
        return NULL;
    }
    if (!grad) {
        return plan_call_graph(self, &self->forward, list);
    }
    PyObject *off = PyObject_CallOneArg(self->fn[FN_SET_GRAD_ENABLED], Py_False);
    if (off == NULL) {
        Py_DECREF(list);
        return NULL;
    }
    Py_DECREF(off);
    PyObject *outs = plan_call_graph(self, &self->forward, list);
    return plan_finally(self->fn[FN_SET_GRAD_ENABLED], Py_True, outs);
}

/* The tuple of arguments for autograd.Function: inputs that never need gradients
   are detached, dead functorch wrappers are unwrapped. */
static PyObject *
plan_apply_args(PlanObject *self, PyObject *const *args)
{
    PyObject *tuple = PyTuple_New(self->n_inputs); /* owned */
    if (tuple == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < self->n_inputs; i++) {
        PyObject *item = args[i]; /* borrowed, then owned */
        if (!plan_is_tensor(self, item)) {
            Py_INCREF(item);
        }
        else if (self->detach != NULL && self->detach[i]) {
            item = PyObject_CallMethodNoArgs(item, self->name[NAME_detach]);
        }
        else {
            Py_INCREF(item);
        }
        if (item == NULL) {
            Py_DECREF(tuple);
            return NULL;
        }
        PyTuple_SET_ITEM(tuple, i, item);
    }
    return tuple;
}

/* Function.apply without its Python frames. Steals *args*. */
static PyObject *
plan_apply(PlanObject *self, PyObject *args)
{
    PyObject *result = NULL; /* owned */
    int active = plan_flag(self, FN_TRANSFORMS_ACTIVE);
    if (active < 0) {
        goto done;
    }
    if (active) {
        /* torch's own apply refuses, with its message. */
        PyObject *apply =
            PyObject_GetAttr(self->function_class, self->name[NAME_apply]); /* owned */
        if (apply != NULL) {
            result = PyObject_Call(apply, args, NULL);
            Py_DECREF(apply);
        }
        goto done;
    }
    for (Py_ssize_t i = 0; i < self->n_inputs; i++) {
        PyObject *item = PyTuple_GET_ITEM(args, i); /* borrowed */
        if (!plan_is_tensor(self, item)) {
            continue;
        }
        PyObject *alive = PyObject_CallOneArg(self->fn[FN_UNWRAP_IF_DEAD], item);
        if (alive == NULL) {
            goto done;
        }
        PyTuple_SET_ITEM(args, i, alive);
        Py_DECREF(item);
    }
    result = PyObject_Call(self->function_apply, args, NULL);
done:
    Py_DECREF(args);
    return plan_normalize(result);
}

/* The training graph runs through autograd.Function, with grad mode and view
   replay on. Returns a new list or tuple. */
static PyObject *
plan_run_training(PlanObject *self, PyObject *const *args)
{
    PyObject *outs = NULL;  /* owned */
    PyObject *value = NULL; /* owned */
    if (self->function_apply == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "Plan: bind() was not called");
        return NULL;
    }
    PyObject *tuple = plan_apply_args(self, args); /* owned, stolen by plan_apply */
    if (tuple == NULL) {
        return NULL;
    }
    int replay = plan_flag(self, FN_IS_VIEW_REPLAY);
    int grad = replay < 0 ? -1 : plan_flag(self, FN_IS_GRAD_ENABLED);
    if (grad < 0) {
        Py_DECREF(tuple);
        return NULL;
    }
    if (!replay) {
        value = PyObject_CallOneArg(self->fn[FN_SET_VIEW_REPLAY], Py_True);
        if (value == NULL) {
            Py_DECREF(tuple);
            return NULL;
        }
        Py_DECREF(value);
    }
    if (!grad) {
        value = PyObject_CallOneArg(self->fn[FN_SET_GRAD_ENABLED], Py_True);
        if (value == NULL) {
            Py_DECREF(tuple);
            goto done;
        }
        Py_DECREF(value);
    }
    if (!self->disable_autocast) {
        outs = plan_apply(self, tuple);
    }
    else {
        PyObject *manager = plan_enter(self); /* owned */
        if (manager == NULL) {
            Py_DECREF(tuple);
        }
        else {
            outs = plan_exit(self, manager, plan_apply(self, tuple));
        }
    }
    outs = plan_finally(self->fn[FN_SET_GRAD_ENABLED], grad ? Py_True : Py_False, outs);
done:
    return plan_finally(self->fn[FN_SET_VIEW_REPLAY], replay ? Py_True : Py_False,
                        outs);
}

/* Value of output *i*; *outs* are the outputs of the graph after the mutated
   inputs. Borrows. Returns a new reference or NULL. */
static PyObject *
plan_output_value(PlanObject *self, Py_ssize_t i, PyObject *const *args,
                  PyObject *const *outs)
{
    const plan_output *output = &self->outputs[i];
    PyObject *base = NULL;      /* borrowed */
    PyObject *target = outs[i]; /* borrowed */
    if (!PLAN_IS_ALIAS(output->kind)) {
        return Py_NewRef(target);
    }
    if (output->kind == KIND_IS_INPUT) {
        return Py_NewRef(args[output->base]);
    }
    base =
        output->kind == KIND_ALIAS_OF_INPUT ? args[output->base] : outs[output->base];
    if (output->unwrap_base) {
        base = plan_unwrap_alias(self, base);
        if (base == NULL) {
            return NULL;
        }
    }
    if (self->joint) {
        target = plan_unwrap_alias(self, target);
        if (target == NULL) {
            return NULL;
        }
    }
    return plan_gen_alias(self, output, base, target);
}

/* From what the graph returned to what the caller gets. Steals *all* (a list or
   tuple). Returns a new list or tuple, or NULL. */
static PyObject *
plan_epilogue(PlanObject *self, PyObject *const *args, PyObject *all)
{
    PyObject *result = NULL; /* owned */
    Py_ssize_t n = PySequence_Fast_GET_SIZE(all);
    if (n != self->n_returns) {
        PyErr_Format(PyExc_AssertionError, "expected %zd outputs, got %zd",
                     self->n_returns, n);
        goto done;
    }
    PyObject *const *items = PySequence_Fast_ITEMS(all); /* borrowed */
    for (Py_ssize_t k = 0; k < self->n_mutated; k++) {
        const plan_mutation *mutation = &self->mutated[k];
        if (plan_write_back(self, mutation, args[mutation->input], items[k]) < 0) {
            goto done;
        }
    }
    if (self->n_mutated == 0 && !self->has_alias) {
        result = Py_NewRef(all);
    }
    else {
        result = PyList_New(self->n_outputs);
        for (Py_ssize_t i = 0; result != NULL && i < self->n_outputs; i++) {
            PyObject *value = plan_output_value(self, i, args, items + self->n_mutated);
            if (value == NULL) {
                Py_CLEAR(result);
                goto done;
            }
            PyList_SET_ITEM(result, i, value);
        }
    }
    if (result != NULL && self->has_dims) {
        for (Py_ssize_t i = 0; i < self->n_outputs; i++) {
            PyObject *dims = self->outputs[i].dims;                /* borrowed */
            PyObject *value = PySequence_Fast_GET_ITEM(result, i); /* borrowed */
            if (dims != NULL && plan_mark_dynamic(self, value, dims) < 0) {
                Py_CLEAR(result);
                goto done;
            }
        }
    }
    if (result != NULL && self->sets_grad_mode) {
        result = plan_finally(self->fn[FN_SET_GRAD_ENABLED],
                              self->grad_mode ? Py_True : Py_False, result);
    }
done:
    Py_DECREF(all);
    return result;
}

static PyObject *
Plan_vectorcall(PyObject *op, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PlanObject *self = PLAN_CAST(op);
    PyObject *result = NULL; /* owned */
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (kwnames != NULL && PyTuple_GET_SIZE(kwnames) != 0) {
        PyErr_SetString(PyExc_TypeError, "Plan takes no keyword arguments");
        return NULL;
    }
    if (nargs != self->n_inputs) {
        PyErr_Format(PyExc_TypeError, "Plan takes %zd arguments (%zd given)",
                     self->n_inputs, nargs);
        return NULL;
    }
    PyObject *prior = PyObject_CallOneArg(self->fn[FN_SET_EVAL_FRAME], Py_None);
    if (prior == NULL) {
        return NULL;
    }
    if (self->n_bump == 0 || plan_bump_versions(self, args) == 0) {
        result = self->joint ? plan_run_training(self, args)
                             : plan_run_inference(self, args);
        if (result != NULL) {
            result = plan_epilogue(self, args, result);
        }
    }
    result = plan_finally(self->fn[FN_SET_EVAL_FRAME], prior, result);
    Py_DECREF(prior);
    return result;
}

PyDoc_STRVAR(
    Plan_bind_doc,
    "bind($self, function_class, apply, double_backward, coerce_subclass, /)\n--\n\n"
    "Give a training plan its autograd function.\n\n"
    "*function_class* is the torch.autograd.Function whose forward and backward\n"
    "are this plan's forward_autograd and backward_autograd; *apply* is its\n"
    "apply without Python frames. *double_backward(run, args, key, context)* and\n"
    "*coerce_subclass(tensor, format)* serve the rare paths.\n"
    "Called once, by precomp.serve.plan.");

static PyObject *
Plan_bind(PyObject *op, PyObject *args)
{
    PlanObject *self = PLAN_CAST(op);
    PyObject *function_class, *apply, *double_backward, *coerce; /* borrowed */
    if (!PyArg_ParseTuple(args, "OOOO:bind", &function_class, &apply, &double_backward,
                          &coerce)) {
        return NULL;
    }
    if (!self->joint) {
        PyErr_SetString(PyExc_ValueError, "bind: an inference plan has no function");
        return NULL;
    }
    Py_XSETREF(self->function_class, Py_NewRef(function_class));
    Py_XSETREF(self->function_apply, Py_NewRef(apply));
    Py_XSETREF(self->double_backward, Py_NewRef(double_backward));
    Py_XSETREF(self->coerce_subclass, Py_NewRef(coerce));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(Plan_apply_boxed_doc,
             "backward_autograd as a method that binds its instance: the value for\n"
             "`apply_boxed` (or `apply`) of the class of the autograd node.");

static PyObject *
Plan_get_apply_boxed(PyObject *op, void *closure)
{
    (void)closure;
    PyObject *function = PyObject_GetAttrString(op, "backward_autograd"); /* owned */
    if (function == NULL) {
        return NULL;
    }
    PyObject *method = PyInstanceMethod_New(function);
    Py_DECREF(function);
    return method;
}

/* Fills the tables of torch functions and names. Returns 0 or -1. */
static int
plan_bind_torch(PlanObject *self, core_state *state)
{
    static const char *const functions[FN_COUNT] = {
#define PLAN_TEXT(suffix, name) name,
        PLAN_FUNCTIONS(PLAN_TEXT)
#undef PLAN_TEXT
    };
    static const char *const names[NAME_COUNT] = {
#define PLAN_TEXT(name) #name,
        PLAN_NAMES(PLAN_TEXT)
#undef PLAN_TEXT
    };
    for (int i = 0; i < FN_COUNT; i++) {
        PyObject *value = core_torch(state, functions[i]); /* borrowed */
        if (value == NULL) {
            return -1;
        }
        self->fn[i] = Py_NewRef(value);
    }
    for (int i = 0; i < NAME_COUNT; i++) {
        self->name[i] = PyUnicode_InternFromString(names[i]);
        if (self->name[i] == NULL) {
            return -1;
        }
    }
    PyObject *boxed = core_torch(state, "boxed_grads"); /* borrowed */
    if (boxed == NULL) {
        return -1;
    }
    self->boxed = boxed == Py_True;
    if (!PyType_Check(self->fn[FN_TENSOR])) {
        PyErr_SetString(PyExc_TypeError, "Plan: 'Tensor' is not a type");
        return -1;
    }
    return 0;
}

/* New reference to the helper type *name* of the module, or NULL. */
static PyTypeObject *
plan_helper_type(PyTypeObject *type, const char *name)
{
    PyObject *module = PyType_GetModule(type); /* borrowed */
    return module == NULL ? NULL : (PyTypeObject *)PyObject_GetAttrString(module, name);
}

static PyObject *
Plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const char *const keywords[] = {"record", "forward_call", "backward_call",
                                           NULL};
    PyObject *record, *forward_call, *backward_call = Py_None; /* borrowed */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:Plan", (char **)keywords,
                                     &record, &forward_call, &backward_call)) {
        return NULL;
    }
    core_state *state = core_state_by_type(type);
    if (state == NULL) {
        return NULL;
    }
    PlanObject *self = (PlanObject *)type->tp_alloc(type, 0); /* owned */
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = Plan_vectorcall;
    self->forward.call = Py_NewRef(forward_call);
    if (plan_bind_torch(self, state) < 0 || plan_parse(self, record) < 0) {
        goto error;
    }
    self->alias_type = plan_helper_type(type, "_PlanAlias");
    if (self->alias_type == NULL) {
        goto error;
    }
    self->run_type = plan_helper_type(type, "_PlanRun");
    if (self->run_type == NULL) {
        goto error;
    }
    if ((backward_call != Py_None) != (self->joint != 0)) {
        PyErr_Format(PyExc_ValueError, "Plan: backward_call must %s for kind %R",
                     self->joint ? "be given" : "be None", self->kind_name);
        goto error;
    }
    if (!PyCallable_Check(forward_call) ||
        (self->joint && !PyCallable_Check(backward_call))) {
        PyErr_SetString(PyExc_TypeError, "Plan: expected callables");
        goto error;
    }
    if (self->joint) {
        self->backward.call = Py_NewRef(backward_call);
    }
    return (PyObject *)self;
error:
    Py_DECREF(self);
    return NULL;
}

static int
Plan_traverse(PyObject *op, visitproc visit, void *arg)
{
    PlanObject *self = PLAN_CAST(op);
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->forward.call);
    Py_VISIT(self->backward.call);
    Py_VISIT(self->function_class);
    Py_VISIT(self->function_apply);
    Py_VISIT(self->double_backward);
    Py_VISIT(self->coerce_subclass);
    Py_VISIT(self->alias_type);
    Py_VISIT(self->run_type);
    for (int i = 0; i < FN_COUNT; i++) {
        Py_VISIT(self->fn[i]);
    }
    return plan_parse_traverse(self, visit, arg);
}

static int
Plan_clear(PyObject *op)
{
    PlanObject *self = PLAN_CAST(op);
    Py_CLEAR(self->forward.call);
    Py_CLEAR(self->backward.call);
    Py_CLEAR(self->function_class);
    Py_CLEAR(self->function_apply);
    Py_CLEAR(self->double_backward);
    Py_CLEAR(self->coerce_subclass);
    return 0;
}

static void
Plan_dealloc(PyObject *op)
{
    PlanObject *self = PLAN_CAST(op);
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    (void)Plan_clear(op);
    plan_parse_clear(self);
    Py_CLEAR(self->alias_type);
    Py_CLEAR(self->run_type);
    for (int i = 0; i < FN_COUNT; i++) {
        Py_CLEAR(self->fn[i]);
    }
    for (int i = 0; i < NAME_COUNT; i++) {
        Py_CLEAR(self->name[i]);
    }
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *
Plan_repr(PyObject *op)
{
    PlanObject *self = PLAN_CAST(op);
    return PyUnicode_FromFormat("<precomp._core.Plan %U, %zd inputs, %zd outputs>",
                                self->kind_name, self->n_inputs, self->n_outputs);
}

PyDoc_STRVAR(
    Plan_forward_doc,
    "forward_autograd($self, ctx, /, *args)\n--\n\n"
    "forward of the plan's autograd function: run the graph, save for backward.");
PyDoc_STRVAR(Plan_backward_doc,
             "backward_autograd($self, ctx, /, *grads)\n--\n\n"
             "backward of the plan's autograd function.\n\n"
             "*grads*: one gradient (or None) per returned value. Where torch boxes\n"
             "gradients they come in one list, which is emptied, so that each can be\n"
             "freed as soon as the graph has used it.");

static PyMethodDef Plan_methods[] = {
    {"bind", Plan_bind, METH_VARARGS, Plan_bind_doc},
    {"forward_autograd", PC_METHOD(Plan_forward_autograd), METH_FASTCALL,
     Plan_forward_doc},
    {"backward_autograd", PC_METHOD(Plan_backward_autograd), METH_FASTCALL,
     Plan_backward_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef Plan_getset[] = {
    {"apply_boxed", Plan_get_apply_boxed, NULL, Plan_apply_boxed_doc, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef Plan_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(PlanObject, vectorcall), READONLY,
     NULL},
    {"kind", T_OBJECT, offsetof(PlanObject, kind_name), READONLY,
     PyDoc_STR("'inference' or 'training'.")},
    {"inputs", T_PYSSIZET, offsetof(PlanObject, n_inputs), READONLY,
     PyDoc_STR("Number of arguments.")},
    {"outputs", T_PYSSIZET, offsetof(PlanObject, n_outputs), READONLY,
     PyDoc_STR("Number of values returned.")},
    {"forward_call", T_OBJECT, offsetof(PlanObject, forward.call), READONLY,
     PyDoc_STR("The forward graph, called with one list that it empties.")},
    {"backward_call", T_OBJECT, offsetof(PlanObject, backward.call), READONLY,
     PyDoc_STR("The backward graph, or None.")},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(
    Plan_doc,
    "Plan(record, forward_call, backward_call=None)\n--\n\n"
    "Runs a compiled graph as AOTAutograd's runtime wrappers do.\n\n"
    "*record* is a plan record resolved by precomp.serve.plan; the calls take one\n"
    "list of arguments and return a list or tuple. Calling the plan with the\n"
    "graph's inputs gives a list or tuple of its outputs. ValueError for a record\n"
    "that is not well formed, naming the key.");

static PyType_Slot plan_slots[] = {
    {Py_tp_doc, (void *)Plan_doc},
    {Py_tp_new, Plan_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_repr, Plan_repr},
    {Py_tp_traverse, Plan_traverse},
    {Py_tp_clear, Plan_clear},
    {Py_tp_dealloc, Plan_dealloc},
    {Py_tp_methods, Plan_methods},
    {Py_tp_getset, Plan_getset},
    {Py_tp_members, Plan_members},
    {0, NULL},
};

static PyType_Spec plan_spec = {
    .name = "precomp._core.Plan",
    .basicsize = sizeof(PlanObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = plan_slots,
};

/* Makes a heap type and adds it to *module*. Returns 0 or -1. */
static int
plan_add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL); /* owned */
    if (type == NULL) {
        return -1;
    }
    int status = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return status;
}

int
core_add_plan(PyObject *module)
{
    core_state *state = core_state_get(module);
    PyObject *type = PyType_FromModuleAndSpec(module, &plan_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    state->plan_type = (PyTypeObject *)type;
    if (PyModule_AddType(module, state->plan_type) < 0 ||
        plan_add_type(module, &plan_alias_spec) < 0 ||
        plan_add_type(module, &plan_run_spec) < 0) {
        return -1;
    }
    return core_add_plan_split(module);
}
