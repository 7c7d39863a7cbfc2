"""Doors of TorchScript. Its C++ executor optimises a function later, at its second or third call,
unseen.

The doors stand before the C++ functions that compile, and not before ``torch.jit.script``: that one
finds the caller's variables by counting frames, which a door would change; and what is scripted
already passes.
"""

from __future__ import annotations

from typing import Any

from precomp.doors import Describe, Door, Trip
from precomp.torch_api.modules import SCRIPTED

_HINT = "script or trace it before the gate"


def _by_name(verb: str) -> Describe:
    def describe(args: dict[str, Any]) -> Trip | None:
        name = str(args.get("0", "?")).removeprefix("__torch__.")
        if name.startswith(SCRIPTED):
            return None
        return Trip(f"torch.jit.{verb} of {name}", "TorchScript compiles it", _HINT)

    return describe


def _module(args: dict[str, Any]) -> Trip:
    verb = "trace" if args.get("is_tracing") else "script"
    name = type(args["nn_module"]).__name__
    return Trip(f"torch.jit.{verb} of {name}", "TorchScript compiles it", _HINT)


DOORS = (
    Door("torch.jit.script", "trace", "torch._C:_jit_script_compile", _by_name("script")),
    Door(
        "torch.jit.script of overloads",
        "trace",
        "torch._C:_jit_script_compile_overload",
        _by_name("script"),
    ),
    Door(
        "torch.jit.script of a class",
        "trace",
        "torch._C:_jit_script_class_compile",
        _by_name("script"),
    ),
    Door("torch.jit.trace", "trace", "torch._C:_create_function_from_trace", _by_name("trace")),
    Door(
        "torch.jit.trace with keywords",
        "trace",
        "torch._C:_create_function_from_trace_with_dict",
        _by_name("trace"),
        required=False,
    ),
    Door("TorchScript module", "trace", "torch.jit._recursive:create_script_module", _module),
)
