"""The gate of C alone, without torch."""

import gc
import os
import subprocess
import sys
import weakref

import pytest

from precomp import CompileViolation, _core, strict_no_compile


def trip(kind="trace", **options):
    _core.gate_trip(kind, "thing", **options)


def test_trip_without_gate_does_nothing():
    assert trip() is None
    assert not _core.gate_active()


def test_trip_raises_and_records():
    gate = _core.Gate()
    with pytest.raises(CompileViolation) as caught, gate:
        trip(why="because", where="a.py:1", hint="do it before")
    assert gate.violations == (caught.value,)
    assert str(caught.value) == "[trace] thing at a.py:1: because (do it before)"


def test_place_is_found_from_the_stack():
    with pytest.raises(CompileViolation) as caught, _core.Gate():
        trip()
    line = trip.__code__.co_firstlineno + 1
    assert caught.value.where == f"{__file__}:{line}"


def test_allowed_kinds_pass():
    with _core.Gate(allow=("trace", "tune")) as gate:
        trip("trace")
        trip("tune")
        assert _core.gate_active("load") and not _core.gate_active("tune")
    assert gate.allow == frozenset({"trace", "tune"})
    assert gate.violations == ()


@pytest.mark.parametrize(
    ("allow", "error"), [(("speed",), ValueError), ("trace", TypeError), ((1,), TypeError)]
)
def test_wrong_kinds_are_refused(allow, error):
    with pytest.raises(error):
        strict_no_compile(allow=allow)


def test_arguments_are_keywords():
    with pytest.raises(TypeError):
        strict_no_compile(lambda: None)


def test_unknown_kind_of_trip_is_refused():
    with pytest.raises(ValueError, match="unknown kind"):
        trip("speed")


def test_leaving_more_often_than_entering_is_an_error():
    gate = _core.Gate()
    with pytest.raises(RuntimeError, match="more often"):
        gate.__exit__(None, None, None)


def test_exemption_must_be_left_where_it_was_entered():
    with pytest.raises(RuntimeError):
        _core.gate_exempt().__exit__(None, None, None)


def test_violation_raised_again_keeps_the_place_in_its_traceback():
    with pytest.raises(CompileViolation) as caught, _core.Gate():
        try:
            trip()
        except BaseException:  # noqa: BLE001 - what is tested
            pass
    names = [entry.name for entry in caught.traceback]
    assert "trip" in names


def test_gate_is_freed():
    gate = strict_no_compile()
    reference = weakref.ref(gate)
    with pytest.raises(CompileViolation), gate:
        trip()
    del gate
    gc.collect()
    assert reference() is None


def test_nothing_leaks():
    def once():
        gate = _core.Gate(allow=("tune",))
        try:
            with gate, _core.Gate():
                with _core.gate_exempt():
                    trip()
                trip(why="x")
        except CompileViolation:
            pass

    door = _core.Door(len, lambda args, kwargs: None, ("trace",))

    def through():
        with _core.Gate():
            assert door([1, 2]) == 2

    for _ in range(3000):
        once()
        through()
    gc.collect()
    types = sys.getrefcount(_core.Gate), sys.getrefcount(_core.gate_exempt)
    before = sys.getallocatedblocks()
    for _ in range(1000):
        once()
        through()
    gc.collect()
    assert sys.getallocatedblocks() - before < 500
    assert (sys.getrefcount(_core.Gate), sys.getrefcount(_core.gate_exempt)) == types


def test_door_asks_only_while_its_kind_is_forbidden():
    asked = []

    def describe(args, kwargs):
        asked.append((args, kwargs))
        return ("load", "module", "missed", None, "") if args == (1,) else None

    def original(a, b=2):
        return a + b

    door = _core.Door(original, describe, ("load",))
    assert door(1) == 3 and asked == []
    with _core.Gate(allow=("load",)):
        assert door(1, b=3) == 4
    assert asked == []
    with pytest.raises(CompileViolation) as caught, _core.Gate():
        assert door(2, b=5) == 7
        door(1)
    assert caught.value.kind == "load" and caught.value.what == "module"
    assert asked == [((2,), {"b": 5}), ((1,), {})]


