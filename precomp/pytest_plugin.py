"""pytest plugin: tests in which nothing compiles, and tests whose guards are checked.

Importing this module imports neither torch nor the extension module. See docs/pytest.md.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_MARK = "no_compile"
_HELP = "no_compile(enabled=True, allow=()): nothing compiles while the test function runs"
_gate = pytest.StashKey[Any]()
_phase_gate = pytest.StashKey[Any]()
_reported = pytest.StashKey[int]()
_prepared = pytest.StashKey[Any]()
_shadow = pytest.StashKey[Any]()
_SHADOW = "precomp_shadow_guards"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("precomp")
    group.addoption(
        "--no-compile",
        action="store_true",
        default=None,
        help="nothing compiles during the whole run: collection, fixtures and tests",
    )
    group.addoption(
        "--no-compile-allow",
        metavar="KINDS",
        help="comma-separated kinds that stay allowed: trace, lower, build, load, tune, record, "
        "fallback, spawn, driver_jit",
    )
    group.addoption(
        "--precomp-prepare",
        metavar="FILE",
        help="prepare the process from this artifact before anything is collected",
    )
    group.addoption(
        "--precomp-shadow-guards",
        action="store_true",
        default=None,
        help="freeze, thaw and compare the guards of all that the tests compile",
    )
    parser.addini("no_compile", "as --no-compile", type="bool", default=False)
    parser.addini("no_compile_allow", "as --no-compile-allow", type="args", default=[])
    parser.addini("precomp_prepare", "as --precomp-prepare", default="")
    parser.addini(_SHADOW, "as --precomp-shadow-guards", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _HELP)


def _whole_run(config: pytest.Config) -> bool:
    option = config.getoption("--no-compile")
    return bool(config.getini("no_compile") if option is None else option)


def _run_allow(config: pytest.Config) -> tuple[str, ...]:
    option = config.getoption("--no-compile-allow")
    if option is None:
        return tuple(config.getini("no_compile_allow"))
    return tuple(kind.strip() for kind in option.split(",") if kind.strip())


def _is_xdist_controller(config: pytest.Config) -> bool:
    """Whether this process only hands tests to others."""
    return config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    path = config.getoption("--precomp-prepare") or config.getini("precomp_prepare")
    if path and not _is_xdist_controller(config):
        import precomp

        try:
            config.stash[_prepared] = precomp.prepare(str(path))
        except (precomp.PrecompError, OSError) as error:
            raise pytest.UsageError(f"--precomp-prepare={path}: {error}") from error
    if _shadows(config):
        _start_shadow(config)


def _shadows(config: pytest.Config) -> bool:
    option = config.getoption("--precomp-shadow-guards")
    return bool(config.getini(_SHADOW) if option is None else option)


def _start_shadow(config: pytest.Config) -> None:
    """In a process that runs tests: shadow what it compiles. In one that only hands them out: a
    place for what the others find."""
    from precomp.errors import PrecompError
    from precomp.testing import shadow_guards

    shadow = config.stash[_shadow] = shadow_guards()
    if not _is_xdist_controller(config):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # those of the import of torch's compiler
                shadow.__enter__()
        except PrecompError as error:
            raise pytest.UsageError(f"--precomp-shadow-guards: {error}") from error


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    shadow = config.stash.get(_shadow, None)
    if shadow is None:
        return
    if not _is_xdist_controller(config):
        shadow.__exit__(None, None, None)
    if hasattr(config, "workeroutput"):
        config.workeroutput[_SHADOW] = shadow.as_data()
    elif shadow.disagreements and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of xdist is done."""
    shadow = node.config.stash.get(_shadow, None)
    if shadow is not None:
        found = getattr(node, "workeroutput", {}).get(_SHADOW)
        if found is None:
            shadow.lost.append(node.gateway.id)
        else:
            shadow.add(found)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    shadow = config.stash.get(_shadow, None)
    if shadow is not None:
        terminalreporter.section("guards of precomp beside torch's")
        terminalreporter.write_line(shadow.report())


def pytest_report_header(config: pytest.Config) -> list[str]:
    lines = []
    path = config.getoption("--precomp-prepare") or config.getini("precomp_prepare")
    if path:
        lines.append(f"precomp: prepared from {path}")
    if _whole_run(config):
        allow = _run_allow(config)
        kinds = f" except {', '.join(allow)}" if allow else ""
        lines.append(f"precomp: nothing compiles{kinds}")
    if _shadows(config):
        lines.append("precomp: guards are frozen, thawn and compared")
    return lines


