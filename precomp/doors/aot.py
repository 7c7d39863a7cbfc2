"""Doors of AOTAutograd: graphs traced for autograd, backward graphs compiled at first use."""

from __future__ import annotations

from typing import Any

from precomp.doors import Door, Trip

_HINT = "run it once before the gate, or capture this case"


def _state(args: dict[str, Any]) -> Trip:
    function = args.get("flat_fn")
    name = getattr(function, "__name__", type(function).__name__)
    return Trip(f"AOTAutograd graph of {name}", "not compiled before", _HINT)


def _lazy_backward(args: dict[str, Any]) -> Trip:
    compiler = args["self"]
    number = getattr(getattr(compiler, "aot_config", None), "aot_id", "?")
    graph = getattr(getattr(compiler, "lazy_backward_info", None), "bw_module", None)
    count = ""
    if graph is not None:
        calls = sum(node.op == "call_function" for node in graph.graph.nodes)
        count = f" of {calls} operators"
    return Trip(
        f"backward graph {number}{count}",
        "compiled at the first backward() of its forward: not compiled before",
        "run one backward() before the gate, or capture it",
    )


DOORS = (
    Door("AOTAutograd trace", "trace", "torch._functorch.aot_autograd:create_aot_state", _state),
    Door(
        "lazy backward",
        "lower",
        "torch._functorch._aot_autograd.runtime_wrappers:"
        "_AutogradBackwardCompiler._prepare_lazy_backward_context",
        _lazy_backward,
        required=False,  # the door "compile callbacks" stands behind it
    ),
)
