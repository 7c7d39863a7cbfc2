"""Code that no attribute path reaches (a lambda in a dict, a decorated helper): by source file.

The compiled source of a module holds every code object written in it as a constant, however it is
bound at run time. A code object is unchanged if that tree still holds one with its digest.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Container, Iterator
from typing import Any

from precomp import _core


def qualname(code: types.CodeType) -> str:
    """The qualified name of a code object (its plain name on Python 3.10)."""
    return getattr(code, "co_qualname", code.co_name)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _compiled(module: str) -> types.CodeType | None:
    """The code of the source of a loaded *module*, from its cached bytecode where there is one."""
    found = sys.modules.get(module)
    loader: Any = getattr(found, "__loader__", None)
    spec = getattr(found, "__spec__", None)
    if hasattr(loader, "get_code"):
        try:
            code = loader.get_code(spec.name if spec is not None else module)
        except ImportError:
            code = None
        if isinstance(code, types.CodeType):
            return code
    filename = getattr(found, "__file__", None)
    if not filename or not filename.endswith(".py"):
        return None
    with open(filename, "rb") as stream:
        return compile(stream.read(), filename, "exec", dont_inherit=True)


@functools.cache
def source_digests(module: str) -> frozenset[str]:
    """Digests of all code objects in the source of *module*; empty if it has none."""
    code = _compiled(module)
    if code is None:
        return frozenset()
    return frozenset(map(_core.code_digest, _nested(code)))


# Descriptors that every class has.
_ABOUT = frozenset(("__dict__", "__weakref__", "__annotate__", "__annotate_func__"))


def watched_names(cls: type, watched: Container[str]) -> set[str]:
    """The names of *cls* itself that may change what traced code does to its objects: functions,
    descriptors and other callables that code looks up (the name is in *watched*), or Python does.

    Data is left out: guards compare it, and programs keep notes on classes.
    """
    found = set()
    for name, value in vars(cls).items():
        special = name.startswith("__") and name.endswith("__") and name not in _ABOUT
        if (special or name in watched) and (callable(value) or hasattr(type(value), "__get__")):
            found.add(name)
    return found


def class_text(cls: type) -> str:
    """The name of a class with its module."""
    return f"{cls.__module__}.{cls.__qualname__}"


def under(value: Any) -> types.CodeType | None:
    """The code of a function, method or property as a class or module holds it, else None."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    elif isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    return value.__code__ if isinstance(value, types.FunctionType) else None
