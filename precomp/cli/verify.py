"""Checks all of an artifact that can be checked without running any of it."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

from precomp import _core
from precomp.artifact import Artifact, Entry
from precomp.cli import records
from precomp.errors import ArtifactCorruptError

_EM_CUDA = b"\xbe\0"  # e_machine 190, little-endian


def verify(artifact: Artifact) -> str:
    """Check every digest, that records are records and name only entries that are there, and that
    kernels are whole shared objects. Returns what was checked, as lines.

    Raises ArtifactCorruptError for the first fault.
    """
    artifact.verify()
    entries = artifact.entries
    held = {entry.digest: entry.kind for entry in entries}
    links = 0
    for entry in entries:
        if entry.kind in records.KINDS:
            for kind, digest in _links(artifact, entry):
                if held.get(digest) != kind:
                    reason = f"names the {kind} {str(digest)[:16]}, which is not there"
                    raise records.broken(artifact, entry, reason)
                links += 1
    lines = [
        f"{artifact.path}: {len(entries)} entries: all digests match",
        f"  {links} references between entries lead somewhere",
        f"  {_kernels(artifact)}",
    ]
    cubins = _cubins(artifact)
    return "\n".join([*lines, f"  {cubins} CUDA kernels are device code"] if cubins else lines)


def _links(artifact: Artifact, entry: Entry) -> list[tuple[str, Any]]:
    """(kind, digest) of the entries that a record names."""
    record = records.read(artifact, entry)
    with records.reading(artifact, entry):
        if entry.kind == "frame":
            links = [("plan", spec[1]) for _, spec in record["globals"] if spec[0] == "plan"]
        elif entry.kind == "module":
            links = [("kernel", digest) for _, digest in record["kernels"]]
            links += [("cubin", launch["cubin"]) for _, launch in record.get("cuda", ())]
        elif entry.kind == "triton":
            links = [("cubin", record["launch"]["cubin"])]
        elif entry.kind == "tuned":
            links = []
        elif entry.kind == "rules":
            links = [("frame", digest) for digest in record["order"]]
        else:
            links = list(_modules(record))
    return links


def _modules(plan: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The modules of a plan; a graph without operations has none."""
    if plan["kind"] == "split":
        for part in plan["plans"]:
            yield from _modules(part)
    else:
        yield from (("module", plan[way]) for way in ("fw", "bw") if type(plan[way]) is str)


def _cubins(artifact: Artifact) -> int:
    """How many images of CUDA kernels there are; each begins as ELF for EM_CUDA does."""
    entries = [entry for entry in artifact.entries if entry.kind == "cubin"]
    for entry in entries:
        head = artifact.read(entry.digest)[:20]
        if head[:6] != b"\x7fELF\2\1" or head[18:] != _EM_CUDA:
            raise records.broken(artifact, entry, "not an ELF image for CUDA devices")
    return len(entries)


def _kernels(artifact: Artifact) -> str:
    kernels = [entry for entry in artifact.entries if entry.kind == "kernel"]
    machine = artifact.environment.get("machine", platform.machine())
    if machine != platform.machine():
        return f"{len(kernels)} kernels are for {machine}: not looked into on {platform.machine()}"
    for entry in kernels:
        try:
            _core.check_kernel(artifact.read(entry.digest))
        except ArtifactCorruptError as error:
            raise records.broken(artifact, entry, str(error)) from None
    return f"{len(kernels)} kernels are whole shared objects for {machine}"