def test_door_binds_like_a_function():
    class Box:
        value = 5
        get = _core.Door(lambda self, n: self.value * n, lambda a, k: None, ("load",))

    assert Box().get(3) == 15
    assert Box.get(Box(), 2) == 10


def test_door_that_describes_wrongly_raises():
    door = _core.Door(len, lambda args, kwargs: 7, ("load",))
    with pytest.raises(TypeError, match="describe"), _core.Gate():
        door([])
    with pytest.raises(ValueError, match="unknown kind"):
        _core.Door(len, len, ("speed",))


COMMANDS = [
    (["gcc", "-c", "x.c"], True),
    (["/usr/bin/x86_64-linux-gnu-g++-12", "x.cc"], True),
    (["clang++-18", "-E", "-"], True),
    (["ccache", "g++", "-c", "x.cc"], True),
    (["env", "-i", "A=1", "nvcc", "k.cu"], True),
    (["timeout", "10", "ptxas", "k.ptx"], True),
    (["ninja"], True),
    (["ninja", "-v"], True),
    (["sh", "-c", "cd /tmp; A=1 gcc -c x.c"], True),
    (["bash", "-lc", "true && (g++ x.cc)"], True),
    (["sh", "-c", "'gcc' -c x.c"], True),
    ([b"gcc", b"-c", b"x.c"], True),
    (["gcc", "--version"], False),
    (["gcc", "-v"], False),
    (["g++", "-print-file-name=libasan.so"], False),
    (["gcc", "-v", "x.c"], True),
    (["nvcc", "-V"], False),
    (["ninja", "--version"], False),
    (["sh", "-c", "echo gcc -c x.c"], False),
    (["sh", "-c", "gcc --version | head -1"], False),
    (["sh", "-c", "gcc --version >/dev/null 2>&1"], False),
    (["sh", "-c", "gcc --version > version.txt"], False),
    (["sh", "-c", "gcc x.c > log 2>&1"], True),
    (["sh", "-c", "command -v gcc"], False),
    (["sh", "-c", "command gcc x.c"], True),
    (["gcc", "-Wl,-t", "-o", "/tmp/x", "-lfoo"], False),  # ctypes.util.find_library
    (["ld", "-t", "-o", "/dev/null", "-lfoo"], False),
    (["ld", "-o", "x", "x.o"], True),
    (["ldconfig", "-p"], False),
    (["nvidia-smi"], False),
    (["git", "gc"], False),
    ([sys.executable, "-c", "gcc"], False),
    (["lscpu"], False),
    (["run-as"], False),
    (["perf-gccounter"], False),
]


@pytest.mark.parametrize(("command", "compiles"), COMMANDS, ids=lambda value: str(value))
def test_compiler_processes_are_told_from_others(command, compiles):
    def spawn():
        sys.audit("subprocess.Popen", command[0], command, None, None)

    spawn()
    if not compiles:
        with strict_no_compile():
            spawn()
        return
    with pytest.raises(CompileViolation) as caught, strict_no_compile():
        spawn()
    assert caught.value.kind == "spawn"
    assert caught.value.what.startswith(os.fsdecode(command[0]))
    with strict_no_compile(allow=("spawn",)):
        spawn()


def test_argument_that_is_no_path_is_left_to_the_call():
    with strict_no_compile(), pytest.raises(TypeError):
        subprocess.Popen([3, 4])


def test_library_search_passes():
    import ctypes.util

    with strict_no_compile():
        assert ctypes.util.find_library("no_such_library_anywhere") is None


def test_gate_needs_no_torch():
    code = (
        "import sys, precomp\n"
        "with precomp.strict_no_compile(): pass\n"
        "assert 'torch' not in sys.modules and 'triton' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
