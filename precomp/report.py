"""What capture and prepare tell about themselves."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class CaptureReport:
    """What a capture recorded.

    ``frames``: qualified names in order of conversion. ``skipped``: functions that run as they are.
    ``problems``: ``(function, reason)`` of what cannot be frozen. ``kernels``, ``plans``,
    ``modules``: counts of distinct entries. ``triton``: kernels of triton.jit that the program
    launched itself. ``size``: bytes of the artifact, 0 before finalize.
    """

    frames: tuple[str, ...]
    skipped: tuple[str, ...]
    problems: tuple[tuple[str, str], ...]
    plans: int = 0
    modules: int = 0
    kernels: int = 0
    size: int = 0
    triton: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Nothing at all was compiled: the program runs eagerly, in a prepared process too."""
        return not self.frames and not self.triton

    def __str__(self) -> str:
        lines = [
            f"captured {len(self.frames)} frame(s), {self.plans} plan(s), "
            f"{self.modules} module(s), {self.kernels} kernel(s), {self.size} bytes"
        ]
        if self.triton:
            lines.append(f"captured launches of Triton kernels: {', '.join(self.triton)}")
        if self.empty:
            lines.append(
                "nothing was compiled: torch skipped every frame "
                f"({', '.join(self.skipped) or 'none was seen'})"
            )
        lines += [f"not supported: {name}: {reason}" for name, reason in self.problems]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Coverage:
    """How the entries of an artifact met the program.

    ``served``: frames, and specialisations of Triton kernels, that were served. ``never_asked``:
    entries that no call asked for.
    ``missing``: ``(function, reason)`` of calls that asked for something the artifact lacks.
    """

    served: tuple[str, ...]
    never_asked: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        text = (
            f"served {len(self.served)}, never asked for {len(self.never_asked)}, "
            f"missing {len(self.missing)}"
        )
        return "\n".join([text, *(f"missing: {name}: {reason}" for name, reason in self.missing)])


@dataclasses.dataclass(frozen=True)
class PrepareReport:
    """What prepare did. Times are seconds.

    ``materialized_by``: why torch's real compiler package was imported, or None if it was not.
    ``warnings``: differences to the captured process that make guards fail if they persist.
    ``cuda_graphs``: how often parts of the program with CUDA graphs were ``"recorded"``,
    ``"replayed"``, and run without, by reason; None if no such part was loaded.
    """

    path: str
    digest: str
    fingerprint: str
    runtime: str
    entries: int
    kernels: int
    seconds: dict[str, float]
    coverage: Coverage
    materialized_by: str | None
    warnings: tuple[str, ...] = ()
    cuda_graphs: dict[str, int] | None = None

    def __str__(self) -> str:
        times = ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in self.seconds.items())
        lines = [
            f"{self.path}: {self.entries} entries, {self.kernels} kernels, runtime {self.runtime}",
            f"fingerprint {self.fingerprint}",
            times,
            str(self.coverage),
        ]
        if self.cuda_graphs is not None:
            lines.append(self._graphs(dict(self.cuda_graphs)))
        if self.materialized_by:
            lines.append(f"torch's compiler was imported: {self.materialized_by}")
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines)

    @staticmethod
    def _graphs(counts: dict[str, int]) -> str:
        recorded, replayed = counts.pop("recorded", 0), counts.pop("replayed", 0)
        without = ", ".join(f"{count} {reason}" for reason, count in counts.items())
        text = f"CUDA graphs: {recorded} recorded, {replayed} replayed"
        return f"{text}; run without: {without}" if without else text
