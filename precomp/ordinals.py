"""Ordinals of GPUs in records: which ones a record names, and the same record on other ones.

A record names a GPU in its strings alone: ``"cuda:1"`` as the value of a ``torch.device`` or as a
string that the program holds, and in the texts of guards. What compiled code does with the GPU is
the same on every one of an architecture, so a record for one becomes a record for another when
all that it names is renumbered, its conditions like its results (docs/devices.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# cuda:1, device(type='cuda', index=1), device('cuda', 1), and torch's text of a guard on a tensor.
_NAMED = re.compile(
    r"(?<![\w.])(?:cuda:)(\d+)"
    r"|(?<=\(type='cuda', index=)(\d+)"
    r"|(?<=device\('cuda', )(\d+)"
    r"|(?<=, device=)(\d+)(?=, requires_grad=)"
)

Numbers = Mapping[int, int]
# The "devices" of a frame record. It uses one GPU, named cuda:0, and is served on any, or on any
# that is the current one. Else None, where it uses none, or (ordinals, reasons): it is served on
# these, with reasons on these alone.
ANY = ("any",)
CURRENT = ("current",)


def words(ordinals: Iterable[int]) -> str:
    """GPUs as users name them."""
    return ", ".join(f"cuda:{ordinal}" for ordinal in ordinals)


def place(devices: tuple[Any, ...] | None) -> str:
    """Where a frame is served, by the "devices" of its record; empty where that does not matter."""
    if devices is None:
        return ""
    if devices in (ANY, CURRENT):
        return "any GPU" if devices == ANY else "the current GPU, any"
    ordinals, reasons = devices
    return f"{words(ordinals)} only: {'; '.join(reasons)}" if reasons else words(ordinals)


def named(value: Any) -> set[int]:
    """The ordinals of the GPUs that plain data names."""
    found: set[int] = set()
    _collect(value, found)
    return found


def _collect(value: Any, found: set[int]) -> None:
    if type(value) is str:
        if "device" in value or "cuda" in value:
            found.update(int(match[match.lastindex or 0]) for match in _NAMED.finditer(value))
    elif type(value) is tuple:
        for item in value:
            _collect(item, found)
    elif type(value) is dict:
        for key, item in value.items():
            _collect(key, found)
            _collect(item, found)


def renumber(value: Any, numbers: Numbers) -> Any:
    """Plain data with the GPUs that it names renumbered; an ordinal that *numbers* lacks stays."""
    if all(old == new for old, new in numbers.items()):
        return value
    return _renumbered(value, numbers)


def _renumbered(value: Any, numbers: Numbers) -> Any:
    if type(value) is str:
        if "device" not in value and "cuda" not in value:
            return value
        return _NAMED.sub(lambda match: _replaced(match, numbers), value)
    if type(value) is tuple:
        return tuple(_renumbered(item, numbers) for item in value)
    if type(value) is dict:
        pairs = ((_renumbered(key, numbers), item) for key, item in value.items())
        return {key: _renumbered(item, numbers) for key, item in pairs}
    return value


def _replaced(match: re.Match[str], numbers: Numbers) -> str:
    old = match[match.lastindex or 0]
    return match[0].removesuffix(old) + str(numbers.get(int(old), old))
