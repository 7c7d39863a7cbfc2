"""What ``precomp run`` does around a script, from the moment it imports torch."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from precomp.after_import import after_import
from precomp.cli import fail, message
from precomp.cli.ranks import KeptGroup
from precomp.errors import CompileViolation, PrecompError


@dataclass(frozen=True)
class Request:
    """What is asked for; paths are absolute. ``together``: all ranks write one artifact."""

    capture: str | None = None
    together: bool = False
    prepare: str | None = None
    strict: bool = False
    allow: tuple[str, ...] = ()
    skip_unsupported: bool = False
    digest: str | None = None
    model: str | None = None
    runtime: str = "auto"
    report: bool = False


class Session:
    """One run: ``start``, the script, ``end``.

    torch is imported by the script, not before: what the script sets up first, such as
    ``OMP_NUM_THREADS``, counts. Capture and prepare begin at the end of that import.
    """

    def __init__(self, request: Request, prepared: Any = None) -> None:
        self.request = request
        self.gate: Any = None
        self.capture: Any = None
        self.prepared: Any = prepared  # by a parent that was forked, else None
        self.problems: list[str] = []
        self.group = KeptGroup()
        self.pid = os.getpid()

    def start(self) -> None:
        """Check the artifact's file, enter the gate, wait for torch. Raises what these raise."""
        request = self.request
        if request.prepare is not None and self.prepared is None:
            from precomp._prepare import open_checked

            open_checked(request.prepare, request.digest, request.model).close()
        if request.strict:
            from precomp.strict import strict_no_compile

            self.gate = strict_no_compile(allow=request.allow)
            self.gate.__enter__()
        if request.capture is None:
            from precomp.cli.children import share

            share(request)
        if request.capture is not None or request.prepare is not None:
            after_import("torch", self._torch_is_here)

    def _torch_is_here(self) -> None:
        request = self.request
        if self.prepared is not None:
            return
        try:
            if request.prepare is not None:
                from precomp._prepare import prepare

                self.prepared = prepare(
                    request.prepare,
                    digest=request.digest,
                    runtime=request.runtime,
                    model=request.model,
                )
            else:
                from precomp._capture import capture

                if request.together:
                    self.group.keep()
                unsupported = "skip" if request.skip_unsupported else "raise"
                self.capture = capture(on_unsupported=unsupported)
                self.capture.__enter__()
        except (PrecompError, OSError) as error:
            self.problems.append(message(error))
            raise SystemExit(1) from None

    def end(self, error: BaseException | None) -> list[str]:
        """Leave everything after the script was left by *error* (None: it ended). Returns what went
        wrong besides *error*, in words."""
        clean = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        clean = clean and not self.problems
        if self.gate is not None:
            try:
                self.gate.__exit__(type(error) if error else None, error, None)
            except CompileViolation as violation:
                if violation is not error:
                    self.problems += [f"strict: {each}" for each in self.gate.violations]
            except PrecompError as failure:
                self.problems.append(message(failure))
        if self.prepared is not None:
            self._end_prepared()
        elif self.request.prepare is not None and not self.problems:
            fail(f"the script did not import torch: {self.request.prepare} was not used")
        if self.request.capture is not None and os.getpid() == self.pid:  # not in a forked child
            self._end_capture(self.request.capture, clean, error)
            self.group.release()
        return self.problems

    def _end_prepared(self) -> None:
        missing = self.prepared.coverage().missing
        if self.request.report:
            print(self.prepared.report(), file=sys.stderr)
        elif missing and self.gate is None:
            lines = "".join(f"\n  {name}: {reason}" for name, reason in missing)
            fail(f"{self.request.prepare} lacks what torch compiled in this run:{lines}")

    def _end_capture(self, out: str, clean: bool, error: BaseException | None) -> None:
        if not clean:
            if self.capture is not None:
                left = error if error is not None else RuntimeError()
                self.capture.__exit__(type(left), left, left.__traceback__)
            if not self.problems:
                fail(f"{out} was not written: the script ended with {_ending(error)}")
            return
        if self.capture is None:
            self.problems.append(f"{out} was not written: the script did not import torch")
            return
        try:
            self.capture.__exit__(None, None, None)
            if self.request.together:
                self.group.require(out)
            self.capture.finalize(out, group=None if self.request.together else False).close()
        except (PrecompError, OSError) as failure:
            self.problems.append(message(failure))
            return
        report = self.capture.report()
        if self.request.report or report.empty:
            print(report, file=sys.stderr)


def _ending(error: BaseException | None) -> str:
    if isinstance(error, SystemExit):
        return f"status {error.code}"
    return type(error).__name__
