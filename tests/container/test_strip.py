"""strip_shared_object: what is left still loads, and does not tell where it was built."""

from __future__ import annotations

import ctypes
import random
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from precomp import _core
from precomp.errors import ArtifactCorruptError

SOURCE = """
#include <stdexcept>
#include <string>
#include <vector>
static thread_local int calls = 0;
static const std::string names[] = {"one", "two"};
extern "C" int kernel(const float *in, float *out, long n) {
    std::vector<float> copy(in, in + n);
    for (long i = 0; i < n; i++) out[i] = copy[i] * 2 + 1;
    return ++calls;
}
extern "C" int thrown() {
    try {
        throw std::runtime_error(names[1]);
    } catch (const std::exception &error) {
        return std::string(error.what()) == "two" ? 7 : 0;
    }
}
"""


@pytest.fixture(scope="module")
def build(compiler, tmp_path_factory) -> Callable[..., bytes]:
    def compile_in(place: str, *flags: str) -> bytes:
        directory = tmp_path_factory.mktemp(place)
        source = directory / f"{place}.cpp"
        source.write_text(SOURCE)
        out = directory / f"{place}.so"
        subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", *flags, str(source), "-o", str(out), "-lstdc++"],
            check=True,
        )
        return out.read_bytes()

    return compile_in


@pytest.fixture(scope="module")
def image(build) -> bytes:
    return build("image", "-g")


def check_loads(stripped: bytes, tmp_path: Path) -> None:
    path = tmp_path / "stripped.so"
    path.write_bytes(stripped)
    library = ctypes.CDLL(str(path))
    values = (ctypes.c_float * 4)(1, 2, 3, 4)
    out = (ctypes.c_float * 4)()
    assert library.kernel(values, out, ctypes.c_long(4)) == 1
    assert list(out) == [3, 5, 7, 9]
    assert library.thrown() == 7


@pytest.mark.parametrize(
    "flags",
    [
        ("-g",),
        (),
        ("-s",),
        ("-g", "-Wl,--build-id=none"),
        ("-g", "-Wl,--build-id=uuid"),
        ("-g", "-Wl,-z,noseparate-code"),
        ("-g", "-Wl,-z,relro,-z,now"),
        ("-g3", "-gz", "-fopenmp"),
    ],
    ids=" ".join,
)
def test_a_stripped_object_still_loads(build, tmp_path, flags):
    data = build("loads", *flags)
    stripped = _core.strip_shared_object(data)
    assert len(stripped) < len(data)
    assert _core.strip_shared_object(stripped) == stripped
    check_loads(stripped, tmp_path)


def test_two_builds_of_one_source_become_equal(build):
    first = build("first", "-g")
    second = build("second_directory_with_a_longer_name", "-g")
    assert first != second
    assert _core.strip_shared_object(first) == _core.strip_shared_object(second)


def test_debug_information_and_build_id_are_gone(build):
    with_id = build("marker_of_the_source", "-g", "-Wl,--build-id=0x1234567890abcdef1234567890")
    assert b"marker_of_the_source" in with_id and bytes.fromhex("1234567890abcdef12") in with_id
    stripped = _core.strip_shared_object(with_id)
    assert b"marker_of_the_source" not in stripped
    assert bytes.fromhex("1234567890abcdef12") not in stripped
    assert struct.unpack_from("<Q", stripped, 40) == (0,)
    assert struct.unpack_from("<HH", stripped, 60) == (0, 0)
    end = 0
    offset, count = (
        struct.unpack_from("<Q", stripped, 32)[0],
        struct.unpack_from("<H", stripped, 56)[0],
    )
    for i in range(count):
        start, size = struct.unpack_from("<8xQ16xQ", stripped, offset + 56 * i)
        end = max(end, start + size)
    assert len(stripped) == max(end, offset + 56 * count)


def test_any_buffer_is_taken(image):
    stripped = _core.strip_shared_object(image)
    assert _core.strip_shared_object(bytearray(image)) == stripped
    assert _core.strip_shared_object(memoryview(image)) == stripped
    with pytest.raises(TypeError):
        _core.strip_shared_object("text")
    with pytest.raises(BufferError):
        _core.strip_shared_object(memoryview(image)[::2])


