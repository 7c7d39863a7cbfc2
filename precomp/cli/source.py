"""Where the source of a captured function is on this machine: an artifact holds no paths."""

from __future__ import annotations

import ast
import functools
import re
import sys
from importlib.machinery import ModuleSpec, PathFinder

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+?)_at_(\d+)$")


def original(qualname: str) -> tuple[str, int | None]:
    """``(qualname, line)`` of the function as written: a part after a graph break has a name of
    its own, which holds the line where it went on when it was captured."""
    head, dot, last = qualname.rpartition(".")
    match = _RESUMED.fullmatch(last)
    return (f"{head}{dot}{match[1]}", int(match[2])) if match else (qualname, None)


def locate(module: str, qualname: str) -> tuple[str, int | None] | None:
    """``(file, line)`` of a function, None when its module is not on ``sys.path``. Imports nothing;
    the line is None when the file has no such function now."""
    file = _file(module)
    if file is None:
        return None
    return file, _lines(file).get(original(qualname)[0])


@functools.cache
def _file(module: str) -> str | None:
    path: list[str] | None = sys.path
    spec: ModuleSpec | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    return spec.origin if spec is not None and (spec.origin or "").endswith(".py") else None


@functools.cache
def _lines(file: str) -> dict[str, int]:
    """Qualified name -> first line, of all functions in a file."""
    lines: dict[str, int] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([child.lineno, *(line.lineno for line in child.decorator_list)])
                lines.setdefault(prefix + child.name, first)
                visit(child, f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            else:
                visit(child, prefix)

    try:
        with open(file, "rb") as source:
            visit(ast.parse(source.read()), "")
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}
    return lines
