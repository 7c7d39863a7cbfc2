/* What the files of the Plan share: plan.c (the object and its call),
 * plan_record.c (from the record to C fields), plan_mutation.c (arguments that
 * change), plan_alias.c (outputs that are views), plan_autograd.c (forward and
 * backward of the autograd function), plan_align.c (arguments that must be aligned),
 * plan_subclass.c (arguments that are DTensors), plan_split.c (several plans, one call).
 *
 * The specification is torch/_functorch/_aot_autograd/runtime_wrappers.py.
 */
#ifndef PRECOMP_BINDING_PLAN_H
#define PRECOMP_BINDING_PLAN_H

#include "state.h"

/* Functions of torch that a plan calls: enum suffix, name in torch_api. */
#define PLAN_FUNCTIONS(X)                               \
    X(SET_EVAL_FRAME, "set_eval_frame")                 \
    X(IS_GRAD_ENABLED, "is_grad_enabled")               \
    X(SET_GRAD_ENABLED, "set_grad_enabled")             \
    X(IS_VIEW_REPLAY, "is_view_replay_enabled")         \
    X(SET_VIEW_REPLAY, "set_view_replay_enabled")       \
    X(DISABLE_AUTOCAST, "DisableAutocast")              \
    X(INCREMENT_VERSION, "increment_version")           \
    X(TRANSFORMS_ACTIVE, "functorch_transforms_active") \
    X(INTERPRETER_STACK, "functorch_interpreter_stack") \
    X(UNWRAP_IF_DEAD, "functorch_unwrap_if_dead")       \
    X(IS_DETERMINISTIC, "are_deterministic_algorithms") \
    X(KEEP_GRAPH, "graph_task_keep_graph")              \
    X(IS_KEY_IN_TLS, "is_key_in_tls")                   \
    X(GET_OBJ_IN_TLS, "get_obj_in_tls")                 \
    X(UNSAFE_VIEW, "aten_unsafe_view")                  \
    X(APPLY_VIEWS, "apply_view_meta_sequence")          \
    X(VIEW_AS_REAL, "view_as_real")                     \
    X(VIEW_AS_COMPLEX, "view_as_complex")               \
    X(EMPTY_STRIDED, "empty_strided")                   \
    X(FOREACH_COPY, "foreach_copy_")                    \
    X(DYNAMIC_DIMS, "dynamic_dims")                     \
    X(TENSOR, "Tensor")

/* Attribute names, interned once per plan. */
#define PLAN_NAMES(X)              \
    X(detach)                      \
    X(copy_)                       \
    X(clone)                       \
    X(data_ptr)                    \
    X(set_)                        \
    X(as_strided)                  \
    X(as_strided_)                 \
    X(size)                        \
    X(stride)                      \
    X(storage_offset)              \
    X(shape)                       \
    X(dtype)                       \
    X(device)                      \
    X(layout)                      \
    X(view)                        \
    X(memory_format)               \
    X(contiguous)                  \
    X(is_contiguous)               \
    X(is_complex)                  \
    X(requires_grad)               \
    X(requires_grad_)              \
    X(apply)                       \
    X(run)                         \
    X(context)                     \
    X(to_save)                     \
    X(saved_tensors)               \
    X(maybe_clear_saved_tensors)   \
    X(non_differentiable)          \
    X(symints)                     \
    X(opaque_objects)              \
    X(_local_tensor)               \
    X(device_mesh)                 \
    X(_base)                       \
    X(_is_view)                    \
    X(_view_func)                  \
    X(_materialize_non_diff_grads) \
    X(_tensors_no_vc_check)        \
    X(__enter__)                   \
    X(__exit__)

enum {
#define PLAN_ENUM(suffix, name) FN_##suffix,
    PLAN_FUNCTIONS(PLAN_ENUM)
#undef PLAN_ENUM
        FN_COUNT
};

enum {
#define PLAN_ENUM(name) NAME_##name,
    PLAN_NAMES(PLAN_ENUM)
#undef PLAN_ENUM
        NAME_COUNT
};

/* What an output is to its base; order of plan_kind_names in plan_record.c. */
typedef enum {
    KIND_NON_ALIAS,
    KIND_UNSAFE_VIEW,
    KIND_CUSTOM_VIEW,
    KIND_ALIAS_OF_INPUT,
    KIND_IS_INPUT,
    KIND_INTERMEDIATE_SAVED,
    KIND_INTERMEDIATE,
    KIND_INTERMEDIATE_IS_OUTPUT,
    KIND_COUNT
} plan_kind;

