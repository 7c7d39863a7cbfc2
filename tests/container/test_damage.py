"""Damaged and malicious files are refused by name, and never crash the reader."""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from precomp import _core
from precomp.errors import ArtifactCorruptError, ArtifactVersionError

REFUSED = (ArtifactCorruptError, ArtifactVersionError)


def use(path: Path) -> None:
    """Everything a program does with an artifact."""
    with _core.Artifact(path) as artifact:
        artifact.load_all()


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> bytes:
    chance = random.Random(1)
    path = tmp_path_factory.mktemp("sample") / "a.precomp"
    entries = [("frame", f"f{i}", chance.randbytes(chance.randrange(90))) for i in range(6)]
    entries += [("kernel", f"k{i}", bytes([i]) * 3000 + chance.randbytes(30)) for i in range(6)]
    _core.write_artifact(path, {"torch": "2.13.0"}, entries)
    return path.read_bytes()


def test_every_truncation_is_noticed_on_open(sample, tmp_path):
    path = tmp_path / "a.precomp"
    for length in {*range(0, len(sample), max(1, len(sample) // 600)), len(sample) - 1}:
        path.write_bytes(sample[:length])
        with pytest.raises(ArtifactCorruptError):
            _core.Artifact(path)


def flips(path: Path, data: bytes, bits: Iterable[int]) -> Iterator[int]:
    """Writes *data* with one bit flipped to *path*, for each of *bits*."""
    path.write_bytes(data)
    with open(path, "r+b", buffering=0) as file:
        for bit in bits:
            at = bit // 8
            os.pwrite(file.fileno(), bytes([data[at] ^ 1 << bit % 8]), at)
            yield bit
            os.pwrite(file.fileno(), data[at : at + 1], at)


def check_damage(path: Path) -> None:
    with pytest.raises(ArtifactCorruptError):
        use(path)
    with pytest.raises(ArtifactCorruptError):
        _core.Artifact(path).verify()


def test_every_flipped_bit_of_a_small_file_is_damage(golden, reader, tmp_path):
    path = tmp_path / "a.precomp"
    data = (golden / "one_entry.v1").read_bytes()
    for _ in flips(path, data, range(8 * len(data))):
        check_damage(path)
        with pytest.raises(reader.Refused) as caught:
            reader.read(path.read_bytes())
        assert not isinstance(caught.value, reader.BadVersion)


def test_flipped_bits_of_a_file_with_frames_and_kernels_are_damage(sample, tmp_path):
    path = tmp_path / "a.precomp"
    chance = random.Random(2)
    places = [*range(160), *chance.sample(range(160, len(sample)), 900)]
    for _ in flips(path, sample, [8 * at + chance.randrange(8) for at in places]):
        check_damage(path)


def test_random_rubbish_is_refused(forge, tmp_path):
    path = tmp_path / "a.precomp"
    chance = random.Random(3)
    for _ in range(300):
        head = chance.choice([b"", forge.MAGIC, forge.MAGIC + struct.pack("<II", 1, 0)])
        data = head + chance.randbytes(chance.randrange(400))
        if head and chance.random() < 0.5:
            data = data[:72] + hashlib.sha256(data[:72]).digest() + data[104:]
        path.write_bytes(data)
        with pytest.raises(REFUSED):
            use(path)


def test_bytes_behind_the_manifest_are_refused(sample, tmp_path):
    path = tmp_path / "a.precomp"
    path.write_bytes(sample + b"\0")
    with pytest.raises(ArtifactCorruptError, match=r"header: the file has \d+ bytes, expected"):
        _core.Artifact(path)


def test_a_damaged_blob_is_named(sample, tmp_path, reader):
    path = tmp_path / "a.precomp"
    kernel = next(e for e in reader.read(sample).entries if e[:2] == ("kernel", "k3"))
    path.write_bytes(sample)
    blob = next(
        blob
        for blob in json.loads(sample[struct.unpack_from("<Q", sample, 16)[0] :])["blobs"]
        if blob["raw_sha256"] == kernel[2]
    )
    damaged = bytearray(sample)
    damaged[blob["offset"] + 3] ^= 64
    path.write_bytes(damaged)
    artifact = _core.Artifact(path)
    for act in (lambda: artifact.read(kernel[2]), artifact.load_all, artifact.verify):
        with pytest.raises(ArtifactCorruptError) as caught:
            act()
        assert str(path) in str(caught.value)
        assert f'entry kernel "k3" (sha256 {kernel[2]})' in str(caught.value)
    others = [e for e in artifact.entries if e[2] != kernel[2]]
    assert all(len(artifact.read(e[2])) == e[3] for e in others)
    assert artifact.load_all(kinds=["frame"])


def check_both(reader, path: Path, data: bytes, error: type, message: str) -> None:
    """precomp refuses *data* with *message*, and so does the second reader."""
    path.write_bytes(data)
    with pytest.raises(error, match=message):
        _core.Artifact(path).verify()
    with pytest.raises(reader.Refused) as caught:
        reader.read(data)
    assert isinstance(caught.value, reader.BadVersion) == (error is ArtifactVersionError)


HEADER_FAULTS = {
    "magic": ({"magic": b"\x89PCM\n\x1a\n\0"}, ArtifactCorruptError, "header: wrong magic"),
    "text": ({"magic": b"PK\3\4\0\0\0\0"}, ArtifactCorruptError, "header: wrong magic"),
    "header digest": (
        {"header_digest": bytes(32)},
        ArtifactCorruptError,
        "header: its sha256 differs from the one at byte 72",
    ),
    "damaged version": (
        {"version": 2, "header_digest": b"d" * 32},
        ArtifactCorruptError,
        "header: its sha256 differs",
    ),
    "damaged flags": (
        {"flags": 1, "header_digest": b"d" * 32},
        ArtifactCorruptError,
        "header: its sha256 differs",
    ),
    "a later header": (
        {"version": 2, "flags": 9, "length": 0, "reserved": b"\1" * 24},
        ArtifactVersionError,
        "format version 2, .* reads version 1",
    ),
    "version 0": ({"version": 0}, ArtifactVersionError, "format version 0, .* reads version 1"),
    "version 2": ({"version": 2}, ArtifactVersionError, "format version 2, .* reads version 1"),
    "flags": ({"flags": 4}, ArtifactVersionError, "header: flags 0x4"),
    "offset": ({"offset": 64}, ArtifactCorruptError, "does not end the file"),
    "far offset": ({"offset": 2**64 - 1}, ArtifactCorruptError, "does not end the file"),
    "length": ({"length": 7}, ArtifactCorruptError, "does not end the file"),
    "huge length": ({"length": 2**40}, ArtifactCorruptError, "more than 16 MiB"),
    "size": ({"size": 2**63}, ArtifactCorruptError, "the file has .* bytes, expected"),
    "digest": ({"digest": bytes(32)}, ArtifactCorruptError, "manifest: its sha256 differs"),
    "reserved": (
        {"reserved": bytes(23) + b"\1"},
        ArtifactCorruptError,
        "header: bytes 104..127 are not zero",
    ),
    "padding": ({"filler": b" "}, ArtifactCorruptError, r"padding: bytes 133..191 are not zero"),
    "tail": ({"tail": b"\0"}, ArtifactCorruptError, "the file has .* bytes, expected"),
}


@pytest.mark.parametrize("fault", HEADER_FAULTS)
def test_header_faults_are_refused_by_name(forge, reader, tmp_path, fault):
    changes, error, message = HEADER_FAULTS[fault]
    data = forge.file(forge.dump(forge.table([(b"hello", None)])), (b"hello",), **changes)
    check_both(reader, tmp_path / "a.precomp", data, error, message)


def test_forged_files_without_a_fault_are_accepted(forge, reader, tmp_path):
    raw = b"abc" * 500
    table = forge.table([(b"hello", None), (raw, forge.frame(raw)), (b"", None)])
    table["comment"] = [None, True, {"deep": [1, 2**53]}]
    table["blobs"][0]["note"] = "ignored"
    manifest = json.dumps(table, indent=1).encode() + b"\r\n\t "
    data = forge.file(manifest, (b"hello", forge.frame(raw), b""))
    path = tmp_path / "a.precomp"
    path.write_bytes(data)
    _core.Artifact(path).verify()
    assert _core.Artifact(path).load_all() == reader.read(data).blobs


def test_short_files_are_refused(sample, tmp_path):
    path = tmp_path / "a.precomp"
    for length in (0, 1, 7, 8, 9, 71, 72, 103, 104, 127):
        path.write_bytes(sample[:length])
        message = f"header: the file has {length} bytes, expected at least 128"
        with pytest.raises(ArtifactCorruptError, match=message):
            _core.Artifact(path)


def test_short_files_of_another_kind_are_told_from_short_artifacts(tmp_path):
    path = tmp_path / "a.precomp"
    for data in (b"\n", b"\x89PNG", b"version https://git-lfs.github.com/spec/v1\n"):
        path.write_bytes(data)
        with pytest.raises(ArtifactCorruptError, match="header: wrong magic"):
            _core.Artifact(path)


# Text that replaces "MARK" in a manifest of {"x":MARK,...}, and what is said about it.
JSON_ABUSES = {
    "float": (b"1.5", "an integer in 0..2"),
    "float that is whole": (b"1.0", "an integer in 0..2"),
    "exponent": (b"1e3", "an integer in 0..2"),
    "negative": (b"-1", "an integer in 0..2"),
    "leading zero": (b"01", "leading zeros"),
    "above 2^53": (b"9007199254740993", "an integer in 0..2"),
    "huge": (b"9" * 400, "an integer in 0..2"),
    "infinity": (b"Infinity", "an integer in 0..2"),
    "NaN": (b"NaN", "an integer in 0..2"),
    "hexadecimal": (b"0x10", "',' or '}'"),
    "deep arrays": (b"[" * 100 + b"]" * 100, "levels of nesting"),
    "very deep arrays": (b"[" * 2_000_000, "levels of nesting"),
    "deep objects": (b'{"a":' * 8 + b"1" + b"}" * 8, "levels of nesting"),
    "NUL": (b'"a\0b"', "a character of a string"),
    "escaped NUL": (b'"a\\u0000b"', "no NUL"),
    "raw newline": (b'"a\nb"', "a character of a string"),
    "lone surrogate": (b'"\\udc00"', "lone surrogate"),
    "half a pair": (b'"\\ud800x"', "surrogate pair"),
    "two high halves": (b'"\\ud800\\ud800"', "surrogate pair"),
    "bad escape": (b'"\\x41"', "an escape"),
    "short escape": (b'"\\u12"', "4 hexadecimal"),
    "invalid UTF-8": (b'"\xff"', "UTF-8"),
    "overlong UTF-8": (b'"\xc0\xaf"', "UTF-8"),
    "surrogate in UTF-8": (b'"\xed\xa0\x80"', "UTF-8"),
    "above U+10FFFF": (b'"\xf4\x90\x80\x80"', "UTF-8"),
    "cut UTF-8": (b'"\xe2\x82"', "UTF-8"),
    "duplicate key": (b'1,"x":2', 'duplicate key "x"'),
    "duplicate key by escape": (b'1,"\\u0078":2', 'duplicate key "x"'),
    "nested duplicate key": (b'{"y":1,"z":2,"y":3}', 'duplicate key "y"'),
    "trailing comma": (b"[1,]", "expected"),
    "comment": (b"1/*a*/", "',' or '}'"),
    "single quotes": (b"'a'", "expected"),
    "missing value": (b"", "expected"),
    "unclosed string": (b'"a', "expected"),
    "word": (b"truth", "expected"),
    "key that is no string": (b"1,2:3", "a string"),
    "bare key": (b"1,a:3", "a string"),
}


@pytest.mark.parametrize("abuse", JSON_ABUSES)
def test_json_abuses_are_refused_by_name(forge, reader, tmp_path, abuse):
    text, message = JSON_ABUSES[abuse]
    table = forge.table([(b"hello", None)])
    manifest = forge.dump({"x": "MARK", **table}).replace(b'"MARK"', text)
    data = forge.file(manifest, (b"hello",))
    check_both(reader, tmp_path / "a.precomp", data, ArtifactCorruptError, f"manifest: .*{message}")


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b" {}",
        b"\xef\xbb\xbf{}",
        b"{}x",
        b"{}{}",
        b"null",
        b"{",
        b'{"a"',
        b'{"a":',
        b"{},",
    ],
)
def test_a_manifest_that_is_not_one_object_is_refused(forge, reader, tmp_path, manifest):
    path = tmp_path / "a.precomp"
    check_both(reader, path, forge.file(manifest), ArtifactCorruptError, "manifest: ")


def test_a_manifest_above_the_limit_is_refused_before_it_is_read(forge, tmp_path):
    path = tmp_path / "a.precomp"
    path.write_bytes(forge.file(b"{" + b" " * (16 << 20) + b"}"))
    with pytest.raises(ArtifactCorruptError, match="more than 16 MiB"):
        _core.Artifact(path)


def change(path: str, value: object):
    """A function that sets *path* ("blobs.0.codec") of a manifest to *value*."""

    def apply(table: dict) -> None:
        *parents, last = path.split(".")
        node = table
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node[part]
        if value is DELETE:
            del node[last]
        else:
            node[int(last) if isinstance(node, list) else last] = value

    return apply


DELETE = object()
A = "a" * 64
MANIFEST_FAULTS = {
    **{
        f"without {key}": (change(key, DELETE), rf"\$\.{key}: expected")
        for key in ("required_features", "environment", "blobs", "entries", "fingerprint")
    },
    **{
        f"blob without {key}": (
            change(f"blobs.0.{key}", DELETE),
            rf"\$\.blobs\[0\]\.{key}: expected",
        )
        for key in ("codec", "offset", "stored_size", "raw_size", "stored_sha256", "raw_sha256")
    },
    **{
        f"entry without {key}": (
            change(f"entries.0.{key}", DELETE),
            rf"\$\.entries\[0\]\.{key}: expected",
        )
        for key in ("kind", "name", "digest", "blob")
    },
    "entries object": (change("entries", {}), r"\$\.entries: expected an array"),
    "environment array": (change("environment", []), r"\$\.environment: expected an object"),
    "environment value": (change("environment", {"a": 1}), r"\$\.environment: expected strings"),
    "features text": (change("required_features", "a"), r"required_features: expected an array"),
    "feature number": (change("required_features", [1]), r"required_features: expected strings"),
    "blob number": (change("blobs.0", 3), r"\$\.blobs\[0\]: expected an object"),
    "entry text": (change("entries.0", "k"), r"\$\.entries\[0\]: expected an object"),
    "codec": (change("blobs.0.codec", "lzma"), r"\$\.blobs\[0\]\.codec: expected"),
    "codec case": (change("blobs.0.codec", "None"), r"\$\.blobs\[0\]\.codec: expected"),
    "size text": (change("blobs.1.raw_size", "5"), r"\$\.blobs\[1\]\.raw_size: expected an int"),
    "size bool": (change("blobs.1.raw_size", True), r"\$\.blobs\[1\]\.raw_size: expected an int"),
    "raw size with none": (change("blobs.1.raw_size", 4), r"\$\.blobs\[1\]\.codec: expected equal"),
    "raw size above 4 GiB": (
        lambda t: t["blobs"][1].update(raw_size=2**32 + 1, stored_size=2**32 + 1),
        r"\$\.blobs\[1\]\.raw_size: expected at most 4 GiB",
    ),
    "digest upper case": (
        change("blobs.1.stored_sha256", A.upper()),
        r"\$\.blobs\[1\]\.stored_sha256: expected 64 lower-case",
    ),
    "digest short": (
        change("blobs.1.raw_sha256", A[1:]),
        r"\$\.blobs\[1\]\.raw_sha256: expected 64",
    ),
    "digest with none": (
        change("blobs.1.stored_sha256", A),
        r"\$\.blobs\[1\]\.codec: expected equal",
    ),
    "blob index": (change("entries.1.blob", 3), r"\$\.entries\[1\]\.blob: expected the index"),
    "blob of another": (change("entries.1.blob", 0), r"\$\.entries\[1\]\.digest: expected the raw"),
    "kind upper case": (change("entries.2.kind", "Kernel"), r"\$\.entries\[2\]\.kind: expected"),
    "kind empty": (change("entries.0.kind", ""), r"\$\.entries\[0\]\.kind: expected"),
    "kind long": (change("entries.2.kind", "k" * 33), r"\$\.entries\[2\]\.kind: expected"),
    "kind digit": (change("entries.0.kind", "0k"), r"\$\.entries\[0\]\.kind: expected"),
    "name long": (change("entries.2.name", "é" * 257), r"\$\.entries\[2\]\.name: expected at most"),
    "unsorted": (
        lambda t: t["entries"].reverse(),
        r"\$\.entries\[1\]\.name: expected entries sorted",
    ),
    "entry twice": (
        lambda t: t["entries"].insert(0, t["entries"][0]),
        r"\$\.entries\[1\]\.name: expected entries sorted",
    ),
    "unused blob": (lambda t: t["entries"].pop(), r"\$\.blobs\[2\]: no entry names it"),
    "fingerprint": (change("fingerprint", A), r"\$\.fingerprint: expected the sha256"),
    "offset": (change("blobs.1.offset", 193), r"layout: blob 1 at 193, expected 192"),
    "hole": (change("blobs.1.offset", 256), r"layout: blob 1 at 256, expected 192"),
    "overlap": (change("blobs.1.offset", 128), r"layout: blob 1 at 128, expected 192"),
    "far offset": (
        change("blobs.1.offset", 2**53),
        r"layout: blob 1 at 9007199254740992, expected",
    ),
    "outside": (
        lambda t: t["blobs"][2].update(raw_size=2**32, stored_size=2**32),
        r"layout: blob 2 of 4294967296 bytes at 256, the file has",
    ),
    "too long": (
        lambda t: t["blobs"][2].update(raw_size=200, stored_size=200),
        r"layout: manifest at 320, expected 512",
    ),
}


@pytest.mark.parametrize("fault", MANIFEST_FAULTS)
def test_manifest_faults_are_refused_by_name(forge, reader, tmp_path, fault):
    apply, message = MANIFEST_FAULTS[fault]
    raws = [b"hello", b"world", b"third"]
    table = forge.table([(raw, None) for raw in raws])
    apply(table)
    data = forge.file(forge.dump(table), tuple(raws))
    check_both(reader, tmp_path / "a.precomp", data, ArtifactCorruptError, message)


def test_the_same_content_in_two_blobs_is_refused(forge, reader, tmp_path):
    data = forge.file(forge.dump(forge.table([(b"a", None), (b"a", None)])), (b"a", b"a"))
    path = tmp_path / "a.precomp"
    check_both(reader, path, data, ArtifactCorruptError, r"raw_sha256: expected no two equal")


def test_an_unknown_feature_is_a_version_error_that_names_it(forge, reader, tmp_path):
    table = forge.table([(b"hello", None)])
    table["required_features"] = ["time_travel"]
    data = forge.file(forge.dump(table), (b"hello",))
    path = tmp_path / "a.precomp"
    check_both(reader, path, data, ArtifactVersionError, 'the feature "time_travel"')


RAW = b"abc" * 1000
FRAME_FAULTS = {
    "no checksum": (lambda f: f.frame(RAW, checksum=False), "without checksum"),
    "no content size": (lambda f: f.frame(RAW, size=False), "without content size"),
    "two frames": (lambda f: f.frame(RAW[:1500]) + f.frame(RAW[1500:]), "frame of 1500 raw bytes"),
    "empty frame behind": (lambda f: f.frame(RAW) + f.frame(b""), r"zstd frame of \d+ bytes in a"),
    "rubbish behind": (lambda f: f.frame(RAW) + b"\0", r"zstd frame of \d+ bytes in a"),
    "skippable frame": (lambda f: b"\x50\x2a\x4d\x18\1\0\0\0x" + f.frame(RAW), "not a zstd frame"),
    "only skippable": (lambda f: b"\x50\x2a\x4d\x18\4\0\0\0xxxx", "not a zstd frame"),
    "other size": (
        lambda f: f.frame(RAW + b"d"),
        "frame of 3001 raw bytes, the manifest says 3000",
    ),
    "cut": (lambda f: f.frame(RAW)[:-1], "ZSTD_findFrameCompressedSize: "),
    "cut header": (lambda f: f.frame(RAW)[:4], "not a zstd frame"),
    "empty": (lambda f: b"", "not a zstd frame|raw_size"),
    "wrong checksum": (
        lambda f: f.frame(RAW)[:-1] + bytes([f.frame(RAW)[-1] ^ 1]),
        "ZSTD_decompressDCtx: .*checksum",
    ),
    "other content": (lambda f: f.frame(b"abd" * 1000), "the raw bytes do not match their digest"),
}


@pytest.mark.parametrize("fault", FRAME_FAULTS)
def test_frame_faults_are_refused_by_name(forge, reader, tmp_path, fault):
    make, message = FRAME_FAULTS[fault]
    stored = make(forge)
    table = forge.table([(RAW, stored)])
    data = forge.file(forge.dump(table), (stored,))
    check_both(reader, tmp_path / "a.precomp", data, ArtifactCorruptError, message)


def test_a_size_that_zstd_cannot_reach_is_refused_before_memory_is_asked_for(
    forge, reader, tmp_path
):
    stored = forge.frame(RAW)
    table = forge.table([(RAW, stored)])
    table["blobs"][0]["raw_size"] = 2**32
    data = forge.file(forge.dump(table), (stored,))
    path = tmp_path / "a.precomp"
    check_both(reader, path, data, ArtifactCorruptError, r"blobs\[0\]\.raw_size: expected a size")


def test_files_that_cannot_be_read_are_os_errors(tmp_path):
    missing = tmp_path / "missing.precomp"
    with pytest.raises(FileNotFoundError) as caught:
        _core.Artifact(missing)
    assert caught.value.filename == str(missing)
    with pytest.raises(IsADirectoryError) as caught:
        _core.Artifact(tmp_path)
    assert caught.value.filename == str(tmp_path)
    with pytest.raises(NotADirectoryError):
        _core.Artifact("/dev/null/x")
    with pytest.raises(ValueError, match="null"):
        _core.Artifact("a\0b")
    with pytest.raises(TypeError):
        _core.Artifact(3)


def test_a_file_without_permission_is_a_permission_error(run, tmp_path):
    _core.write_artifact(tmp_path / "a.precomp", {}, [])
    tmp_path.chmod(0o755)
    (tmp_path / "a.precomp").chmod(0)
    run(
        """
import os
from precomp import _core
if os.geteuid() == 0:  # root may read every file
    os.setuid(65534)
try:
    _core.Artifact("a.precomp")
except PermissionError as error:
    assert error.filename == "a.precomp"
else:
    raise AssertionError
"""
    )


def test_what_is_no_regular_file_is_refused_and_does_not_block(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, Path("/dev/null"), Path("/dev/zero")):
        with pytest.raises(ArtifactCorruptError, match="not a regular file"):
            _core.Artifact(path)


def test_paths_of_any_bytes_work(tmp_path):
    for name in (b"\xff\xfe.precomp", "größe.precomp".encode(), b"a\nb.precomp"):
        path = os.fsencode(tmp_path) + b"/" + name
        _core.write_artifact(path, {}, [("kernel", "k", b"abc")])
        artifact = _core.Artifact(path)
        assert os.fsencode(artifact.path) == path
        with open(path, "r+b") as file:
            file.seek(128)
            file.write(b"x")
        with pytest.raises(ArtifactCorruptError):
            _core.Artifact(path).load_all()
