"""Rebuilds guard trees while serving (docs/guards.md)."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from precomp import torch_api
from precomp._core import GuardTape
from precomp.guard_functions import NeedsCompiler, decode_function

__all__ = ["DeadGuards", "GuardWrapper", "NeedsCompiler", "build", "decode_function"]

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


class DeadGuards(GuardWrapper):
    """The guards of a cache entry whose objects died: it never accepts again."""

    def __init__(self, reason: str) -> None:
        super().__init__(None, {}, [])
        self.invalidation_reason = reason

    def check(self, f_locals: Any) -> bool:
        return False


def build(
    tape: GuardTape,
    f_globals: dict[str, Any],
    twins: dict[tuple[str, str], Any] | None,
    enum_type: Any,
    building: contextlib.AbstractContextManager[Any] | None = None,
    live: tuple[Any, ...] = (),
) -> tuple[Any, list[Any]]:
    """``(root, keep)``: the guard tree of *tape*; *keep* must live as long as *root*, and *root*
    must be dropped when one of *live* dies.

    *building* is entered while torch's guard classes are called: it provides the modules of Dynamo
    they look into. Raises ``_core.Stale`` when something the guards name is gone or has changed,
    NeedsCompiler when only torch's compiler can rebuild a guard.
    """
    decode = functools.partial(decode_function, twins=twins) if twins else decode_function
    with building or contextlib.nullcontext(), _read_once():
        return tape.replay(f_globals, enum_type, twins, decode, live)


@contextlib.contextmanager
def _read_once() -> Iterator[None]:
    """torch's C++ reads settings of Dynamo thousands of times while it builds a tree, each time
    through a slow ``__getattr__`` in Python. Meanwhile they are plain attributes of the module."""
    tables = torch_api.tables()
    config = sys.modules.get(tables.GUARD_CONFIG_MODULE)
    scope = {} if config is None else vars(config)
    names = [name for name in tables.GUARD_CONFIG if name not in scope]
    scope.update({name: getattr(config, name) for name in names if hasattr(config, name)})
    try:
        yield
    finally:
        for name in names:
            scope.pop(name, None)