/* True if outputs of this kind are rebuilt from a base. */
#define PLAN_IS_ALIAS(kind) ((kind) >= KIND_ALIAS_OF_INPUT)

typedef struct {
    Py_ssize_t input; /* index of the argument */
    char data;        /* its values change */
    char metadata;    /* its sizes, strides or offset change */
    char storage;     /* it was the target of set_() */
    char leaf;        /* it was a leaf when captured */
} plan_mutation;

typedef struct {
    plan_kind kind;
    Py_ssize_t base;  /* argument, or position among the graph's outputs */
    char unwrap_base; /* the base itself is wrapped as an alias */
    char requires_grad;
    PyObject *dims;  /* owned, set of dynamic dimensions, or NULL */
    PyObject *views; /* owned, list of ViewMeta to replay, or NULL */
} plan_output;

typedef struct {
    Py_ssize_t grad;  /* position among the incoming gradients */
    PyObject *format; /* owned, torch.memory_format, or NULL */
    PyObject *size;   /* owned, tuple of int, or NULL */
    PyObject *stride; /* owned, tuple of int, or NULL */
} plan_tangent;

/* A gradient, from what the backward graph returns. */
typedef struct {
    Py_ssize_t index; /* of the gradient, or of its local tensor, before its mesh */
    PyObject *wrap;   /* owned, makes a DTensor of both, or NULL */
} plan_gradient;

typedef struct {
    Py_ssize_t index; /* among all saved tensors */
    PyObject *dims;   /* owned, set */
} plan_dynamic;

typedef struct {
    Py_ssize_t input; /* index of the argument of the graph */
    char write_back;  /* the graph writes to it */
} plan_check;

/* A compiled graph and what it assumes of its arguments. */
typedef struct {
    PyObject *call; /* owned, NULL for the backward of an inference plan */
    Py_ssize_t n_checked;
    plan_check *checked; /* owned, arguments that must be aligned */
} plan_graph;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    plan_graph forward;
    plan_graph backward;
    PyObject *function_class;   /* owned, autograd.Function, NULL until bound */
    PyObject *function_apply;   /* owned, its apply without Python frames */
    PyObject *double_backward;  /* owned, Python helper, NULL until bound */
    PyObject *coerce_subclass;  /* owned, Python helper, NULL until bound */
    PyTypeObject *alias_type;   /* owned */
    PyTypeObject *run_type;     /* owned */
    PyObject *kind_name;        /* owned, str */
    PyObject *fn[FN_COUNT];     /* owned */
    PyObject *name[NAME_COUNT]; /* owned, interned */

    Py_ssize_t n_inputs;
    Py_ssize_t n_mutated;
    plan_mutation *mutated; /* owned */
    Py_ssize_t n_outputs;
    plan_output *outputs; /* owned */
    Py_ssize_t n_bases;
    Py_ssize_t n_returns; /* mutated + outputs + bases */
    Py_ssize_t n_bump;
    Py_ssize_t *bump; /* owned, inputs whose version is incremented */
    char *unwrap;     /* owned, one flag per input: it is a DTensor, or NULL */
    Py_ssize_t n_unwrap;
    char joint;
    char disable_autocast;
    char has_alias;
    char has_dims;
    char sets_grad_mode;
    char grad_mode;

    /* Training only. */
    char *detach; /* owned, one flag per input, or NULL */
    Py_ssize_t n_non_diff;
    Py_ssize_t *non_diff;   /* owned, positions among the returns */
    Py_ssize_t n_unchecked; /* saved tensors without version check */
    Py_ssize_t n_opaque;    /* saved objects that are no tensors */
    Py_ssize_t n_symints;
    Py_ssize_t n_gradients;   /* 0: as the graph returns them */
    plan_gradient *gradients; /* owned */
    Py_ssize_t n_dynamic;
    plan_dynamic *dynamic; /* owned */
    Py_ssize_t n_tangents;
    plan_tangent *tangents; /* owned */
    char inputs_require_grad;
    char mutates_in_backward;
    char refuse_deterministic;
    char boxed; /* the engine passes all gradients in one list */
    char donated;
} PlanObject;

#define PLAN_CAST(op) ((PlanObject *)(op))

/* A tensor hidden from autograd.Function, which would take it for an output. */
typedef struct {
    PyObject_HEAD
    PyObject *alias; /* owned */
} PlanAliasObject;

#define PLAN_ALIAS_CAST(op) ((PlanAliasObject *)(op))

/* One pending call of the backward graph. */
typedef struct {
    PyObject_HEAD
    PlanObject *plan; /* owned */
    PyObject *ctx;    /* owned */
    PyObject *args;   /* owned, list; emptied by the graph */
} PlanRunObject;

