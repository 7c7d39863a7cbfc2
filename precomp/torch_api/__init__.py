"""Every private name of torch that precomp relies on, checked before it is used.

``common.py`` holds the tables ``SERVE``, ``COMPILER`` and ``CAPTURE`` (own name ->
``"module:attribute.path"``) and those of the stand-in; one file per supported torch minor holds
what differs there. ``serve()``, ``cuda()`` and ``cuda_graphs()`` import torch core only, the others
its compiler.
"""

from __future__ import annotations

import functools
import importlib
from types import SimpleNamespace
from typing import Any

from precomp.errors import PrecompError

SUPPORTED = {"2.11": "v2_11", "2.13": "v2_13", "2.14": "v2_14"}


def _version() -> str:
    import torch

    return str(torch.__version__)


def tables() -> Any:
    """The tables for the running torch. Raises PrecompError on an unknown version."""
    version = _version()
    minor = ".".join(version.split(".")[:2])
    if minor not in SUPPORTED:
        known = ", ".join(sorted(SUPPORTED))
        raise PrecompError(f"precomp: torch {version} is not supported (supported: {known})")
    return tables_of(minor)


@functools.cache
def tables_of(minor: str) -> SimpleNamespace:
    """The tables of a supported minor: the common ones with what its own file changes.

    A dict of the version's file changes single items of the common one, None taking an item away;
    anything else replaces it.
    """
    common = importlib.import_module("precomp.torch_api.common")
    own = importlib.import_module(f"precomp.torch_api.{SUPPORTED[minor]}")
    found: dict[str, Any] = {}
    for name in sorted({*vars(common), *vars(own)}):
        if not name.isupper():
            continue
        base, changed = getattr(common, name, None), getattr(own, name, None)
        if isinstance(changed, dict):
            merged = {**(base or {}), **changed}
            found[name] = {key: value for key, value in merged.items() if value is not None}
        else:
            found[name] = base if changed is None else changed
    return SimpleNamespace(**found)


def _resolve(table: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    missing: list[str] = []
    for name, address in table.items():
        module, _, path = address.partition(":")
        try:
            value: Any = importlib.import_module(module)
            for part in path.split(".") if path else ():
                value = getattr(value, part)
        except (ImportError, AttributeError):
            missing.append(f"{name} ({address})")
        else:
            found[name] = value
    if missing:
        raise PrecompError(
            f"precomp: torch {_version()} lacks names that precomp needs: {', '.join(missing)}"
        )
    return found


@functools.cache
def serve() -> SimpleNamespace:
    """Private names of torch core used while serving; also bound for C code."""
    from precomp import _core

    names = _resolve(tables().SERVE)
    _core.bind_torch(names | {"dynamic_dims": tables().DYNAMIC_DIMS})
    example = names["empty_strided"]((0,), (1,), device="cpu")
    _core.read_tensors_like(example, example._cdata)
    return SimpleNamespace(**names)


@functools.cache
def capture() -> SimpleNamespace:
    """Private names of torch and its compiler used while capturing."""
    return SimpleNamespace(**_resolve(tables().CAPTURE))


@functools.cache
def cuda() -> SimpleNamespace:
    """Private names of a torch with CUDA, used while serving launches of Triton kernels."""
    return SimpleNamespace(**_resolve(tables().CUDA))


@functools.cache
def cuda_graphs() -> SimpleNamespace:
    """Private names of a torch with CUDA, used while recording CUDA graphs."""
    return SimpleNamespace(**_resolve(tables().CUDA_GRAPHS))


@functools.cache
def compiler() -> SimpleNamespace:
    """Names of torch's compiler used while serving. Call it only when the compiler is loaded."""
    return SimpleNamespace(**_resolve(tables().COMPILER))
