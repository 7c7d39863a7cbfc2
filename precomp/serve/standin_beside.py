"""Submodules that programs find because the compiler happens to import them.

After ``torch.optim`` has imported the real ``torch._dynamo``, ``torch.distributed.tensor`` exists
without an import of its own. With the stand-in, such an attribute is imported at its first use.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from precomp.serve.standin_build import skip_code


class Beside:
    """*table*: module name -> names of its submodules to import on demand."""

    def __init__(self, table: Mapping[str, tuple[str, ...]]) -> None:
        self._table = table
        self._before: dict[str, Callable[[str], Any] | None] = {}

    def install(self) -> None:
        """Give the modules that are loaded a ``__getattr__``; one they have is asked first."""
        for name, children in self._table.items():
            module = sys.modules.get(name)
            if module is not None and name not in self._before:
                before = self._before[name] = vars(module).get("__getattr__")
                vars(module)["__getattr__"] = _finder(name, frozenset(children), before)

    def uninstall(self) -> None:
        """Take it back."""
        for name, before in self._before.items():
            contents = vars(sys.modules[name])
            if before is None:
                contents.pop("__getattr__", None)
            else:
                contents["__getattr__"] = before
        self._before.clear()


def _finder(
    module: str, children: frozenset[str], before: Callable[[str], Any] | None
) -> Callable[[str], Any]:
    def __getattr__(name: str) -> Any:
        if name in children:
            return importlib.import_module(f"{module}.{name}")
        if before is not None:
            return before(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    skip_code(__getattr__.__code__, recursive=True)
    return __getattr__
