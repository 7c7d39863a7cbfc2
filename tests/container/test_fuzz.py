"""Replays the kept fuzz corpus, and damaged copies of it, under the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUZZ = ROOT / "fuzz"
CORE = ROOT / "csrc" / "core"
NAMES = "error mem bytes sha256 json manifest manifest_print blob pool artifact writer elf".split()
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="module")
def objects(compiler, tmp_path_factory) -> tuple[list[str], list[str], Path]:
    """The core and the driver, compiled once: flags, libraries and the directory of objects."""
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config")
    done = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "libzstd", "libcjson"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("no development files of libzstd and libcjson")
    directory = tmp_path_factory.mktemp("objects")
    probe = directory / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    probed = subprocess.run(
        [compiler, *SANITIZE, str(probe), "-o", str(directory / "probe")],
        capture_output=True,
        check=False,
    )
    sanitize = [] if probed.returncode else SANITIZE
    words = done.stdout.split()
    flags = ["-std=c11", "-D_GNU_SOURCE", "-pthread", "-O1", "-g", f"-I{CORE}", *sanitize]
    flags += [word for word in words if not word.startswith("-l")]
    libraries = [word for word in words if word.startswith("-l")]
    sources = [str(CORE / f"pc_{name}.c") for name in NAMES] + [str(FUZZ / "replay.c")]
    subprocess.run([compiler, *flags, "-c", *sources], cwd=directory, check=True)
    return flags, libraries, directory


@pytest.mark.parametrize("target", ["reader", "manifest", "blob", "strip"])
def test_the_corpus_is_replayed_without_a_fault(compiler, objects, tmp_path, target):
    flags, libraries, directory = objects
    program = tmp_path / target
    compiled = [str(path) for path in directory.glob("*.o")]
    source = str(FUZZ / f"fuzz_{target}.c")
    subprocess.run(
        [compiler, *flags, source, *compiled, "-o", str(program), *libraries], check=True
    )
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
