"""Bindings: entries that are served for the live objects of one frame (docs/guards.md).

An entry that holds an optimizer, parameters or state is built once for each set of objects that it
is served for, with globals of its own, and goes when one of the objects dies.
"""

from __future__ import annotations

import functools
import itertools
import types
import weakref
from collections.abc import Callable
from typing import Any

from precomp import _core, live_objects
from precomp.live_objects import Twins, Unfit

__all__ = ["Binding", "Unfit", "needed", "rename_code"]

_numbers = itertools.count()


def needed(record: dict[str, Any]) -> bool:
    """Whether the entry of a frame record is served for live objects."""
    return record["tape"].get("live") is not None


class Binding:
    """The objects that one built entry is served for.

    Raises Unfit when the objects of the frame are not like the captured ones. Creates optimizer
    state that is missing, as compiling the frame would.
    """

    def __init__(
        self,
        record: dict[str, Any],
        tape: dict[str, Any],
        f_locals: Any,
        f_globals: dict[str, Any],
        twins: Twins,
    ) -> None:
        live = tape["live"]
        reader = live_objects.Reader(tape, f_locals, f_globals, twins)
        steps = live_objects.Steps(live, twins)
        steps.run(reader)
        found = live_objects.find(live, reader, twins)
        steps.check(found)
        self.objects: tuple[Any, ...] = found  # until the tree is built
        self._held = live_objects.held(live, found)
        self._references: list[weakref.ref[Any]] = []
        self._ended: Callable[[str], None] | None = None
        # Names of globals in the record -> names in this process: others bind the same entry.
        number = next(_numbers)
        bind = record["bind"]
        self.names = {name: f"{name}_{number}" for rows in bind.values() for name, _ in rows}
        self._plans = {name: tuple(found[row] for row in rows) for name, rows in bind["plans"]}
        self._weak = {name: found[row] for name, row in bind["weak"]}

    def globals(self, plan: Callable[[str], Callable[..., Any]]) -> dict[str, Any]:
        """The globals of this binding by their names here; ``plan(name)`` gives a graph."""
        made: dict[str, Any] = {
            self.names[name]: _core.BoundCall(plan(name), tensors)
            for name, tensors in self._plans.items()
        }
        made.update((self.names[name], weakref.ref(value)) for name, value in self._weak.items())
        return made

    def tape(self, tape: dict[str, Any]) -> dict[str, Any]:
        """*tape* with the names of this binding."""
        ops = tuple(
            (*op[:3], ("k", self.names[op[3][1]]), *op[4:])
            if op[0] == "global_weakref_manager"
            else op
            for op in tape["ops"]
        )
        return {**tape, "ops": ops}

    def watch(self, ended: Callable[[str], None]) -> None:
        """Call ``ended(why)`` once, at the latest when the first of the held objects dies; hold
        none of them from now on."""
        self._ended = ended
        for value in self._held:
            why = f"{type(value).__name__} that it was served for is gone"
            self._references.append(weakref.ref(value, functools.partial(self._gone, why)))
        self.objects, self._held, self._plans, self._weak = (), [], {}, {}

    def _gone(self, why: str, reference: Any) -> None:
        self.end(why)

    def end(self, why: str) -> None:
        """The binding serves no longer."""
        ended, self._ended = self._ended, None
        self._references.clear()
        if ended is not None:
            ended(why)


def rename_code(code: types.CodeType, names: dict[str, str]) -> types.CodeType:
    """*code* with global names replaced, also in nested code."""
    return code.replace(
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_consts=tuple(
            rename_code(constant, names) if isinstance(constant, types.CodeType) else constant
            for constant in code.co_consts
        ),
    )
