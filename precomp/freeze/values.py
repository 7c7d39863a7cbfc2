"""Encodes values that are not plain data (docs/internals.md, section 2).

``_core.decode`` and ``_core.decode_code`` are the other direction.
"""

from __future__ import annotations

import enum
import functools
import marshal
import sys
import types
from collections.abc import Callable
from typing import Any

from precomp import _core, data, torch_api
from precomp.freeze import codepath
from precomp.freeze.store import Unsupported
from precomp.torch_api import modules, objects

Encoded = tuple[Any, ...]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))

# Types without an importable name, as csrc/binding/codec.c knows them.
_ANONYMOUS: dict[type, str] = {
    value: name for name, value in vars(types).items() if isinstance(value, type)
}
_ANONYMOUS.update(
    {
        type(iter(())): "tuple_iterator",
        type(iter([])): "list_iterator",
        type(reversed([])): "list_reverseiterator",
        type(iter(range(0))): "range_iterator",
        type({}.keys()): "dict_keys",
        type({}.values()): "dict_values",
        type({}.items()): "dict_items",
        type(iter({})): "dict_keyiterator",
        type(iter({}.values())): "dict_valueiterator",
        type(iter({}.items())): "dict_itemiterator",
        type(iter(set())): "set_iterator",
        type(iter(int, 1)): "callable_iterator",
        type(iter(b"")): "bytes_iterator",
        type(iter("")): "str_iterator",
        type(NotImplemented): "NotImplementedType",
        type(...): "EllipsisType",
    }
)

class Unencodable(Unsupported):
    """A value that has no encoding; the message names it."""


def describe(value: Any) -> str:
    """What a value is, in words that hold no address."""
    kind = type(value)
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        noun = "class" if isinstance(value, type) else "function"
        module = value.__module__
        return f"{noun} {module}.{value.__qualname__}" if module else f"{noun} {value.__qualname__}"
    if isinstance(value, types.CodeType):
        return f"code {value.co_name}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    article = "an" if kind.__qualname__[:1].lower() in "aeiou" else "a"
    return f"{article} {kind.__module__}.{kind.__qualname__}"


def sort_encoded(items: Any) -> Encoded:
    """Encoded values in an order that does not depend on hashing."""
    return tuple(sorted(items, key=data.dumps))


def is_library(module: str) -> bool:
    """True when the version of torch or Python fixes the source of *module*."""
    top = module.partition(".")[0]
    return top == "torch" or top == "builtins" or top in sys.stdlib_module_names


def encode(value: Any) -> Encoded:
    """The encoded value of *value*. Raises Unencodable, with words that name the value."""
    kind = type(value)
    if kind in _PLAIN:
        return ("k", value)
    simple = _BY_TYPE.get(kind)
    if simple is not None:
        return simple(value)
    if isinstance(value, enum.Enum):
        return _encode_member(value)
    if isinstance(value, types.ModuleType):
        return _encode_module(value)
    found = _encode_torch(value) or _encode_instance(value)
    if found is not None:
        return found
    if kind is types.FunctionType:
        return _encode_function(value)
    path = find_path(value)
    if path is not None:
        return ("P", *path, _core.kind_of(value))
    if isinstance(value, type):
        return _encode_hidden_type(value)
    raise Unencodable(f"{describe(value)} cannot be written as data")


def _encode_dict(value: dict[Any, Any]) -> Encoded:
    # Dynamo's code makes nested functions over the globals of a module.
    module = value.get("__name__")
    if isinstance(module, str) and getattr(sys.modules.get(module), "__dict__", None) is value:
        return ("P", module, "__dict__", _core.kind_of(value))
    return ("d", tuple((encode(key), encode(item)) for key, item in value.items()))


def _encode_code(value: types.CodeType) -> Encoded:
    found = codepath.find(value)
    if found is None:
        raise Unencodable(
            f"no module leads to the {describe(value)} "
            f"({value.co_filename.rpartition('/')[2]}:{value.co_firstlineno})"
        )
    return ("C", *found, _core.code_digest(value))


def _encode_partial(value: functools.partial[Any]) -> Encoded:
    return ("pt", encode(value.func), encode(value.args), encode(dict(value.keywords)))


_BY_TYPE: dict[type, Callable[[Any], Encoded]] = {
    type(NotImplemented): lambda value: ("N",),
    tuple: lambda value: ("t", tuple(map(encode, value))),
    list: lambda value: ("l", tuple(map(encode, value))),
    set: lambda value: ("s", sort_encoded(map(encode, value))),
    frozenset: lambda value: ("f", sort_encoded(map(encode, value))),
    dict: _encode_dict,
    slice: lambda value: ("sl", encode(value.start), encode(value.stop), encode(value.step)),
    range: lambda value: ("r", value.start, value.stop, value.step),
    type({}.keys()): lambda value: ("dks", tuple(map(encode, value))),
    types.MappingProxyType: lambda value: ("mp", encode(dict(value))),
    types.CodeType: _encode_code,
    functools.partial: _encode_partial,
}


def _encode_member(value: enum.Enum) -> Encoded:
    name = value.name
    if not isinstance(name, str) or type(value).__members__.get(name) is not value:
        raise Unencodable(f"{describe(value)} without a name of its own cannot be written as data")
    if is_library(type(value).__module__):
        return ("en", encode(type(value)), name, None)
    try:
        content = encode(value._value_)
    except Unencodable:
        content = None
    return ("en", encode(type(value)), name, content)


