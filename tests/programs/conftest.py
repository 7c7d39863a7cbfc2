"""Artifacts of the programs, captured once a session, a few programs in each process."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import CACHE, Place

RUNNER = Path(__file__).with_name("runner.py")

# Captured together in one process; the groups run two at a time.
GROUPS = (
    ("mlp", "two", "dyn", "modes"),
    ("enc", "modc", "infer"),
    ("bn", "rnd", "amp", "ck"),
    ("ali", "brk", "dis", "nst", "seq", "alias"),
    ("fn", "kw", "regional", "update"),
)


@pytest.fixture(scope="session")
def inductor_cache(tmp_path_factory) -> Path:
    """The compile cache that captures of a session share; PRECOMP_TEST_CACHE keeps one."""
    path = os.environ.get(CACHE)
    return Path(path) if path else tmp_path_factory.mktemp("inductor")


@dataclass(frozen=True)
class Captured:
    """One captured program."""

    name: str
    directory: Path
    result: Any
    report: str

    @property
    def artifact(self) -> Path:
        return self.directory / f"{self.name}.precomp"


class Captures:
    """Captures groups of programs in the background, each when it is first asked for."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.root = root
        self.cache = cache
        self.pool = ThreadPoolExecutor(2)
        self.groups: dict[tuple[str, ...], Future[dict[str, Any]]] = {}

    def start(self, group: tuple[str, ...]) -> Future[dict[str, Any]]:
        if group not in self.groups:
            place = Place(self.root / f"capture-{group[0]}", cache=self.cache)
            directory = self.root / "artifacts"
            directory.mkdir(exist_ok=True)
            self.groups[group] = self.pool.submit(
                lambda: place.run(RUNNER, "capture", directory, *group, timeout=900).facts
            )
        return self.groups[group]

    def __call__(self, name: str) -> Captured:
        (group,) = (g for g in GROUPS if name in g)
        facts = self.start(group).result()
        if name in facts["errors"]:
            pytest.fail(f"capture of {name} failed:\n{facts['errors'][name]}", pytrace=False)
        return Captured(
            name, self.root / "artifacts", facts["results"][name], facts["reports"][name]
        )


@pytest.fixture(scope="session")
def captured(tmp_path_factory, inductor_cache):
    """``captured(name)`` is a captured program: artifact, results of the captured run, report."""
    captures = Captures(tmp_path_factory.mktemp("programs"), inductor_cache)
    yield captures
    captures.pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def all_captured(captured):
    """All programs, their captures started at once, two processes at a time."""
    for group in GROUPS:
        captured.start(group)
    return captured


@pytest.fixture
def here(tmp_path, inductor_cache) -> Place:
    """A place with a compiler, that shares the session's compile cache."""
    return Place(tmp_path / "here", cache=inductor_cache)


@pytest.fixture
def bare(tmp_path) -> Place:
    """Another place: other HOME, TMPDIR and working directory, empty caches, no compiler."""
    return Place(tmp_path / "a bare place", compiler=False)
