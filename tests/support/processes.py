"""Processes for tests: places with own home, caches and working directory, and what ran there."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEEP = ("PYTHONPATH", "LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", "LANG")
CACHE = "PRECOMP_TEST_CACHE"

PRELUDE = """\
import json, os, sys
def done(**facts):
    print(json.dumps(facts))
    sys.stdout.flush()
"""


@dataclass
class Finished:
    """A process that ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def facts(self) -> dict[str, Any]:
        """The JSON object on its last line of output."""
        assert self.returncode == 0, f"exit status {self.returncode}\n{self.stdout}\n{self.stderr}"
        lines = self.stdout.splitlines()
        assert lines, f"no output\n{self.stderr}"
        return json.loads(lines[-1])

    def __str__(self) -> str:
        return f"exit status {self.returncode}\n-- stdout\n{self.stdout}\n-- stderr\n{self.stderr}"


def share_headers(tmp: Path) -> None:
    """Let processes with TMPDIR *tmp* use the C++ headers that others of this session precompiled.

    Inductor keeps them under TMPDIR whatever its cache directory is: 150 MB and ten seconds for
    each TMPDIR otherwise. Kernels stay as cold as their own cache.
    """
    shared = os.environ.get(CACHE)
    if shared:
        headers = Path(shared) / "headers"
        link = tmp / f"torchinductor_{getpass.getuser()}" / "precompiled_headers"
        headers.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(headers)


@dataclass
class Place:
    """Where a process runs: its own working directory, HOME, TMPDIR and compile caches.

    With ``compiler=False`` nothing is on PATH and CC and CXX name a program that fails.
    """

    root: Path
    compiler: bool = True
    cache: Path | None = None
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for directory in (self.work, self.home, self.tmp, self.inductor, self.root / "bin"):
            directory.mkdir(parents=True, exist_ok=True)
        if self.compiler:
            share_headers(self.tmp)

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def inductor(self) -> Path:
        return self.cache or self.root / "inductor"

    def environment(self) -> dict[str, str]:
        env = {name: os.environ[name] for name in KEEP if name in os.environ}
        env |= {
            "HOME": str(self.home),
            "TMPDIR": str(self.tmp),
            "TORCHINDUCTOR_CACHE_DIR": str(self.inductor),
            "TRITON_CACHE_DIR": str(self.inductor / "triton"),
            "PATH": os.environ["PATH"] if self.compiler else str(self.root / "bin"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONFAULTHANDLER": "1",
            "OMP_NUM_THREADS": "1",
        }
        if not self.compiler:
            env |= {"CC": "/bin/false", "CXX": "/bin/false"}
        return env | self.extra

    def start(self, *command: object, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=self.work,
            env=self.environment() | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *command: object, env: dict[str, str] | None = None, timeout: float = 600
    ) -> Finished:
        """Run this Python with *command* to its end."""
        process = self.start(*command, env=env)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"did not end in {timeout} s\n{out}\n{err}") from None
        return Finished(process.returncode, out, err)

    def script(self, code: str, *args: object, name: str = "script.py", **options: Any) -> Finished:
        """Run *code*, after a prelude that defines ``done(**facts)``, as a script in ``work``."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PRELUDE + textwrap.dedent(code))
        return self.run(path, *args, **options)

    def write(self, name: str, code: str) -> Path:
        """A module beside the scripts."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
        return path

    def leftovers(self) -> list[str]:
        """Files in HOME, TMPDIR and the caches."""
        return sorted(
            str(path.relative_to(self.root))
            for directory in (self.home, self.tmp, self.inductor)
            for path in directory.rglob("*")
            if path.is_file()
        )


def differences(expected: Any, found: Any, path: str = "$") -> list[str]:
    """Where two result trees differ, as readable lines."""
    if type(expected) is not type(found):
        return [f"{path}: expected {expected!r}, found {found!r}"]
    if isinstance(expected, dict):
        lines = [f"{path}.{k}: only in one" for k in expected.keys() ^ found.keys()]
        for k in expected.keys() & found.keys():
            lines += differences(expected[k], found[k], f"{path}.{k}")
        return sorted(lines)
    if isinstance(expected, list):
        lines = []
        if len(expected) != len(found):
            lines.append(f"{path}: {len(expected)} items expected, {len(found)} found")
        for i, (a, b) in enumerate(zip(expected, found, strict=False)):
            lines += differences(a, b, f"{path}[{i}]")
        return lines
    return [] if expected == found else [f"{path}: expected {expected!r}, found {found!r}"]
