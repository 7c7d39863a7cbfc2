"""Python functions inside guard trees, rebuilt from data without torch's compiler.

``precomp.freeze.guards`` writes the encoded functions, this module reads them: both sides of one
format. Tags (docs/guards.md): ``saved_hooks functorch gfn fn rel late nodes types
module mode_at stream from_numpy dataclass_fields count subclass_value subclass spec opaque cow``.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import itertools
import math
import operator
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from precomp import _core, torch_api
from precomp.errors import PrecompError
from precomp.torch_api import objects

Function = Callable[[Any], Any]
Path = tuple[tuple[str, Any], ...]


class NeedsCompiler(PrecompError):
    """A guard that only torch's compiler can rebuild."""


# ------------------------------------------------------------------ generated shape guards


def _indicator(*numbers: int) -> int:
    """1 when a tensor of these sizes and strides is non-overlapping and dense."""
    half = len(numbers) // 2
    sizes, strides = numbers[:half], numbers[half:]
    if half == 1:
        return int(strides[0] == 1 or sizes[0] < 2)
    expected = 1
    for length, stride in sorted(zip(sizes, strides, strict=True), key=operator.itemgetter(1)):
        if length == 1:
            continue
        if stride != expected:
            return 0
        expected *= length
    return 1


def _tuple_iterator_parts(iterator: Any) -> tuple[Sequence[Any], int]:
    reduced = iterator.__reduce__()
    return reduced[1][0], reduced[2] if len(reduced) > 2 else 0


def _tuple_iterator_getitem(iterator: Any, index: int) -> Any:
    content, start = _tuple_iterator_parts(iterator)
    return content[start + index]


def _tuple_iterator_len(iterator: Any) -> int:
    return int(iterator.__length_hint__())


def _normalize_count(count: Any) -> tuple[Any, Any]:
    # count(start[, step]); its repr is the only public way that does not warn.
    text = repr(count)
    arguments = ast.literal_eval(f"({text[len('count(') : -1]},)")
    return arguments[0], arguments[1] if len(arguments) > 1 else 1


def _from_numpy(value: Any) -> Any:
    import numpy
    import torch

    if not isinstance(value, (numpy.generic, numpy.ndarray)):
        return value
    with torch_api.serve().enable_torch_function():
        return torch.as_tensor(value)


def _to_int(flag: Any) -> int:
    return 1 if flag else 0


def closure_variables() -> dict[str, Any]:
    """What generated guard functions may close over: the names of SYMPY_INTERP and of
    ``torch._dynamo.guards._get_closure_vars`` that work without the compiler."""
    import torch

    serve = torch_api.serve()
    return {
        "math": math,
        "torch": torch,
        "inf": float("inf"),
        "device": torch.device,
        "inspect": inspect,
        "utils_device": serve.device_module,
        "__math_isnan": math.isnan,
        "IsNonOverlappingAndDenseIndicator": _indicator,
        "cast_symbool_to_symint_guardless": _to_int,
        "___odict_getitem": OrderedDict.__getitem__,
        "___dict_version": serve.dict_version,
        "___dict_contains": lambda key, content: dict.__contains__(content, key),
        "___tuple_iterator_len": _tuple_iterator_len,
        "___tuple_iterator_getitem": _tuple_iterator_getitem,
        "___normalize_count_iter": _normalize_count,
        "___dataclass_fields": dataclasses.fields,
        "___namedtuple_fields": lambda value: value._fields,
        "___from_numpy": _from_numpy,
        "___as_tensor": serve.as_tensor_fullprec,
    }


# ------------------------------------------------------------------ relations of objects

# How each accessor of a path reads a value; the methods of torch's guard managers.
ACCESSORS: dict[str, Callable[[Any, Any], Any]] = {
    "framelocals_manager": lambda value, key: value[key[0]],
    "dict_getitem_manager": lambda value, key: (
        dict.__getitem__(value, key) if isinstance(value, dict) else value[key]
    ),
    "getitem_manager": operator.getitem,
    "list_getitem_manager": operator.getitem,
    "tuple_getitem_manager": operator.getitem,
    "getattr_manager": getattr,
    "generic_getattr_manager": object.__getattribute__,
    "get_generic_dict_manager": lambda value, key: object.__getattribute__(value, "__dict__"),
    "get_value_manager": lambda value, key: list(dict.values(value))[key],
    "get_key_manager": lambda value, key: list(dict.keys(value))[key],
    "grad_manager": lambda value, key: value.grad,
    "type_manager": lambda value, key: type(value),
    "func_defaults_manager": lambda value, key: value.__defaults__,
    "func_kwdefaults_manager": lambda value, key: value.__kwdefaults__,
    "closure_manager": lambda value, key: value.__closure__,
    "lambda_manager": lambda value, key: key(value),
}


def read_path(path: Path, f_locals: Any, f_globals: dict[str, Any]) -> Any:
    """The value at the end of a decoded *path* from the root of a guard tree."""
    value = f_locals
    for method, key in path:
        value = f_globals if method == "globals_dict_manager" else ACCESSORS[method](value, key)
    return value