#define PLAN_RUN_CAST(op) ((PlanRunObject *)(op))

/* plan_record.c. Fills *self* from the resolved *record* (a dict, see
   precomp/serve/plan.py). Returns 0 or -1 with ValueError that names the key. */
int plan_parse(PlanObject *self, PyObject *record);
/* Frees what plan_parse filled in. */
void plan_parse_clear(PlanObject *self);
int plan_parse_traverse(PlanObject *self, visitproc visit, void *arg);

/* plan.c. */
/* True if *value* is a torch.Tensor or of a subclass. Borrows. */
#define plan_is_tensor(self, value) \
    PyObject_TypeCheck((value), (PyTypeObject *)(self)->fn[FN_TENSOR])
/* Calls function *index* without arguments and returns its truth: 0, 1 or -1. */
int plan_flag(PlanObject *self, int index);
/* Reads the boolean attribute *name* of *value*: 0, 1 or -1. Borrows. */
int plan_attribute_flag(PyObject *value, PyObject *name);
/* Calls the method *name* of *value* without arguments; truth: 0, 1 or -1. */
int plan_method_flag(PyObject *value, PyObject *name);
/* Runs `finally: function(value)`. Borrows *function* and *value*, steals
   *result* (NULL when an exception is pending). Returns *result*, or NULL when
   it was NULL or when the call fails. */
PyObject *plan_finally(PyObject *function, PyObject *value, PyObject *result);
/* Calls *graph* with the list *args*, aligned, with autocast disabled if the plan
   says so. Steals *args*. Returns a new list or tuple, or NULL. */
PyObject *plan_call_graph(PlanObject *self, const plan_graph *graph, PyObject *args);
/* as_strided or as_strided_ (*name*) of *base* with the geometry of *target*. */
PyObject *plan_restride(PlanObject *self, PyObject *name, PyObject *base,
                        PyObject *target);

/* plan_mutation.c. */
/* Tells autograd that the graph itself changes some of *args*. Returns 0 or -1. */
int plan_bump_versions(PlanObject *self, PyObject *const *args);
/* Applies one mutation to its argument *target*. Borrows. Returns 0 or -1. */
int plan_write_back(PlanObject *self, const plan_mutation *mutation, PyObject *target,
                    PyObject *updated);

/* plan_align.c. */
/* Replaces misaligned items of the list *args* by clones. Those to be copied back
   are added to the lists *old* and *fresh*, made when first needed; the caller owns
   them in any case. Returns 0 or -1. */
int plan_align(PlanObject *self, const plan_graph *graph, PyObject *args,
               PyObject **old, PyObject **fresh);
/* Copies *fresh* into *old* unless *result* is NULL. Steals all (*old* and *fresh* may
   be NULL). Returns *result*, or NULL when the copy fails. */
PyObject *plan_copy_back(PlanObject *self, PyObject *old, PyObject *fresh,
                         PyObject *result);

/* plan_subclass.c. */
/* The arguments of the forward graph, a new list: of each DTensor its local tensor
   and its mesh. Borrows *args*, one for each input. Returns NULL on error. */
PyObject *plan_graph_args(PlanObject *self, PyObject *const *args);
/* The gradients of the inputs from *outs*, what the backward graph returned. Steals.
   Returns a new tuple or NULL. */
PyObject *plan_wrap_gradients(PlanObject *self, PyObject *outs);

/* plan_alias.c. */
/* Wraps *tensor* in the alias marker. Steals. Returns a new reference or NULL. */
PyObject *plan_wrap_alias(PlanObject *self, PyObject *tensor);
/* Borrowed tensor inside *value*, or NULL with AssertionError. */
PyObject *plan_unwrap_alias(PlanObject *self, PyObject *value);
/* The value of output *output*, rebuilt from *base* with the geometry of
   *target*. Borrows both. Returns a new reference or NULL. */
PyObject *plan_gen_alias(PlanObject *self, const plan_output *output, PyObject *base,
                         PyObject *target);
/* Adds *dims* (a set) to the dynamic dimensions noted on *tensor*. 0 or -1. */
int plan_mark_dynamic(PlanObject *self, PyObject *tensor, PyObject *dims);
extern PyType_Spec plan_alias_spec;

/* plan_autograd.c. */
PyObject *Plan_forward_autograd(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
PyObject *Plan_backward_autograd(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
extern PyType_Spec plan_run_spec;

/* plan_split.c. */
int core_add_plan_split(PyObject *module);

#endif
