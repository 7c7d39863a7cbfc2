"""The C type Artifact: lifetime, threads, large files, leaks."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import struct
import threading
import weakref
from pathlib import Path

import pytest

from precomp import _core
from precomp.errors import ArtifactCorruptError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.precomp"
    entries = [("frame", "f", b"frame"), ("plan", "p", b"plan"), ("kernel", "f", b"frame")]
    entries += [("kernel", str(i), bytes([i]) * 70000) for i in range(20)]
    _core.write_artifact(path, {"torch": "2.13.0"}, entries)
    return path


def test_attributes(path):
    artifact = _core.Artifact(path)
    assert artifact.path == str(path)
    assert artifact.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert artifact.environment == {"torch": "2.13.0"}
    assert artifact.environment is not artifact.environment
    assert artifact.entries is artifact.entries
    assert artifact.entries[0][:2] == ("frame", "f")
    assert "23 entries" in repr(artifact) and "closed" not in repr(artifact)
    with pytest.raises(AttributeError):
        artifact.path = "b"
    with pytest.raises(TypeError, match="immutable"):
        _core.Artifact.read = None
    with pytest.raises(TypeError):
        _core.Artifact()


def test_read_takes_only_the_digest_of_a_blob(path):
    artifact = _core.Artifact(path)
    digest = hashlib.sha256(b"plan").hexdigest()
    assert artifact.read(digest) == b"plan"
    for other in ("", "0" * 64, digest.upper(), digest[:-1], digest + "0", "plan", "é" * 32):
        with pytest.raises(KeyError) as caught:
            artifact.read(other)
        assert caught.value.args == (other,)
    for other in (None, b"0" * 64, 3):
        with pytest.raises(TypeError):
            artifact.read(other)


def test_load_all_selects_kinds(path):
    artifact = _core.Artifact(path)
    frame = hashlib.sha256(b"frame").hexdigest()
    plan = hashlib.sha256(b"plan").hexdigest()
    assert artifact.load_all(kinds=["frame"]) == {frame: b"frame"}
    assert set(artifact.load_all(("frame", "plan"))) == {frame, plan}
    assert set(artifact.load_all(iter(["kernel"]))) == set(artifact.load_all()) - {plan}
    assert artifact.load_all([]) == {}
    assert artifact.load_all(["nothing"]) == {}
    for wrong in (3, [[]], "frame"):
        with pytest.raises(TypeError):
            artifact.load_all(wrong)


@pytest.mark.parametrize("threads", [0, 1, 2, 7, 1000])
def test_any_number_of_threads_gives_the_same(path, threads):
    artifact = _core.Artifact(path)
    assert artifact.load_all(None, threads) == artifact.load_all(threads=1)
    assert artifact.verify(threads=threads) is None


def test_negative_numbers_of_threads_are_refused(path):
    artifact = _core.Artifact(path)
    for act in (artifact.load_all, artifact.verify):
        with pytest.raises(ValueError, match="threads: expected 0 or more, got -1"):
            act(threads=-1)


def test_a_closed_artifact_keeps_its_description_and_refuses_the_rest(path):
    with _core.Artifact(path) as artifact:
        digest = artifact.digest
        blob = artifact.read(artifact.entries[0][2])
    assert artifact.closed
    artifact.close()
    assert (artifact.digest, artifact.environment["torch"]) == (digest, "2.13.0")
    assert blob == b"frame" and len(artifact.entries) == 23
    assert "closed" in repr(artifact)
    for act in (
        lambda: artifact.read("0" * 64),
        artifact.load_all,
        artifact.verify,
        artifact.__enter__,
    ):
        with pytest.raises(ValueError, match="closed"):
            act()
    fresh = _core.Artifact(path)
    fresh.close()
    with pytest.raises(ValueError, match="digest: the artifact .* is closed"):
        _ = fresh.digest


def test_weak_references_and_cycles(path):
    artifact = _core.Artifact(path)
    reference = weakref.ref(artifact)
    assert gc.is_tracked(artifact)
    assert reference() is artifact
    holder = [artifact]
    holder.append(holder)
    del artifact, holder
    gc.collect()
    assert reference() is None


def test_many_threads_read_one_artifact_while_it_is_closed(path):
    content = _core.Artifact(path).load_all()
    problems = []
    for _ in range(15):
        artifact = _core.Artifact(path)
        start = threading.Barrier(5)

        def use(artifact=artifact, start=start) -> None:
            start.wait()
            try:
                while True:
                    for digest, blob in artifact.load_all(threads=2).items():
                        if content[digest] != blob or artifact.read(digest) != blob:
                            problems.append(digest)
                    artifact.verify()
            except ValueError as error:
                if "closed" not in str(error):
                    problems.append(repr(error))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        start.wait()
        for _ in range(3):
            artifact.load_all()
        artifact.close()
        for thread in threads:
            thread.join()
    assert problems == []


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """An artifact above the 64 MiB that are read into memory: blobs of 1 MiB and one of text."""
    path = tmp_path_factory.mktemp("large") / "a.precomp"
    filler = random.Random(7).randbytes(1 << 20)
    entries = [("kernel", f"k{i:02}", bytes([i]) + filler) for i in range(70)]
    entries.append(("module", "text", b"abc" * 10000))
    _core.write_artifact(path, {}, entries, 1)
    assert path.stat().st_size > 64 << 20
    return path


def copy_of(large: Path, tmp_path: Path) -> Path:
    path = tmp_path / "copy.precomp"
    path.write_bytes(large.read_bytes())
    return path


def test_a_large_file_is_read_on_demand(large):
    artifact = _core.Artifact(large)
    assert artifact.digest == hashlib.sha256(large.read_bytes()).hexdigest()
    artifact.verify()
    blobs = artifact.load_all(kinds=["module"])
    assert list(blobs.values()) == [b"abc" * 10000]
    kernel = artifact.entries[5]
    assert hashlib.sha256(artifact.read(kernel[2])).hexdigest() == kernel[2]
    assert len(artifact.load_all()) == 71


def test_a_large_file_that_is_removed_stays_readable(large, tmp_path):
    path = copy_of(large, tmp_path)
    artifact = _core.Artifact(path)
    path.unlink()
    artifact.verify()


def test_a_large_file_that_is_cut_short_gives_an_error_and_no_signal(large, tmp_path):
    path = copy_of(large, tmp_path)
    artifact = _core.Artifact(path)
    os.truncate(path, 1000)
    for act in (
        artifact.load_all,
        artifact.verify,
        lambda: artifact.digest,
        lambda: artifact.read(artifact.entries[9][2]),
    ):
        with pytest.raises(ArtifactCorruptError, match="ends at byte .*: the file was cut short"):
            act()


def test_a_large_file_that_is_changed_in_place_gives_an_error(large, tmp_path):
    path = copy_of(large, tmp_path)
    artifact = _core.Artifact(path)
    with open(path, "r+b") as file:
        file.seek(1000)
        file.write(b"changed")
    with pytest.raises(ArtifactCorruptError, match='entry kernel "k00"'):
        artifact.load_all()


def test_a_small_file_is_not_needed_after_opening(path):
    content = _core.Artifact(path).load_all()
    artifact = _core.Artifact(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    os.truncate(path, 3)
    path.unlink()
    assert artifact.load_all() == content
    assert artifact.digest == digest
    artifact.verify()


def test_descriptors_are_closed(large, path, tmp_path):
    damaged = tmp_path / "damaged"
    damaged.write_bytes(path.read_bytes()[:-1])
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        _core.Artifact(path)
        _core.Artifact(large)
        with pytest.raises(ArtifactCorruptError):
            _core.Artifact(damaged)
        _core.write_artifact(tmp_path / "b", {}, [])
    assert os.listdir("/proc/self/fd") == before


def test_a_fork_may_use_what_its_parent_opened(large):
    artifact = _core.Artifact(large)
    digest = artifact.entries[9][2]
    child = os.fork()
    if child == 0:
        ok = hashlib.sha256(artifact.read(digest)).hexdigest() == digest
        os._exit(0 if ok and len(artifact.load_all(threads=2)) == 71 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


LEAKS = """
import gc, sys
from precomp import _core

