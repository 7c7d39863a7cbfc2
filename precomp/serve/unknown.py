"""Frames that the capture never saw.

Code that runs inside a compiled region (a ``__del__``, a logging handler, a callback) reaches the
frame evaluator although it has nothing to do with the model. torch decides by file, by the kind of
code and by whether the frame holds anything of torch; this is the same decision, from the lists
that the artifact carries. Reference: ``convert_frame.py`` and ``trace_rules.check_file`` of torch.
"""

from __future__ import annotations

import os
import types
from typing import Any

import torch

_GENERATOR = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR


class FileRules:
    """The skip and inline lists of an artifact, made absolute for this machine."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        roots = {
            "std": os.path.dirname(os.__file__) + os.sep,
            "site": os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__))) + os.sep,
            "abs": "",
        }

        def absolute(key: str) -> tuple[str, ...]:
            return tuple({roots[root] + rest for record in records for root, rest in record[key]})

        self.skip_files = frozenset(absolute("skip_files"))
        self.inline = absolute("inline_files")
        self.skip = absolute("skip_dirs")

    def skips(self, filename: str) -> bool:
        """Whether torch never converts a frame of this file."""
        if filename in self.skip_files:
            return True
        if filename.startswith(self.inline):
            return False
        return filename.startswith(self.skip)


def never_converted(code: types.CodeType) -> bool:
    """Kinds of code that torch runs as they are, whatever they hold."""
    if code.co_flags & _GENERATOR or code.co_name == "__setattr__":
        return True
    if code.co_filename == "<string>":
        return code.co_name in ("<module>", "__new__", "<lambda>")
    if code.co_name == "_make" and code.co_filename.endswith("collections/__init__.py"):
        return True
    return code.co_name == "__init__" and code.co_filename.startswith(
        os.path.dirname(torch.optim.__file__)
    )


def holds_torch(frame: Any) -> bool:
    """Whether a frame has anything of torch in its arguments or in the globals it names."""
    f_globals = frame.f_globals
    for name in frame.f_code.co_names:
        value = f_globals.get(name)
        if isinstance(value, types.ModuleType) and value.__name__.startswith(("torch.", "numpy.")):
            return True
        if isinstance(value, types.ModuleType) and value.__name__ in ("torch", "numpy"):
            return True
    seen: set[int] = set()

    def holds(value: Any) -> bool:
        if id(value) in seen:
            return False
        seen.add(id(value))
        kind = type(value)
        if isinstance(value, (torch.Tensor, torch.nn.Module)):
            return True
        if kind is type:
            return issubclass(value, torch.nn.Module)
        if kind in (list, tuple):
            return any(map(holds, value))
        if kind is dict:
            return any(map(holds, list(value.values())))
        if kind is types.MethodType:
            return holds(value.__self__)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return any(map(holds, value))
        return kind.__module__ == "numpy" and kind.__name__ in ("ndarray",)

    return any(holds(value) for value in frame.f_locals.values())
