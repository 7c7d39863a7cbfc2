"""The grid of a launch, from Inductor's text to a program (docs/internals.md, section 4.7)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from precomp.freeze.store import Unsupported

_BINARY: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
# C checks that 64 bits hold every step; a program is at most this long.
LONGEST = 256

Program = tuple[Any, ...]


def compile_grid(
    prefix: Iterable[str], dimensions: Sequence[str | int], arguments: Sequence[str]
) -> tuple[Program, ...]:
    """Programs in postfix order, one for each of *dimensions*.

    *prefix* holds assignments ``name = expression`` that come first, *arguments* the names of the
    positional arguments of a call. Expressions are Python's, over integers. Raises Unsupported for
    whatever else they contain.
    """
    names: dict[str, Program] = {name: (("a", i),) for i, name in enumerate(arguments)}
    for line in prefix:
        statement = ast.parse(line).body[0]
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            raise Unsupported(f"grid of the launch: {line!r} is not an assignment")
        names[statement.targets[0].id] = _program(statement.value, names)
    programs = tuple(_program(ast.parse(str(text), mode="eval").body, names) for text in dimensions)
    for program, text in zip(programs, dimensions, strict=True):
        if len(program) > LONGEST:
            raise Unsupported(f"grid of the launch: {str(text)[:80]!r} has too many operations")
    return programs


def _program(node: ast.expr, names: dict[str, Program]) -> Program:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return (node.value,)
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return (*_program(node.left, names), *_program(node.right, names), _BINARY[type(node.op)])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return (*_program(node.operand, names), "neg")
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("max", "min")
        and len(node.args) >= 2
        and not node.keywords
    ):
        first, *rest = (_program(item, names) for item in node.args)
        for item in rest:
            first = (*first, *item, node.func.id)
        return first
    if isinstance(node, ast.IfExp):  # 0 if divisor == 0 else quotient
        test = node.test
        zero = ast.Constant(0)
        if (
            ast.dump(node.body) == ast.dump(zero)
            and isinstance(test, ast.Compare)
            and isinstance(test.ops[0], ast.Eq)
            and [ast.dump(item) for item in test.comparators] == [ast.dump(zero)]
        ):
            return (*_program(test.left, names), *_program(node.orelse, names), "unless0")
    raise Unsupported(f"grid of the launch: {ast.unparse(node)[:80]!r} is not integer arithmetic")
