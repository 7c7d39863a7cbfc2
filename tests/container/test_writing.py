"""Writing: arguments, atomicity, and what is left behind when a call fails or a process dies."""

from __future__ import annotations

import errno
import os
import random
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import precomp
from precomp import _core
from precomp.errors import ArtifactCorruptError

ARGUMENT_FAULTS = {
    "environment list": (([], []), TypeError, "dict"),
    "environment key": (({1: "a"}, []), TypeError, "key of the environment: expected str, got int"),
    "environment value": (({"a": None}, []), TypeError, "expected str, got NoneType"),
    "environment NUL": (({"a": "b\0"}, []), ValueError, "NUL"),
    "environment surrogate": (({"a": "\ud800"}, []), UnicodeEncodeError, "surrogate"),
    "environment long key": (({"a" * 2000: ""}, []), ValueError, "more than 1024"),
    "entries None": (({}, None), TypeError, "iterable"),
    "entry short": (({}, [("frame", b"")]), TypeError, r"entries\[0\]: expected \(kind, name"),
    "entry list": (({}, [["frame", "f", b""]]), TypeError, r"entries\[0\]: expected \(kind, name"),
    "data str": (
        ({}, [("frame", "f", "text")]),
        TypeError,
        r"entries\[0\]: expected bytes, got str",
    ),
    "data bytearray": (({}, [("frame", "f", bytearray())]), TypeError, "expected bytes, got bytea"),
    "kind bytes": (({}, [(b"frame", "f", b"")]), TypeError, "kind: expected str, got bytes"),
    "kind upper": (({}, [("Frame", "f", b"")]), ValueError, "entry 0: kind: expected a lower-case"),
    "kind empty": (({}, [("", "f", b"")]), ValueError, "entry 0: kind: expected a lower-case"),
    "kind long": (({}, [("f" * 33, "f", b"")]), ValueError, "entry 0: kind: expected a lower-case"),
    "name NUL": (({}, [("frame", "f\0", b"")]), ValueError, "name: NUL"),
    "name long": (({}, [("frame", "é" * 257, b"")]), ValueError, "514 bytes, more than 512"),
    "name surrogate": (({}, [("frame", "\udcff", b"")]), UnicodeEncodeError, "surrogate"),
    "level below": (({}, [], -1), ValueError, "level: expected 0..22, got -1"),
    "level above": (({}, [], 23), ValueError, "level: expected 0..22, got 23"),
    "level text": (({}, [], "9"), TypeError, "integer"),
}


@pytest.mark.parametrize("fault", ARGUMENT_FAULTS)
def test_wrong_arguments_are_refused_by_name(tmp_path, fault):
    arguments, error, message = ARGUMENT_FAULTS[fault]
    with pytest.raises(error, match=message):
        _core.write_artifact(tmp_path / "a.precomp", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_limits_are_inclusive(tmp_path):
    entries = [("k" * 32, "é" * 256, b"a"), ("k_0", "", b"b")]
    _core.write_artifact(tmp_path / "a", {"a" * 1024: "b" * (1 << 20), "": ""}, entries)
    assert len(_core.Artifact(tmp_path / "a").entries) == 2


def test_a_manifest_above_the_limit_is_refused(tmp_path):
    environment = {f"{i:02}": "a" * (1 << 20) for i in range(17)}
    with pytest.raises(
        ValueError, match="write_artifact: the manifest would take .* more than 16 MiB"
    ):
        _core.write_artifact(tmp_path / "a", environment, [])
    assert list(tmp_path.iterdir()) == []


def test_any_iterable_of_entries_is_taken(tmp_path):
    _core.write_artifact(tmp_path / "a", {}, (("kernel", str(i), b"a") for i in range(5)))
    assert len(_core.Artifact(tmp_path / "a").entries) == 5


def test_an_existing_file_is_replaced_and_an_open_reader_keeps_the_old_one(tmp_path):
    path = tmp_path / "a.precomp"
    _core.write_artifact(path, {}, [("kernel", "k", b"old")])
    old = _core.Artifact(path)
    _core.write_artifact(path, {}, [("kernel", "k", b"new")])
    assert list(old.load_all().values()) == [b"old"]
    assert list(_core.Artifact(path).load_all().values()) == [b"new"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.precomp"]


def test_relative_paths_and_the_umask_are_respected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o027)
    try:
        _core.write_artifact("a.precomp", {}, [])
    finally:
        os.umask(before)
    assert Path("a.precomp").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("missing/a.precomp", errno.ENOENT),
        ("file/a.precomp", errno.ENOTDIR),
        ("directory", errno.EISDIR),
        ("", errno.ENOENT),
        ("x" * 300, errno.ENAMETOOLONG),
    ],
)
def test_a_path_that_cannot_be_written_is_an_os_error(tmp_path, monkeypatch, path, code):
    monkeypatch.chdir(tmp_path)
    Path("file").write_bytes(b"")
    Path("directory").mkdir()
    before = sorted(os.listdir())
    with pytest.raises(OSError) as caught:
        _core.write_artifact(path, {}, [("kernel", "k", b"a")])
    assert caught.value.errno == code
    assert caught.value.filename == path
    assert sorted(os.listdir()) == before


