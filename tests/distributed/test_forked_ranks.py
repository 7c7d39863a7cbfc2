"""``precomp run --ranks``: ranks forked from a parent that has imported already."""

from __future__ import annotations

import pytest
import ranks
from processes import Place, differences

from precomp import Artifact

PROGRAM = """\
import atexit, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
atexit.register(lambda: print("exit", dist.get_rank(), flush=True))
print("rank", dist.get_rank(), "of", dist.get_world_size(), *sys.argv[1:], __name__, flush=True)
if sys.argv[1:] == ["bad"]:
    # No collective here: it would fail as the peer ends, perhaps before the agent sees that end.
    sys.exit(7) if dist.get_rank() == 1 else time.sleep(600)
dist.barrier()
"""


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path, compiler=False)
    found.write("program.py", PROGRAM)
    return found


def run(place, *words):
    return place.run("-m", "precomp", "run", "--ranks", 2, *words, timeout=300)


def test_forked_ranks_are_served_bit_for_bit(few, place):
    name = "fsdp_compiled_model"
    served = ranks.forked(place, 2, ranks.SERVED, "worker.py", "serve", few.directory, name)
    for one, other in zip(few.captured, served, strict=True):
        assert other["errors"] == {}
        assert other["violations"] == other["missing"] == other["spawns"] == []
        assert differences(one["results"][name], other["results"][name]) == []


def test_an_artifact_of_more_ranks_is_the_same_file(few, inductor_cache, tmp_path):
    name = "fsdp_blocks_before"
    place = Place(tmp_path, cache=inductor_cache)
    captured = ranks.forked(place, 4, ranks.COMPILED, "worker.py", "capture", place.work, name)
    assert [rank["errors"] for rank in captured] == [{}] * 4
    two, four = (Artifact.open(d / f"{name}.precomp") for d in (few.directory, place.work))
    assert two.digest == four.digest


SIBLINGS = """\
import os
from pathlib import Path
tasks = Path(f"/proc/{os.getppid()}/task").iterdir()
print(len(" ".join((task / "children").read_text() for task in tasks).split()), flush=True)
"""


def test_no_rank_begins_before_all_are_forked(place):
    """A rank that joins the group makes threads of the parent work; a fork needs them at rest."""
    place.write("siblings.py", SIBLINGS)
    done = place.run("-m", "precomp", "run", "--ranks", 8, "siblings.py", timeout=300)
    assert done.stdout.split()[:1] == ["8"], done


def test_a_rank_ends_as_a_program_does_and_its_failure_ends_all(place):
    done = run(place, "program.py", "bad")
    assert done.returncode == 7, done
    lines = done.stdout.splitlines()
    assert {"rank 0 of 2 bad __main__", "rank 1 of 2 bad __main__", "exit 1"} <= set(lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import threading as t; t.Thread(target=t.Event().wait, name='x', daemon=True).start()",
         "1 thread(s) run after it (x)"),
        ("import torch; torch.cuda.is_initialized = lambda: True", "initialised CUDA"),
        ("import nonesuch", "--preload early: No module named 'nonesuch'"),
    ],
)  # fmt: skip
def test_what_cannot_be_forked_is_refused(place, text, words):
    place.write("early.py", text)
    environment = place.environment()
    path = f"{place.work}:{environment.get('PYTHONPATH', '')}"
    done = place.run(
        "-m", "precomp", "run", "--ranks", 2, "--preload", "early", "program.py",
        env={"PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 1, done
    assert words in done.stderr
    assert done.stdout == ""
