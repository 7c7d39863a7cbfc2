"""Notices when code runs that was compiled before the capture was entered.

Such code is served by torch's cache, so no hook sees it compile. Its bytecode calls a compiled
graph through a global; while the capture is active that global is a tap that takes a note.
"""

from __future__ import annotations

import types
from typing import Any

from precomp import _core
from precomp.torch_api import capture as capture_api

COMPILED = "__compiled_fn"


class PrecompiledWatch:
    """Taps on the compiled graphs that exist at construction."""

    def __init__(self) -> None:
        self._ran: dict[str, None] = {}
        self._taps: list[tuple[dict[str, Any], str, Any, Any]] = []

    def install(self) -> None:
        """Put the taps in place."""
        api = capture_api()
        for code in {id(code): code for code in list(api.orig_code_map.values.values())}.values():
            if not isinstance(code, types.CodeType):
                continue
            for entry in api.cache_entries(code):
                scope = entry.guard_manager.global_scope.get("G")
                for name in entry.code.co_names:
                    if name.startswith(COMPILED) and isinstance(scope, dict) and name in scope:
                        self._tap(scope, name, getattr(code, "co_qualname", code.co_name))

    def _tap(self, scope: dict[str, Any], name: str, function: str) -> None:
        api = capture_api()

        def note(args: Any, kwargs: Any, result: Any) -> None:
            self._ran[function] = None

        strategy = api.FrameExecStrategy(api.FrameAction.SKIP, api.FrameAction.DEFAULT)
        api.set_code_exec_strategy(note.__code__, strategy)
        tap = _core.Tap(scope[name], note)
        self._taps.append((scope, name, scope[name], tap))
        scope[name] = tap

    def remove(self) -> None:
        """Take the taps away again, where they still are."""
        for scope, name, original, tap in self._taps:
            if scope.get(name) is tap:
                scope[name] = original
        self._taps.clear()

    def problems(self) -> list[tuple[str, str]]:
        """``(function, reason)`` of what ran although it was compiled before."""
        reason = (
            "was compiled before the capture was entered; "
            "enter the capture first, or capture with reset=True"
        )
        return [(function, reason) for function in self._ran]
