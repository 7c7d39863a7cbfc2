"""What torch 2.14 has of its own."""

from __future__ import annotations

from precomp.torch_api import common

SERVE = {
    "fx_tracing": "torch.fx._symbolic_trace:_is_fx_tracing_tls",
}

FX_TRACING_FLAG = "flag"

COMPILER = {
    "is_eager_on_nested_compile": "torch._dynamo.eval_frame:_is_eager_on_nested_compile",
}

BEHAVIOUR = common.BEHAVIOUR | {"module_call", "staticmethod"}

SHAPES_ATTRIBUTE = "_dynamic_spec"

METADATA_REFUSED = {
    "act_input_indices": None,
    "act_input_paths": "inputs that are AsyncCollectiveTensor",
}

INPUT_REFUSED = {
    "mutation_is_shallow_copy_data": "an input whose data is replaced (shallow_copy_data_)",
}

STANDIN_TAKE = {
    "torch._dynamo.eval_frame": (
        *common.STANDIN_TAKE["torch._dynamo.eval_frame"],
        "_static_getattr",
    ),
}

STANDIN_WRITTEN = {
    "torch._dynamo.eval_frame:_TorchDynamoContext.__init__": (
        "155d073c1169d49e0e554eba6d3cad69601fc37b8e60421e2a5f71931f437f1a"
    ),
    "torch._dynamo.trace_rules:clear_lru_cache": (
        "3b646edf32b60c0a9aa443dea100ebca376ad42cd5606cffac018314172033c0"
    ),
}
