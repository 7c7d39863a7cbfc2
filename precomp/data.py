"""Plain data <-> bytes: the form of every record in an artifact (docs/internals.md, section 2).

The byte format is CPython's marshal in version 2, which writes neither references nor interning
flags, so equal records always give equal bytes.
"""

from __future__ import annotations

import gc
import marshal
from typing import Any

_SCALARS = (type(None), bool, int, float, complex, str, bytes, type(...))
VERSION = 2


def _canonical(value: Any, path: str) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind in (tuple, list):
        return tuple(_canonical(item, f"{path}[{i}]") for i, item in enumerate(value))
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise TypeError(f"{path}: expected a str key, found {type(key).__name__} {key!r}")
        return {key: _canonical(value[key], f"{path}.{key}") for key in sorted(value)}
    raise TypeError(f"{path}: expected plain data, found {kind.__module__}.{kind.__qualname__}")


def dumps(record: Any) -> bytes:
    """Bytes of a plain record (lists become tuples, dict keys are sorted).

    Raises TypeError that names the path of a value that is not plain data.
    """
    return marshal.dumps(_canonical(record, "$"), VERSION)


def loads(data: bytes) -> Any:
    """The record in *data*. Only for bytes whose digest was checked."""
    # Thousands of new tuples would start collections of the whole heap.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return marshal.loads(data)
    finally:
        if collecting:
            gc.enable()
