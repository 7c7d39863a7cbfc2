"""All exceptions of precomp. They pickle; each message names what, where, expected and found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class PrecompError(Exception):
    """Base of every ordinary error of precomp."""


class ArtifactError(PrecompError, ValueError):
    """An artifact cannot be used."""


class ArtifactCorruptError(ArtifactError):
    """The bytes of an artifact break the format or do not match their digests."""


class ArtifactVersionError(ArtifactError):
    """The artifact is of a format version, or needs a feature, that this precomp does not know."""


class EnvironmentMismatchError(PrecompError):
    """The process differs from the captured one in something compiled code depends on.

    ``differences`` is a tuple of ``(field, expected, found)``: all of them, not only the first.
    """

    def __init__(self, message: str, differences: tuple[tuple[str, str, str], ...] = ()) -> None:
        super().__init__(message)
        self.differences = differences

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.differences)


class UnsupportedCaptureError(PrecompError):
    """Something that was captured cannot be frozen.

    ``problems`` is a tuple of ``(function, reason)``.
    """

    def __init__(self, message: str, problems: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems

    @classmethod
    def of(cls, path: str, problems: Sequence[tuple[str, str]]) -> UnsupportedCaptureError:
        """The refusal to write *path*, with every function and reason."""
        lines = "".join(f"\n  {name}: {reason}" for name, reason in problems)
        return cls(
            f"{path}: not written, {len(problems)} function(s) cannot be frozen:{lines}\n"
            'Change them, or capture with on_unsupported="skip" to leave them out.',
            tuple(problems),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.problems)


class RankMismatchError(PrecompError):
    """Ranks of a process group hold different artifacts or environments.

    ``differences`` is a tuple of ``(rank, field, expected, found)``: all of them; *expected* is
    what most ranks have.
    """

    def __init__(
        self, message: str, differences: tuple[tuple[int, str, str, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.differences = differences

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.differences)


class BindingError(PrecompError):
    """A model file and an artifact do not belong together."""


class CudaError(PrecompError, RuntimeError):
    """A call of the CUDA driver failed."""


class CompileViolation(BaseException):
    """Something compiled, missed or tuned where that is forbidden.

    A ``BaseException``: torch and Triton turn most ``Exception``s into a silent miss or fall-back.

    ``kind``: trace, lower, build, load, tune, record, fallback, spawn or driver_jit.
    ``what``: the function or kernel. ``why``: the guard that failed with expected and found value,
    the key that missed, or the change of source. ``where``: ``file:line`` of the user's frame.
    ``hint``: what to do. ``rank``: the global rank on which it happened, in a process group whose
    ranks agreed on an artifact (docs/distributed.md), else None.
    """

    rank: int | None = None

    def __init__(
        self, kind: str, what: str, why: str = "", where: str = "", hint: str = ""
    ) -> None:
        super().__init__(kind, what, why, where, hint)
        self.kind = kind
        self.what = what
        self.why = why
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"[{self.kind}] {self.what}"
        if self.where:
            text += f" at {self.where}"
        if self.rank is not None:
            text += f" on rank {self.rank}"
        if self.why:
            text += f": {self.why}"
        if self.hint:
            text += f" ({self.hint})"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        state = {} if self.rank is None else {"rank": self.rank}
        return type(self), (self.kind, self.what, self.why, self.where, self.hint), state
