"""One rank: ranks agree, prepare and finalize together, and fail together; one JSON line.

    talk.py DIR SCENARIO...

Nothing is compiled: the artifacts are written by hand. A scenario returns plain data; an error is
returned as its class, text and differences, since all ranks have to raise the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import precomp
from precomp import _core, environment
from precomp.data import dumps
from precomp.distributed import DEFAULT_TIMEOUT, hosts
from precomp.distributed import finalize as finalizing
from precomp.distributed.exchange import Exchange, default_group

SCENARIOS: dict[str, Callable[[str], Any]] = {}
TIMEOUT = 10.0


def scenario(function: Callable[[str], Any]) -> Callable[[str], Any]:
    SCENARIOS[function.__name__] = function
    return function


def rank() -> int:
    return dist.get_rank()


def artifact(path: str, text: str = "same", **other: str) -> str:
    """A small artifact whose fingerprint depends on *text*."""
    found = environment.current() | other
    rules = {
        "skip_files": (), "inline_files": (), "skip_dirs": (), "skips": (), "modes": (),
        "helpers": (), "order": (),
    }  # fmt: skip
    entries = [("frame", "f", text.encode()), ("rules", "rules", dumps(rules))]
    _core.write_artifact(path, found, entries)
    return path


def mine(directory: str, name: str) -> str:
    return os.path.join(directory, f"{name}.{rank()}")


def attempt(function: Callable[[], Any]) -> Any:
    """The result of *function*, or the error that it raises."""
    start = time.monotonic()
    try:
        return function()
    except Exception as error:  # noqa: BLE001 (returned)
        seconds = time.monotonic() - start
        assert seconds < 30, f"{seconds} s until {error!r}"
        return [type(error).__name__, str(error), getattr(error, "differences", None)]


def prepare(path: str, group: Any = True, timeout: float = TIMEOUT) -> Any:
    def run() -> list[str]:
        with precomp.prepare(path, group=group, timeout=timeout) as prepared:
            precomp.agree(prepared, group, timeout=timeout)
            return [prepared.artifact.fingerprint]

    return attempt(run)


@scenario
def equal_files(directory: str) -> Any:
    return prepare(artifact(mine(directory, "equal")))


@scenario
def other_artifact(directory: str) -> Any:
    return prepare(artifact(mine(directory, "other"), "other" if rank() == 1 else "same"))


@scenario
def other_artifact_found_by_agree(directory: str) -> Any:
    path = artifact(mine(directory, "late"), "other" if rank() == 1 else "same")
    with precomp.prepare(path) as prepared:
        return attempt(lambda: precomp.agree(prepared, dist.group.WORLD, timeout=TIMEOUT))


@scenario
def other_torch(directory: str) -> Any:
    if rank() == 1:
        current = environment.current
        environment.current = lambda: current() | {"torch": "9.9", "torch_commit": "f00"}
    try:
        return prepare(artifact(mine(directory, "torch")))
    finally:
        if rank() == 1:
            environment.current = current


@scenario
def other_threads(directory: str) -> Any:
    import torch

    torch.set_num_threads(1 + rank())
    try:
        return prepare(artifact(mine(directory, "threads"), threads="1"))
    finally:
        torch.set_num_threads(1)


@scenario
def other_threads_that_are_served(directory: str) -> Any:
    import torch

    torch.set_num_threads(1 + rank())
    try:
        return prepare(artifact(mine(directory, "both"), threads="1 or 2"))
    finally:
        torch.set_num_threads(1)


@scenario
def missing_file(directory: str) -> Any:
    path = mine(directory, "missing")
    return prepare(artifact(path) if rank() == 0 else path)


@scenario
def missing_everywhere(directory: str) -> Any:
    return prepare(os.path.join(directory, "nowhere"))


@scenario
def corrupt_file(directory: str) -> Any:
    path = artifact(mine(directory, "corrupt"))
    if rank() == 1:
        with open(path, "r+b") as stream:
            stream.seek(-1, os.SEEK_END)
            last = stream.read(1)
            stream.seek(-1, os.SEEK_END)
            stream.write(bytes([last[0] ^ 1]))
    return prepare(path)


@scenario
def another_environment_everywhere(directory: str) -> Any:
    return prepare(artifact(os.path.join(directory, f"moved.{rank()}"), torch="0.1"))


@scenario
def silent_rank(directory: str) -> Any:
    if rank() == 1:
        time.sleep(TIMEOUT + 2)
        return None
    return prepare(artifact(mine(directory, "silent")))


@scenario
def host_without_the_file(directory: str) -> Any:
    """Each rank is a host of its own; only the second has the file."""
    identity = hosts.identity
    hosts.identity = lambda: f"host {rank()}"
    try:
        path = mine(directory, "remote")
        return prepare(artifact(path) if rank() == 1 else path)
    finally:
        hosts.identity = identity


def finalize(
    directory: str,
    name: str,
    entries: dict[str, bytes],
    problems: tuple[tuple[str, str], ...] = (),
    group: Any = None,
    timeout: float = TIMEOUT,
    **other: str,
) -> Any:
    found = {("kernel", _core.sha256(data)): (name, data) for name, data in entries.items()}
    path = os.path.join(directory, name)

    def run() -> Any:
        written = finalizing.finalize(
            group or default_group(), path, environment.current() | other, found, problems, 9,
            timeout,
        )  # fmt: skip
        artifact = precomp.Artifact.open(written)
        return [artifact.digest, [[e.name, e.raw_size] for e in artifact.entries]]

    return attempt(run)


@scenario
def union(directory: str) -> Any:
    """Each rank has one entry of its own, larger than a value of the store may be."""
    return finalize(
        directory,
        "union",
        {"shared": b"shared" * 1000, f"own {rank()}": bytes([rank()]) * 9_000_000},
    )


@scenario
def union_on_two_hosts(directory: str) -> Any:
    """The file of the first rank is not visible to the second."""
    identity, look = hosts.identity, finalizing._digest
    hosts.identity = lambda: f"host {rank()}"
    if rank() == 1:
        finalizing._digest = lambda path: None
    try:
        return finalize(directory, "hosts", {"shared": b"shared"})
    finally:
        hosts.identity, finalizing._digest = identity, look


@scenario
def problem_on_one_rank(directory: str) -> Any:
    problems = (("f", "cannot be frozen"),) if rank() == 1 else ()
    outcome = finalize(directory, "problem", {"shared": b"x"}, problems)
    return [outcome, os.path.exists(os.path.join(directory, "problem"))]


@scenario
def other_environment(directory: str) -> Any:
    return finalize(directory, "environment", {"shared": b"x"}, machine=f"machine {rank()}")


@scenario
def other_path(directory: str) -> Any:
    return finalize(directory, f"path {rank()}", {"shared": b"x"})


@scenario
def unwritable(directory: str) -> Any:
    return finalize(os.path.join(directory, "no directory"), "file", {"shared": b"x"})


@scenario
def capture_left_by_an_exception(directory: str) -> Any:
    """One rank's capture fails; the other's finalize fails at once, and with its reason."""
    if rank() == 0:
        outcome = finalize(directory, "left", {"shared": b"x"})
        return [outcome, os.path.exists(os.path.join(directory, "left"))]

    class Capture(precomp.Capture):
        def _begin(self) -> None:  # torch's compiler is not needed to fail
            self._precompiled = contextlib.ExitStack()
            self._precompiled.remove = self._precompiled.close

    with contextlib.suppress(ValueError), Capture():
        raise ValueError("a bad batch")
    return None


@scenario
def a_violation_in_each_of_two_preparations(directory: str) -> Any:
    found = []
    for name in ("one", "two"):
        path = artifact(mine(directory, f"watch {name}"))
        with precomp.prepare(path, group=True, timeout=TIMEOUT):
            gate = precomp.strict_no_compile()
            try:
                with gate:
                    if rank() == 0:
                        _core.gate_trip("trace", name, "not captured")
                    end = time.monotonic() + TIMEOUT
                    while not gate.violations and time.monotonic() < end:
                        time.sleep(0.05)
            except precomp.CompileViolation as violation:
                found.append([str(violation), violation.rank])
    return found


@scenario
def slow_rank(directory: str) -> Any:
    """A rank that works longer than the timeout is alive, and waited for."""
    with Exchange(default_group(), "slow", 3.0) as exchange:
        if rank() == 1:
            time.sleep(7)
        return exchange.all_gather(rank())


@scenario
def tuned_apart(directory: str) -> Any:
    """What is fastest on one rank is slowest on the other: the choices, captured and not."""
    import tuned
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    own, other, runs = float(rank()), float(1 - rank()), (0.0, float("inf"))
    CachingAutotuner.bench = tuned.timed
    with precomp.capture():
        found = {
            "one kernel": tuned.choice(tuned.one, own, other),
            "another one": tuned.choice(tuned.another, own, other),
            "the same again": tuned.choice(tuned.one, other, own),
            "other sizes": tuned.choice(tuned.one, other, own, hint=128),
            "other configurations": tuned.choice(tuned.one, own, other, warps=8 << rank()),
            "only one runs": tuned.choice(tuned.one, runs[rank()], runs[1 - rank()], warps=2),
            "kernels": tuned.kernel(own, other),
            "kernels again": tuned.kernel(other, own),
            "templates": tuned.template("some inputs", own, other),
            "templates for other inputs": tuned.template("inputs", other, own),
            "templates again": tuned.template("some inputs", other, own),
            "other templates": tuned.template("some inputs", own, other, own=f"{rank()}, "),
            "padding": int(tuned.padded("a product", 1.0 + own, 1.5)),
            "padding of another": int(tuned.padded("another", 1.0 + other, 1.5)),
            "the program's": tuned.own(tuned.programs, own, other),
            "the program's again": tuned.own(tuned.programs, other, own),
            "the program's of other sizes": tuned.own(tuned.programs, own, other, key=2),
            "the program's by an object": tuned.own(tuned.programs, own, other, key=object()),
        }
    return found | {
        "afterwards": tuned.choice(tuned.one, own, other),
        "kernels afterwards": tuned.kernel(own, other),
        "templates afterwards": tuned.template("other inputs", own, other),
        "padding afterwards": int(tuned.padded("a third", 1.0 + own, 1.5)),
        "the program's afterwards": tuned.own(tuned.programs, own, other),
    }


# Where a rank dies, in this order: its number, the call that it does not survive, and the timeout
# of those that count on it. The store runs in the process of rank 0.
DEATHS: dict[str, tuple[int, Any, str, float]] = {
    "before finalize": (5, Exchange, "__enter__", 4.0),
    "in prepare": (4, Exchange, "gather", 4.0),
    "sending": (3, Exchange, "offer", DEFAULT_TIMEOUT),
    "writing": (0, _core, "write_artifact", 4.0),
}
SURVIVORS = (1, 2)


@scenario
def killed(directory: str) -> Any:
    """One rank after the other is killed, while ranks 0, 1 and 2 count on it."""
    members = {where: sorted({0, *SURVIVORS, victim}) for where, (victim, *_) in DEATHS.items()}
    groups = {where: dist.new_group(ranks) for where, ranks in members.items()}
    found: dict[str, Any] = {}
    for where, (victim, holder, name, timeout) in DEATHS.items():
        if rank() == victim:
            print(json.dumps({"killed": found}), flush=True)
            setattr(holder, name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        if rank() not in members[where]:
            continue
        if where == "in prepare":
            path = artifact(os.path.join(directory, f"prepare.{rank()}"))
            found[where] = prepare(path, groups[where], timeout)
        else:
            entries = {f"own {rank()}": str(rank()).encode()}
            found[where] = finalize(directory, "dead", entries, (), groups[where], timeout)
    return found


def main() -> None:
    directory, *names = sys.argv[1:]
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results = {name: SCENARIOS[name](directory) for name in names}
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
