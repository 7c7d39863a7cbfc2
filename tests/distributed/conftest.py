"""What ranks of a process group did, once a session."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ranks
from processes import CACHE


@pytest.fixture(scope="session")
def inductor_cache(tmp_path_factory) -> Path:
    """The compile cache that captures of a session share; PRECOMP_TEST_CACHE keeps one."""
    path = os.environ.get(CACHE)
    return Path(path) if path else tmp_path_factory.mktemp("inductor")


@dataclass
class Runs:
    """Runs of cases by two ranks, captured and served, and the directory of their artifacts."""

    directory: Path
    captured: list[Any]
    served: list[Any]


@pytest.fixture(scope="session")
def capture_and_serve(tmp_path_factory, inductor_cache) -> Callable[..., Runs]:
    """Capture cases with two ranks that share a cache, and serve them without a compiler."""

    def run(*names: str) -> Runs:
        root = tmp_path_factory.mktemp("ranks")
        artifacts = root / "artifacts"
        artifacts.mkdir()
        capturing = ranks.places(root / "capture", 2, cache=inductor_cache)
        serving = ranks.places(root / "serve", 2, compiler=False)
        captured = [
            rank.facts
            for rank in ranks.run(capturing, "worker.py", "capture", artifacts, *names, timeout=900)
        ]
        assert [rank["errors"] for rank in captured] == [{}, {}]
        served = ranks.run(serving, "worker.py", "serve", artifacts, *names)
        return Runs(artifacts, captured, [rank.facts for rank in served])

    return run


@pytest.fixture(scope="session")
def few(capture_and_serve) -> Runs:
    """A few cases of each kind; sweep.py has all of them."""
    return capture_and_serve(*ranks.FEW, *ranks.TENSOR_PARALLEL)
