"""What the rooms of ``freeze`` share: the store of frozen entries and the refusal."""

from __future__ import annotations

import hashlib


class Unsupported(Exception):
    """Something that was captured cannot be frozen; the message is the reason, fit for a user."""


class Disproved(Unsupported):
    """What was rebuilt from a record is not what the record was made from."""


class Store:
    """Entries of an artifact to be: content-addressed, each stored once.

    ``entries`` maps ``(kind, digest)`` to ``(name, bytes)``.
    """

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], tuple[str, bytes]] = {}

    def add(self, kind: str, name: str, data: bytes) -> str:
        """Add one entry and return the sha256 (hex) of *data*, its name in other records."""
        digest = hashlib.sha256(data).hexdigest()
        self.entries.setdefault((kind, digest), (name, data))
        return digest