def header(**changes: int) -> bytes:
    """A minimal shared object with two program headers, with fields changed."""
    fields = {
        "class_": 2, "data": 1, "type_": 3, "phoff": 64, "phentsize": 56, "phnum": 2,
        "type0": 1, "offset0": 0, "filesz0": 256, "memsz0": 256,
        "type1": 4, "offset1": 192, "filesz1": 36, "memsz1": 36, "align1": 4,
        "namesz": 4, "descsz": 20, "notetype": 3,
    }  # fmt: skip
    fields.update(changes)
    f = fields
    image = struct.pack(
        "<4sBBB9xHHIQQQIHHHHHH", b"\x7fELF", f["class_"], f["data"], 1, f["type_"], 62, 1,
        0, f["phoff"], 999, 0, 64, f["phentsize"], f["phnum"], 64, 3, 2,
    )  # fmt: skip
    image += struct.pack(
        "<IIQQQQQQ", f["type0"], 5, f["offset0"], 0, 0, f["filesz0"], f["memsz0"], 4096
    )
    image += struct.pack(
        "<IIQQQQQQ", f["type1"], 4, f["offset1"], 0, 0, f["filesz1"], f["memsz1"], f["align1"]
    )
    image = image.ljust(192, b"\0")
    image += struct.pack("<III4s", f["namesz"], f["descsz"], f["notetype"], b"GNU\0")
    return (image + bytes(range(1, 21))).ljust(256, b"x") + b"debug"


def test_the_minimal_object_is_stripped():
    stripped = _core.strip_shared_object(header())
    assert len(stripped) == 256
    assert stripped[208:228] == bytes(20) and stripped[228:] == b"x" * 28
    assert stripped[:40] == header()[:40] and stripped[48:60] == header()[48:60]


def test_other_notes_are_kept():
    for changes in ({"notetype": 5}, {"namesz": 3}, {"type1": 6}):
        assert _core.strip_shared_object(header(**changes))[192:] == header(**changes)[192:256]


FAULTS = {
    "32 bit": ({"class_": 1}, "expected 64-bit little-endian"),
    "big endian": ({"data": 2}, "expected 64-bit little-endian"),
    "executable": ({"type_": 2}, "not a shared object"),
    "relocatable": ({"type_": 1}, "not a shared object"),
    "no program headers": ({"phnum": 0}, "program headers of unknown size or number"),
    "PN_XNUM": ({"phnum": 0xFFFF}, "program headers of unknown size or number"),
    "entry size": ({"phentsize": 32}, "program headers of unknown size or number"),
    "headers in header": ({"phoff": 32}, "program headers outside the file"),
    "headers outside": ({"phoff": 200}, "program headers outside the file"),
    "headers far": ({"phoff": 2**64 - 8}, "program headers outside the file"),
    "many headers": ({"phnum": 0xFFFE}, "program headers outside the file"),
    "nothing to load": ({"type0": 6}, "no loadable segment"),
    "empty segment": ({"filesz0": 0}, "no loadable segment"),
    "segment outside": ({"filesz0": 262}, "a segment outside the file"),
    "segment far": ({"offset0": 2**64 - 1}, "a segment outside the file"),
    "segment overflow": ({"offset0": 8, "filesz0": 2**64 - 8}, "a segment outside the file"),
    "more in file": ({"memsz0": 255}, "a segment larger in the file than in memory"),
    "note name": ({"namesz": 2**32 - 1}, "a note outside its segment"),
    "note data": ({"descsz": 2**32 - 1}, "a note outside its segment"),
    "note data by one": ({"descsz": 21}, "a note outside its segment"),
    "note over headers": ({"offset1": 64}, "notes over the program headers"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_malformed_objects_are_refused_by_name(fault):
    changes, message = FAULTS[fault]
    with pytest.raises(ArtifactCorruptError, match=f"strip_shared_object: {message}"):
        _core.strip_shared_object(header(**changes))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"MZ" * 100, bytes(64)])
def test_what_is_no_elf_file_is_refused(data):
    with pytest.raises(ArtifactCorruptError, match="not an ELF file"):
        _core.strip_shared_object(data)


def test_truncated_objects_are_refused_or_lose_only_what_is_dropped(image):
    stripped = _core.strip_shared_object(image)
    for length in range(0, len(image), 37):
        if length < len(stripped):
            with pytest.raises(ArtifactCorruptError):
                _core.strip_shared_object(image[:length])
        else:
            assert _core.strip_shared_object(image[:length]) == stripped


def test_damaged_headers_never_crash(image):
    chance = random.Random(11)
    for _ in range(3000):
        damaged = bytearray(image[:20000])
        for _ in range(chance.choice([1, 1, 2, 8])):
            damaged[chance.randrange(900)] = chance.choice(
                [0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)]
            )
        try:
            stripped = _core.strip_shared_object(damaged)
        except ArtifactCorruptError:
            continue
        assert _core.strip_shared_object(stripped) == stripped


def test_the_extension_module_itself_can_be_stripped(run, tmp_path):
    target = tmp_path / Path(_core.__file__).name
    target.write_bytes(_core.strip_shared_object(Path(_core.__file__).read_bytes()))
    run(
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('precomp._core', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "assert len(module.sha256(b'')) == 64\n",
        str(target),
    )
