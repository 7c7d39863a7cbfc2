"""Encoded values of an artifact in words (docs/internals.md, section 2). Needs no torch."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

Encoded = tuple[Any, ...]

# dtype without byte order -> struct format; of numpy's scalars those that have one
_NUMPY = {
    "b1": ("?", "bool"),
    "i1": ("b", "int8"),
    "i2": ("h", "int16"),
    "i4": ("i", "int32"),
    "i8": ("q", "int64"),
    "u1": ("B", "uint8"),
    "u2": ("H", "uint16"),
    "u4": ("I", "uint32"),
    "u8": ("Q", "uint64"),
    "f2": ("e", "float16"),
    "f4": ("f", "float32"),
    "f8": ("d", "float64"),
}


def name_of(module: str, qualname: str) -> str:
    """A dotted name; builtins go by their own."""
    return qualname if module == "builtins" else f"{module}.{qualname}"


def of_value(encoded: Encoded) -> str:
    """An encoded value as an expression or in words; every tag has a form of its own."""
    say = _VALUES.get(encoded[0])
    return f"a value of the unknown kind {encoded[0]!r}" if say is None else say(*encoded[1:])


def of_object(encoded: Encoded) -> str:
    """An encoded value that is guarded by identity, in words that say what it is."""
    say = _OBJECTS.get(encoded[0])
    return of_value(encoded) if say is None else say(*encoded[1:])


def of_code(module: str, steps: tuple[tuple[str, Any], ...], digest: str = "") -> str:
    """Where a code object is found, as ``module.name``; nested code by its place."""
    text = module
    for kind, step in steps:
        if kind == "c":
            text += f" closure cell {step}"
        elif kind == "k":
            text += f" nested code {step}"
        elif step != "__code__":
            text += f".{step}"
    return f"the code of {text}"


def _items(encoded: tuple[Encoded, ...]) -> str:
    return ", ".join(map(of_value, encoded))


def _tuple(items: tuple[Encoded, ...]) -> str:
    return f"({_items(items)},)" if len(items) == 1 else f"({_items(items)})"


def _dict(pairs: tuple[tuple[Encoded, Encoded], ...]) -> str:
    return "{" + ", ".join(f"{of_value(key)}: {of_value(value)}" for key, value in pairs) + "}"


def _given(args: Encoded, keywords: Encoded) -> list[str]:
    named = [f"{key[1]}={of_value(value)}" for key, value in keywords[1]]
    return [*map(of_value, args[1]), *named]


def _partial(function: Encoded, args: Encoded, keywords: Encoded) -> str:
    return f"functools.partial({', '.join([of_value(function), *_given(args, keywords)])})"


def _instance(kind: Encoded, args: Encoded, keywords: Encoded) -> str:
    if kind[1:3] == ("builtins", "tuple.__new__"):
        named, items = args[1]
        return f"{of_value(named)}({_items(items[1])})"
    return f"{of_value(kind)}({', '.join(_given(args, keywords))})"


def _numpy(dtype: str, data: bytes) -> str:
    form = _NUMPY.get(dtype[1:])
    if form is None or struct.calcsize(form[0]) != len(data):
        return f"a numpy scalar of dtype {dtype}, bytes {data.hex()}"
    order = ">" if dtype[0] == ">" else "<"
    return f"numpy.{form[1]}({struct.unpack(order + form[0], data)[0]!r})"


def _late(kind: str, digest: str, defaults: Encoded | None = None) -> str:
    more = "" if defaults is None or defaults == ("t", (("k", None),) * 2) else " and its defaults"
    return f"{kind} with the captured content ({digest[:16]}){more}"


_VALUES: dict[str, Callable[..., str]] = {
    "k": repr,
    "N": lambda: "NotImplemented",
    "t": _tuple,
    "l": lambda items: f"[{_items(items)}]",
    "s": lambda items: f"{{{_items(items)}}}" if items else "set()",
    "f": lambda items: f"frozenset({{{_items(items)}}})" if items else "frozenset()",
    "d": _dict,
    "sl": lambda *parts: f"slice({_items(parts)})",
    "r": lambda start, stop, step: f"range({start}, {stop}, {step})",
    "sz": lambda items: f"torch.Size({list(items)})",
    "dt": lambda name: f"torch.{name}",
    "dv": lambda name: f"torch.device({name!r})",
    "en": lambda kind, name, value=None: f"{of_value(kind)}.{name}",
    "ns": lambda name: f"torch.ops.{name}",
    "op": lambda namespace, name, overload: f"torch.ops.{namespace}.{name}.{overload}",
    "opp": lambda namespace, name: f"torch.ops.{namespace}.{name}",
    "M": lambda name: f"module {name}",
    "dk": lambda raw: f"dispatch keys {raw:#x}",
    "irm": lambda name: f"InverseReturnMode.{name}",
    "gs": lambda state: f"the global state {state}",
    "dks": lambda items: f"dict_keys([{_items(items)}])",
    "mp": lambda content: f"mappingproxy({of_value(content)})",
    "C": of_code,
    "P": lambda module, qualname, kind="": name_of(module, qualname),
    "PF": lambda module, qualname, digest="": name_of(module, qualname),
    "FS": lambda original: f"the class that fully_shard made of {of_value(original)}",
    "A": lambda name: f"types.{name}" if name[:1].isupper() else name,
    "np": _numpy,
    "pt": _partial,
    "nw": _instance,
    "late": _late,
}

_OBJECTS: dict[str, Callable[..., str]] = {
    "live": lambda row: f"the object that it was served for (number {row})",
    "M": lambda name: f"the module {name}",
    "P": lambda module, qualname, kind="": f"{name_of(module, qualname)} itself",
    "PF": lambda module, qualname, digest="": (
        f"the function {name_of(module, qualname)}, unchanged"
    ),
    "C": lambda *found: f"{of_code(*found)}, unchanged",
}
