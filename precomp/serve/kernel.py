"""``kernel`` entries -> callables: each is loaded once per process, whoever asks first.

Images of kernels for GPUs (``cubin`` entries) belong to the artifact, see precomp.serve.cuda.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from precomp import _core, torch_api
from precomp.serve.cuda import CudaTable

Kernel = Callable[..., None]


class Reader(Protocol):
    """The part of ``_core.Artifact`` that a table needs."""

    @property
    def entries(self) -> tuple[tuple[Any, ...], ...]: ...

    def read(self, digest: str, /) -> bytes: ...


# digest -> callable, for all artifacts of the process: a library is never unloaded, so a second
# copy of the same bytes would only waste memory. A kernel has no state of its own.
_loaded: dict[str, Kernel] = {}
_lock = threading.Lock()


def _new_lock() -> None:
    """In a forked child: another thread of the parent may have held the old one."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


class KernelTable:
    """The kernels of one artifact by digest: ``table(digest)`` loads on first use.

    Safe to use from any thread; after fork the child keeps what the parent had loaded.
    """

    def __init__(self, artifact: Reader) -> None:
        torch_api.serve()  # binds the address of torch's data accessor
        self._artifact = artifact
        self.digests = tuple(entry[2] for entry in artifact.entries if entry[0] == "kernel")
        images = (entry[2] for entry in artifact.entries if entry[0] == "cubin")
        #: The launcher of a launch record.
        self.launcher = CudaTable(artifact, images)

    def __call__(self, digest: str) -> Kernel:
        """The kernel with this digest. Raises PrecompError when it cannot be loaded."""
        kernel = _loaded.get(digest)
        if kernel is None:
            self.load([digest])
            kernel = _loaded[digest]
        return kernel

    def load(self, digests: Iterable[str] | None = None) -> None:
        """Load *digests* (default: all kernels of the artifact), those that are not loaded yet."""
        if digests is None:
            self.launcher.load()
        with _lock:
            missing = [
                digest
                for digest in dict.fromkeys(self.digests if digests is None else digests)
                if digest not in _loaded
            ]
            if missing:
                pairs = [(digest, self._artifact.read(digest)) for digest in missing]
                _loaded.update(zip(missing, _core.load_kernels(pairs), strict=True))
