"""Doors of torch.export and make_fx."""

from __future__ import annotations

from typing import Any

from precomp.doors import Door, Trip

_HINT = "export before the gate"


def _export(args: dict[str, Any]) -> Trip:
    module = args.get("mod")
    return Trip(f"torch.export of {type(module).__name__}", "export traces at each call", _HINT)


def _make_fx(args: dict[str, Any]) -> Trip:
    function = args["f"]
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return Trip(f"make_fx of {name}", "make_fx traces at each call", _HINT)


DOORS = (
    Door("torch.export", "trace", "torch.export._trace:_export", _export, required=False),
    Door(
        "torch.export for training",
        "trace",
        "torch.export._trace:_export_for_training",
        _export,
        required=False,
    ),
    Door("make_fx", "trace", "torch.fx.experimental.proxy_tensor:_MakefxTracer.trace", _make_fx),
)
