"""precomp: start torch.compile and Triton programs without compiling anything.

Importing this package imports neither torch nor the extension module; names load on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Artifact": "artifact",
    "Capture": "_capture",
    "CaptureReport": "report",
    "Prepared": "_prepare",
    "agree": "distributed.agreement",
    "bind": "binding",
    "capture": "_capture",
    "prepare": "_prepare",
    "strict_no_compile": "strict",
    "capture_runtime": "_capture",
    "finalize_cache": "_capture",
    "prepare_runtime": "_prepare",
    "PrecompError": "errors",
    "ArtifactError": "errors",
    "ArtifactCorruptError": "errors",
    "ArtifactVersionError": "errors",
    "EnvironmentMismatchError": "errors",
    "UnsupportedCaptureError": "errors",
    "RankMismatchError": "errors",
    "BindingError": "errors",
    "CudaError": "errors",
    "CompileViolation": "errors",
}

__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'precomp' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"precomp.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
