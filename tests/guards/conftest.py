"""Runs the scripts of these tests in processes of their own, once a session."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def run_script(script: str, *arguments: str, **environment: str) -> str:
    """Standard output of a script of this folder (or of source text, after '-c')."""
    import precomp

    paths = [str(HERE), str(HERE.parent / "support"), str(Path(precomp.__file__).parent.parent)]
    env = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    env["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    command = ["-c", *arguments] if script == "-c" else [str(HERE / script), *arguments]
    done = subprocess.run(
        [sys.executable, *command], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


def blocks_left(work: Callable[[], None], rounds: int = 5) -> int:
    """Memory blocks that one round of *work* leaves behind: the least of several rounds, since
    caches of the interpreter fill in between."""
    left = []
    work()
    for _ in range(rounds):
        gc.collect()
        before = sys.getallocatedblocks()
        work()
        gc.collect()
        left.append(sys.getallocatedblocks() - before)
    return min(left)


@pytest.fixture(scope="session")
def leaves() -> Callable[..., int]:
    return blocks_left


@pytest.fixture(scope="session")
def script() -> Callable[..., str]:
    return run_script


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tapes of all programs and what torch decided about them."""
    folder = tmp_path_factory.mktemp("recorded")
    run_script("record.py", str(folder), PYTHONHASHSEED="1")
    return folder


@pytest.fixture(scope="session")
def torch_decisions(recorded: Path) -> dict[str, Any]:
    return json.loads((recorded / "recorded.json").read_text())


@pytest.fixture(scope="session")
def replayed(recorded: Path) -> dict[str, Any]:
    """What the rebuilt trees decide, in a process without torch's compiler."""
    run_script("replay.py", str(recorded), PYTHONHASHSEED="2")
    return json.loads((recorded / "replayed.json").read_text())


@pytest.fixture(scope="session")
def refusals() -> dict[str, Any]:
    """What the recorder says of programs it must refuse."""
    return json.loads(run_script("refuse.py"))
