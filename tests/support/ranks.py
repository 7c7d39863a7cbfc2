"""Starts the ranks of a process group and collects what they print."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import Place
from torches import OLD

SCRIPTS = Path(__file__).parents[1] / "distributed"
# What forked ranks share: to be served, and to compile.
SERVED = "torch.distributed.fsdp,torch.distributed.device_mesh"
COMPILED = f"{SERVED},torch._dynamo,torch._inductor.compile_fx"

# Cases that are captured and served by the tests of CI; torch 2.11 has no guards on DTensors.
FEW = ("fsdp_compiled_model", "fsdp_blocks_before", "ddp_buckets")
TENSOR_PARALLEL = () if OLD else ("tensor_parallel",)


@dataclass
class Rank:
    """How one rank ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def facts(self) -> Any:
        """The JSON on its last line of output."""
        assert self.returncode == 0, f"exit status {self.returncode}\n{self.stdout}\n{self.stderr}"
        return json.loads(self.stdout.splitlines()[-1])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(places: list[Place], script: str | Path, *args: object, timeout: float = 300) -> list[Rank]:
    """Run *script* as one rank in each of *places*, to their ends or until *timeout* (seconds)."""
    group = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(len(places)),
    }
    processes = [
        place.start(
            SCRIPTS / script, *args, env=group | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank, place in enumerate(places)
    ]
    end = time.monotonic() + timeout
    ranks = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            out, err = process.communicate()
            raise AssertionError(f"did not end in {timeout} s\n{out}\n{err}") from None
        ranks.append(Rank(process.returncode, out, err))
    return ranks


def forked(
    place: Place, count: int, preload: str, script: str, *args: object, timeout: float = 600
) -> list[Any]:
    """What *script* left in facts.RANK.json, by rank: *count* ranks of *place*, forked from one
    parent, share an output."""
    done = place.run(
        "-m", "precomp", "run", "--ranks", count, "--preload", preload, SCRIPTS / script, *args,
        timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done
    files = [place.work / f"facts.{rank}.json" for rank in range(count)]
    return [json.loads(file.read_text()) for file in files]


def places(root: Path, count: int, **options: Any) -> list[Place]:
    """A place of its own, with its own caches, for each rank."""
    return [Place(root / f"rank{i}", **options) for i in range(count)]
