"""``precomp.bind()``: which artifact a model file belongs to.

The binding is recorded in the ``__metadata__`` of a safetensors file, or beside the model in
``<model file>.precomp.json``. Form of safetensors (README of huggingface/safetensors, "Format"):
8 bytes, the little-endian length N of a header; N bytes of JSON, padded with spaces; the data of
the tensors. Imports neither torch nor safetensors, and reads no weights to check a binding.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from precomp.artifact import ROOTS, Artifact
from precomp.errors import BindingError
from precomp.files import Replacement

__all__ = ["Binding", "bind", "binding_of", "require_bound"]

METADATA_KEY = "precomp.fingerprint"
FRAMES_KEY = "precomp.frames"
SIDE_SUFFIX = ".precomp.json"
SIDE_LIMIT = 16 << 20
HEADER_LIMIT = 100_000_000  # bytes; as the safetensors library has it
_CHUNK = 1 << 20
_HEX = frozenset("0123456789abcdef")

_Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Binding:
    """What is recorded with a model file.

    ``fingerprint``: that of the artifact. ``frames``: digests of its frames and of its launches of
    Triton kernels, sorted, of which the fingerprint is the sha256: they tell an artifact that was
    merged from it. ``where``: the file that holds the record.
    """

    fingerprint: str
    frames: tuple[str, ...]
    where: str

    def missing(self, artifact: Artifact) -> int:
        """How many of the frames *artifact* lacks; 0 when it belongs to the model."""
        return len(set(self.frames) - set(_frames(artifact)))


def bind(
    model_file: _Path, artifact: Artifact | _Path, *, side_file: bool | None = None
) -> Binding:
    """Record that *model_file* belongs to *artifact* (an open one or its path).

    A safetensors file (by its suffix) gets the fingerprint into its header: it is written anew
    beside the old one, read back to compare the tensors, and renamed into place. Any other file,
    and any with ``side_file=True``, gets ``<model file>.precomp.json`` beside it. A former binding
    is replaced.

    Raises BindingError that names what is wrong with the model file (then nothing is changed),
    ArtifactError for a bad artifact, OSError when a file cannot be read or written.
    """
    path = os.fspath(model_file)
    if side_file is None:
        side_file = not _is_safetensors(path)
    elif not side_file and not _is_safetensors(path):
        raise BindingError(f"{path}: not a .safetensors file; bind it with a side file")
    opened = artifact if isinstance(artifact, Artifact) else Artifact.open(artifact)
    try:
        frames, fingerprint = _frames(opened), opened.fingerprint
    finally:
        if opened is not artifact:
            opened.close()
    _refuse_directory(path)
    if not frames:
        raise BindingError(f"{opened.path}: holds no frames, so any artifact would fit the model")
    if side_file:
        return _write_side_file(path, fingerprint, frames)
    if os.path.islink(path):
        raise BindingError(
            f"{path}: a symbolic link to {os.path.realpath(path)}: name that file to rewrite its "
            "header, or use side_file=True to leave it as it is"
        )
    _rewrite_header(path, fingerprint, frames)
    with suppress(FileNotFoundError):  # what it said is replaced
        os.unlink(path + SIDE_SUFFIX)
    return Binding(fingerprint, frames, path)


def binding_of(model_file: _Path) -> Binding | None:
    """What is recorded with *model_file*, None when it is unbound. Reads no weights.

    The header of a safetensors file comes before a side file. Raises BindingError when a record or
    the header is damaged, OSError when the model file cannot be read.
    """
    path = os.fspath(model_file)
    _refuse_directory(path)
    if _is_safetensors(path):
        with open(path, "rb") as file:
            metadata = _read_header(path, file)[0].get("__metadata__", {})
        if METADATA_KEY in metadata:
            frames = metadata.get(FRAMES_KEY, "")
            return _checked(path, metadata[METADATA_KEY], frames.split(",") if frames else [])
    else:
        os.stat(path)
    return _read_side_file(path)


def require_bound(model_file: _Path, artifact: Artifact) -> None:
    """Raise BindingError unless *model_file* was bound to *artifact* or to a part of it."""
    path = os.fspath(model_file)
    binding = binding_of(path)
    if binding is None:
        raise BindingError(
            f"{path}: not bound to an artifact; bind it to the one that was captured with it: "
            f"precomp bind {path} {artifact.path}"
        )
    if binding.fingerprint == artifact.fingerprint:
        return
    missing = binding.missing(artifact)
    if missing:
        raise BindingError(
            f"{binding.where}: bound to another artifact: expected fingerprint "
            f"{binding.fingerprint}, found {artifact.fingerprint} in {artifact.path}, which lacks "
            f"{missing} of {len(binding.frames)} frame(s); prepare from the artifact it was bound "
            "to, or bind it again"
        )


# ------------------------------------------------------------------ both forms


def _frames(artifact: Artifact) -> tuple[str, ...]:
    return tuple(sorted(entry.digest for entry in artifact.entries if entry.kind in ROOTS))


def _is_safetensors(path: str) -> bool:
    return path.endswith(".safetensors")


def _refuse_directory(path: str) -> None:
    if os.path.isdir(path):
        raise BindingError(
            f"{path}: a directory; name a file in it (of several parts, their index)"
        )


def _is_digest(value: Any) -> bool:
    return type(value) is str and len(value) == 64 and _HEX.issuperset(value)


def _checked(where: str, fingerprint: Any, frames: Iterable[Any]) -> Binding:
    """The binding if it is whole: the fingerprint is the digest of the frames."""
    frames = tuple(frames)
    if not _is_digest(fingerprint) or not all(map(_is_digest, frames)):
        raise BindingError(f"{where}: the binding is damaged: not hex digests; bind it again")
    found = hashlib.sha256("\n".join(sorted(frames)).encode()).hexdigest()
    if found != fingerprint:
        raise BindingError(
            f"{where}: the binding is damaged: expected fingerprint {fingerprint}, its frames give "
            f"{found}; bind it again"
        )
    return Binding(fingerprint, tuple(sorted(frames)), where)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _parse(where: str, data: bytes, what: str) -> dict[str, Any]:
    """A JSON object; BindingError that says what is wrong."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise BindingError(f"{where}: {what} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BindingError(f"{where}: {what}: expected a JSON object, found {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    return type(value).__name__


# ------------------------------------------------------------------ safetensors


def _read_header(path: str, file: BinaryIO) -> tuple[dict[str, Any], int]:
    """``(header, offset of the tensors)``, checked as far as a binding relies on it."""
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(8)
    if len(prefix) < 8:
        raise BindingError(
            f"{path}: not a safetensors file: expected 8 bytes of header length, "
            f"found {len(prefix)}"
        )
    (length,) = struct.unpack("<Q", prefix)
    if length > HEADER_LIMIT:
        raise BindingError(
            f"{path}: not a safetensors file: header of {length} bytes, expected at most "
            f"{HEADER_LIMIT}"
        )
    if length > size - 8:
        raise BindingError(
            f"{path}: cut short: header of {length} bytes, the file has {size - 8} after its length"
        )
    header = _parse(path, file.read(length), "the header")
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise BindingError(f"{path}: the header: $.__metadata__: expected strings only")
    end = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
            if (
                not isinstance(offsets, list)
                or [_kind(offset) for offset in offsets] != ["int", "int"]
                or not 0 <= offsets[0] <= offsets[1]
            ):
                raise BindingError(f"{path}: the header: tensor {name!r}: no valid data_offsets")
            end = max(end, offsets[1])
    start = 8 + length
    if end != size - start:
        raise BindingError(
            f"{path}: cut short or damaged: expected {end} bytes of tensors, found {size - start}"
        )
    return header, start


def _rewrite_header(path: str, fingerprint: str, frames: tuple[str, ...]) -> None:
    with open(path, "rb") as source:
        header, start = _read_header(path, source)
        # The metadata goes first, as the safetensors library writes it.
        bound = {METADATA_KEY: fingerprint, FRAMES_KEY: ",".join(frames)}
        metadata = header.pop("__metadata__", {}) | bound
        text = json.dumps(
            {"__metadata__": metadata, **header}, ensure_ascii=False, separators=(",", ":")
        ).encode()
        text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
        if len(text) > HEADER_LIMIT:
            raise BindingError(f"{path}: no room for a binding: the header gets {len(text)} bytes")
        status = os.fstat(source.fileno())
        replacement = Replacement(path)
        with replacement as target:
            target.write(struct.pack("<Q", len(text)) + text)
            source.seek(start)
            written = hashlib.sha256()
            while chunk := source.read(_CHUNK):
                written.update(chunk)
                target.write(chunk)
            target.flush()
            target.seek(8 + len(text))
            if _sha256(target) != written.digest():
                raise BindingError(
                    f"{path}: the copied tensors differ from the ones that were read"
                )
            now = os.fstat(source.fileno())
            if (now.st_size, now.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
                raise BindingError(f"{path}: it was written to meanwhile; bind it again")
            os.fchmod(target.fileno(), status.st_mode & 0o7777)


def _sha256(file: BinaryIO) -> bytes:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.digest()


# ------------------------------------------------------------------ side files


def _write_side_file(path: str, fingerprint: str, frames: tuple[str, ...]) -> Binding:
    record = {"fingerprint": fingerprint, "frames": frames, "model_size": os.stat(path).st_size}
    where = path + SIDE_SUFFIX
    with Replacement(where) as file:
        file.write(json.dumps(record, indent=1).encode() + b"\n")
    return Binding(fingerprint, frames, where)


def _read_side_file(path: str) -> Binding | None:
    where = path + SIDE_SUFFIX
    try:
        with open(where, "rb") as file:
            data = file.read(SIDE_LIMIT + 1)
    except FileNotFoundError:
        return None
    if len(data) > SIDE_LIMIT:
        raise BindingError(f"{where}: more than {SIDE_LIMIT} bytes; bind the model again")
    record = _parse(where, data, "the binding")
    frames, size = record.get("frames"), record.get("model_size")
    if not isinstance(frames, list):
        raise BindingError(f"{where}: the binding is damaged: no list of frames; bind it again")
    found = os.stat(path).st_size
    if size != found:
        raise BindingError(
            f"{where}: the model file changed since it was bound: expected {size} bytes, found "
            f"{found}; bind it again"
        )
    return _checked(where, record.get("fingerprint"), frames)
