"""Compares the source that a frame depends on with what this process has loaded.

One function for one key of a frame record (docs/internals.md, section 4.1). Each raises
``_core.Stale`` with the name of what differs.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from precomp import _core
from precomp.sources import class_text, qualname, source_digests, under, watched_names


def check(record: dict[str, Any], here: str) -> None:
    """Raise ``_core.Stale`` unless all source of a frame record is as it was.

    *here* is the module of the frame now, in place of the module that was captured.
    """
    own = record["module"]

    def module(name: str) -> str:
        return here if name == own else name

    for name, steps, digest in record["inlined"]:
        found = _core.code_at(module(name), steps)
        if _core.code_digest(found) != digest:
            at = f"{module(name)}.{_path(steps)}"
            raise _core.Stale(f"source of the inlined function {qualname(found)} ({at}) changed")
    for name, digest in record["sources"]:
        holder = module(name)
        if digest not in source_digests(holder):
            raise _core.Stale(f"source of a function of {holder}, which is inlined, changed")
    for name, steps, digest in record["torch"]:
        # In a module that is not loaded nothing can have been replaced.
        if name in sys.modules and _core.code_digest(_core.code_at(name, steps)) != digest:
            at = f"{name}.{_path(steps)}"
            raise _core.Stale(f"{at}, which is inlined, was replaced by another function")
    for name, steps, encoded in record["values"]:
        expected, value = _core.decode(encoded), _core.object_at(module(name), steps)
        if not same(expected, value):
            at = f"{module(name)}.{_path(steps)}"
            raise _core.Stale(f"{at}: a value in it was {expected!r}, is {value!r}")
    watched = frozenset(record["watched"])
    for name, path, bases, parts in record["classes"]:
        steps = tuple(("a", part) for part in path.split("."))
        _check_class(_core.object_at(module(name), steps), bases, parts, watched, own, here)


def _path(steps: tuple[tuple[str, Any], ...]) -> str:
    return ".".join(name for letter, name in steps if letter == "a")


def same(expected: Any, value: Any) -> bool:
    """Equality that tells 1 from True and from 1.0, and that a NaN equals itself."""
    if type(expected) is not type(value):
        return False
    if isinstance(expected, (tuple, list)):
        return len(expected) == len(value) and all(map(same, expected, value))
    if isinstance(expected, dict):
        return list(expected) == list(value) and all(map(same, expected.values(), value.values()))
    if isinstance(expected, functools.partial):
        parts = [(part.func, part.args, part.keywords) for part in (expected, value)]
        return same(*parts)
    return expected is value or expected == value or (expected != expected and value != value)


def _check_class(
    cls: Any,
    bases: tuple[str, ...],
    parts: tuple[Any, ...],
    watched: frozenset[str],
    own: str,
    here: str,
) -> None:
    if not isinstance(cls, type):
        raise _core.Stale(f"{bases[0]} is no class any more")
    found = tuple(
        own + text.removeprefix(here) if base.__module__ == here else text
        for base, text in ((base, class_text(base)) for base in cls.__mro__)
    )
    if found != bases:
        raise _core.Stale(f"bases of class {bases[0]} were {bases[1:]}, are {found[1:]} now")
    for index, names, held in parts:
        base = cls.__mro__[index]
        space = vars(base)
        for name, digest in held:
            code = under(space.get(name))
            if code is None or _core.code_digest(code) != digest:
                raise _core.Stale(f"source of {class_text(base)}.{name}, which is inlined, changed")
        if names is None:  # a class of torch or Python: its version fixes them
            continue
        changed = watched_names(base, watched).symmetric_difference(names)
        if changed:
            text = ", ".join(sorted(changed))
            raise _core.Stale(f"class {class_text(base)} gained or lost {text} since capture")
