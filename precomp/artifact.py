"""``precomp.Artifact``: one frozen file, read, checked, compared and merged.

Imports neither torch nor anything else that is large.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from precomp import _core
from precomp.environment import OR
from precomp.errors import EnvironmentMismatchError

# Fields of the environment in which merged artifacts may differ: torch guards every frame on them,
# so an entry is served only where its own value holds.
MAY_DIFFER = ("threads",)

# The kinds of entries that a program asks for by itself; the others are what they use.
ROOTS = ("frame", "triton", "tuned")


@dataclass(frozen=True, order=True)
class Entry:
    """One entry: ``digest`` is the sha256 (hex) of its raw bytes; sizes are in bytes."""

    kind: str
    name: str
    digest: str
    raw_size: int
    stored_size: int


@dataclass(frozen=True)
class ArtifactDiff:
    """How two artifacts differ; false when they do not.

    ``environment``: ``(field, left, right)``, None where a side lacks the field.
    ``only_left``, ``only_right``: entries whose kind, name or content the other side lacks.
    """

    left: str
    right: str
    environment: tuple[tuple[str, str | None, str | None], ...]
    only_left: tuple[Entry, ...]
    only_right: tuple[Entry, ...]

    def __bool__(self) -> bool:
        return bool(self.environment or self.only_left or self.only_right)

    @property
    def kinds(self) -> dict[str, tuple[int, int]]:
        """Kind -> number of entries only in the left, only in the right artifact."""
        left = Counter(entry.kind for entry in self.only_left)
        right = Counter(entry.kind for entry in self.only_right)
        return {kind: (left[kind], right[kind]) for kind in sorted(left.keys() | right.keys())}

    def __str__(self) -> str:
        if not self:
            return f"{self.left} and {self.right}: same environment, same entries"
        lines = [f"{self.left} and {self.right} differ"]
        for field, left, right in self.environment:
            lines.append(f"  environment {field}: {_shown(left)} -> {_shown(right)}")
        for path, entries in ((self.left, self.only_left), (self.right, self.only_right)):
            if not entries:
                continue
            counts = Counter(entry.kind for entry in entries)
            summary = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
            lines.append(f"  only in {path}: {summary}")
            lines += [f"    {entry.kind} {entry.name} {entry.digest[:16]}" for entry in entries]
        return "\n".join(lines)


def _shown(value: str | None) -> str:
    return "(none)" if value is None else value


class Artifact:
    """A frozen artifact, open for reading; a context manager.

    Opening checks the structure of the file, reading checks what is read, ``verify`` checks every
    bit. Digests give integrity, not trust: an artifact is code, load only those you trust.
    """

    __slots__ = ("__weakref__", "_core", "_entries")

    def __init__(self, core: _core.Artifact) -> None:
        if type(core) is not _core.Artifact:
            raise TypeError("Artifact: use Artifact.open(path)")
        self._core = core
        self._entries: tuple[Entry, ...] | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Artifact:
        """Open the artifact *path*.

        Raises OSError when it cannot be read, ArtifactCorruptError when its bytes break the
        format and ArtifactVersionError when they are of a version or feature not known here.
        """
        return cls(_core.Artifact(path))

    @property
    def path(self) -> str:
        """The path that was opened."""
        return self._core.path

    @property
    def digest(self) -> str:
        """sha256 (hex) of the whole file."""
        return self._core.digest

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) over the digests of all frames and launches of Triton kernels.

        They cover everything that these use.
        """
        return self._core.fingerprint

    @property
    def environment(self) -> dict[str, str]:
        """What the captured process ran on: a new dict."""
        return self._core.environment

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, sorted by kind, name and digest."""
        if self._entries is None:
            self._entries = tuple(Entry(*row) for row in self._core.entries)
        return self._entries

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._core.closed

    def read(self, digest: str) -> bytes:
        """The raw bytes with this sha256 (hex); KeyError when no entry has it."""
        return self._core.read(digest)

    def load_all(self, kinds: Iterable[str] | None = None, threads: int = 0) -> dict[str, bytes]:
        """Digest -> raw bytes of all entries (of these *kinds*), decompressed in parallel.

        *threads*: at most so many, 0 for one per processor.
        """
        return self._core.load_all(kinds, threads)

    def verify(self) -> Artifact:
        """Check every digest of every blob and return self; raises ArtifactCorruptError."""
        self._core.verify()
        return self

    def diff(self, other: Artifact) -> ArtifactDiff:
        """What differs between this artifact (left) and *other* (right)."""
        mine = self.environment
        theirs = other.environment
        left = {(entry.kind, entry.name, entry.digest): entry for entry in self.entries}
        right = {(entry.kind, entry.name, entry.digest): entry for entry in other.entries}
        return ArtifactDiff(
            left=self.path,
            right=other.path,
            environment=tuple(
                (field, mine.get(field), theirs.get(field))
                for field in sorted(mine.keys() | theirs.keys())
                if mine.get(field) != theirs.get(field)
            ),
            only_left=tuple(left[key] for key in sorted(left.keys() - right.keys())),
            only_right=tuple(right[key] for key in sorted(right.keys() - left.keys())),
        )

    @staticmethod
    def merge(
        paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], level: int = 9
    ) -> Artifact:
        """Write the union of the artifacts *paths* to *out* and open it.

        The order of *paths* does not matter. Entries of kind ``rules`` that differ are all kept;
        their union holds. Raises EnvironmentMismatchError with all differences when the
        environments differ in more than ``MAY_DIFFER``.
        """
        if not paths:
            raise ValueError("merge: expected at least one artifact")
        artifacts = [Artifact.open(path) for path in paths]
        try:
            environment = _merged_environment(artifacts)
            entries: dict[tuple[str, str, str], bytes] = {}
            for artifact in artifacts:
                blobs = artifact.load_all()
                for entry in artifact.entries:
                    key = (entry.kind, entry.name, entry.digest)
                    entries.setdefault(key, blobs[entry.digest])
        finally:
            for artifact in artifacts:
                artifact.close()
        _core.write_artifact(
            out,
            environment,
            [(kind, name, data) for (kind, name, _), data in entries.items()],
            level,
        )
        return Artifact.open(out)

    def close(self) -> None:
        """Release the file; what was read stays. Idempotent."""
        self._core.close()

    def __enter__(self) -> Artifact:
        self._core.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._core.close()

    def __repr__(self) -> str:
        counts = Counter(row[0] for row in self._core.entries)
        summary = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        state = ", closed" if self.closed else ""
        return f"<precomp.Artifact {self.path!r}: {summary or 'no entries'}{state}>"


def _merged_environment(artifacts: Sequence[Artifact]) -> dict[str, str]:
    """The common environment; fields that may differ list their values."""
    first = artifacts[0]
    rows: list[tuple[str, str, str]] = []
    lines: list[str] = []
    for artifact in artifacts[1:]:
        for field, left, right in first.diff(artifact).environment:
            if field in MAY_DIFFER:
                continue
            rows.append((field, _shown(left), _shown(right)))
            lines.append(f"\n  {field}: {_shown(left)}, in {artifact.path}: {_shown(right)}")
    if rows:
        raise EnvironmentMismatchError(
            f"merge: these fields of the environment differ from {first.path}:" + "".join(lines),
            tuple(rows),
        )
    return joined_environment([artifact.environment for artifact in artifacts])


def joined_environment(environments: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Environments that differ in nothing but ``MAY_DIFFER`` as one that lists those values."""
    joined = dict(environments[0])
    for field in MAY_DIFFER:
        found = {value for row in environments for value in row.get(field, "").split(OR) if value}
        if found:  # the shorter of two numbers is the smaller one
            joined[field] = OR.join(sorted(found, key=lambda value: (len(value), value)))
    return joined
