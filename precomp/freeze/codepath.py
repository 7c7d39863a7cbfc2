"""Finds a code object again: the steps that lead to it from an imported module.

See docs/internals.md, section 5. The steps are verified: ``_core.code_at(*find(code)) is code``.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

from precomp import _core

Steps = tuple[tuple[str, Any], ...]

# How globals begin that Dynamo adds to a module; their names differ from process to process.
COUNTED = ("__compiled_fn", "__builtins_dict__", "__resume_at", "__import_", "__pc_")

# id of code -> (code, steps), and what of the module it was made from
_indexes: dict[str, tuple[int, dict[int, tuple[types.CodeType, Steps]]]] = {}
# source file -> names of its modules; checked on use, made anew when it misses one
_files: dict[str, list[str]] = {}


def find(code: types.CodeType, *hints: str | None) -> tuple[str, Steps] | None:
    """``(module name, steps)`` that lead to this very *code*, or None.

    *hints* name modules to search too, for code whose file name tells nothing (a generated
    ``__init__``, for example).
    """
    for name in _candidates(code, hints):
        module = sys.modules.get(name)
        if not isinstance(module, types.ModuleType):
            continue
        steps = _lookup(module, name, code)
        if steps is not None:
            return name, steps
    return None


def _lookup(module: types.ModuleType, name: str, code: types.CodeType) -> Steps | None:
    signature = _signature(module)
    known = _indexes.get(name)
    if known is not None and known[0] == signature:
        entry = known[1].get(id(code))
        if entry is not None and _leads(name, entry[1], code):
            return entry[1]
    # A class may have changed without a trace in the module's dict: look once more.
    index = dict(_walk(module))
    _indexes[name] = (signature, index)
    entry = index.get(id(code))
    return entry[1] if entry is not None and _leads(name, entry[1], code) else None


def _leads(name: str, steps: Steps, code: types.CodeType) -> bool:
    try:
        return _core.code_at(name, steps) is code
    except _core.Stale:
        return False


def _signature(module: types.ModuleType) -> int:
    return hash(tuple((name, id(value)) for name, value in vars(module).items()))


def _candidates(code: types.CodeType, hints: tuple[str | None, ...]) -> list[str]:
    filename = code.co_filename
    names = []
    if filename.startswith("<frozen ") and filename.endswith(">"):
        names.append(filename[len("<frozen ") : -1])
    names += _modules_of_file(filename)
    names += [hint for hint in hints if hint is not None]
    return list(dict.fromkeys(names))


def _modules_of_file(filename: str) -> list[str]:
    """Names of the loaded modules of a source file, importable names first."""
    global _files
    if filename.startswith("<"):
        return []
    path = os.path.abspath(filename)
    names = [name for name in _files.get(path, ()) if _file_of(name) == path]
    if not names:
        table: dict[str, list[str]] = {}
        for name in list(sys.modules):
            table.setdefault(_file_of(name), []).append(name)
        # A script that is also imported: its importable name first.
        for found in table.values():
            found.sort(key=lambda name: (name == "__main__", name))
        _files = table
        names = _files.get(path, [])
    return names


def _file_of(name: str) -> str:
    module = sys.modules.get(name)
    path = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
    return os.path.abspath(path) if isinstance(path, str) else ""


def _walk(module: types.ModuleType) -> Iterator[tuple[int, tuple[types.CodeType, Steps]]]:
    """All code reachable from *module*, each by the shortest steps, in a fixed order."""
    queue: deque[tuple[Any, Steps]] = deque(
        (value, (("a", name),))
        for name, value in list(vars(module).items())
        if not name.startswith(COUNTED)
    )
    seen: set[int] = set()
    while queue:
        value, steps = queue.popleft()
        if steps[-1][0] == "a":
            value = _core.unwrapped(value)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is types.CodeType:
            yield id(value), (value, steps)
        queue.extend((inner, (*steps, step)) for step, inner in _inside(value, module.__name__))


def _inside(value: Any, module: str) -> Iterator[tuple[tuple[str, Any], Any]]:
    kind = type(value)  # isinstance would ask the value for its __class__
    if kind is types.CodeType:
        for i, constant in enumerate(value.co_consts):
            if isinstance(constant, types.CodeType):
                yield ("k", i), constant
    elif kind is types.FunctionType:
        yield ("f", "__code__"), value.__code__
        if "__wrapped__" in value.__dict__:
            yield ("f", "__wrapped__"), value.__dict__["__wrapped__"]
        for i, cell in enumerate(value.__closure__ or ()):
            try:
                content = cell.cell_contents
            except ValueError:  # an empty cell
                continue
            yield ("c", i), content
    elif kind in (staticmethod, classmethod, types.MethodType):
        yield ("f", "__func__"), value.__func__
    elif kind is property:
        for name in ("fget", "fset", "fdel"):
            yield ("f", name), getattr(value, name)
    elif kind in (functools.cached_property, functools.partialmethod, functools.partial):
        yield ("f", "func"), value.func
    elif kind is functools._lru_cache_wrapper:
        yield ("f", "__wrapped__"), value.__wrapped__
    elif issubclass(kind, type):
        if value.__module__ == module:
            # Bases too: one with the same name (a named tuple) is hidden by the class.
            names: set[str] = set()
            for base in value.__mro__:
                if base.__module__ == module:
                    for name, inner in list(vars(base).items()):
                        if name not in names:
                            names.add(name)
                            yield ("a", name), inner
    elif issubclass(kind, property):
        yield ("f", "fget"), value.fget
    elif callable(value) and not issubclass(kind, types.ModuleType):
        # An instance that wraps a function, made by a decorator.
        inner = getattr(type(value), "__dict__", {}).get("__dict__") and vars(value).get(
            "__wrapped__"
        )
        if isinstance(inner, types.FunctionType):
            yield ("f", "__wrapped__"), inner
