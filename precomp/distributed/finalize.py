"""``Capture.finalize`` of all ranks of a group: one artifact, written once, without repetition."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precomp import _core
from precomp.artifact import Artifact, joined_environment
from precomp.data import dumps, loads
from precomp.distributed import agreement, hosts
from precomp.distributed.exchange import Exchange, GroupError, ranks_text
from precomp.errors import ArtifactCorruptError, PrecompError, UnsupportedCaptureError
from precomp.files import Replacement

Entries = Mapping[tuple[str, str], tuple[str, bytes]]
Problems = Sequence[tuple[str, str]]

_ALONE = "pass group=False to write the capture of one rank alone"


def finalize(
    group: Any,
    path: str,
    environment: Mapping[str, str],
    entries: Entries,
    problems: Problems,
    compression: int,
    timeout: float,
) -> str:
    """Write the union of what the ranks of *group* captured; every rank has to call it.

    *entries* maps ``(kind, digest)`` to ``(name, bytes)``; *problems* are those that forbid
    writing. The first rank of the group collects the entries that it lacks, each from one rank, and
    writes; hosts that cannot read its file get a copy at the same absolute path. Returns that path.
    """
    with Exchange(group, "finalize", timeout, hint=_ALONE) as exchange:
        plan = exchange.answer(_plan(exchange, path, environment, entries, problems))
        found = dict(entries)
        for index, digests in plan["wanted"]:
            name = f"sections of {index}"
            if exchange.index == index:
                rows = [
                    (kind, digest, *entries[kind, digest]) for kind, digest in map(tuple, digests)
                ]
                exchange.offer(name, dumps(tuple(rows)))
            elif exchange.root:
                for kind, digest, entry, data in loads(exchange.take(name, index)):
                    if hashlib.sha256(data).hexdigest() != digest:
                        raise ArtifactCorruptError(
                            f"finalize: {kind} {entry} of rank {exchange.ranks[index]} does not "
                            f"have the digest {digest}: damaged on its way"
                        )
                    found[kind, digest] = (entry, data)
        target, digest = plan["path"], ""
        if exchange.root:
            whole = [(kind, name, data) for (kind, _), (name, data) in found.items()]
            digest = _core.write_artifact(target, plan["environment"], whole, compression)
        _copies(exchange, target, exchange.answer(digest))
        exchange.all_gather(None)
    return str(target)


def _plan(
    exchange: Exchange,
    path: str,
    environment: Mapping[str, str],
    entries: Entries,
    problems: Problems,
) -> dict[str, Any] | None:
    """On the root, after all have told what they have: who sends which entries."""
    everyone = exchange.gather(
        {
            "path": path,
            "environment": dict(environment),
            "entries": tuple(sorted(entries)),
            "problems": tuple(problems),
        }
    )
    if everyone is None:
        return None
    ranks = exchange.ranks
    paths = {row["path"] for row in everyone}
    if len(paths) > 1:
        raise GroupError(
            f"finalize: the ranks of a group write one artifact, but were given {sorted(paths)}; "
            f"give all the same path, or {_ALONE}"
        )
    agreement.require_one_environment(exchange.purpose, [e["environment"] for e in everyone], ranks)
    by_problem: dict[tuple[str, str], list[int]] = {}
    for rank, row in zip(ranks, everyone, strict=True):
        for problem in row["problems"]:
            by_problem.setdefault(tuple(problem), []).append(rank)
    if by_problem:
        raise UnsupportedCaptureError.of(
            path,
            [
                (name, reason if len(where) == len(ranks) else f"{reason} ({ranks_text(where)})")
                for (name, reason), where in by_problem.items()
            ],
        )
    known = set(entries)
    wanted = []
    for index, row in enumerate(everyone):
        missing = [key for key in map(tuple, row["entries"]) if key not in known]
        known.update(missing)
        if missing:
            wanted.append((index, tuple(missing)))
    return {
        "path": os.path.abspath(path),
        "environment": joined_environment([e["environment"] for e in everyone]),
        "wanted": tuple(wanted),
    }


def _copies(exchange: Exchange, path: str, digest: str) -> None:
    """Give the file to the hosts that cannot read it."""
    rows = exchange.all_gather((hosts.identity(), _digest(path) == digest))
    having = {host for host, found in rows if found}
    receivers = hosts.leaders(host for host, _ in rows)
    receivers = {host: index for host, index in receivers.items() if host not in having}
    data = Path(path).read_bytes() if exchange.root and receivers else None
    data = hosts.deliver(exchange, 0, data, receivers, "artifact")
    if data is not None:
        with Replacement(path) as file:
            file.write(data)


def _digest(path: str) -> str | None:
    try:
        with Artifact.open(path) as artifact:
            return artifact.digest
    except (OSError, PrecompError):
        return None


def abandon(group: Any, error: BaseException | None) -> None:
    """This rank's capture failed: let the others' finalize fail at once, and with its reason."""
    reason = PrecompError("left by an exception") if error is None else error
    Exchange(group, "finalize").give_up(reason)