def test_a_directory_without_permission_is_left_alone(run, tmp_path):
    (tmp_path / "kept.precomp").write_bytes(b"kept")
    tmp_path.chmod(0o555)
    run(
        """
import os
from precomp import _core
if os.geteuid() == 0:  # root may write everywhere
    os.setuid(65534)
for path in ("a.precomp", "kept.precomp"):
    try:
        _core.write_artifact(path, {}, [("kernel", "k", b"a")])
    except PermissionError as error:
        assert error.filename == path
    else:
        raise AssertionError
"""
    )
    tmp_path.chmod(0o755)
    assert os.listdir(tmp_path) == ["kept.precomp"]
    assert (tmp_path / "kept.precomp").read_bytes() == b"kept"


FAIL = """
import ctypes, errno, hashlib, os, random, sys
from precomp import _core
shim = ctypes.CDLL(os.environ["SHIM"])
name, code = sys.argv[1], getattr(errno, sys.argv[2])
old, new = [("kernel", "k", b"old")], [("kernel", str(i), random.randbytes(3000)) for i in range(9)]
_core.write_artifact("a.precomp", {}, old)
before = hashlib.sha256(open("a.precomp", "rb").read()).hexdigest()
failed = 0
for nth in range(1, 200):
    shim.shim_arm(name.encode(), nth, code)
    try:
        digest = _core.write_artifact("a.precomp", {}, new)
    except OSError as error:
        assert shim.shim_disarm() == 1
        assert error.errno == code and error.filename == "a.precomp", error
        failed += 1
    else:
        hit = shim.shim_disarm()
        after = hashlib.sha256(open("a.precomp", "rb").read()).hexdigest()
        assert after == digest
        if not hit:
            break
        _core.write_artifact("a.precomp", {}, old)  # the failure was one to overlook
        continue
    finally:
        assert os.listdir() == ["a.precomp"], os.listdir()
    now = hashlib.sha256(open("a.precomp", "rb").read()).hexdigest()
    if sys.argv[3] == "old":
        assert now == before
    else:
        _core.Artifact("a.precomp").verify()
print(failed)
"""


@pytest.mark.parametrize(
    ("call", "code", "least", "kept"),
    [
        ("write", "ENOSPC", 19, "old"),
        ("write", "EIO", 19, "old"),
        ("write", "EDQUOT", 19, "old"),
        ("open", "EROFS", 2, "old"),
        ("open", "EACCES", 1, "old"),
        ("getrandom", "ENOSYS", 1, "old"),
        ("rename", "EXDEV", 1, "old"),
        ("fsync", "EIO", 2, "old or new"),  # the second is that of the directory, after the rename
        ("close", "EIO", 1, "old"),
    ],
)
def test_every_failing_system_call_leaves_nothing_behind(run, shim, call, code, least, kept):
    done = run(FAIL, call, code, kept, env=shim)
    assert int(done.stdout) >= least


