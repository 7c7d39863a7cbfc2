"""``agree`` and ``prepare(group=...)``: all ranks hold the same compute path, or none goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precomp.distributed import DEFAULT_TIMEOUT, hosts
from precomp.distributed.exchange import Exchange, default_group
from precomp.environment import SETTABLE
from precomp.errors import ArtifactError, PrecompError, RankMismatchError

if TYPE_CHECKING:
    from precomp._prepare import Prepared

MISSING = "no such file"

Difference = tuple[int, str, str, str]


def facts(
    path: str, artifact: Any, environment: Mapping[str, str], problem: str | None = None
) -> dict[str, Any]:
    """What a rank tells the others about its artifact (None: *problem* says why) and itself."""
    return {
        "host": hosts.identity(),
        "path": path,
        "fingerprint": None if artifact is None else artifact.fingerprint,
        "artifact": None if artifact is None else artifact.environment,
        "environment": dict(environment),
        "problem": problem,
    }


def _common(values: Sequence[Any]) -> Any:
    """The value that most ranks have; of several, that of the lowest rank."""
    counts = Counter(values)
    return max(values, key=lambda value: (counts[value], -values.index(value)))


def differences(rows: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> tuple[Difference, ...]:
    """``(rank, field, expected, found)`` of every rank that differs from what most have."""
    found: list[Difference] = []

    def compare(field: str, values: dict[int, str]) -> None:
        if len(set(values.values())) > 1:
            expected = _common(list(values.values()))
            found.extend(
                (rank, field, expected, value)
                for rank, value in values.items()
                if value != expected
            )

    for rank, row in zip(ranks, rows, strict=True):
        if row["problem"] is not None:
            found.append((rank, "artifact", "a whole file", f"{row['path']}: {row['problem']}"))
    whole = {rank: row for rank, row in zip(ranks, rows, strict=True) if row["fingerprint"]}
    compare("fingerprint", {rank: row["fingerprint"] for rank, row in whole.items()})
    fields = sorted({field for row in rows for field in row["environment"]})
    for field in fields:
        values = {
            rank: row["environment"].get(field, "nothing")
            for rank, row in zip(ranks, rows, strict=True)
        }
        if field in SETTABLE and all(
            values[rank] in row["artifact"].get(field, "").split(" or ")
            for rank, row in whole.items()
        ):
            continue  # each of these values is served
        compare(field, values)
    return tuple(sorted(found))


def require_one_environment(
    what: str, environments: Sequence[Mapping[str, str]], ranks: Sequence[int]
) -> None:
    """Raise RankMismatchError unless artifacts of these environments can be one."""
    blank = {"problem": None, "fingerprint": None, "artifact": None}
    rows = differences([{**blank, "environment": row} for row in environments], ranks)
    if rows:
        raise _mismatch(what, rows)


def _mismatch(what: str, rows: tuple[Difference, ...]) -> RankMismatchError:
    by_rank: dict[int, list[str]] = {}
    for rank, field, expected, found in rows:
        by_rank.setdefault(rank, []).append(f"\n    {field}: expected {expected}, found {found}")
    lines = "".join(f"\n  rank {rank}:" + "".join(by_rank[rank]) for rank in sorted(by_rank))
    return RankMismatchError(
        f"{what}: the ranks of the process group do not agree:{lines}"
        "\nStart every rank in the same environment, from one artifact.",
        rows,
    )


def compare(exchange: Exchange, mine: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The facts of all ranks; RankMismatchError, the same on every rank, when they differ."""
    everyone = exchange.gather(dict(mine))
    if everyone is not None:
        if all(row["problem"] == MISSING for row in everyone):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), everyone[0]["path"])
        rows = differences(_without_receivers(everyone), exchange.ranks)
        if rows:
            raise _mismatch(exchange.purpose, rows)
    return list(exchange.answer(everyone))


def _without_receivers(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """*rows*, in which ranks of hosts without any artifact lack none: they will get one."""
    having = {row["host"] for row in rows if row["problem"] != MISSING}
    if not having:
        return list(rows)
    return [row if row["host"] in having else {**row, "problem": None} for row in rows]


def _group(group: Any, what: str) -> Any:
    found = default_group()
    if found is None:
        raise PrecompError(
            f"{what}: torch.distributed is not initialised; call "
            "torch.distributed.init_process_group first"
        )
    return found if group is None or group is True else group


def agree(prepared: Prepared, group: Any = None, *, timeout: float = DEFAULT_TIMEOUT) -> None:
    """Compare artifact and environment over all ranks of *group*, before the model is loaded.

    *group*: a process group, None for the default one. Every rank has to call it. Raises
    RankMismatchError, the same on every rank, whose ``differences`` list
    ``(rank, field, expected, found)`` of each rank that differs from what most ranks have;
    PrecompError when a rank does not answer for *timeout* seconds. From then on, a
    CompileViolation on one rank is known to all (docs/distributed.md).
    """
    from precomp import environment
    from precomp.distributed import watch

    group = _group(group, "agree")
    with Exchange(group, "agree", timeout) as exchange:
        artifact = prepared.artifact if prepared.active else None
        mine = facts(
            prepared.artifact.path,
            artifact,
            environment.current(),
            None if prepared.active else "prepared, but uninstalled",
        )
        compare(exchange, mine)
        exchange.all_gather(None)
    watch.start(group)


class Meeting:
    """``prepare`` of all ranks of a group: an artifact for each, and one outcome.

    Use: ``with Meeting(group, timeout) as meeting: path = meeting.settle(path, ...)``; what is
    raised inside on one rank is raised on all of them.
    """

    def __init__(self, group: Any, timeout: float) -> None:
        self.group = _group(group, "prepare")
        self.exchange = Exchange(self.group, "prepare", timeout)
        self._temporary: str | None = None

    def __enter__(self) -> Meeting:
        self.exchange.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            if error is None:
                # Inside the exchange: what fails here fails everywhere.
                try:
                    self.exchange.all_gather(None)
                except BaseException as failure:
                    self.exchange.__exit__(type(failure), failure, failure.__traceback__)
                    raise
            self.exchange.__exit__(kind, error, traceback)
        finally:
            if self._temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(self._temporary)

    def settle(self, path: str, environment: Mapping[str, str]) -> str:
        """The file that this rank prepares from: *path*, or a copy that its host received."""
        from precomp.artifact import Artifact

        artifact, problem = None, None
        try:
            artifact = Artifact.open(path).verify()
        except FileNotFoundError:
            problem = MISSING
        except (OSError, ArtifactError) as error:
            problem = f"{type(error).__name__}: {error}"
        rows = compare(self.exchange, facts(path, artifact, environment, problem))
        return self._deliver(path, rows)

    def _deliver(self, path: str, rows: Sequence[Mapping[str, Any]]) -> str:
        exchange = self.exchange
        having = {row["host"] for row in rows if row["problem"] is None}
        receivers = hosts.leaders(row["host"] for row in rows)
        receivers = {host: index for host, index in receivers.items() if host not in having}
        if not receivers:
            return path
        source = next(i for i, row in enumerate(rows) if row["problem"] is None)
        data = Path(path).read_bytes() if exchange.index == source else None
        data = hosts.deliver(exchange, source, data, receivers, "artifact")
        if data is not None:
            descriptor, self._temporary = tempfile.mkstemp(suffix=".precomp")
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
        copies = exchange.all_gather(self._temporary)
        leader = receivers.get(rows[exchange.index]["host"])
        return path if leader is None else str(copies[leader])
