"""What can compile: one file per subsystem, one ``Door`` per entry point.

A door stands in front of a *cold* function: one that a warm program never calls. ``hooks`` puts it
there when the module that holds the function is imported, and the strict gate then hears of every
call before it has changed anything. Nothing here imports torch or Triton.

To add a door, append it to the tuple ``DOORS`` of its subsystem's file and a trigger for it to
``tests/gate/triggers.py``; a test checks that every target exists in the installed torch.
"""

from __future__ import annotations

import enum
import functools
import importlib
import reprlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from precomp.torch_api import modules

KINDS = ("trace", "lower", "build", "load", "tune", "record", "fallback", "spawn", "driver_jit")

SUBSYSTEMS = (
    "dynamo",
    "aot",
    "inductor",
    "autotune",
    "triton",
    "export",
    "jit",
    "cpp_extension",
    "cuda",
)

BACKWARD_WHY = "not compiled before: it is compiled at the first backward() of its forward"
BACKWARD_HINT = "run one backward() before the gate, or capture it"


class Trip(NamedTuple):
    """What a violation says. ``where`` None: the user's frame, found from the stack."""

    what: str
    why: str = ""
    hint: str = ""
    where: str | None = None
    kind: str | None = None
    """None: the door's own kind."""


Describe = Callable[[dict[str, Any]], "Trip | None"]


@dataclass(frozen=True)
class Door:
    """One entry point.

    ``target`` is ``"module:qualified.name"``. ``describe`` gets the call's arguments by name and
    returns None if this call compiles nothing. A door that is not ``required`` may be absent:
    another one stands behind it.
    """

    name: str
    kind: str
    target: str
    describe: Describe
    required: bool = True
    also: tuple[str, ...] = ()
    """Further kinds that ``describe`` may return."""

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def path(self) -> str:
        return self.target.partition(":")[2]


@functools.cache
def all_doors() -> tuple[Door, ...]:
    """Every door, in a fixed order."""
    doors: list[Door] = []
    for name in SUBSYSTEMS:
        doors.extend(importlib.import_module(f"precomp.doors.{name}").DOORS)
    return tuple(doors)


def code_text(code: Any) -> str:
    """``name (file:line)`` of a code object."""
    name = getattr(code, "co_qualname", code.co_name)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})"


def short(value: object, limit: int = 200) -> str:
    """``str(value)`` on one line, cut at *limit* characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else text[: limit - 4] + " ..."


class _Brief(reprlib.Repr):
    """Text of a value that runs none of its code: a tensor's repr would compute, and wait."""

    def repr_instance(self, x: Any, level: int) -> str:
        if x is None or isinstance(x, (bool, int, float, complex, bytes, enum.Enum)):
            return repr(x)
        if isinstance(x, type):
            return type_name(x)
        if type(x).__module__ == "torch" and type(x).__name__ in ("dtype", "device", "layout"):
            return repr(x)
        return f"<{type_name(type(x))}>"


def brief(value: object) -> str:
    """*value* as short text; objects that are not plain by their type."""
    return short(_Brief().repr(value), 80)


def type_name(kind: type) -> str:
    """Name of *kind* with its module, unless it is a builtin."""
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def fixed(what: str, why: str = "", hint: str = "") -> Describe:
    """A ``describe`` that always says the same."""

    def describe(args: dict[str, Any]) -> Trip:
        return Trip(what, why, hint)

    return describe


def graph_text(graph: Any) -> str:
    """``N operators (first, second, ...)`` of a GraphModule, or the name of its type."""
    graph = getattr(graph, "gm", graph)
    nodes = getattr(getattr(graph, "graph", None), "nodes", None)
    if nodes is None:
        return type(graph).__name__
    names = [str(node.target) for node in nodes if node.op.startswith("call_")]
    listed = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"{len(names)} operators ({listed})"


def frame_locals(name: str) -> dict[str, Any]:
    """Local variables of the innermost running torch function called *name*, or {}."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == name and frame.f_globals.get("__name__", "").startswith("torch"):
            return dict(frame.f_locals)
        frame = frame.f_back  # type: ignore[assignment]
    return {}


def cache_dir() -> str:
    """Folder of Inductor's and AOTAutograd's compile caches. Only from a running compile."""
    return str(importlib.import_module(modules.CACHE_DIRS).cache_dir())