entries = [("frame", "f", b"f"), ("kernel", "k", bytes(3000)), ("kernel", "é", b"x" * 99)]
_core.write_artifact("a", {"x": "y"}, entries)
good = open("a", "rb").read()
bad = bytearray(good)
bad[128] ^= 1
open("bad", "wb").write(bad)
open("cut", "wb").write(good[:-1])
elf = open(sys.argv[1], "rb").read()

def refused(error, act, *args, **kwargs):
    try:
        act(*args, **kwargs)
    except error:
        return
    raise AssertionError

def once():
    with _core.Artifact("a") as artifact:
        artifact.digest, artifact.environment, artifact.entries, artifact.fingerprint
        artifact.path, artifact.closed, repr(artifact)
        artifact.load_all(), artifact.load_all(["frame"]), artifact.load_all(threads=2)
        artifact.verify()
        artifact.read(artifact.entries[0][2])
        refused(KeyError, artifact.read, "nothing")
        refused(TypeError, artifact.read, None)
        refused(TypeError, artifact.load_all, [[]])
        refused(ValueError, artifact.load_all, threads=-1)
    refused(ValueError, artifact.load_all)
    broken = _core.Artifact("bad")
    refused(ValueError, broken.load_all)
    refused(ValueError, broken.verify)
    refused(ValueError, broken.read, broken.entries[0][2])
    refused(ValueError, _core.Artifact, "cut")
    refused(OSError, _core.Artifact, "missing")
    refused(TypeError, _core.Artifact, 3)
    _core.write_artifact("b", {"x": "y"}, entries)
    refused(ValueError, _core.write_artifact, "b", {"x": "y"}, [("K", "a", b"")])
    refused(TypeError, _core.write_artifact, "b", {"x": 1}, entries)
    refused(TypeError, _core.write_artifact, "b", {}, [("kernel", "k", b"1"), ("kernel", "k")])
    refused(OSError, _core.write_artifact, "no/b", {}, entries)
    _core.strip_shared_object(elf)
    refused(ValueError, _core.strip_shared_object, elf[:99])
    refused(TypeError, _core.strip_shared_object, "text")
    _core.sha256(b"abc")
    refused(TypeError, _core.sha256, None)

