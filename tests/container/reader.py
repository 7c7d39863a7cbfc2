"""A second reader of artifacts, written from docs/format.md alone: the oracle of these tests.

``read(data)`` returns the content of an artifact or raises ``Refused`` with the broken rule.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import json
import re
import struct
from dataclasses import dataclass
from typing import Any

MAGIC = bytes.fromhex("8950434d0d0a1a0a")
HEADER = 128


class Refused(Exception):
    """The bytes break a rule of docs/format.md."""


class BadVersion(Refused):
    """A version, flag or feature that is not known."""


@dataclass(frozen=True)
class Content:
    environment: dict[str, str]
    entries: tuple[tuple[str, str, str, int, int], ...]
    blobs: dict[str, bytes]
    fingerprint: str


def need(condition: object, rule: str) -> None:
    if not condition:
        raise Refused(rule)


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    need(len({key for key, _ in pairs}) == len(pairs), "duplicate key")
    return dict(pairs)


def no_float(text: str) -> float:
    raise Refused(f"float {text}")


def integer(text: str) -> int:
    need(not text.startswith("-"), "sign")
    need(int(text) <= 2**53, "integer above 2^53")
    return int(text)


def check_value(value: Any, depth: int) -> None:
    if isinstance(value, (dict, list)):
        need(depth < 8, "depth")
        if isinstance(value, dict):
            for key in value:
                check_value(key, depth + 1)
        for item in value.values() if isinstance(value, dict) else value:
            check_value(item, depth + 1)
    elif isinstance(value, str):
        need("\0" not in value, "NUL")
        need(not re.search("[\ud800-\udfff]", value), "lone surrogate")


def parse_manifest(data: bytes) -> dict[str, Any]:
    need(data.startswith(b"{"), "begins with {")
    try:
        manifest = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=no_duplicates,
            parse_float=no_float,
            parse_int=integer,
            parse_constant=no_float,
        )
    except (ValueError, RecursionError) as error:
        raise Refused(str(error)) from None
    check_value(manifest, 0)
    return manifest


def is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def is_size(value: Any) -> bool:
    return type(value) is int


def zstd() -> ctypes.CDLL:
    library = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
    library.ZSTD_decompress.restype = ctypes.c_size_t
    library.ZSTD_decompress.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    library.ZSTD_findFrameCompressedSize.restype = ctypes.c_size_t
    library.ZSTD_findFrameCompressedSize.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return library


def decompress(stored: bytes, raw_size: int) -> bytes:
    need(len(stored) > 4 and stored[:4] == bytes.fromhex("28b52ffd"), "zstd magic")
    need(stored[4] & 4, "content checksum")
    need(stored[4] & 0xE0, "content size")
    library = zstd()
    need(library.ZSTD_findFrameCompressedSize(stored, len(stored)) == len(stored), "one frame")
    raw = ctypes.create_string_buffer(raw_size + 1)
    found = library.ZSTD_decompress(raw, raw_size + 1, stored, len(stored))
    need(found == raw_size, "raw_size")
    return raw.raw[:raw_size]


def check_manifest(manifest: dict[str, Any]) -> None:
    for key, kind in (
        ("required_features", list),
        ("environment", dict),
        ("blobs", list),
        ("entries", list),
        ("fingerprint", str),
    ):
        need(isinstance(manifest.get(key), kind), f"{key} is a {kind.__name__}")
    for feature in manifest["required_features"]:
        need(isinstance(feature, str), "features are strings")
        raise BadVersion(feature)
    need(all(isinstance(v, str) for v in manifest["environment"].values()), "environment")
    for blob in manifest["blobs"]:
        need(isinstance(blob, dict), "blob")
        need(blob.get("codec") in ("none", "zstd"), "codec")
        need(all(is_size(blob.get(key)) for key in ("offset", "stored_size", "raw_size")), "sizes")
        need(all(is_digest(blob.get(key)) for key in ("stored_sha256", "raw_sha256")), "digests")
        need(blob["raw_size"] <= 2**32, "raw_size")
        if blob["codec"] == "none":
            need(blob["raw_size"] == blob["stored_size"], "sizes with none")
            need(blob["raw_sha256"] == blob["stored_sha256"], "digests with none")
        else:
            need(blob["raw_size"] <= 32768 * blob["stored_size"] + 32767, "ratio")
    digests = [blob["raw_sha256"] for blob in manifest["blobs"]]
    need(len(set(digests)) == len(digests), "equal content once")
    keys = []
    for entry in manifest["entries"]:
        need(isinstance(entry, dict), "entry")
        need(is_size(entry.get("blob")) and entry["blob"] < len(digests), "blob index")
        need(entry.get("digest") == digests[entry["blob"]], "entry digest")
        kind = entry.get("kind")
        need(isinstance(kind, str) and re.fullmatch("[a-z][a-z0-9_]{0,31}", kind), "kind")
        name = entry.get("name")
        need(isinstance(name, str) and len(name.encode()) <= 512, "name")
        keys.append((kind.encode(), name.encode(), entry["digest"]))
    need(all(a < b for a, b in zip(keys, keys[1:], strict=False)), "sorted entries")
    need({entry["blob"] for entry in manifest["entries"]} == set(range(len(digests))), "used")
    frames = sorted(entry["digest"] for entry in manifest["entries"] if entry["kind"] == "frame")
    fingerprint = hashlib.sha256("\n".join(frames).encode()).hexdigest()
    need(manifest["fingerprint"] == fingerprint, "fingerprint")


def read(data: bytes) -> Content:
    need(data[:8] == MAGIC, "magic")
    need(len(data) >= HEADER, "shorter than a header")
    need(hashlib.sha256(data[:72]).digest() == data[72:104], "header_sha256")
    version, flags, offset, length, size = struct.unpack_from("<IIQQQ", data, 8)
    if version != 1:
        raise BadVersion(f"version {version}")
    if flags:
        raise BadVersion(f"flags {flags}")
    need(size == len(data), "file_length")
    need(length <= 16 << 20, "manifest_length")
    need(offset + length == size and offset >= HEADER, "manifest_offset")
    need(data[104:HEADER] == bytes(HEADER - 104), "reserved")
    need(hashlib.sha256(data[offset:]).digest() == data[40:72], "manifest_sha256")
    manifest = parse_manifest(data[offset:])
    check_manifest(manifest)
    end = HEADER
    blobs = {}
    for part in [*manifest["blobs"], {"offset": offset, "stored_size": 0}]:
        start = (end + 63) // 64 * 64
        need(part["offset"] == start, "layout")
        need(data[end:start] == bytes(start - end), "padding")
        end = start + part["stored_size"]
        need(end <= len(data), "outside the file")
        if "codec" not in part:
            break
        stored = data[start:end]
        need(hashlib.sha256(stored).hexdigest() == part["stored_sha256"], "stored_sha256")
        raw = stored if part["codec"] == "none" else decompress(stored, part["raw_size"])
        need(hashlib.sha256(raw).hexdigest() == part["raw_sha256"], "raw_sha256")
        blobs[part["raw_sha256"]] = raw
    entries = tuple(
        (
            entry["kind"],
            entry["name"],
            entry["digest"],
            manifest["blobs"][entry["blob"]]["raw_size"],
            manifest["blobs"][entry["blob"]]["stored_size"],
        )
        for entry in manifest["entries"]
    )
    return Content(manifest["environment"], entries, blobs, manifest["fingerprint"])
