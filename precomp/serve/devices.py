"""On which GPUs entries are served (docs/devices.md).

An entry that uses one GPU is written for ``cuda:0`` and served on any; one that uses several, or
depends on a number, has its own. ``prepare(devices=...)`` says where they are served instead.
"""

from __future__ import annotations

import collections
import itertools
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from precomp import _core
from precomp.artifact import Artifact
from precomp.environment import OR
from precomp.errors import PrecompError
from precomp.ordinals import ANY, CURRENT, Numbers, place, renumber, words

_NAME = re.compile(r"cuda:(\d+)")
_OBJECTS = 10_000  # that are looked at to find the GPU of a frame


class Placed:
    """The record of a frame entry on certain GPUs.

    ``numbers``: ordinal in the artifact -> ordinal here. ``names``: globals of the record ->
    globals here; entries on other GPUs have others.
    """

    def __init__(self, record: dict[str, Any], numbers: Numbers) -> None:
        self.numbers = {old: new for old, new in sorted(numbers.items()) if old != new}
        self.names: dict[str, str] = {}
        if not self.numbers:
            self.record = record
            return
        suffix = "".join(f"_{old}as{new}" for old, new in self.numbers.items())
        self.names = {name: name + suffix for name, spec in record["globals"] if spec[0] == "plan"}
        moved = renumber(record, self.numbers)
        moved["globals"] = tuple(
            (self.names.get(name, name), spec) for name, spec in moved["globals"]
        )
        plans = tuple((self.names[name], rows) for name, rows in moved["bind"]["plans"])
        moved["bind"] = {**moved["bind"], "plans": plans}
        self.record = moved


def wanted(devices: Any) -> dict[int, int] | None:
    """The argument *devices* of prepare: ordinal in the artifact -> ordinal here.

    Raises TypeError or ValueError for what names no GPU.
    """
    if devices is None:
        return None
    if isinstance(devices, Mapping):
        return {_ordinal(old): _ordinal(new) for old, new in devices.items()}
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        return {old: _ordinal(new) for old, new in enumerate(devices)}
    return {0: _ordinal(devices)}


def _ordinal(device: Any) -> int:
    expected = "expected the number of a GPU, 'cuda:N' or a torch.device"
    if isinstance(device, torch.device):
        device = str(device)
    if isinstance(device, str):
        match = _NAME.fullmatch(device)
        if match is None:
            raise ValueError(f"prepare: devices: {expected}, got {device!r}")
        return int(match[1])
    if type(device) is not int:
        raise TypeError(f"prepare: devices: {expected}, got {device!r}")
    if device < 0:
        raise ValueError(f"prepare: devices: {expected}, got {device}")
    return device


