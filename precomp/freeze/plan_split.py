"""Graphs that DDPOptimizer cut into parts: the ``program`` of a split record of a plan."""

from __future__ import annotations

import operator
from typing import Any

import torch

from precomp.freeze.store import Unsupported


def split_program(gm: torch.fx.GraphModule) -> tuple[Any, ...]:
    """The outer graph that DDPOptimizer made, as the ``program`` of a split record."""
    nodes = list(gm.graph.nodes)
    number = {node: i for i, node in enumerate(nodes)}
    last = {user: node for node in nodes for user in node.all_input_nodes}
    program: list[tuple[Any, ...]] = []
    part = 0

    def expression(value: Any) -> tuple[Any, ...]:
        if isinstance(value, torch.fx.Node):
            return ("n", number[value])
        if isinstance(value, (tuple, list)):
            return ("t", tuple(expression(item) for item in value))
        if value is None or type(value) in (bool, int, float, str):
            return ("c", value)
        raise Unsupported(f"split graph: argument of type {type(value).__name__}")

    for node in nodes:
        free = tuple(number[used] for used in node.all_input_nodes if last[used] is node)
        if node.op == "placeholder":
            program.append(("in",))
        elif node.op == "call_module" and not node.kwargs:
            unwrap = getattr(gm.get_submodule(node.target), "unwrap_singleton_tuple", None)
            if unwrap is None:
                raise Unsupported(f"split graph: {node.target} was not compiled")
            arguments = expression(node.args)[1]
            program.append(("call", part, arguments, bool(unwrap), free))
            part += 1
        elif node.op == "call_function" and node.target is operator.getitem:
            program.append(("get", expression(node.args[0]), node.args[1], free))
        elif node.op == "output":
            program.append(("out", expression(node.args[0])))
        else:
            raise Unsupported(f"split graph: {node.op} {node.target}")
    return tuple(program)
