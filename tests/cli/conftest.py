"""Fixtures: ``one`` is a small artifact, ``cli`` runs the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_artifacts import HOME, WITHOUT_TORCH, tensor, write


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return write(tmp_path / "one.precomp", tensor("L['x']", 8, 32))


Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Runs the command line in *tmp_path*, where torch is absent unless ``torch=True``."""

    def run(
        *words: object, torch: bool = False, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        how = ("-m", "precomp") if torch else ("-c", WITHOUT_TORCH)
        return subprocess.run(
            [sys.executable, "-B", *how, *map(str, words)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": HOME, **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
