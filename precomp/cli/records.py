"""Records of an artifact, read as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from precomp import data
from precomp.artifact import Artifact, Entry
from precomp.errors import ArtifactCorruptError

# The kinds whose bytes are a record.
KINDS = ("frame", "plan", "module", "rules", "triton", "tuned")


def read(artifact: Artifact, entry: Entry) -> dict[str, Any]:
    """The record of *entry*. Raises ArtifactCorruptError when its bytes are none."""
    content = artifact.read(entry.digest)
    try:
        record = data.loads(content)
    except (EOFError, ValueError, TypeError) as error:
        raise broken(artifact, entry, f"not a record: {error}") from None
    if not isinstance(record, dict):
        raise broken(artifact, entry, f"not a record but a {type(record).__name__}")
    return record


def broken(artifact: Artifact, entry: Entry, reason: str) -> ArtifactCorruptError:
    """The error about one entry."""
    return ArtifactCorruptError(
        f'{artifact.path}: entry {entry.kind} "{entry.name}" (sha256 {entry.digest[:16]}): {reason}'
    )


@contextmanager
def reading(artifact: Artifact, entry: Entry) -> Iterator[None]:
    """Turns what goes wrong with a record of another form into the error about its entry."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ArtifactCorruptError):
            raise
        reason = f"not a {entry.kind} record: {type(error).__name__}: {error}"
        raise broken(artifact, entry, reason) from error


def of_kind(artifact: Artifact, kind: str) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """The entries of a kind with their records, in the order of the file."""
    for entry in artifact.entries:
        if entry.kind == kind:
            yield entry, read(artifact, entry)