def pytest_unconfigure(config: pytest.Config) -> None:
    prepared = config.stash.get(_prepared, None)
    if prepared is not None:
        prepared.uninstall()
        del config.stash[_prepared]


class _Policy:
    """Whether a gate is on in a phase of a test, and what it allows."""

    def __init__(self, on: bool, allow: Iterable[str] = ()) -> None:
        self.on = on
        self.allow = tuple(allow)


def _mark_policy(item: pytest.Item) -> _Policy | None:
    mark = item.get_closest_marker(_MARK)
    if mark is None:
        return None

    def read(enabled: bool = True, *, allow: Iterable[str] = ()) -> _Policy:
        return _Policy(enabled, allow)

    try:
        return read(*mark.args, **mark.kwargs)
    except TypeError as error:
        raise pytest.UsageError(f"{item.nodeid}: mark {_HELP}: {error}") from None


def _policy(item: pytest.Item, call: bool) -> _Policy:
    """The mark decides first, then the run. Without the run, a mark is for the call only."""
    mark = _mark_policy(item)
    if mark is not None and (call or not mark.on):
        return mark
    config = item.config
    return _Policy(_whole_run(config), _run_allow(config))


@contextmanager
def _gated(item: pytest.Item, policy: _Policy) -> Iterator[None]:
    if not policy.on:
        yield
        return
    from precomp import strict_no_compile

    gate = item.stash[_phase_gate] = strict_no_compile(allow=policy.allow)
    try:
        with gate:
            yield
    finally:
        del item.stash[_phase_gate]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    config = collector.config
    if isinstance(collector, pytest.Session) or not _whole_run(config):
        return (yield)
    from precomp import strict_no_compile
    from precomp.errors import CompileViolation

    gate = strict_no_compile(allow=_run_allow(config))
    try:
        with gate:
            report = yield
    except CompileViolation as violation:
        if report.outcome == "passed":
            # Swallowed while the module was imported: it did compile, or tried to.
            report.outcome = "failed"
            report.longrepr = f"{type(violation).__name__}: {violation}"
    return report


def _new_violations(item: pytest.Item) -> tuple[BaseException, ...]:
    """Those of the fixture's gate that no phase of the test has reported yet."""
    gate = item.stash.get(_gate, None)
    if gate is None:
        return ()
    seen = item.stash.get(_reported, 0)
    item.stash[_reported] = len(gate.violations)
    return tuple(gate.violations[seen:])


@contextmanager
def _reporting(item: pytest.Item) -> Iterator[None]:
    """Let violations of the fixture's gate fail the phase in which they happened."""
    try:
        yield
    except BaseException as error:
        new = _new_violations(item)
        if new and not isinstance(error, type(new[0])):
            raise new[0]  # noqa: B904 - with what went wrong as context
        raise
    new = _new_violations(item)
    if new:
        raise new[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    with _gated(item, _policy(item, call=False)), _reporting(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    with _gated(item, _policy(item, call=True)), _reporting(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    with _gated(item, _policy(item, call=False)):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Keep violations out of the event loop, which is not made for a BaseException.

    The gate that recorded the violation raises it again at the end of the test.
    """
    function = pyfuncitem.obj
    stash = pyfuncitem.stash
    gates = [stash[key] for key in (_gate, _phase_gate) if key in stash]
    if not gates or not inspect.iscoroutinefunction(function):
        return (yield)
    from precomp.errors import CompileViolation

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except CompileViolation as violation:
            if not any(violation is known for gate in gates for known in gate.violations):
                raise
            return None

    pyfuncitem.obj = wrapper
    try:
        return (yield)
    finally:
        pyfuncitem.obj = function


@pytest.fixture
def no_compile(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The gate that is on from here to the end of the test: nothing compiles.

    Fixtures that come before, and those of a wider scope, may compile. What the ini key
    ``no_compile_allow`` or ``--no-compile-allow`` names, or else the mark, stays allowed.
    """
    from precomp import strict_no_compile
    from precomp.errors import CompileViolation

    mark = _mark_policy(request.node)
    if mark is not None and not mark.on:
        yield None
        return
    gate = strict_no_compile(allow=mark.allow if mark else _run_allow(request.config))
    request.node.stash[_gate] = gate
    try:
        with gate:
            yield gate
    except CompileViolation as violation:
        # What happened in the set-up and in the test has failed these.
        for late in _new_violations(request.node):
            raise late from violation.__context__
