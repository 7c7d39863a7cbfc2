"""What compiled code relies on about a custom operator: its schema and its Python registrations.

A compiled program calls the operator that is registered at run time, but its schema (which
arguments it mutates), its fake implementation and its autograd formula are baked into the compiled
code. Both sides describe an operator by this module: ``freeze`` stores the description, ``serve``
compares it.
"""

from __future__ import annotations

import functools
import hashlib
import marshal
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from precomp import _core, torch_api
from precomp.torch_api import objects

# (qualified name, schema, ((role, digest), ...))
Description = tuple[str, str, tuple[tuple[str, str], ...]]

_SCALARS = (type(None), bool, int, float, complex, str, bytes)


def _in_torch(function: FunctionType) -> bool:
    return function.__module__ is not None and function.__module__.split(".")[0] == "torch"


def _reachable(function: FunctionType, seen: set[int]) -> Iterator[bytes]:
    """Digests of *function*, of functions in its closure and of those of its own module it names.

    Functions of torch are looked through, not digested: the torch version fixes them.
    """
    if id(function) in seen:
        return
    seen.add(id(function))
    own = not _in_torch(function)
    if own:
        yield _core.code_digest(function.__code__).encode()
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        yield from (_scalar(value) for value in defaults if type(value) in _SCALARS)
    inner: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            inner.append(cell.cell_contents)
        except ValueError:  # an empty cell
            continue
    inner.append(getattr(function, "__wrapped__", None))
    if own:
        space = function.__globals__
        named = (space.get(name) for name in sorted(_names(function.__code__)))
        inner += [
            value
            for value in named
            if isinstance(value, FunctionType) and value.__globals__ is space
        ]
    for value in inner:
        value = _unwrapped(value)
        if isinstance(value, FunctionType):
            yield from _reachable(value, seen)
        elif own and type(value) in _SCALARS and value is not None:
            yield _scalar(value)


def _unwrapped(value: Any) -> Any:
    while isinstance(value, (MethodType, functools.partial)):
        value = value.__func__ if isinstance(value, MethodType) else value.func
    return value


def _scalar(value: Any) -> bytes:
    return marshal.dumps(value, 2)


def _names(code: Any) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            names |= _names(constant)
    return names


def _digest(function: Any) -> str:
    """Digest of a registered Python callable; of its type's ``__call__`` for other objects."""
    function = _unwrapped(function)
    if not isinstance(function, FunctionType):
        function = type(function).__dict__.get("__call__")
    if not isinstance(function, FunctionType):
        return ""
    digest = hashlib.sha256()
    for part in _reachable(function, set()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _registrations(qualname: str) -> Iterator[tuple[str, Any]]:
    names = torch_api.serve()
    definition = names.OperatorDefinitions.get(qualname.partition(".")[0])
    if definition is not None:
        yield from objects.registered_functions(definition)
        return
    entry = objects.simple_registration(names.operator_registry, qualname)
    if entry is not None and entry.fake_impl.kernel is not None:
        yield "fake", entry.fake_impl.kernel.func


def describe(namespace: str, name: str, overload: str) -> Description:
    """The description of one overload (``"default"`` or ``""`` is the unnamed one).

    Raises LookupError when no such operator is registered.
    """
    overload = "" if overload == "default" else overload
    operator = f"{namespace}::{name}"
    qualname = f"{operator}.{overload}" if overload else operator
    try:
        schema = str(torch_api.serve().get_schema(operator, overload))
    except RuntimeError:
        raise LookupError(qualname) from None
    roles = [
        (role, _digest(function))
        for role, function in _registrations(qualname)
        if function is not None
    ]
    return qualname, schema, tuple(sorted(roles))


def defining_file(namespace: str, name: str) -> str:
    """The file that registered an operator, as torch's dispatcher tells it; ``""`` if unknown."""
    for line in torch_api.serve().dispatch_dump(f"{namespace}::{name}").splitlines():
        if line.startswith("debug: registered at "):
            return line.removeprefix("debug: registered at ").rpartition(":")[0]
    return ""
