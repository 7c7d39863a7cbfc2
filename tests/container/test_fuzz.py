"""Replays the kept fuzz corpus, and damaged copies of it, under the sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "fuzz"


@pytest.fixture(scope="module")
def compiled(core, tmp_path_factory) -> tuple[list[str], list[Path]]:
    """The core and the driver, compiled once: sanitizer flags and object files."""
    directory = tmp_path_factory.mktemp("objects")
    flags = core.sanitizer("address,undefined", directory)
    command = [core.compiler, *core.flags, *flags, "-c", *core.sources, str(FUZZ / "replay.c")]
    subprocess.run(command, cwd=directory, check=True)
    return flags, sorted(directory.glob("*.o"))


@pytest.mark.parametrize("target", ["reader", "manifest", "blob", "strip", "cubin"])
def test_the_corpus_is_replayed_without_a_fault(core, compiled, tmp_path, target):
    flags, objects = compiled
    program = tmp_path / target
    core.build(program, FUZZ / f"fuzz_{target}.c", *objects, flags=flags)
    corpus = sorted(str(path) for path in (FUZZ / "corpus" / target).iterdir())
    assert corpus
    copies = max(50, 12000 // len(corpus))
    done = subprocess.run(
        [str(program), "-n", str(copies), *corpus],
        env={**os.environ, "LD_PRELOAD": "", "ASAN_OPTIONS": "detect_leaks=1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(corpus)} files" in done.stdout
