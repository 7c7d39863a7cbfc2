"""precomp and the second reader agree on which of thousands of mutated files are good."""

from __future__ import annotations

import json
import random

import pytest

from precomp import _core
from precomp.errors import ArtifactCorruptError, ArtifactVersionError

PIECES = [
    *rb"""0 1 - . e1 9007199254740992 9007199254740993 " \ \u0000 \ud83d\ude00 \ud83d { } [ ] , :
    null true "x": [] {} [[[[[[[[ ]]]]]]""".split(),
    *(b" ", b"\n", b"\0", b"\x7f", b"\xc3\xa9", b"\xff", b"\xed\xa0\x80"),
]
VALUES = [
    *(None, True, 0, 1, 2, 64, 128, 192, 2**53, 2**53 + 1, -1, 1.5, "", "kernel", "none", "zstd"),
    *("a" * 64, "A" * 64, [], {}, ["x"], {"x": "y"}, {"x": 1}, "é" * 256, "é" * 257),
]


def mutate_text(chance: random.Random, text: bytes) -> bytes:
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        at = chance.randrange(len(text))
        kind = chance.randrange(4)
        if kind == 0:
            text = text[:at] + chance.choice(PIECES) + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + chance.randrange(1, 5) :]
        elif kind == 2:
            text = text[:at] + chance.choice(PIECES) + text[at + 1 :]
        else:
            end = min(len(text), at + chance.randrange(1, 80))
            text = text[:end] + text[at:end] + text[end:]
    return text or b"{"


def mutate_table(chance: random.Random, table: dict) -> None:
    node = table
    for _ in range(20):
        key = chance.choice([*node] if isinstance(node, dict) else [*range(len(node))])
        child = node[key]
        if isinstance(child, (dict, list)) and child and chance.random() < 0.8:
            node = child
            continue
        kind = chance.randrange(4)
        if kind == 0:
            del node[key]
        elif kind == 1 and isinstance(node, list):
            node.insert(chance.randrange(len(node) + 1), child)
        elif kind == 1:
            node[chance.choice(["extra", "Kind", "x"])] = child
        elif kind == 2 and isinstance(node, list):
            chance.shuffle(node)
        else:
            node[key] = chance.choice(VALUES)
        return


@pytest.mark.parametrize("seed", range(6))
def test_both_readers_accept_and_refuse_the_same(forge, reader, tmp_path, seed):
    chance = random.Random(seed)
    path = tmp_path / "a.precomp"
    raw = b"abc" * 400
    contents = [(b"hello", None), (raw, forge.frame(raw)), (b"x" * 64, None)]
    stored = tuple(blob if packed is None else packed for blob, packed in contents)
    outcomes = {"same": 0, "refused": 0, "version": 0}
    for _ in range(600):
        table = forge.table(contents)
        table["environment"]["über \U0001f600"] = '"\\\n'
        table["extra"] = {"a": [1, {"b": None}], "c": True}
        if chance.random() < 0.5:
            mutate_table(chance, table)
        text = json.dumps(
            table,
            indent=chance.choice([None, 1]),
            ensure_ascii=chance.random() < 0.5,
            sort_keys=chance.random() < 0.5,
        ).encode()
        if chance.random() < 0.6:
            text = mutate_text(chance, text)
        data = forge.file(text, stored)
        path.write_bytes(data)
        try:
            content = reader.read(data)
        except reader.BadVersion:
            expected: object = ArtifactVersionError
        except reader.Refused:
            expected = ArtifactCorruptError
        else:
            expected = content
        try:
            artifact = _core.Artifact(path)
            artifact.verify()
        except (ArtifactCorruptError, ArtifactVersionError) as error:
            # A file with several faults may be refused for any of them.
            assert isinstance(expected, type), (text, error)
            outcomes["version" if type(error) is ArtifactVersionError else "refused"] += 1
        else:
            assert not isinstance(expected, type), text
            assert artifact.environment == content.environment, text
            assert artifact.entries == content.entries, text
            assert artifact.load_all() == content.blobs, text
            outcomes["same"] += 1
    assert min(outcomes["same"], outcomes["refused"]) > 50, outcomes
