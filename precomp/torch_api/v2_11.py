"""What torch 2.11 has of its own."""

from __future__ import annotations

from precomp.torch_api import common

SERVE = {
    "set_fullgraph_compiled_frame_count": common.ABSENT,
    "set_fullgraph_nested_compile": "torch._C._dynamo.eval_frame:set_eval_frame_override",
    "boxed_grads": "builtins:False",
    "nested_compile_skips": "torch._C._dynamo.eval_frame:_EvalFrameOverride.SKIP",
    "nested_compile_raises": "torch._C._dynamo.eval_frame:_EvalFrameOverride.ERROR",
    # a backward runs in no context
    "is_key_in_tls": common.ABSENT,
}

COMPILER = {
    # its UserError keeps the compiler's frames
    "UserError": "torch._dynamo.exc:Unsupported",
    "default_backend": common.ABSENT,
}

BEHAVIOUR = common.BEHAVIOUR - {"constant_guards", "exec", "grads_of_grads"}

# Compiled graphs run with the torch functions of subclasses on.
GRAPH_REFUSED = {"torch_function_subclass_inlined": None}

# The metadata does not name inputs that are AsyncCollectiveTensor: their type is guarded.
METADATA_REFUSED = {"act_input_indices": None}

# Attributes that later versions have.
ATTRIBUTES = {
    "_defers_input_alignment": None,
    "_is_torch_compile": None,
    "_isolate_recompiles_id": None,
}

TANGENT_FIELD = "requires_grad"

DYNAMIC_DIMS = "_dynamo_weak_dynamic_indices"

STANDIN_BESIDE = {
    "torch.fx.experimental": tuple(
        name
        for name in common.STANDIN_BESIDE["torch.fx.experimental"]
        if name not in ("_size_hinting", "dynamic_spec")
    ),
}

# FSDP's hooks read them.
STANDIN_FLAGS = {
    "torch._dynamo.compiled_autograd": (
        "compiled_autograd_enabled",
        "compiled_autograd_enabled_force_eager",
        "in_compiled_autograd_region",
    ),
}

STANDIN_WRITTEN = {
    "torch._dynamo.decorators:allow_in_graph": (
        "8ab0cda1ccc60fe7b077438ae67150e5bb0b12e782b4433bdd162644f954db16"
    ),
    "torch._dynamo.eval_frame:_TorchDynamoContext.__init__": (
        "4d2dc35e91cbb721a5ec73605b74f76cb4f6609082be7350521f819dc8804917"
    ),
    "torch._dynamo.eval_frame:_TorchDynamoContext.__exit__": (
        "dfa05c9ca69842c358a694af97383697ba7a47df91b0d3925b171fa836cf68cb"
    ),
    "torch._dynamo.eval_frame:_callback_from_stance": (
        "1766b49cdcbda0d14359d9e77feca36316eca8171326b1755466a78059cc1173"
    ),
}
