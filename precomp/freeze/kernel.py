"""A compiled C++ kernel -> one ``kernel`` entry: the bytes of its stripped shared object."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
from collections.abc import Callable
from typing import Any

import torch

from precomp import _core
from precomp.errors import PrecompError
from precomp.freeze.store import Store, Unsupported
from precomp.torch_api import capture as capture_api


def install(patch: Callable[[Any, str, Any], None]) -> None:
    """Keep the place where torch is installed out of the kernels that Inductor builds meanwhile.

    Its headers put ``__FILE__`` into messages, so equal kernels of two virtual environments would
    differ. The compiler gets one more option when it runs; Inductor's keys do not know of it.
    """
    builder = capture_api().cpp_builder
    run = builder.run_compile_cmd

    @functools.wraps(run)
    def running(cmd_line: str, cwd: str) -> None:
        run(cmd_line + _prefix_map(cmd_line), cwd)

    patch(builder, "run_compile_cmd", running)


def _prefix_map(cmd_line: str) -> str:
    compiler = os.path.basename(shlex.split(cmd_line)[0])
    if "g++" not in compiler and "clang" not in compiler and "gcc" not in compiler:
        return ""
    home = os.path.dirname(os.path.abspath(torch.__file__))
    return " " + shlex.quote(f"-fmacro-prefix-map={home}{os.sep}=torch{os.sep}")


def freeze_kernel(path: str, store: Store) -> str:
    """Store the shared object at *path* and return its digest (hex sha256).

    Debug information and the build id are stripped: they hold the paths of the cache directory,
    so only the stripped bytes are the same for the same kernel. Raises Unsupported when the file
    cannot be read or is not a shared object.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise Unsupported(f"the kernel's file cannot be read: {error}") from error
    try:
        data = _core.strip_shared_object(data)
    except PrecompError as error:
        raise Unsupported(f"the kernel's file is not a shared object: {error}") from error
    digest = hashlib.sha256(data).hexdigest()
    return store.add("kernel", digest, data)
