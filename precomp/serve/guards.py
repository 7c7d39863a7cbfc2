"""Rebuilds guard trees while serving, and says why one rejects a call (docs/guards.md)."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping
from typing import Any

from precomp._core import GuardTape
from precomp.guard_functions import NeedsCompiler, closure_variables, decode_function

__all__ = ["GuardWrapper", "NeedsCompiler", "build", "decode_function", "explain"]

Twins = Mapping[tuple[str, str], Any]


class GuardWrapper:
    """What torch's cache entry needs of a guard manager; keeps the objects whose ids the tree
    holds."""

    def __init__(self, root: Any, f_globals: dict[str, Any], keep: list[Any]) -> None:
        self.root = root
        self.diff_guard_root = None
        self.closure_vars: dict[str, Any] = {}
        self.args: list[str] = []
        self.code_parts: list[str] = []
        self.verbose_code_parts: list[str] = []
        self.global_scope = {"G": f_globals}
        self.guard_fail_fn = None
        self.cache_entry = None
        self.extra_state = None
        self.id_matched_objs: dict[str, Any] = {}
        self.no_tensor_aliasing_sources: list[str] = []
        self.printed_relational_guards: set[Any] = set()
        self.diff_guard_sources: tuple[str, ...] = ()
        self.keep = keep

    def check(self, f_locals: Any) -> bool:
        return bool(self.root.check(f_locals))

    def check_verbose(self, f_locals: Any) -> Any:
        return self.root.check_verbose(f_locals)

    def invalidate(self, reason: str) -> None:
        raise RuntimeError(f"precomp: a served guard manager was invalidated: {reason}")


def build(
    tape: GuardTape,
    f_globals: dict[str, Any],
    twins: dict[tuple[str, str], Any] | None,
    enum_type: Any,
    building: contextlib.AbstractContextManager[Any] | None = None,
) -> tuple[Any, list[Any]]:
    """``(root, keep)``: the guard tree of *tape*; *keep* must live as long as *root*.

    *building* is entered while torch's guard classes are called: it provides the modules of Dynamo
    they look into. Raises ``_core.Stale`` when something the guards name is gone or has changed,
    NeedsCompiler when only torch's compiler can rebuild a guard.
    """
    decode = functools.partial(decode_function, twins=twins) if twins else decode_function
    with building or contextlib.nullcontext():
        return tape.replay(f_globals, enum_type, twins, decode)


# ------------------------------------------------------------------ reasons

_EQUALS = re.compile(r"^(?P<source>[LG]\[.*?) == (?P<expected>.+)$", re.DOTALL)
_TYPE = re.compile(r"^___check_type_id\((?P<source>.+), ID\), type=(?P<expected>.+)$", re.DOTALL)
_OBJECT = re.compile(r"^_{2,3}check_obj_id\((?P<source>.+), ID\)(, type=(?P<expected>.+))?$", re.DOTALL)
_LENGTH = re.compile(r"^len\((?P<source>.+)\) == (?P<expected>\d+)$", re.DOTALL)
_EMPTY = re.compile(r"^not (?P<source>[LG]\[.+)$", re.DOTALL)
_NONE = re.compile(r"^(?P<source>[LG]\[.+?) is (?P<expected>None|not None)$", re.DOTALL)


class _Missing:
    def __repr__(self) -> str:
        return "nothing there"


_MISSING = _Missing()


def _read(source: str, f_locals: Any, f_globals: dict[str, Any]) -> Any:
    """The value of a guard's source text, or _MISSING when it cannot be read."""
    scope = {**closure_variables(), "L": f_locals, "G": f_globals}
    try:
        return eval(source, scope)
    except Exception:  # noqa: BLE001 - a source of a changed program may fail in any way
        return _MISSING


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


def _expected_found(part: str, f_locals: Any, f_globals: dict[str, Any]) -> str:
    """One failing guard as ``guard: expected X, found Y``."""
    for pattern, read in _PATTERNS:
        match = pattern.match(part)
        if match is None:
            continue
        source = match["source"]
        value = _read(source, f_locals, f_globals)
        expected = match.groupdict().get("expected") or ""
        return read(part, source, expected, value)
    return part


def _say_equal(part: str, source: str, expected: str, value: Any) -> str:
    expected = expected.partition(" (HINT")[0]
    return f"{source} == {expected}, found {_show(value)}"


def _say_type(part: str, source: str, expected: str, value: Any) -> str:
    found = "nothing there" if value is _MISSING else repr(type(value))
    return f"type of {source}: expected {expected}, found {found}"


def _say_object(part: str, source: str, expected: str, value: Any) -> str:
    kind = f" of {expected}" if expected else ""
    return f"{source} is another object than the captured one{kind}: found {_show(value)}"


def _say_length(part: str, source: str, expected: str, value: Any) -> str:
    try:
        found = str(len(value))
    except TypeError:
        found = _show(value)
    return f"len({source}): expected {expected or 0}, found {found}"


def _say_none(part: str, source: str, expected: str, value: Any) -> str:
    return f"{source} is {expected}, found {_show(value)}"


_PATTERNS = (
    (_TYPE, _say_type),
    (_OBJECT, _say_object),
    (_LENGTH, _say_length),
    (_EMPTY, _say_length),
    (_NONE, _say_none),
    (_EQUALS, _say_equal),
)


def explain(root: Any, f_locals: Any, f_globals: dict[str, Any] | None = None) -> str:
    """Why *root* rejects the frame: the failing guard with the expected and the found value.

    Empty when it accepts. *f_globals* lets values of globals be shown.
    """
    result = root.check_verbose(f_locals)
    if result.result:
        return ""
    parts = list(result.verbose_code_parts)
    return "; ".join(_expected_found(part, f_locals, f_globals or {}) for part in parts)
