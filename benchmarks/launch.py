"""Ranks of a process group on this machine, each a fresh process with the caches it is given."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARIABLES = ("LANG", "LD_LIBRARY_PATH", "PYTHONPATH")


@dataclass
class Run:
    """What the ranks reported, and when (``time.time()``) they were started."""

    started: float
    seconds: float
    reports: list[dict[str, Any]]
    output: str
    parent_cpu: list[tuple[float, float]] = field(default_factory=list)

    def until(self, mark: str) -> float:
        """Seconds from the launch until the slowest rank set *mark*."""
        return max(report["marks"][mark][0] for report in self.reports) - self.started

    def cpu(self, mark: str) -> float:
        """CPU seconds of all ranks, their children and the parent of forked ones, until *mark*."""
        end = self.started + self.until(mark)
        parent = [seconds for at, seconds in self.parent_cpu if at <= end]
        own = sum(report["marks"][mark][1] for report in self.reports)
        return own + (parent[-1] if parent else 0.0)

    def facts(self, name: str) -> list[Any]:
        """One fact of every rank."""
        return [report[name] for report in self.reports]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def share_headers(temporary: Path, cache: Path) -> None:
    """Let processes with that TMPDIR use the C++ headers that others of *cache* precompiled.

    Inductor keeps them under TMPDIR, wherever its caches are. Ranks of one host share TMPDIR as a
    rule; here, where each has its own, they would compile ten seconds of headers each.
    """
    link = temporary / f"torchinductor_{getpass.getuser()}" / "precompiled_headers"
    headers = cache / "headers"
    headers.mkdir(parents=True, exist_ok=True)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(headers)


def environment(place: Path, cache: Path | None, compiler: bool) -> dict[str, str]:
    """Variables of a process with a HOME, TMPDIR and PATH of its own, and caches unless given."""
    for name in ("home", "tmp", "bin"):
        (place / name).mkdir(parents=True, exist_ok=True)
    if cache is not None:
        share_headers(place / "tmp", cache)
    cache = cache or place / "cache"
    found = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    found |= {
        "HOME": str(place / "home"),
        "TMPDIR": str(place / "tmp"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "PATH": os.environ["PATH"] if compiler else str(place / "bin"),
        "OMP_NUM_THREADS": "1",
    }
    if not compiler:
        found |= {"CC": "/bin/false", "CXX": "/bin/false"}
    return found


def run(
    script: Path,
    *options: object,
    ranks: int,
    root: Path,
    cache: Path | None = None,
    compiler: bool = True,
    preload: str | None = None,
    timeout: float = 1200,
    **variables: str,
) -> Run:
    """Run *script*, which takes ``--report FILE``, as *ranks* processes below *root*.

    *cache*: the compile caches that they share; None: each rank has empty ones. *preload*: fork the
    ranks from one parent that imported these modules, with ``precomp run --ranks``; they share
    their place then. Ends this process when a rank fails.
    """
    root.mkdir(parents=True, exist_ok=True)
    command = [str(script), *map(str, options), "--report", str(root / "report-{rank}.json")]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    started = time.time()
    processes = []
    if preload is not None:
        place = root / "all"
        command = ["-m", "precomp", "run", "--ranks", str(ranks), "--preload", preload, *command]
        env = environment(place, cache, compiler) | variables
        processes.append((place, [sys.executable, *command], env))
    else:
        for rank in range(ranks):
            place = root / f"rank-{rank}"
            env = environment(place, cache, compiler) | group | variables
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append((place, [sys.executable, *command], env))
    running = []
    for place, argv, env in processes:
        with open(place / "output", "w") as stream:
            running.append(subprocess.Popen(argv, cwd=place, env=env, stdout=stream, stderr=stream))
    try:
        used = wait(running, started + timeout)
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    seconds = time.time() - started
    output = "".join((place / "output").read_text() for place, _, _ in processes)
    if any(process.returncode for process in running):
        sys.exit(f"{' '.join(command)}: exit {[p.returncode for p in running]}\n{output}")
    reports = [json.loads((root / f"report-{rank}.json").read_text()) for rank in range(ranks)]
    return Run(started, seconds, reports, output, used if preload is not None else [])


def wait(running: list[subprocess.Popen[bytes]], end: float) -> list[tuple[float, float]]:
    """Until all have ended, *end* passed, or a while after one has failed.

    Returns when (``time.time()``) the first process itself, without its children, had used how many
    CPU seconds.
    """
    own = []
    while any(process.poll() is None for process in running):
        own.append((time.time(), cpu_seconds(running[0].pid)))
        if any(process.returncode for process in running):
            end = min(end, time.time() + 60)
        if time.time() > end:
            break
        time.sleep(0.05)
    return own


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process without its children; 0 when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