def _same_content(one: Any, other: Any) -> bool:
    """Equality that tells 1 from True, 0.0 from -0.0, and one order of keys from another."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_same_content, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(_same_content, one.items(), other.items()))
    if isinstance(one, (set, frozenset)):
        return {(type(item), item) for item in one} == {(type(item), item) for item in other}
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)
    return bool(one == other)


def _relations(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    """Objects under id guards: same types, same equal/different pattern. Binds to the objects of
    the first call that fits; from then on only these fit."""
    targets = [
        (
            _decode_path(path, f_globals, twins),
            group,
            _core.decode(kind, twins),
            None if value is None else (_core.decode(value, twins),),
        )
        for path, group, kind, value in encoded[1]
    ]
    bound: list[Any] = []

    def relations(f_locals: Any) -> bool:
        found = [read_path(path, f_locals, f_globals) for path, _, _, _ in targets]
        if bound:
            return all(a is b for a, b in zip(found, bound, strict=True))
        groups: dict[int, Any] = {}
        owners: dict[int, int] = {}
        for value, (_, group, kind, equal) in zip(found, targets, strict=True):
            if type(value) is not kind:
                return False
            if equal is not None and not _same_content(value, equal[0]):
                return False
            if groups.setdefault(group, value) is not value:
                return False
            if equal is None and owners.setdefault(id(value), group) != group:
                return False
        bound.extend(found)
        return True

    return relations


def _decode_path(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Path:
    path = []
    for method, key in encoded:
        if method == "lambda_manager":
            key = decode_function(key, f_globals, twins)
        elif key is not None:
            key = _core.decode(key, twins)
        path.append((method, key))
    return tuple(path)


# ------------------------------------------------------------------ the rest


def _late(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    """Identity of code (or of a function) that no module leads to: the content decides once, then
    the identity of what was accepted."""
    kind, digest = encoded[1], encoded[2]
    defaults = _core.decode(encoded[3], twins) if kind == "function" else None
    known: list[Any] = []

    def late(value: Any) -> bool:
        if known:
            return value is known[0]
        if kind == "function":
            fits = (
                type(value) is types.FunctionType
                and not value.__closure__
                and not value.__dict__
                and _same_content((value.__defaults__, value.__kwdefaults__), defaults)
                and _core.code_digest(value.__code__) == digest
            )
        else:
            fits = type(value) is types.CodeType and _core.code_digest(value) == digest
        if fits:
            known.append(value)
        return fits

    return late


def _nodes(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    """The registry of pytree nodes is the captured one; looked at again when it changes.

    Types whose module is not loaded here cannot occur, and are not missed.
    """
    dict_version = torch_api.serve().dict_version
    known: list[int] = [-1]

    def nodes(registry: Any) -> bool:
        version = dict_version(registry)
        if version == known[0]:
            return True
        loaded = [kind for kind in encoded[1] if kind[1] in sys.modules]
        if len(loaded) != len(registry):
            return False
        try:
            if set(registry) != {_core.decode(kind, twins) for kind in loaded}:
                return False
        except _core.Stale:
            return False
        known[0] = version
        return True

    return nodes


def _types(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    """A list of types is the captured one. As for _nodes: a library appends its type when it is
    loaded, which only compiling may have done."""
    known: list[tuple[type, ...]] = [()]

    def types_(value: Any) -> bool:
        now = tuple(value)
        if now == known[0]:
            return True
        loaded = (kind for kind in encoded[1] if kind[1] in sys.modules)
        try:
            if now != tuple(_core.decode(kind, twins) for kind in loaded):
                return False
        except _core.Stale:
            return False
        known[0] = now
        return True

    return types_


def _saved_hooks(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    serve = torch_api.serve()
    top, inlineable = serve.top_saved_tensors_hooks, serve.saved_tensors_hooks_are_inlineable

    def saved_hooks(_: Any) -> bool:
        hooks = top(True)
        return not hooks or not inlineable(hooks)

    return saved_hooks


def _functorch(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    states = _core.decode(encoded[1], twins)
    compare = torch_api.serve().compare_functorch_state
    return lambda _: compare(states)


def _generated(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    """The function of symbolic shape guards; names from closure_variables."""
    code = _core.decode_code(encoded[1], "<guard>", 1, twins)
    known = closure_variables()
    missing = [name for name in encoded[2] if name not in known]
    if missing:
        raise NeedsCompiler(f"a shape guard uses {', '.join(missing)}")
    cells = tuple(types.CellType(known[name]) for name in encoded[2])
    # What torch imports while the guard runs is looked up through the globals.
    scope = {"G": f_globals, "__builtins__": builtins.__dict__}
    return types.FunctionType(code, scope, "guard", None, cells)


def _closure(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    """A lambda of torch._dynamo.guards that uses none of that module's globals."""
    import torch

    code = _core.decode_code(encoded[1], "<guard>", 1, twins)
    cells = tuple(types.CellType(_core.decode(cell, twins)) for cell in encoded[2])
    scope = {"torch": torch, "__builtins__": builtins.__dict__, "__name__": "precomp.guard"}
    defaults = _core.decode(encoded[3], twins)
    return types.FunctionType(code, scope, code.co_name, defaults, cells or None)