def _encode_module(value: types.ModuleType) -> Encoded:
    import torch

    if isinstance(value, torch_api.capture().op_namespace):
        if getattr(torch.ops, value.name, None) is value:
            return ("ns", value.name)
        raise Unencodable(f"torch.ops.{value.name} is another object now")
    if sys.modules.get(value.__name__) is value:
        return ("M", value.__name__)
    raise Unencodable(f"module {value.__name__} is not in sys.modules")


def _encode_torch(value: Any) -> Encoded | None:
    import torch

    names = torch_api.capture()
    serve = torch_api.serve()
    kind = type(value)
    if kind is torch.Size:
        if not all(type(item) is int for item in value):
            raise Unencodable("a torch.Size with symbolic items cannot be written as data")
        return ("sz", tuple(value))
    if kind in (torch.dtype, torch.layout, torch.memory_format):
        return ("dt", str(value).removeprefix("torch."))
    if kind is torch.device:
        return ("dv", str(value))
    if kind is serve.DispatchKeySet:
        return ("dk", value.raw_repr())
    if kind is serve.InverseReturnMode:
        return ("irm", value.name)
    if kind is serve.GlobalStateGuard:
        return ("gs", value.__getstate__())
    if isinstance(value, names.op_overload):
        return ("op", value.namespace, objects.operator_name(value), objects.overload_name(value))
    if isinstance(value, names.op_overload_packet):
        namespace, _, name = objects.packet_name(value).partition("::")
        return ("opp", namespace, name)
    members = getattr(kind, "__members__", None)
    if isinstance(members, dict):  # an enum that C++ made
        place, name = find_path(kind), value.name
        if place is not None and members.get(name) is value:
            return ("P", place[0], f"{place[1]}.{name}", _core.kind_of(value))
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        if hasattr(value, "dtype") and not value.dtype.hasobject:
            return ("np", value.dtype.str, value.tobytes())
    return None


def _encode_instance(value: Any) -> Encoded | None:
    """Named tuples without attributes of their own, and the value types above."""
    kind = type(value)
    if isinstance(value, tuple) and hasattr(kind, "_fields") and not hasattr(value, "__dict__"):
        new = ("P", "builtins", "tuple.__new__", _core.kind_of(tuple.__new__))
        return ("nw", new, ("t", (encode(kind), encode(tuple(value)))), ("d", ()))
    attributes = torch_api.tables().CONSTRUCTORS.get((kind.__module__, kind.__qualname__))
    if attributes is None:
        return None
    positional, keywords = attributes
    return (
        "nw",
        encode(kind),
        encode(tuple(getattr(value, name) for name in positional)),
        encode({name: getattr(value, name) for name in keywords}),
    )


def _encode_function(value: types.FunctionType) -> Encoded:
    path = find_path(value)
    if path is None:
        raise Unencodable(f"no module leads to the {describe(value)}")
    return ("PF", *path, _core.code_digest(value.__code__))


def _encode_hidden_type(value: type) -> Encoded:
    if value in _ANONYMOUS:
        return ("A", _ANONYMOUS[value])
    sharded = getattr(sys.modules.get(modules.FULLY_SHARD), "cls_to_fsdp_cls", {})
    for original, made in sharded.items():
        if made is value:
            return ("FS", encode(original))
    raise Unencodable(
        f"no module leads to the {describe(value)}: a class must be found again by its name"
    )


def find_path(value: Any) -> tuple[str, str] | None:
    """``(module, qualname)`` that really lead to this very object, or None."""
    for module, qualname in _path_candidates(value):
        if "<" in qualname:
            continue
        try:
            if _resolve(module, qualname) is value:
                return module, qualname
        except (KeyError, AttributeError):
            continue
    return None


def _path_candidates(value: Any) -> list[tuple[str, str]]:
    if not callable(value):
        return []
    qualname = getattr(value, "__qualname__", None)
    name = getattr(value, "__name__", None)
    module = getattr(value, "__module__", None)
    if not isinstance(qualname, str):
        qualname = name
    if not isinstance(qualname, str):
        return []
    if not isinstance(name, str):
        name = qualname
    found = [(module, qualname)] if isinstance(module, str) else []
    owner = getattr(value, "__objclass__", None)
    if not isinstance(owner, type):
        owner = getattr(value, "__self__", None)
    if isinstance(owner, type):
        found.append((owner.__module__, f"{owner.__qualname__}.{name}"))
    found += [
        ("builtins", qualname),
        ("torch", name),
        ("torch", f"Tensor.{name}"),
        ("torch.nn.functional", name),
        (modules.FUNCTIONS_OF_NN, name),
        ("math", name),
        ("operator", name),
    ]
    if isinstance(value, types.BuiltinFunctionType):
        # Functions made by pybind11 may name a module that does not exist.
        native = (module for module in sys.modules if module.startswith(modules.CORE))
        found += [(module, name) for module in sorted(native)]
    return found


def _resolve(module: str, qualname: str) -> Any:
    value: Any = sys.modules[module]
    for part in qualname.split("."):
        value = getattr(value, part)
    return value


def encode_code(code: types.CodeType, base: int | None = None) -> Encoded:
    """A whole code object as data: ``(marshalled without constants, line, constants)``.

    The file name is left out and the first lines, nested code included, are relative to *base*
    (the first line of *code* itself when None). ``_core.decode_code`` reads it.
    """
    if base is None:
        base = code.co_firstlineno
    constants = tuple(
        ("CODE", encode_code(item, base)) if isinstance(item, types.CodeType) else encode(item)
        for item in code.co_consts
    )
    bare = code.replace(co_consts=(), co_filename="", co_firstlineno=1)
    return (marshal.dumps(bare, data.VERSION), code.co_firstlineno - base, constants)