def blocks():
    gc.collect()
    return sys.getallocatedblocks()

for _ in range(40):
    once()
counts = []
references = sys.getrefcount(_core.Artifact)
for _ in range(6):
    for _ in range(20):
        once()
    counts.append(blocks())
# A leak of one object per call shows in every round; what the interpreter caches does not.
assert min(b - a for a, b in zip(counts, counts[1:])) < 10, counts
assert sys.getrefcount(_core.Artifact) - references < 3
"""


def test_nothing_leaks(run):
    run(LEAKS, _core.__file__)


NO_MEMORY = """
import sys
import _testcapi
from precomp import _core
entries = [("frame", "f", b"f"), ("kernel", "k", bytes(3000))]
elf = open(sys.argv[1], "rb").read()
_core.write_artifact("a", {"x": "y"}, entries)
artifact = _core.Artifact("a")
digest = artifact.entries[0][2]
acts = [
    lambda: _core.Artifact("a"),
    lambda: artifact.load_all(["frame", "kernel"]),
    lambda: artifact.read(digest),
    lambda: artifact.environment,
    lambda: repr(artifact),
    lambda: _core.Artifact("a").digest,
    lambda: _core.write_artifact("b", {"x": "y"}, entries),
    lambda: _core.strip_shared_object(elf),
    lambda: _core.sha256(b"abc"),
]
for act in acts:
    act()
    for nth in range(400):
        done = False
        _testcapi.set_nomemory(nth, nth + 1)
        try:
            act()
            done = True
        except MemoryError:
            pass
        finally:
            _testcapi.remove_mem_hooks()
        if done:
            break
    assert done
    act()
"""


def test_every_failing_allocation_of_python_is_a_memory_error(run):
    pytest.importorskip("_testcapi")
    run(NO_MEMORY, _core.__file__)


def test_the_module_exports_only_its_init_function(run):
    exported = []
    data = Path(_core.__file__).read_bytes()
    # Read the dynamic symbol table: name, info, other, section index of every entry.
    shoff, shentsize, shnum = (
        struct.unpack_from("<Q", data, 40)[0],
        *struct.unpack_from("<HH", data, 58),
    )
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, shoff + i * shentsize) for i in range(shnum)
    ]
    for section in sections:
        if section[1] != 11:  # SHT_DYNSYM
            continue
        strings = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, info, _, index = struct.unpack_from("<IBBH", data, at)
            if index != 0 and info >> 4 != 0:
                end = data.index(b"\0", strings + name)
                exported.append(data[strings + name : end].decode())
    assert exported == ["PyInit__core"]


def test_the_interpreter_exits_with_artifacts_open(run):
    run(
        """
import sys
from precomp import _core
_core.write_artifact("a", {}, [("kernel", "k", b"a")])
sys.kept = _core.Artifact("a")
"""
    )
