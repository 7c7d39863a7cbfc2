"""Fixtures: one cold capture of all programs, and processes that know nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import share_headers

HERE = Path(__file__).parent

# What a sanitized build needs in every process.
SANITIZER = ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS", "PYTHONMALLOC")


def python_path() -> str:
    import precomp

    root = str(Path(precomp.__file__).parents[1])
    return os.pathsep.join([str(HERE), root, os.environ.get("PYTHONPATH", "")])


def run_python(args, cwd, stdin=None, **environment):
    """Run Python; returns the last line of its output, read as JSON (None when it printed none)."""
    done = subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        input=stdin,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines else None


def runner(directory: Path):
    """Runs Python in an empty directory, without PATH or caches and with a HOME of its own."""
    for name in ("home", "tmp", "cwd"):
        (directory / name).mkdir()
    base = {
        "PATH": "/nonexistent",
        "HOME": str(directory / "home"),
        "TMPDIR": str(directory / "tmp"),
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "home" / "cache"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": python_path(),
        **{name: os.environ[name] for name in SANITIZER if name in os.environ},
    }

    def run(*args, stdin=None, **environment):
        if "LD_PRELOAD" in environment and "LD_PRELOAD" in base:
            environment["LD_PRELOAD"] = f"{base['LD_PRELOAD']} {environment['LD_PRELOAD']}"
        return run_python(args, directory / "cwd", stdin, **{**base, **environment})

    return run


@pytest.fixture
def bare(tmp_path):
    return runner(tmp_path)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return runner(tmp_path_factory.mktemp("python"))


def capture(directory: Path, names, **environment):
    """Compile *names* (all when empty) cold; returns the path of the capture and its summary."""
    for name in ("home", "tmp", "cwd"):
        (directory / name).mkdir(parents=True)
    share_headers(directory / "tmp")
    out = directory / "captured.pt"
    base = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory / "home"),
        "TMPDIR": str(directory / "tmp"),
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "cache"),
        "TORCHINDUCTOR_COMPILE_THREADS": "2",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": python_path(),
        **{name: os.environ[name] for name in SANITIZER if name in os.environ},
    }
    args = [HERE / "captured.py", out, *names]
    return out, run_python(args, directory / "cwd", None, **{**base, **environment})


@pytest.fixture(scope="session")
def captured(tmp_path_factory):
    return capture(tmp_path_factory.mktemp("captured"), ())


@pytest.fixture
def capture_again(tmp_path):
    def again(names, **environment):
        return capture(tmp_path / "another" / "place", names, **environment)

    return again
