"""What torch compares to decide whether a cache entry belongs to a torch.compile call.

One record for both sides (docs/internals.md, section 4.6): capture writes it into each frame,
serving compares it.
"""

from __future__ import annotations

from typing import Any


def record(settings: Any) -> dict[str, Any]:
    """The record of torch's Inductor backend object *settings* (its config, dynamic and name)."""
    return {
        "backend": "inductor",
        "config": dict(sorted(settings.config.items())),
        "dynamic": settings.dynamic,
        "name": getattr(settings, "name", None),
    }
