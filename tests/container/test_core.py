"""csrc/core built without Python: allocation failures, SHA-256, threads."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "csrc" / "core"
# The container; other files of the core are not part of it.
SOURCES = [
    CORE / f"pc_{name}.c"
    for name in (
        "error mem bytes sha256 json manifest manifest_print blob pool artifact writer elf".split()
    )
]


@pytest.fixture(scope="module")
def flags() -> list[str]:
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
    return [f"-I{CORE}", "-std=c11", "-D_GNU_SOURCE", "-pthread", "-g", *done.stdout.split()]


def build(compiler: str, flags: list[str], out: Path, *sources: Path, extra: tuple[str, ...] = ()):
    libraries = [flag for flag in flags if flag.startswith("-l")]
    others = [flag for flag in flags if not flag.startswith("-l")]
    subprocess.run(
        [compiler, *others, *extra, "-o", str(out), *map(str, [*sources, *SOURCES]), *libraries],
        check=True,
    )


def test_every_failing_allocation_of_the_core_is_reported(compiler, flags, tmp_path):
    build(compiler, flags, tmp_path / "core_test", HERE / "core_test.c", extra=("-O1",))
    directory = tmp_path / "files"
    directory.mkdir()
    done = subprocess.run(
        [str(tmp_path / "core_test"), str(directory)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert os.listdir(directory) == []


def test_the_core_is_free_of_races(compiler, flags, tmp_path):
    """The thread sanitizer over the pool, writing and reading."""
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    probed = subprocess.run(
        [compiler, "-fsanitize=thread", str(probe), "-o", str(tmp_path / "probe")],
        capture_output=True,
        check=False,
    )
    if probed.returncode or subprocess.run([str(tmp_path / "probe")], check=False).returncode:
        pytest.skip("no thread sanitizer")
    extra = ("-O1", "-fsanitize=thread", "-DPLAIN_MALLOC")
    build(compiler, flags, tmp_path / "races", HERE / "core_test.c", extra=extra)
    done = subprocess.run(
        [str(tmp_path / "races"), str(tmp_path)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING: ThreadSanitizer" not in done.stderr
