"""Which ranks share a host, and how a file gets to the hosts that cannot read it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

from precomp.distributed.exchange import Exchange


def identity() -> str:
    """The same for processes that see the same files: host, boot and mount namespace."""
    parts = [platform.node()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/mnt"))
    except OSError:
        parts.append("no /proc")
    return "/".join(parts)


def leaders(hosts: Iterable[str]) -> dict[str, int]:
    """Host -> index of its first rank; *hosts* in the order of the ranks."""
    found: dict[str, int] = {}
    for index, host in enumerate(hosts):
        found.setdefault(host, index)
    return found


def deliver(
    exchange: Exchange, source: int, data: bytes | None, receivers: Mapping[str, int], name: str
) -> bytes | None:
    """*data* of the rank *source*, on the one rank of each host in *receivers*; else None.

    Once over the network for each host, through the store of the group.
    """
    if exchange.index == source and receivers:
        assert data is not None
        exchange.offer(name, data)
    if exchange.index in receivers.values():
        return exchange.take(name, source)
    return None
