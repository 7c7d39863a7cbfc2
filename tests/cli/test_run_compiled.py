"""``precomp run`` from capture to a strict run in another place, through a merged artifact."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from processes import CACHE, Place

PROGRAM = """\
import multiprocessing
import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
import torch

@torch.compile
def f(x):
    return torch.relu(x * 2) + 1

def work(size):
    value = f(torch.linspace(-1, 1, size)).sum().item()
    print(size, value.hex(), "torch._inductor.compile_fx" in sys.modules, flush=True)

def swallow(size):
    try:
        work(size)
    except BaseException:
        print("swallowed")

if __name__ == "__main__":
    how, *sizes = sys.argv[1:]
    for size in map(int, sizes):
        if how in ("spawn", "forkserver"):
            child = multiprocessing.get_context(how).Process(target=work, args=(size,))
            child.start()
            child.join()
            print("child", child.exitcode, flush=True)
        else:
            {"plain": work, "swallow": swallow}[how](size)
    sys.exit(0)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    cache = os.environ.get(CACHE)
    place = Place(tmp_path_factory.mktemp("cli"), cache=Path(cache) if cache else None)
    place.write("program.py", PROGRAM)
    return place


@pytest.fixture(scope="module")
def captured(place) -> tuple[Path, dict[str, str]]:
    """An artifact merged from two captures of one shape each, and what they printed."""
    printed = {}
    for size in ("8", "9"):
        name = f"{{rank}}-{size}.precomp"
        command = ("-m", "precomp", "run", "--capture", name, "program.py", "plain", size)
        done = place.run(*command, env={"RANK": "3", "WORLD_SIZE": "4"})
        assert done.returncode == 0, done
        printed[size] = done.stdout.split()[1]
    done = place.run("-m", "precomp", "merge", "3-8.precomp", "3-9.precomp", "-o", "both.precomp")
    assert done.returncode == 0, done
    return place.work / "both.precomp", printed


@pytest.fixture
def serve(tmp_path, captured):
    """Runs the program from the merged artifact in a place of its own, without a compiler."""
    bare = Place(tmp_path / "bare", compiler=False)
    bare.write("program.py", PROGRAM)

    def run(*words: str, env: dict[str, str] | None = None):
        command = ("-m", "precomp", "run", "--prepare", captured[0], "--strict", "program.py")
        return bare.run(*command, *words, env=env)

    return run


def test_both_shapes_of_a_merged_artifact_are_served(captured, serve):
    done = serve("plain", "9", "8")
    assert done.returncode == 0 and done.stderr == "", done
    expected = [f"{size} {captured[1][size]} False" for size in ("9", "8")]
    assert done.stdout.splitlines() == expected


def test_a_violation_ends_the_script_with_the_guard_that_failed(serve):
    done = serve("plain", "8", "10")
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 1
    last = done.stderr.splitlines()[-1]
    line = 1 + PROGRAM[: PROGRAM.index("value = f(")].count("\n")
    assert "CompileViolation: [trace] f at " in last and f"program.py:{line}: " in last
    assert "L['x']: shape expected [8], found [10]" in last
    assert "L['x']: shape expected [9], found [10]" in last
    assert "precomp/cli" not in done.stderr


def test_a_violation_that_the_script_swallows_fails_it_at_its_end(serve):
    done = serve("swallow", "10")
    assert (done.returncode, done.stdout) == (1, "swallowed\n")
    assert "precomp: strict: [trace] f at " in done.stderr and "found [10]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", ["spawn", "forkserver"])
def test_children_that_start_afresh_are_prepared_and_strict_too(captured, serve, how):
    done = serve(how, "8", "10", env={"TMPDIR": "/tmp"})  # the path of a socket has to be short
    assert done.returncode == 0
    first, *rest = done.stdout.splitlines()
    assert first == f"8 {captured[1]['8']} False" and rest == ["child 0", "child 1"], done
    assert "CompileViolation: [trace] f at " in done.stderr


def test_inspect_verify_and_diff_of_what_was_captured(place, captured):
    both = captured[0].name
    done = place.run("-m", "precomp", "verify", both)
    assert done.returncode == 0 and "2 kernels are whole shared objects" in done.stdout, done
    facts = json.loads(place.run("-m", "precomp", "inspect", both, "--guards", "--json").stdout)
    texts = [{guard["text"] for guard in frame["guards"]} for frame in facts["frames"]]
    assert sorted(
        next(text for text in found if "tensor" in text and "shape" in text) for found in texts
    ) == [
        f"L['x'] is a tensor: float32, shape [{size}], strides [1], device cpu, requires_grad no"
        for size in (8, 9)
    ]
    done = place.run("-m", "precomp", "diff", "3-8.precomp", "3-9.precomp")
    assert done.returncode == 1
    assert "guard only in 3-8.precomp: L['x'] is a tensor: float32, shape [8]" in done.stdout


def test_what_a_prepared_run_lacks_is_compiled_and_said(place, captured):
    command = ("-m", "precomp", "run", "--prepare", "3-8.precomp", "program.py", "plain", "9")
    done = place.run(*command)
    assert done.returncode == 0 and done.stdout.endswith("True\n"), done
    assert "lacks what torch compiled in this run:\n  f: " in done.stderr
