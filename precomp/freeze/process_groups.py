"""Notices what Dynamo asks of process groups and device meshes while it traces."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from precomp import torch_api
from precomp.process_groups import Layout
from precomp.torch_api import modules


def tells(module: Any) -> bool:
    """Whether functions or classes of *module* tell where a rank is."""
    return type(module) is str and module.startswith(modules.RANKS)


def names_of_groups(value: Any) -> set[str]:
    """The name of *value* if it is a process group."""
    import torch.distributed as dist

    return {value.group_name} if isinstance(value, dist.ProcessGroup) else set()


def needed(layout: Layout | None, named: set[str], sources: Iterable[str]) -> Layout | None:
    """*layout* with the groups alone that are *named* or that *sources* of modules name."""
    if not layout:
        return layout
    rank, count, groups = layout
    texts = list(sources)
    kept = (row for row in groups if row[0] in named or any(repr(row[0]) in t for t in texts))
    return rank, count, tuple(kept)


def in_graph(graph: torch.fx.GraphModule) -> bool:
    """Whether a graph of Dynamo has collectives."""
    return any("c10d" in str(getattr(node.target, "namespace", "")) for node in graph.graph.nodes)


def watch(patch: Callable[[Any, str, Any], None], note: Callable[[], None]) -> None:
    """Call ``note()`` whenever Dynamo itself calls a function that tells where a rank is."""
    variable = torch_api.capture().TorchInGraphFunctionVariable
    call = variable.call_function

    @functools.wraps(call)
    def call_function(function: Any, *args: Any, **kwargs: Any) -> Any:
        if tells(getattr(function.value, "__module__", None)):
            note()
        return call(function, *args, **kwargs)

    patch(variable, "call_function", call_function)