def own(record: dict[str, Any]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The ordinals that an entry names in the artifact, and why it is served on these alone."""
    devices = record["devices"]
    if devices is None:
        return (), ()
    return ((0,), ()) if devices in (ANY, CURRENT) else devices


def settled(record: dict[str, Any], devices: Numbers | None) -> Placed | None:
    """Where an entry is served; None: on any GPU, see ``for_frame``."""
    ordinals, reasons = own(record)
    if record["devices"] == CURRENT or (record["devices"] == ANY and 0 not in (devices or ())):
        return None
    if devices is None or reasons:
        return Placed(record, {})
    return Placed(record, {old: devices.get(old, old) for old in ordinals})


def only(record: dict[str, Any]) -> str:
    """Words behind the reason of a miss: that the entry cannot be served on other GPUs."""
    return f" (served on {place(record['devices'])})" if own(record)[1] else ""


def check(
    artifact: Artifact,
    records: Iterable[dict[str, Any]],
    devices: Numbers,
) -> tuple[str, ...]:
    """Raise PrecompError when entries cannot be served on *devices*. Returns what is served
    elsewhere in spite of *devices*."""
    notes = []
    known: set[int] = set()
    for record in records:
        ordinals, reasons = own(record)
        known.update(ordinals)
        moved = [devices.get(old, old) for old in ordinals]
        if reasons and moved != list(ordinals):
            notes.append(f"{record['name']} is served on {place(record['devices'])}")
        elif len(set(moved)) < len(moved):
            raise PrecompError(
                f"prepare: devices: {record['name']} uses {words(ordinals)}; "
                f"they cannot become {words(moved)}"
            )
    strangers = devices.keys() - known
    if strangers:
        raise PrecompError(
            f"prepare: devices: {artifact.path} has no entries for {words(sorted(strangers))}; "
            f"it has entries for {words(sorted(known)) or 'no GPU'}"
        )
    if "gpu" in artifact.environment:
        _check_machine(artifact, devices)
    return tuple(dict.fromkeys(notes))


def _check_machine(artifact: Artifact, devices: Numbers) -> None:
    built = artifact.environment["gpu"]
    found = _core.cuda_devices()
    for ordinal in sorted(devices.values()):
        if ordinal >= len(found):
            raise PrecompError(
                f"prepare: devices: there is no cuda:{ordinal}; the driver shows {len(found)}"
            )
        arch = "sm_{}{}".format(*found[ordinal])
        if arch not in built.split(OR):
            raise PrecompError(
                f"prepare: devices: cuda:{ordinal} is {arch}, {artifact.path} is for {built}"
            )


# ------------------------------------------------------------------ the GPU of a frame


class Shown:
    """The GPUs of a frame, found one by one as they are asked for: those that its tensors are on,
    the nearest first; where it has none on a GPU, those that its values name; where they name none,
    the current one. Looks at arguments and at globals that the code names, runs no code of theirs.
    """

    def __init__(self, frame: Any) -> None:
        self._found: list[int] = []
        self._rest = _search(frame)

    def __iter__(self) -> Iterator[int]:
        for i in itertools.count():
            if i == len(self._found):
                more = next(self._rest, None)
                if more is None:
                    return
                self._found.append(more)
            yield self._found[i]


def _search(frame: Any) -> Iterator[int]:
    names = (name for name in frame.f_code.co_names if name in frame.f_globals)
    values = [*frame.f_locals.values(), *(frame.f_globals[name] for name in names)]
    on: set[int] = set()
    named: dict[int, None] = {}
    for value in _reached(values):
        device = value.device if issubclass(type(value), torch.Tensor) else value
        if type(device) is torch.device and device.type == "cuda" and device.index is not None:
            if device is value:
                named[device.index] = None
            elif device.index not in on:
                on.add(device.index)
                yield device.index
        elif type(value) is str and (match := _NAME.fullmatch(value)):
            named[int(match[1])] = None
    if not on:
        yield from named or [_current()]


def for_frame(record: dict[str, Any], devices: Numbers | None, shown: Shown) -> Iterable[int]:
    """On which GPUs to try an entry that may be served on any; _core.Stale with the reason when
    there is none."""
    if record["devices"] == ANY:
        return shown
    current = _current()
    if devices is not None and devices.get(0, current) != current:
        raise _core.Stale(
            f"served on the current GPU, which is cuda:{current}, not cuda:{devices[0]} as "
            "prepare(devices=...) says"
        )
    return [current]


def _current() -> int:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0


def _reached(values: Iterable[Any]) -> Iterator[Any]:
    """*values* and what they hold, breadth first, up to a limit."""
    waiting = collections.deque(values)
    seen: set[int] = set()
    while waiting and len(seen) < _OBJECTS:
        value = waiting.popleft()
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            waiting.extend(_held(value))


def _held(value: Any) -> Iterable[Any]:
    kind = type(value)  # isinstance would ask the value for its __class__
    for container in (list, tuple):
        if issubclass(kind, container):
            return list(container.__iter__(value))
    if issubclass(kind, dict):
        return list(dict.values(value))
    if issubclass(kind, (torch.Tensor, type, types.ModuleType, types.FunctionType)):
        return ()
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return ()
    return list(dict.values(held))