@pytest.mark.parametrize(
    ("call", "code"),
    [("write", "EINTR"), ("getrandom", "EINTR"), ("open", "EINTR"), ("fsync", "EINTR")],
)
def test_interrupted_calls_are_repeated(run, shim, call, code):
    script = FAIL.replace("failed += 1", "raise")
    run(script, call, code, "old", env=shim)


def test_short_writes_are_continued(run, shim):
    run(
        FAIL.replace("getattr(errno, sys.argv[2])", "0"),
        "write",
        "",
        "old",
        env=shim,
    )


def test_a_full_disk_leaves_nothing_behind(run):
    run(
        """
import errno, os, random, resource
from precomp import _core
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    _core.write_artifact("a.precomp", {}, [("kernel", "k", random.randbytes(300_000))])
except OSError as error:
    assert error.errno == errno.EFBIG, error
else:
    raise AssertionError
assert os.listdir() == []
"""
    )


WRITE_FOREVER = """
import random, sys
from precomp import _core
contents = [
    [("kernel", str(i), random.Random(10 * n + i).randbytes(3_000_000)) for i in range(8)]
    for n in range(2)
]
print("ready", flush=True)
while True:
    for entries in contents:
        _core.write_artifact("a.precomp", {}, entries, level=0)
"""


def test_a_killed_writer_leaves_the_whole_file_or_none(tmp_path):
    home = str(Path(precomp.__file__).parent.parent)
    chance = random.Random(5)
    seen = set()
    for attempt in range(14):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        child = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOREVER],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": home},
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        select.select([], [], [], chance.random() * 0.1)
        child.kill()
        child.wait()
        child.stdout.close()
        path = directory / "a.precomp"
        if path.exists():
            artifact = _core.Artifact(path)
            artifact.verify()
            assert len(artifact.entries) == 8
        seen.add(path.exists())
        for other in directory.iterdir():
            assert other == path or other.name.startswith(".precomp-")
    assert seen


def test_readers_see_one_writer_whole_whoever_else_writes(tmp_path):
    path = tmp_path / "a.precomp"
    contents = [[("kernel", str(i), bytes([n, i]) * 20000) for i in range(5)] for n in range(3)]
    digests = {_core.write_artifact(path, {}, entries, 1) for entries in contents}
    problems = []

    def write(n: int) -> None:
        for _ in range(20):
            if _core.write_artifact(path, {}, contents[n], 1) not in digests:
                problems.append("digest")

    def read() -> None:
        for _ in range(60):
            try:
                artifact = _core.Artifact(path)
                blobs = artifact.load_all()
            except (OSError, ArtifactCorruptError) as error:
                problems.append(repr(error))
            else:
                if artifact.digest not in digests or len({blob[0] for blob in blobs.values()}) != 1:
                    problems.append("mixed")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    threads += [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.precomp"]


def test_the_gil_is_released_while_writing_and_while_reading(run, shim):
    run(
        """
import ctypes, os, threading
from precomp import _core
shim = ctypes.CDLL(os.environ["SHIM"])

def during(call, act):
    go_read, go_write = os.pipe()
    at_read, at_write = os.pipe()
    shim.shim_arm_wait(call, go_read, at_write)
    thread = threading.Thread(target=act)
    thread.start()
    os.read(at_read, 1)   # the thread is inside the call; this thread still runs
    assert thread.is_alive()
    os.write(go_write, b"x")
    thread.join()
    shim.shim_disarm()

def write():
    entries = [("kernel", str(i), bytes([i]) * 10_000_000) for i in range(7)]
    _core.write_artifact("a", {}, entries, 0)

during(b"write", write)
during(b"fsync", write)
during(b"pread", lambda: _core.Artifact("a"))
artifact = _core.Artifact("a")   # above 64 MiB: reads on demand
during(b"pread", lambda: artifact.digest)
during(b"pread", artifact.verify)
during(b"pread", artifact.load_all)
during(b"pread", lambda: artifact.read(artifact.entries[0][2]))
""",
        env=shim,
    )
