"""The bytes of artifacts: golden files, determinism, and agreement with the second reader."""

from __future__ import annotations

import hashlib
import random
import re
from pathlib import Path

import pytest

from precomp import _core

HELLO = ({"torch": "2.13.0"}, [("frame", "f", b"hello")])
SEVERAL = (
    {"torch": "2.13.0", 'é "q"\\\n': "\u20ac \U0001f600"},
    [
        ("kernel", "k1", b"abc" * 1000),
        ("kernel", "k2", b"abc" * 1000),
        ("frame", "Größe.<locals>.f", b"x" * 70),
        ("frame", "", b""),
        ("frame", "z", b"x" * 64),
        ("rules", "rules", bytes(range(256))),
    ],
)


@pytest.mark.parametrize(
    ("name", "content"), [("one_entry", HELLO), ("several", SEVERAL), ("empty", ({}, []))]
)
def test_uncompressed_artifacts_have_the_golden_bytes(golden, tmp_path, name, content):
    digest = _core.write_artifact(tmp_path / "a.precomp", *content, level=0)
    data = (golden / f"{name}.v1").read_bytes()
    assert (tmp_path / "a.precomp").read_bytes() == data
    assert digest == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("name", ["one_entry", "several", "empty", "zstd"])
def test_golden_files_read_as_the_second_reader_reads_them(golden, reader, name):
    path = golden / f"{name}.v1"
    content = reader.read(path.read_bytes())
    with _core.Artifact(path) as artifact:
        artifact.verify()
        assert artifact.environment == content.environment
        assert artifact.entries == content.entries
        assert artifact.fingerprint == content.fingerprint
        assert artifact.load_all() == content.blobs


def test_the_example_of_the_format_page_is_the_golden_file(golden):
    page = Path(__file__).parents[2] / "docs" / "format.md"
    rows = re.findall(r"^([0-9a-f]{8})  ([0-9a-f ]+?)  +\|.*\|$", page.read_text(), re.M)
    data = b"".join(bytes.fromhex(row.replace(" ", "")) for _, row in rows)
    assert [int(at, 16) for at, _ in rows] == list(range(0, len(data), 16))
    assert data == (golden / "one_entry.v1").read_bytes()
    assert hashlib.sha256(data).hexdigest() in page.read_text()
    assert f"It has {len(data)} bytes" in page.read_text()


def random_content(seed: int) -> tuple[dict[str, str], list[tuple[str, str, bytes]]]:
    chance = random.Random(seed)
    text = "".join(map(chr, [*range(1, 0x180), 0x20AC, 0xFFFD, 0x1F600, 0x10FFFF]))

    def word(limit: int) -> str:
        return "".join(chance.choices(text, k=chance.randrange(limit)))

    pool = [
        bytes(
            chance.choices(
                range(chance.choice([2, 256])), k=chance.choice([0, 1, 63, 64, 65, 4000])
            )
        )
        for _ in range(8)
    ]
    entries = [
        (chance.choice(["frame", "plan", "kernel", "k_2"]), word(40), chance.choice(pool))
        for _ in range(chance.randrange(30))
    ]
    return {word(20): word(60) for _ in range(chance.randrange(6))}, entries


@pytest.mark.parametrize("seed", range(30))
def test_random_content_comes_back_and_the_second_reader_agrees(reader, tmp_path, seed):
    environment, entries = random_content(seed)
    path = tmp_path / "a.precomp"
    level = seed % 5
    _core.write_artifact(path, environment, entries, level)
    content = reader.read(path.read_bytes())
    artifact = _core.Artifact(path)
    artifact.verify()
    assert artifact.environment == content.environment == environment
    assert artifact.entries == content.entries
    assert artifact.fingerprint == content.fingerprint
    assert artifact.load_all() == content.blobs
    expected = sorted(
        {(kind, name, hashlib.sha256(data).hexdigest(), len(data)) for kind, name, data in entries}
    )
    assert [entry[:4] for entry in artifact.entries] == expected
    for _, _, data in entries:
        assert artifact.read(hashlib.sha256(data).hexdigest()) == data


@pytest.mark.parametrize("level", [0, 1, 9, 19])
def test_bytes_depend_on_content_only(tmp_path, level):
    environment, entries = random_content(1000)
    entries += [("kernel", f"k{i}", bytes([i]) * 20000) for i in range(20)]
    entries = list(dict.fromkeys(entries))
    paths = []
    for i in range(4):
        paths.append(tmp_path / f"{i}.precomp")
        _core.write_artifact(paths[-1], environment, entries, level)
        random.Random(i).shuffle(entries)
        environment = dict(reversed(environment.items()))
        entries.append(entries[i])  # equal entries count once
    assert len({path.read_bytes() for path in paths}) == 1


def test_equal_content_is_stored_once(tmp_path):
    data = random.Random(0).randbytes(50000)
    one = tmp_path / "one.precomp"
    many = tmp_path / "many.precomp"
    _core.write_artifact(one, {}, [("kernel", "0", data)])
    _core.write_artifact(many, {}, [("kernel", str(i), data) for i in range(50)])
    assert many.stat().st_size - one.stat().st_size < 50 * 200
    assert len(_core.Artifact(many).load_all()) == 1


def test_fingerprint_covers_frames_and_nothing_else(tmp_path):
    def fingerprint(*entries: tuple[str, str, bytes]) -> str:
        _core.write_artifact(tmp_path / "a.precomp", {}, list(entries))
        return _core.Artifact(tmp_path / "a.precomp").fingerprint

    f = ("frame", "f", b"1")
    g = ("frame", "g", b"2")
    digests = sorted(hashlib.sha256(data).hexdigest() for _, _, data in (f, g))
    assert fingerprint(f, g) == hashlib.sha256("\n".join(digests).encode()).hexdigest()
    assert fingerprint(g, f, ("kernel", "k", b"3")) == fingerprint(f, g)
    assert fingerprint(f) != fingerprint(g) != fingerprint()
    assert fingerprint() == hashlib.sha256(b"").hexdigest()


def test_compression_is_used_only_where_it_helps(tmp_path):
    noise = random.Random(0).randbytes(1000)
    _core.write_artifact(tmp_path / "a", {}, [("kernel", "a", noise), ("kernel", "b", bytes(1000))])
    a, b = _core.Artifact(tmp_path / "a").entries
    assert a[3:] == (1000, 1000)
    assert b[3] == 1000 and b[4] < 100


@pytest.mark.parametrize("size", [0, 1, 55, 56, 57, 63, 64, 65, 119, 120, 128, 1000, 99991])
def test_sha256_agrees_with_hashlib(size):
    data = random.Random(size).randbytes(size)
    assert _core.sha256(data) == hashlib.sha256(data).hexdigest()
    assert _core.sha256(memoryview(bytearray(data))) == hashlib.sha256(data).hexdigest()
