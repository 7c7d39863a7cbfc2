"""``precomp.capture()``: record what a process compiles and freeze it into one file."""

from __future__ import annotations

import os
import sys
from typing import Any

from precomp import _core, environment
from precomp.artifact import Artifact
from precomp.data import dumps
from precomp.distributed import DEFAULT_TIMEOUT
from precomp.errors import PrecompError, UnsupportedCaptureError
from precomp.report import CaptureReport

DEFAULT_COMPRESSION = 9


class Capture(_core.Capture):
    """One recording. Use it through ``precomp.capture``."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Capture:
        return super().__new__(cls)

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        reset: bool = False,
        on_unsupported: str = "raise",
    ) -> None:
        if on_unsupported not in ("raise", "skip"):
            raise ValueError(
                f"capture: on_unsupported: expected 'raise' or 'skip', got {on_unsupported!r}"
            )
        self.path = None if path is None else os.fspath(path)
        self.reset = bool(reset)
        self.on_unsupported = on_unsupported
        self._frozen: Any = None
        self._size = 0

    # -- hooks of the C base class

    def _begin(self) -> None:
        from precomp import torch_api
        from precomp.distributed import tuning
        from precomp.freeze import constant_guards, cuda, kernel
        from precomp.freeze.conversions import FrameRecorder
        from precomp.freeze.guards import GuardRecorder
        from precomp.freeze.plan_recorder import PlanRecorder
        from precomp.freeze.precompiled import PrecompiledWatch
        from precomp.freeze.triton import LaunchRecorder

        api = torch_api.capture()
        self._environment = environment.current()
        if self.reset:
            api.reset()
        self._precompiled = PrecompiledWatch()
        self._guards = GuardRecorder()
        self._plans = PlanRecorder()
        self._frames = FrameRecorder(self._guards, self._plans)
        self._guards.install(self.patch)
        self._plans.install(self.patch)
        self._frames.install(self.patch)
        constant_guards.install(self.patch)
        kernel.install(self.patch)
        cuda.install(self.patch)
        tuning.install(self.patch)
        self._launches = LaunchRecorder()
        self._launches.install(self.patch)
        self._precompiled.install()

    def _end(self) -> None:
        self._precompiled.remove()
        # Now, not at finalize: torch may delete its files (a temporary cache) before that.
        try:
            self._freeze()
        except BaseException as error:
            self._give_up(error)
            raise
        if self.path is not None:
            self.finalize(self.path)

    def _abandon(self) -> None:
        self._precompiled.remove()
        self._give_up(sys.exc_info()[1])

    def _give_up(self, error: BaseException | None) -> None:
        """Tell the other ranks, which may wait in finalize, that this one will not come."""
        group = _group(None)
        if group is not None:
            from precomp.distributed.finalize import abandon

            abandon(group, error)

    # -- results

    def _freeze(self) -> Any:
        """(store, report) of everything recorded; made once."""
        from precomp.freeze import helpers
        from precomp.freeze.frame import FrameFreezer
        from precomp.freeze.rules import rules
        from precomp.freeze.store import Store
        from precomp.sources import qualname

        if self._frozen is None:
            store = Store()
            freezer = FrameFreezer(self._frames, store)
            freezer.freeze()
            skips = freezer.freeze_skips()
            record = rules(skips, helpers.collect(sorted(freezer.helpers)), freezer.order)
            store.add("rules", "rules", dumps(record))
            launched = self._launches.freeze(store)
            kinds = [kind for kind, _ in store.entries]
            images = {name for (kind, _), (name, _) in store.entries.items() if kind == "cubin"}
            if images:
                self._environment["gpu"] = environment.OR.join(sorted(images))
            problems = [
                *self._precompiled.problems(),
                *freezer.problems,
                *self._launches.problems,
            ]
            report = CaptureReport(
                frames=tuple(qualname(frame.original) for frame in self._frames.converted),
                skipped=tuple(sorted({row[4] for row in skips})),
                problems=tuple(problems),
                plans=kinds.count("plan"),
                modules=kinds.count("module"),
                kernels=kinds.count("kernel"),
                triton=launched,
            )
            self._frozen = (store, report)
        return self._frozen

    def report(self) -> CaptureReport:
        """What was recorded so far; ``size`` is 0 before finalize."""
        if self.state == "new":
            raise PrecompError("capture: nothing to report: the capture was not entered yet")
        if self.state == "active":
            raise PrecompError("capture: report() is available after the capture was left")
        import dataclasses

        return dataclasses.replace(self._freeze()[1], size=self._size)

    def finalize(
        self,
        path: str | os.PathLike[str],
        *,
        compression: int = DEFAULT_COMPRESSION,
        group: Any = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Artifact:
        """Freeze what was recorded into the file *path* and return it opened.

        *compression* is the zstd level, 1 to 19. Writes nothing unless all of it can be frozen
        (UnsupportedCaptureError names each function and reason) or ``on_unsupported="skip"`` was
        given. The file appears whole or not at all; equal captures give equal bytes. Raises
        PrecompError when the capture did not end cleanly, OSError when the file cannot be written.

        Inside an initialised process group (*group*: another one than the default; False: this rank
        alone) every rank has to call it with the same *path*: the first rank writes what all of
        them captured. A failure on one rank is raised on all of them, also when a rank does not
        answer for *timeout* seconds.
        """
        path = os.fspath(path)
        if self.state != "done":
            raise PrecompError(
                f"capture: finalize needs a capture that was left without an exception; "
                f"this one is {self.state}"
            )
        store, report = self._freeze()
        problems = report.problems if self.on_unsupported == "raise" else ()
        group = _group(group)
        if group is not None:
            from precomp.distributed.finalize import finalize

            path = finalize(
                group, path, self._environment, store.entries, problems, compression, timeout
            )
        else:
            if problems:
                raise UnsupportedCaptureError.of(path, problems)
            entries = [(kind, name, data) for (kind, _), (name, data) in store.entries.items()]
            _core.write_artifact(path, self._environment, entries, compression)
        self._size = os.path.getsize(path)
        return Artifact.open(path)


def _group(group: Any) -> Any:
    """The process group whose ranks write one artifact; None for this process alone."""
    if group is False or "torch.distributed" not in sys.modules:
        return None
    from precomp.distributed.exchange import default_group

    found = default_group() if group is None else group
    return found if found is not None and found.size() > 1 else None


def capture(
    path: str | os.PathLike[str] | None = None,
    *,
    reset: bool = False,
    on_unsupported: str = "raise",
) -> Capture:
    """Record what is compiled, or taken from a torch cache, while the context is active.

    With *path* the artifact is written on a clean exit; otherwise call ``finalize(path)``
    afterwards. Leaving by an exception writes nothing. Code that was compiled before the context
    was entered cannot be recorded: with ``reset=True`` Dynamo is reset on entry, otherwise such a
    function is named as unsupported when it runs. ``on_unsupported``: ``"raise"`` or ``"skip"``.
    """
    return Capture(path, reset=reset, on_unsupported=on_unsupported)


def finalize_cache(captured: Capture, path: str | os.PathLike[str], **options: Any) -> Artifact:
    """Alias of ``captured.finalize(path, ...)``."""
    return captured.finalize(path, **options)


capture_runtime = capture

__all__ = ["Capture", "capture", "capture_runtime", "finalize_cache"]
