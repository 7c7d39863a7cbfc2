"""Encodes the Python functions that Dynamo puts into guard trees (docs/guards.md).

``precomp.guard_functions`` is the other direction.
"""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Callable, Iterator
from typing import Any

from precomp import guard_functions
from precomp.freeze.guard_tree import Generated
from precomp.freeze.values import Encoded, Unencodable, describe, encode, encode_code
from precomp.torch_api import modules, objects

_LAMBDAS: dict[str, Callable[[dict[str, Any]], Encoded]] = {}


def _function(name: str) -> Callable[[Any], Any]:
    def add(encoder: Callable[[dict[str, Any]], Encoded]) -> Any:
        _LAMBDAS[f"GuardBuilder.{name}"] = encoder
        return encoder

    return add


@_function("AUTOGRAD_SAVED_TENSORS_HOOKS.<locals>.fn")
def _encode_saved_hooks(cells: dict[str, Any]) -> Encoded:
    if cells["guard_hooks_ids"] is not None:
        raise Unencodable("saved tensor hooks that Dynamo inlines")
    return ("saved_hooks",)


@_function("FUNCTORCH_STACK_MATCH.<locals>.fn")
def _encode_functorch(cells: dict[str, Any]) -> Encoded:
    return ("functorch", encode(cells["states"]))


@_function("CONSTANT_SUBCLASS_MATCH.<locals>.check_fn")
def _encode_subclass_value(cells: dict[str, Any]) -> Encoded:
    return ("subclass_value", encode(cells["base_type"]), encode(cells["base_value"]))


@_function("COUNT_ITERATOR_MATCH.<locals>.guard_fn")
def _encode_count(cells: dict[str, Any]) -> Encoded:
    start, step = cells["normalized_count_iter"]
    if type(start) not in (int, float) or type(step) not in (int, float):
        raise Unencodable("an itertools.count of other than numbers")
    return ("count", encode(start), encode(step))


@_function("COW_TENSOR_MATCH.<locals>.guard_fn")
def _encode_copy_on_write(cells: dict[str, Any]) -> Encoded:
    return ("cow", cells["expected"])


def digest_of_guard(function: Any) -> str:
    """The digest of a function of the user that decides inside a guard."""
    digest = guard_functions.digest_of(function)
    if digest is None:
        raise Unencodable(f"a guard by {describe(function)}, which has no code")
    return digest


@_function("TENSOR_SUBCLASS_METADATA_MATCH.<locals>.metadata_checker")
def _encode_subclass(cells: dict[str, Any]) -> Encoded:
    try:
        metadata = encode(cells["original_metadata"])
        cls = cells.get("cls")
        if cls is None:
            return ("subclass", metadata, None, None)
        return (
            "subclass",
            metadata,
            encode(cls),
            digest_of_guard(cls.__metadata_guard__),
        )
    except Unencodable as error:
        raise Unencodable(f"metadata of a tensor subclass: {error}") from None


@_function("DTENSOR_SPEC_MATCH.<locals>.guard_fn")
def _encode_dtensor(cells: dict[str, Any]) -> Encoded:
    spec = cells["expected"] if "expected" in cells else cells["value"]  # torch 2.11
    try:
        return ("spec", encode(type(spec)), encode(guard_functions.meaning_of_spec(spec)))
    except Unencodable as error:
        raise Unencodable(f"the spec of a DTensor: {error}") from None


@_function("OPAQUE_OBJ_GUARD_FN_MATCH.<locals>.opaque_guard_checker")
def _encode_opaque(cells: dict[str, Any]) -> Encoded:
    try:
        return ("opaque", encode(cells["original_values"]))
    except Unencodable as error:
        raise Unencodable(f"values of an opaque object: {error}") from None


def encode_function(value: Any) -> Any:
    """The encoded function of a callable that Dynamo put into a guard tree."""
    if not isinstance(value, types.FunctionType):
        raise Unencodable(f"a guard that calls {describe(value)}")
    cells = dict(
        zip(
            value.__code__.co_freevars,
            (cell.cell_contents for cell in value.__closure__ or ()),
            strict=True,
        )
    )
    qualname = value.__qualname__
    if qualname == "___make_guard_fn.<locals>.guard":
        return _encode_generated(value)
    if qualname in _LAMBDAS:
        try:
            return _LAMBDAS[qualname](cells)
        except (KeyError, AttributeError) as error:  # another torch wrote it otherwise
            raise Unencodable(f"{qualname.partition('.<')[0]}: {error!r}") from error
    if value.__module__ == modules.GUARDS:
        return _encode_accessor(value, cells)
    raise Unencodable(f"a guard that calls the {describe(value)}")


def _encode_generated(value: types.FunctionType) -> Generated:
    known = guard_functions.closure_variables()
    missing = [name for name in value.__code__.co_freevars if name not in known]
    if missing:
        raise Unencodable(f"a shape guard that uses {', '.join(missing)}")
    return Generated(value.__code__)


def _encode_accessor(value: types.FunctionType, cells: dict[str, Any]) -> Encoded:
    names = set(_global_names(value.__code__))
    if value.__qualname__ == "from_numpy":
        return ("from_numpy",)
    if names == {"dataclass_fields"}:
        return ("dataclass_fields",)
    if names == {"get_torch_function_mode_stack_at"}:
        return ("mode_at", objects.mode_index(cells["source"]))
    if names == {"get_current_stream"}:
        return ("stream", encode(cells["source"].device))
    defaults = value.__defaults__
    if not names and defaults is not None and isinstance(defaults[0], types.ModuleType):
        return ("module", encode(defaults[0]))
    if names - {"torch"} or "source" in cells:
        raise Unencodable(f"a guard that calls the {describe(value)}")
    return (
        "fn",
        encode_code(value.__code__),
        tuple(encode(cell) for cell in cells.values()),
        encode(defaults),
    )


def _global_names(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL" and not hasattr(builtins, instruction.argval):
            yield instruction.argval
