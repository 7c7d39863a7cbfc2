"""Doors of AOTAutograd: graphs traced for autograd, its cache, backward graphs compiled late."""

from __future__ import annotations

from typing import Any

from precomp.doors import BACKWARD_HINT, BACKWARD_WHY, Door, Trip, cache_dir, graph_text

_HINT = "run it once before the gate, or capture this case"


def _state(args: dict[str, Any]) -> Trip:
    function = args["flat_fn"]
    name = getattr(function, "__name__", type(function).__name__)
    key = getattr(getattr(args["aot_config"], "cache_info", None), "cache_key", None)
    missed = f"; AOTAutogradCache has no entry {key} in {cache_dir()}" if key else ""
    return Trip(f"AOTAutograd graph of {name}", "not compiled before" + missed, _HINT)


def _lookup(args: dict[str, Any]) -> Trip:
    return Trip(
        f"AOTAutograd cache entry of {graph_text(args.get('mod'))}",
        f"looked up in {cache_dir()}: not loaded in this process before",
        _HINT,
    )


def _lazy_backward(args: dict[str, Any]) -> Trip:
    compiler = args["self"]
    number = getattr(getattr(compiler, "aot_config", None), "aot_id", "?")
    graph = getattr(getattr(compiler, "lazy_backward_info", None), "bw_module", None)
    text = f" ({graph_text(graph)})" if graph is not None else ""
    return Trip(
        f"backward graph {number}{text}",
        BACKWARD_WHY,
        BACKWARD_HINT,
    )


DOORS = (
    Door("AOTAutograd trace", "trace", "torch._functorch.aot_autograd:create_aot_state", _state),
    Door(
        "AOTAutograd cache",
        "load",
        "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache.try_load",
        _lookup,
    ),
    Door(
        "lazy backward",
        "lower",
        "torch._functorch._aot_autograd.runtime_wrappers:"
        "_AutogradBackwardCompiler._prepare_lazy_backward_context",
        _lazy_backward,
        required=False,  # the door "compile callbacks" stands behind it
    ),
)
