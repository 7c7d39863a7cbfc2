"""``precomp run``: a script as ``python`` would run it, captured, prepared or strict."""

from __future__ import annotations

import argparse
import builtins
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType
from typing import Any, cast

from precomp.cli import FAILURE, USAGE, fail, message
from precomp.cli.ranks import capture_target, ranked
from precomp.cli.session import Request, Session
from precomp.errors import CompileViolation, PrecompError

_VALUED = (
    "--capture", "--prepare", "--allow", "--digest", "--model", "--runtime", "--ranks", "--preload",
)  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Run the script or module that *words* name. Returns the exit status of a script that ends
    normally; what leaves it otherwise, SystemExit too, is raised with the script's own frames."""
    at = _first_of_script(words)
    options = _parser().parse_args([word for word in words[:at] if word != "--"])
    rest = list(words[at:])
    module = rest[:1] == ["-m"]
    if module:
        del rest[0]
    if not rest:
        _parser().error("expected a SCRIPT, or -m MODULE")
    try:
        if options.ranks is not None:
            return _run_ranks(options, rest, module)
        request = _request(options)
        program = _Program(rest, module)
    except FileNotFoundError as error:
        print(f"precomp: {message(error)}", file=sys.stderr)
        return USAGE
    except (PrecompError, OSError) as error:
        return fail(message(error))
    return _run(program, request)


