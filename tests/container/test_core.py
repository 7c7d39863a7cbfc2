"""csrc/core built without Python: allocation failures, SHA-256, threads."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "core_test.c"


def check_runs(program: Path, directory: Path) -> None:
    directory.mkdir()
    done = subprocess.run(
        [str(program), str(directory)],
        env={**os.environ, "LD_PRELOAD": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert os.listdir(directory) == []


def test_every_failing_allocation_of_the_core_is_reported(core, tmp_path):
    core.build(tmp_path / "core_test", SOURCE, *core.sources)
    check_runs(tmp_path / "core_test", tmp_path / "files")


def test_the_core_is_free_of_races(core, tmp_path):
    flags = core.sanitizer("thread", tmp_path)
    if not flags:
        pytest.skip("no thread sanitizer")
    core.build(tmp_path / "races", SOURCE, *core.sources, flags=[*flags, "-DPLAIN_MALLOC"])
    check_runs(tmp_path / "races", tmp_path / "files")