def _module(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    module = _core.decode(encoded[1], twins)
    return lambda _: module


def _mode_at(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    index, at = encoded[1], torch_api.serve().function_mode_at
    return lambda _: at(index)


def _stream(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    import torch

    device = _core.decode(encoded[1], twins)
    return lambda _: torch.accelerator.current_stream(device)


def _count(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    expected = (_core.decode(encoded[1], twins), _core.decode(encoded[2], twins))
    return lambda value: type(value) is itertools.count and _normalize_count(value) == expected


def _subclass_value(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    base, expected = _core.decode(encoded[1], twins), _core.decode(encoded[2], twins)
    return lambda value: base(value) == expected


# ------------------------------------------------------------------ subclasses, opaque objects


def digest_of(function: Any) -> str | None:
    """The digest of the code of a function or bound method, None when it has none."""
    code = getattr(function, "__code__", None)
    return None if code is None else _core.code_digest(code)


def _subclass(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    """Metadata of a tensor subclass, compared by == or by the class's ``__metadata_guard__``."""
    metadata = _core.decode(encoded[1], twins)
    if encoded[2] is None:
        return lambda value: bool(value.__tensor_flatten__()[1] == metadata)
    compare = _core.decode(encoded[2], twins).__metadata_guard__
    if digest_of(compare) != encoded[3]:
        raise _core.Stale(f"{compare.__qualname__} has other code")
    return lambda value: bool(compare(metadata, value.__tensor_flatten__()[1]))


def meaning_of_spec(spec: Any) -> tuple[Any, ...]:
    """What torch compares of a DTensorSpec (shapes left out), the mesh by what it means: ranks,
    layout, device type, names of dimensions."""
    meta = spec.tensor_meta
    return (
        spec.placements,
        spec.shard_order,
        None if meta is None else meta.dtype,
        *objects.mesh_meaning(spec.mesh),
    )


def _spec(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    kind, expected = _core.decode(encoded[1], twins), _core.decode(encoded[2], twins)
    return lambda value: isinstance(value, kind) and meaning_of_spec(value) == expected


def _opaque(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    """Values that the registered ``guard_fn`` of an opaque object gives."""
    expected, digest = _core.decode(encoded[1], twins), encoded[2]
    info_of = torch_api.serve().opaque_object_info
    known: list[Any] = []

    def opaque(value: Any) -> bool:
        info = info_of(type(value))
        if info is None or info.guard_fn is None:
            return False
        if known != [info.guard_fn]:
            if digest_of(info.guard_fn) != digest:
                return False
            known[:] = [info.guard_fn]
        return bool(info.guard_fn(value) == expected)

    return opaque


def _copy_on_write(encoded: Any, f_globals: dict[str, Any], twins: Any) -> Function:
    """Whether a tensor shares its storage lazily (``torch._lazy_clone``). torch asks only tensors
    without a Python subclass's dispatch."""
    serve, expected = torch_api.serve(), encoded[1]
    dispatch_keys, is_cow, python = serve.dispatch_keys, serve.is_cow_tensor, serve.python_key

    def copy_on_write(value: Any) -> bool:
        return (
            isinstance(value, serve.Tensor)
            and not dispatch_keys(value).has(python)
            and is_cow(value) == expected
        )

    return copy_on_write


_READERS: dict[str, Callable[[Any, dict[str, Any], Any], Function]] = {
    "saved_hooks": _saved_hooks,
    "functorch": _functorch,
    "gfn": _generated,
    "fn": _closure,
    "rel": _relations,
    "late": _late,
    "nodes": _nodes,
    "types": _types,
    "module": _module,
    "mode_at": _mode_at,
    "stream": _stream,
    "count": _count,
    "subclass_value": _subclass_value,
    "subclass": _subclass,
    "spec": _spec,
    "opaque": _opaque,
    "cow": _copy_on_write,
    "from_numpy": lambda encoded, f_globals, twins: _from_numpy,
    "dataclass_fields": lambda encoded, f_globals, twins: dataclasses.fields,
}

# The tags of encoded functions.
TAGS = frozenset(_READERS)


def decode_function(encoded: Any, f_globals: dict[str, Any], twins: Any = None) -> Function:
    """The function of an encoded function.

    *f_globals* are the live globals of the frame. Raises NeedsCompiler for a function that only
    torch's compiler can rebuild, ``_core.Stale`` for one whose parts are gone or changed.
    """
    reader = _READERS.get(encoded[0])
    if reader is None:
        raise NeedsCompiler(f"a guard function of kind {encoded[0]!r}")
    return reader(encoded, f_globals, twins)
