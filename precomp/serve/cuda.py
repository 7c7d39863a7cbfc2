"""``cubin`` entries and launch records -> launchers (docs/internals.md, section 4.7)."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from precomp import _core


class Reader(Protocol):
    """The part of an artifact that a table needs."""

    def read(self, digest: str, /) -> bytes: ...


def allocate_scratch(count: int, stream: int) -> torch.Tensor:
    """*count* bytes that work on *stream* (a handle) may use; torch gives them out in its order."""
    if torch.cuda.current_stream().cuda_stream == stream:
        return torch.empty(count, dtype=torch.int8, device="cuda")
    with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
        return torch.empty(count, dtype=torch.int8, device="cuda")


class CudaTable:
    """The images of one artifact by digest; each is one library for all devices.

    ``table(record)`` gives the launcher of a launch record. Safe to use from any thread.
    """

    def __init__(self, artifact: Reader, digests: Iterable[str]) -> None:
        self.digests = tuple(digests)
        self._artifact = artifact
        self._libraries: dict[str, Any] = {}
        self._lock = threading.Lock()
        _core.bind_torch({"cuda_scratch": allocate_scratch})

    def load(self) -> None:
        """Check every image; the driver reads one when its first launcher is made."""
        with self._lock:
            for digest in self.digests:
                self._library(digest)

    def _library(self, digest: str) -> Any:
        library = self._libraries.get(digest)
        if library is None:
            library = _core.CudaLibrary(self._artifact.read(digest), digest[:16])
            self._libraries[digest] = library
        return library

    def __call__(self, record: dict[str, Any]) -> Any:
        """The launcher of *record*. Raises CudaError when the kernel cannot be launched here."""
        with self._lock:
            return _core.CudaLauncher(self._library(record["cubin"]), record)
