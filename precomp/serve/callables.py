"""Which callable torch compiles when it is given one: unwrapped, or with a frame around it.

Reference: ``_TorchDynamoContext.__call__`` and ``innermost_fn`` of torch.
"""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable
from typing import Any

import torch

from precomp import _core, torch_api
from precomp.serve import standin
from precomp.serve.frame import runtime
from precomp.torch_api import modules, objects

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_BEHAVIOUR = torch_api.tables().BEHAVIOUR
_AS_IT_IS = frozenset(
    modules.source_file(_TORCH, name)
    for name in (modules.FX_GRAPH, modules.ONNX_EXTRACTOR, modules.EXTERNAL_UTILS)
)


def innermost(fn: Any) -> Any:
    """The callable below wrappers of torch.compile, torch's or ours."""
    while (below := objects.compiled_from(fn)) is not None:
        fn = below
        if not callable(fn):
            raise AssertionError(f"A callable function is expected, but {type(fn)} is provided.")
    return fn


def skipped(fn: Any) -> bool:
    """Whether torch's trace rules leave the Python function *fn* alone.

    The rules for single functions of torch are not in the artifact. One of those was wrapped at
    capture unless its own code has an entry.
    """
    code = getattr(fn, "__code__", None)
    if code is None or code.co_filename in _AS_IT_IS:
        return code is None
    run = runtime()
    if run.files.skips(code.co_filename):
        return True
    return code.co_filename.startswith(_TORCH) and _core.code_digest(code) not in run.by_key


def _forward_is_skipped(call: Any) -> bool:
    module = getattr(call, "__self__", None)
    if not isinstance(module, torch.nn.Module):
        return False
    return isinstance(module.forward, types.MethodType) and skipped(module.forward)


def with_frame(fn: Callable[..., Any]) -> Callable[..., Any]:
    """*fn*, or a Python function around it where torch adds one, to have a frame to convert."""
    name = getattr(fn, "__name__", "")
    if name in objects.ENTRIES and not (
        name == objects.MODULE_CALLS[0] and "module_call" in _BEHAVIOUR and _forward_is_skipped(fn)
    ):
        return fn
    try:
        filename = inspect.getsourcefile(fn)
    except TypeError:
        filename = None
    if filename in _AS_IT_IS:
        return fn
    sourceless = filename is None and not ("exec" in _BEHAVIOUR and inspect.isfunction(fn))
    if sourceless or skipped(fn):
        return external_utils().wrap_inline(fn)  # type: ignore[no-any-return]
    return fn


def external_utils() -> Any:
    return standin.module_for(modules.EXTERNAL_UTILS)
