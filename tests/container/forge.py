"""Makes artifacts, good and bad ones, byte by byte, without precomp."""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import json
import struct
from typing import Any

MAGIC = bytes.fromhex("8950434d0d0a1a0a")
CONTENT_SIZE_FLAG = 200  # ZSTD_c_contentSizeFlag
CHECKSUM_FLAG = 201  # ZSTD_c_checksumFlag


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def frame(raw: bytes, *, size: bool = True, checksum: bool = True) -> bytes:
    """One zstd frame of *raw*."""
    zstd = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
    zstd.ZSTD_createCCtx.restype = ctypes.c_void_p
    zstd.ZSTD_compressBound.restype = ctypes.c_size_t
    zstd.ZSTD_compress2.restype = ctypes.c_size_t
    context = ctypes.c_void_p(zstd.ZSTD_createCCtx())
    zstd.ZSTD_CCtx_setParameter(context, CONTENT_SIZE_FLAG, int(size))
    zstd.ZSTD_CCtx_setParameter(context, CHECKSUM_FLAG, int(checksum))
    bound = zstd.ZSTD_compressBound(ctypes.c_size_t(len(raw)))
    out = ctypes.create_string_buffer(bound)
    length = zstd.ZSTD_compress2(
        context, out, ctypes.c_size_t(bound), raw, ctypes.c_size_t(len(raw))
    )
    zstd.ZSTD_freeCCtx(context)
    assert length <= bound
    return out.raw[:length]


def file(
    manifest: bytes,
    stored: tuple[bytes, ...] = (),
    *,
    version: int = 1,
    flags: int = 0,
    offset: int | None = None,
    length: int | None = None,
    size: int | None = None,
    digest: bytes | None = None,
    header_digest: bytes | None = None,
    reserved: bytes = bytes(24),
    magic: bytes = MAGIC,
    filler: bytes = b"\0",
    tail: bytes = b"",
) -> bytes:
    """A file with this manifest and these stored blobs; header fields can be overridden.

    The checksum of the header fits the overridden fields, unless it is overridden too.
    """
    body = b""
    for blob in stored:
        body += blob
        body += filler * (-len(body) % 64)
    at = 128 + len(body)
    header = magic + struct.pack(
        "<IIQQQ",
        version,
        flags,
        at if offset is None else offset,
        len(manifest) if length is None else length,
        at + len(manifest) if size is None else size,
    )
    header += hashlib.sha256(manifest).digest() if digest is None else digest
    header += hashlib.sha256(header).digest() if header_digest is None else header_digest
    return header + reserved + body + manifest + tail


def table(raws: list[tuple[bytes, bytes | None]]) -> dict[str, Any]:
    """A manifest for kernels with these (raw, zstd frame or None) contents."""
    blobs = []
    at = 128
    for raw, packed in raws:
        stored = raw if packed is None else packed
        blobs.append(
            {
                "codec": "none" if packed is None else "zstd",
                "offset": at,
                "raw_sha256": sha(raw),
                "raw_size": len(raw),
                "stored_sha256": sha(stored),
                "stored_size": len(stored),
            }
        )
        at = (at + len(stored) + 63) // 64 * 64
    return {
        "blobs": blobs,
        "entries": [
            {"blob": i, "digest": blob["raw_sha256"], "kind": "kernel", "name": f"k{i}"}
            for i, blob in enumerate(blobs)
        ],
        "environment": {"torch": "2.13.0"},
        "fingerprint": sha(b""),
        "required_features": [],
    }


def dump(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
