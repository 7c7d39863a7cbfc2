"""``precomp.prepare()``: serve a process from an artifact."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from precomp import environment
from precomp.artifact import Artifact
from precomp.distributed import DEFAULT_TIMEOUT
from precomp.errors import ArtifactCorruptError

if TYPE_CHECKING:
    from precomp.report import Coverage, PrepareReport

RUNTIMES = ("auto", "lean", "full")


class Prepared:
    """A prepared process. A context manager: leaving it uninstalls."""

    def __init__(self, artifact: Artifact, runtime: str, loaded: Any, seconds: dict[str, float],
                 notes: tuple[str, ...], undo: Callable[[], None]) -> None:  # fmt: skip
        self.artifact = artifact
        self.runtime = runtime
        self._loaded = loaded
        self._seconds = seconds
        self._notes = notes
        self._undo: Callable[[], None] | None = undo

    @property
    def active(self) -> bool:
        """Whether this artifact is served."""
        return self._undo is not None

    def coverage(self) -> Coverage:
        """Which entries were served, never asked for, or asked for and missing."""
        from precomp.report import Coverage
        from precomp.serve.frame import runtime

        run = runtime()
        served, rest = run.coverage(self._loaded)
        return Coverage(tuple(served), tuple(rest), run.missed())

    def report(self) -> PrepareReport:
        """What prepare did and what was served so far."""
        from precomp.report import PrepareReport
        from precomp.serve import cuda_graphs, standin

        kinds = [entry.kind for entry in self.artifact.entries]
        return PrepareReport(
            path=self.artifact.path,
            digest=self.artifact.digest,
            fingerprint=self.artifact.fingerprint,
            runtime=self.runtime,
            entries=len(kinds),
            kernels=kinds.count("kernel"),
            seconds=dict(self._seconds),
            coverage=self.coverage(),
            materialized_by=standin.materialized_by(),
            warnings=self._notes,
            cuda_graphs=cuda_graphs.used(self._loaded.graphs or ()),
        )

    def uninstall(self) -> None:
        """Stop serving this artifact and put the process back as it was. Idempotent."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def __enter__(self) -> Prepared:
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def __repr__(self) -> str:
        state = "active" if self.active else "uninstalled"
        return f"<precomp.Prepared {self.artifact.path!r} {state}>"


_active: list[Prepared] = []


def prepare(
    path: str | os.PathLike[str],
    *,
    digest: str | None = None,
    runtime: str = "auto",
    devices: Any = None,
    model: str | os.PathLike[str] | None = None,
    group: Any = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Prepared:
    """Serve this process from the artifact *path*; call it before the model's file is imported.

    *digest* (hex sha256 of the file) must match if given. *runtime*: ``"lean"`` never executes
    torch's compiler and raises CompileViolation for a call that needs it; ``"full"`` and ``"auto"``
    let torch compile what the artifact lacks. *model*: a model file that must be bound to this
    artifact (``precomp.bind``); of it the binding alone is read, no weights.

    *devices*: the GPU to serve on (``1``, ``"cuda:1"`` or a ``torch.device``), or a mapping from
    the ordinals in the artifact, or a list in their order, to those here. Without it an entry that
    uses one GPU is served on the GPU that the frame's tensors are on, whichever was captured, and
    one that uses several on these (docs/devices.md).

    *group*: a process group of torch.distributed (True: the default one), all of whose ranks call
    prepare. They compare artifact and environment and all raise the same error, such as
    RankMismatchError, if one of them differs, fails or does not answer for *timeout* seconds. A
    host on which no rank finds the file receives it from another host.

    Raises OSError when a file cannot be read, ArtifactCorruptError, ArtifactVersionError,
    BindingError, EnvironmentMismatchError (all differences at once), PrecompError when *devices*
    does not fit the artifact or the machine. Nothing is installed unless all checks pass.
    """
    if runtime not in RUNTIMES:
        raise ValueError(f"prepare: runtime: expected one of {RUNTIMES}, got {runtime!r}")
    # Everything made here lives as long as the process: collecting meanwhile finds nothing.
    collecting = gc.isenabled()
    gc.disable()
    try:
        if group is not None:
            return _prepare_group(
                os.fspath(path), digest, runtime, devices, model, group, timeout
            )
        return _prepare(path, digest, runtime, devices, model)
    finally:
        if collecting:
            gc.enable()


def _prepare_group(
    path: str,
    digest: str | None,
    runtime: str,
    devices: Any,
    model: str | os.PathLike[str] | None,
    group: Any,
    timeout: float,
) -> Prepared:
    from precomp.distributed import watch
    from precomp.distributed.agreement import Meeting

    prepared = None
    try:
        with Meeting(group, timeout) as meeting:
            found = meeting.settle(path, environment.current())
            prepared = _prepare(found, digest, runtime, devices, model)
    except BaseException:
        if prepared is not None:  # another rank failed
            prepared.uninstall()
        raise
    watch.start(meeting.group)
    return prepared


def open_checked(
    path: str | os.PathLike[str],
    digest: str | None = None,
    model: str | os.PathLike[str] | None = None,
) -> Artifact:
    """The artifact *path*, open, if its digest and the binding of *model* are as they should be.

    Needs no torch. Raises as ``prepare`` does.
    """
    artifact = Artifact.open(path)
    if digest is not None and artifact.digest != digest.removeprefix("sha256:"):
        raise ArtifactCorruptError(
            f"{artifact.path}: expected digest {digest}, found {artifact.digest}: another file, "
            "or a damaged one; capture again or pass the digest of this file"
        )
    if model is not None:
        from precomp.binding import require_bound

        require_bound(model, artifact)
    return artifact


def _prepare(
    path: str | os.PathLike[str],
    digest: str | None,
    runtime: str,
    devices: Any,
    model: str | os.PathLike[str] | None,
) -> Prepared:
    clock = time.perf_counter
    start = clock()
    seconds: dict[str, float] = {}
    artifact = open_checked(path, digest, model)
    found = environment.current()
    if "gpu" in artifact.environment:
        found |= environment.gpus()
    environment.require_match(artifact.path, artifact.environment, found)
    blobs = artifact.load_all()
    seconds["read"] = clock() - start

    from precomp.serve import compile as surface
    from precomp.serve import devices as placing
    from precomp.serve import standin
    from precomp.serve.entries import Loaded
    from precomp.serve.frame import runtime as serve_runtime

    kinds: dict[str, list[str]] = {}
    for entry in artifact.entries:
        kinds.setdefault(entry.kind, []).append(entry.digest)
    numbers = placing.wanted(devices)
    loaded = Loaded(blobs, kinds, numbers)
    notes = environment.warnings(artifact.environment, found)
    if numbers is not None:
        notes += placing.check(artifact, [entry.record for entry in loaded.frames], numbers)
    start = clock()
    loaded.load_kernels()
    seconds["kernels"] = clock() - start

    start = clock()
    run = serve_runtime()
    standin.install([row for rules in loaded.rules for row in rules["helpers"]])
    run.add(loaded)
    run.set_lean(runtime == "lean")
    surface.install()
    seconds["install"] = clock() - start

    def undo() -> None:
        _active.remove(prepared)
        run.remove(loaded)
        if not _active:
            surface.uninstall()
            standin.uninstall()
            run.set_lean(False)
            watch: Any = sys.modules.get("precomp.distributed.watch")
            if watch is not None:
                watch.stop()

    prepared = Prepared(artifact, runtime, loaded, seconds, notes, undo)
    _active.append(prepared)
    return prepared


prepare_runtime = prepare