def _first_of_script(words: Sequence[str]) -> int:
    """Where the words of the script begin: all after it are its own, whatever they look like."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return at + 1
        if word == "-m" or not word.startswith("-") or word == "-":
            return at
        at += 2 if word in _VALUED else 1
    return at


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="precomp run",
        usage="precomp run [options] (SCRIPT | -m MODULE) [ARGS...]",
        description="Run a Python script as python would: captured, prepared or strict.",
        epilog="Below torchrun: torchrun ... --no-python precomp run ... SCRIPT. In the files of "
        "--capture and --prepare, {rank} stands for the rank of the process.",
        allow_abbrev=False,
    )  # fmt: skip
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--capture", metavar="OUT", help="write what is compiled to this artifact")
    way.add_argument("--prepare", metavar="FILE", help="serve the script from this artifact")
    parser.add_argument(
        "--strict", action="store_true", help="nothing compiles: a violation ends the script"
    )
    parser.add_argument("--allow", metavar="KINDS", help="kinds that --strict lets pass: tune,load")
    parser.add_argument(
        "--skip-unsupported", action="store_true", help="with --capture: leave out what cannot be"
    )
    parser.add_argument("--digest", help="with --prepare: the sha256 that FILE must have")
    parser.add_argument("--model", help="with --prepare: a model file that must be bound to FILE")
    parser.add_argument("--runtime", choices=("auto", "lean", "full"), help="with --prepare")
    parser.add_argument("--report", action="store_true", help="print a report to standard error")
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="run it in N processes of this host, forked from one"
    )
    parser.add_argument(
        "--preload", metavar="MODULES", help="with --ranks: modules to import before the fork: a,b"
    )
    return parser


def _request(options: argparse.Namespace) -> Request:
    usage = _parser().error
    if not (options.capture or options.prepare or options.strict or options.ranks):
        usage("expected --capture, --prepare or --strict")
    if options.preload is not None and options.ranks is None:
        usage("--preload: only with --ranks")
    if options.capture and options.strict:
        usage(
            "--capture compiles, --strict forbids it: capture first, then --prepare with --strict"
        )
    if options.allow is not None and not options.strict:
        usage("--allow: only with --strict")
    if options.skip_unsupported and not options.capture:
        usage("--skip-unsupported: only with --capture")
    for name in ("digest", "model", "runtime"):
        if getattr(options, name) is not None and not options.prepare:
            usage(f"--{name}: only with --prepare")
    capture, together = None, False
    if options.capture is not None:
        capture, together = capture_target(options.capture)
    return Request(
        capture=capture,
        together=together,
        prepare=None if options.prepare is None else ranked(options.prepare),
        strict=options.strict,
        allow=tuple(kind for kind in (options.allow or "").split(",") if kind),
        skip_unsupported=options.skip_unsupported,
        digest=options.digest,
        model=None if options.model is None else os.path.abspath(options.model),
        runtime=options.runtime or "auto",
        report=options.report,
    )


def _run_ranks(options: argparse.Namespace, words: list[str], module: bool) -> int:
    """Run the script in several forked processes, each with the request of its rank."""
    from precomp.cli import forked

    usage = _parser().error
    if options.ranks < 1:
        usage(f"--ranks: expected 1 or more, got {options.ranks}")
    if "RANK" in os.environ:
        usage("--ranks: this process is a rank already; leave it out below torchrun")
    if options.prepare and "{rank}" in options.prepare:
        usage("--ranks: all ranks are served from one artifact: no {rank} in --prepare")
    _Program(words, module)  # it is there
    request = _request(options)

    def prepare() -> Any:
        if request.prepare is None:
            return None
        from precomp._prepare import prepare

        return prepare(
            request.prepare, digest=request.digest, runtime=request.runtime, model=request.model
        )

    def rank(prepared: Any) -> int:
        return _run(_Program(words, module), _request(options), prepared)

    preload = [name for name in (options.preload or "").split(",") if name]
    return forked.start(options.ranks, preload, prepare, rank)


# ------------------------------------------------------------------ the program


class _Program:
    """A script, a directory or zip file with ``__main__.py``, or a module: what python can run."""

    def __init__(self, words: list[str], module: bool) -> None:
        self.words = words
        self.name = words[0] if module else None
        self.path = "" if module else os.path.abspath(words[0])
        if not module:
            os.stat(words[0])

    def start(self) -> tuple[CodeType, dict[str, Any]]:
        """Set up ``sys`` and a new ``__main__`` as python does; returns its code and globals."""
        sys.argv[:] = self.words
        main = ModuleType("__main__")
        facts: dict[str, Any] = main.__dict__
        facts["__builtins__"] = builtins
        if sys.version_info < (3, 14):
            facts["__annotations__"] = {}
        spec = self._spec()
        if spec is None:
            _search(os.path.dirname(os.path.realpath(self.path)))
            code, loader = self._script()
            facts |= {"__file__": self.path, "__cached__": None, "__loader__": loader}
        else:
            code = _code(spec)
            facts |= {"__spec__": spec, "__package__": spec.parent, "__loader__": spec.loader}
            facts |= {"__file__": spec.origin, "__cached__": spec.cached}
            if self.name is not None:
                sys.argv[0] = str(spec.origin)
        sys.modules["__main__"] = main
        return code, facts

    def _spec(self) -> ModuleSpec | None:
        """What the import system knows of the program, None of a plain script."""
        if self.name is None:
            spec = None
            if importlib.util.spec_from_file_location("__main__", self.path) is None:
                spec = PathFinder.find_spec("__main__", [self.path])
            if spec is not None:
                _search(self.path)
            return spec
        _search(os.getcwd())
        name = self.name
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                name += ".__main__"
                spec = importlib.util.find_spec(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            spec = None
        if spec is None:
            raise SystemExit(fail(f"no module named {name}"))
        return spec

    def _script(self) -> tuple[CodeType, Any]:
        if self.path.endswith(".pyc"):
            loader = SourcelessFileLoader("__main__", self.path)
            return cast(CodeType, loader.get_code("__main__")), loader
        source = SourceFileLoader("__main__", self.path)
        return source.source_to_code(source.get_data(self.path), self.path), source


def _search(directory: str) -> None:
    """Put *directory* first on ``sys.path``, instead of that of precomp, as python does."""
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path[:1] = [directory]


def _code(spec: ModuleSpec) -> CodeType:
    loader = spec.loader
    code = loader.get_code(spec.name) if isinstance(loader, InspectLoader) else None
    if code is None:
        raise SystemExit(fail(f"{spec.name} has no Python code that can be run"))
    return code


# ------------------------------------------------------------------ running it


def _run(program: _Program, request: Request, prepared: Any = None) -> int:
    session = Session(request, prepared)
    try:
        session.start()
    except (PrecompError, OSError, ValueError) as error:
        return fail(message(error))
    caught: BaseException | None = None
    try:
        _execute(program)
        _join_threads()
    except BaseException as error:  # noqa: BLE001 - raised again below, or replaced by its cause
        caught = error
    problems = session.end(caught)
    for problem in problems:
        fail(problem)
    if problems and not isinstance(caught, CompileViolation):
        return FAILURE
    if caught is not None:
        raise caught
    return 0


def _execute(program: _Program) -> None:
    """Run the program; what leaves it is shown without the frames of precomp."""
    started = False
    try:
        code, scope = program.start()
        started = True
        exec(code, scope)
    except BaseException as error:
        frames = error.__traceback__
        own = frames.tb_next if started and frames is not None else None
        sys.excepthook = _without_ours(sys.excepthook, error, own)
        raise


def _without_ours(show: Callable[..., Any], error: BaseException, own: Any) -> Callable[..., Any]:
    def excepthook(kind: Any, value: Any, traceback: Any) -> Any:
        if value is error:
            value.__traceback__ = traceback = own
        return show(kind, value, traceback)

    return excepthook


def _join_threads() -> None:
    """Wait for the threads that the interpreter would wait for after the script."""
    while True:
        threads = [
            thread
            for thread in threading.enumerate()
            if not thread.daemon and thread is not threading.current_thread()
        ]
        if not threads:
            return
        for thread in threads:
            thread.join()
