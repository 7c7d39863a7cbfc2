"""Doors of torch.utils.cpp_extension. An unchanged extension is loaded again without a build."""

from __future__ import annotations

from typing import Any

from precomp.doors import Door, Trip

_HINT = "load the extension before the gate"


def _build(args: dict[str, Any]) -> Trip:
    return Trip(
        f"C++ extension {args['name']}",
        f"not built in this process before ({args['build_directory']})",
        _HINT,
    )


def _ninja(args: dict[str, Any]) -> Trip:
    return Trip(f"ninja build in {args['build_directory']}", "ninja is about to run", _HINT)


DOORS = (
    Door(
        "C++ extension",
        "build",
        "torch.utils.cpp_extension:_write_ninja_file_and_build_library",
        _build,
    ),
    Door("ninja", "build", "torch.utils.cpp_extension:_run_ninja_build", _ninja),
)
