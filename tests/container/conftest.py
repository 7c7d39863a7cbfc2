"""Helpers of these tests as fixtures: ``reader``, ``forge``, ``golden`` and ``run``."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import precomp

HERE = Path(__file__).parent


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"container_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def reader() -> ModuleType:
    return _load("reader")


@pytest.fixture(scope="session")
def forge() -> ModuleType:
    return _load("forge")


@pytest.fixture(scope="session")
def golden() -> Path:
    return HERE / "golden"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script in a fresh interpreter in *tmp_path*."""

    def run_script(
        script: str, *args: str, env: dict[str, str] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        home = str(Path(precomp.__file__).parent.parent)
        done = subprocess.run(
            [sys.executable, "-c", script, *args],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": home, **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run_script
