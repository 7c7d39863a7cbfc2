"""precomp.Artifact: the public class, comparison and merging."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from pathlib import Path

import pytest

import precomp
from precomp import _core
from precomp.artifact import Artifact, ArtifactDiff, Entry
from precomp.errors import (
    ArtifactCorruptError,
    ArtifactError,
    ArtifactVersionError,
    EnvironmentMismatchError,
)

ENVIRONMENT = {"torch": "2.13.0", "python": "CPython 3.11", "threads": "2"}
ENTRIES = [
    ("frame", "f", b"frame f"),
    ("kernel", "k", b"kernel" * 100),
    ("rules", "rules", b"rules"),
]


def write(path: Path, entries=ENTRIES, environment=ENVIRONMENT) -> Path:
    _core.write_artifact(path, environment, entries)
    return path


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_open_describes_the_file(tmp_path):
    path = write(tmp_path / "a.precomp")
    artifact = precomp.Artifact.open(path)
    assert isinstance(artifact, Artifact)
    assert artifact.path == str(path)
    assert artifact.digest == digest(path.read_bytes())
    assert artifact.fingerprint == digest(digest(b"frame f").encode())
    assert artifact.environment == ENVIRONMENT
    assert [(e.kind, e.name, e.digest, e.raw_size) for e in artifact.entries] == [
        (kind, name, digest(data), len(data)) for kind, name, data in ENTRIES
    ]
    assert artifact.entries[1].stored_size < artifact.entries[1].raw_size
    assert artifact.entries is artifact.entries
    assert artifact.read(digest(b"rules")) == b"rules"
    assert artifact.load_all(kinds=["frame"]) == {digest(b"frame f"): b"frame f"}
    assert len(artifact.load_all(threads=1)) == 3
    assert artifact.verify() is artifact
    assert repr(artifact) == f"<precomp.Artifact {str(path)!r}: 1 frame, 1 kernel, 1 rules>"
    with pytest.raises(dataclasses.FrozenInstanceError):
        artifact.entries[0].name = "g"


def test_only_open_makes_artifacts(tmp_path):
    with pytest.raises(TypeError, match=r"use Artifact\.open"):
        Artifact(write(tmp_path / "a"))


def test_an_artifact_without_entries(tmp_path):
    artifact = Artifact.open(write(tmp_path / "a", [], {}))
    assert artifact.entries == () and artifact.verify().load_all() == {}
    assert "no entries" in repr(artifact)


def test_the_context_manager_closes(tmp_path):
    with Artifact.open(write(tmp_path / "a")) as artifact:
        assert not artifact.closed
    assert artifact.closed and repr(artifact).endswith("closed>")
    with pytest.raises(ValueError, match="closed"):
        artifact.load_all()


def test_errors_of_the_file_system_stay_what_they_are(tmp_path):
    for path, error in ((tmp_path / "missing", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error) as caught:
            Artifact.open(path)
        assert caught.value.filename == str(path)
        assert not isinstance(caught.value, precomp.PrecompError)


def test_damage_is_an_artifact_error_that_names_the_file(tmp_path):
    path = write(tmp_path / "a.precomp")
    data = bytearray(path.read_bytes())
    data[128] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactCorruptError, match=r'a\.precomp: entry frame "f"'):
        Artifact.open(path).verify()
    data[8] = 9
    path.write_bytes(data)
    with pytest.raises(ArtifactCorruptError, match=r"a\.precomp: header: its sha256 differs"):
        Artifact.open(path)
    data[72:104] = hashlib.sha256(data[:72]).digest()
    path.write_bytes(data)
    with pytest.raises(ArtifactVersionError, match=r"a\.precomp: header: format version 9"):
        Artifact.open(path)
    assert issubclass(ArtifactCorruptError, ArtifactError) and issubclass(ArtifactError, ValueError)


def test_equal_artifacts_do_not_differ(tmp_path):
    a = Artifact.open(write(tmp_path / "a"))
    b = Artifact.open(write(tmp_path / "b", ENTRIES[::-1]))
    diff = a.diff(b)
    assert not diff and not b.diff(a)
    assert diff.kinds == {}
    assert str(diff).endswith("same environment, same entries")


def test_a_difference_is_listed_on_both_sides(tmp_path):
    a = Artifact.open(write(tmp_path / "a"))
    changed = [*ENTRIES[1:], ("frame", "f", b"other"), ("plan", "p", b"plan")]
    environment = {"torch": "2.14.0", "threads": "2", "machine": "x86_64"}
    b = Artifact.open(write(tmp_path / "b", changed, environment))
    diff = a.diff(b)
    assert diff and isinstance(diff, ArtifactDiff)
    assert diff.environment == (
        ("machine", None, "x86_64"),
        ("python", "CPython 3.11", None),
        ("torch", "2.13.0", "2.14.0"),
    )
    assert [(e.kind, e.name, e.digest) for e in diff.only_left] == [
        ("frame", "f", digest(b"frame f"))
    ]
    assert [(e.kind, e.name) for e in diff.only_right] == [("frame", "f"), ("plan", "p")]
    assert diff.kinds == {"frame": (1, 1), "plan": (0, 1)}
    assert str(diff).splitlines() == [
        f"{a.path} and {b.path} differ",
        "  environment machine: (none) -> x86_64",
        "  environment python: CPython 3.11 -> (none)",
        "  environment torch: 2.13.0 -> 2.14.0",
        f"  only in {a.path}: 1 frame",
        f"    frame f {digest(b'frame f')[:16]}",
        f"  only in {b.path}: 1 frame, 1 plan",
        f"    frame f {digest(b'other')[:16]}",
        f"    plan p {digest(b'plan')[:16]}",
    ]
    assert b.diff(a).only_left == diff.only_right


def test_how_well_an_entry_was_compressed_is_no_difference(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    _core.write_artifact(a, ENVIRONMENT, ENTRIES, level=0)
    _core.write_artifact(b, ENVIRONMENT, ENTRIES, level=19)
    assert not Artifact.open(a).diff(Artifact.open(b))
    assert Artifact.open(a).fingerprint == Artifact.open(b).fingerprint


def test_merging_gives_the_union_whatever_the_order(tmp_path):
    parts = [
        [("frame", "f", b"1"), ("kernel", "k", b"shared"), ("rules", "rules", b"r")],
        [("frame", "f", b"2"), ("kernel", "k", b"shared"), ("rules", "rules", b"r")],
        [("frame", "g", b"3"), ("kernel", "other name", b"shared"), ("rules", "rules", b"r")],
    ]
    paths = [write(tmp_path / str(i), part) for i, part in enumerate(parts)]
    results = set()
    for i, order in enumerate(itertools.permutations(paths)):
        merged = Artifact.merge(order, tmp_path / f"merged{i}")
        merged.verify()
        results.add(Path(merged.path).read_bytes())
        found = {(e.kind, e.name, merged.read(e.digest)) for e in merged.entries}
        assert found == {entry for part in parts for entry in part}
    assert len(results) == 1
    again = Artifact.merge([tmp_path / "merged0", *paths], tmp_path / "again")
    assert Path(again.path).read_bytes() in results
    alone = Artifact.merge([str(paths[0])], str(tmp_path / "alone"))
    assert Path(alone.path).read_bytes() == paths[0].read_bytes()


def test_an_artifact_can_be_merged_into_itself(tmp_path):
    a, b = write(tmp_path / "a"), write(tmp_path / "b", [("frame", "g", b"g")])
    assert len(Artifact.merge([a, b], a).entries) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_merging_refuses_other_environments_and_lists_all_differences(tmp_path):
    a = write(tmp_path / "a")
    b = write(tmp_path / "b", environment={**ENVIRONMENT, "torch": "2.14.0", "machine": "arm"})
    c = write(tmp_path / "c", environment={"torch": "2.13.0", "threads": "2"})
    with pytest.raises(EnvironmentMismatchError) as caught:
        Artifact.merge([a, b, c], tmp_path / "out")
    assert caught.value.differences == (
        ("machine", "(none)", "arm"),
        ("torch", "2.13.0", "2.14.0"),
        ("python", "CPython 3.11", "(none)"),
    )
    for part in (str(a), str(b), str(c), "machine", "torch", "2.14.0", "python"):
        assert part in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_number_of_threads_may_differ(tmp_path):
    paths = [
        write(tmp_path / "8", [("frame", "f", b"8")], {**ENVIRONMENT, "threads": "8"}),
        write(tmp_path / "2", [("frame", "f", b"2")], ENVIRONMENT),
        write(
            tmp_path / "0", [("frame", "f", b"0")], {"torch": "2.13.0", "python": "CPython 3.11"}
        ),
    ]
    merged = [
        Artifact.merge(order, tmp_path / "out")
        for order in (paths, paths[::-1], paths[1:] + paths[:1])
    ]
    assert merged[0].environment == {**ENVIRONMENT, "threads": "2 or 8"}
    assert len({artifact.digest for artifact in merged}) == 1


def test_merging_merged_artifacts_lists_each_number_of_threads_once(tmp_path):
    paths = [
        write(tmp_path / count, environment={**ENVIRONMENT, "threads": count})
        for count in ("16", "2", "8")
    ]
    pairs = [
        Artifact.merge(pair, tmp_path / f"pair{i}").path
        for i, pair in enumerate([paths[:2], paths[1:], paths[::2]])
    ]
    for parts in (pairs, [pairs[0], paths[2]], [paths[1], *pairs], paths):
        merged = Artifact.merge(parts, tmp_path / "out")
        assert merged.environment == {**ENVIRONMENT, "threads": "2 or 8 or 16"}


def test_merging_keeps_the_rules_of_all(tmp_path):
    a = write(tmp_path / "a")
    b = write(tmp_path / "b", [("frame", "g", b"g"), ("rules", "rules", b"other rules")])
    c = write(tmp_path / "c", [("frame", "h", b"h"), ("rules", "rules", b"rules")])
    orders = list(itertools.permutations([a, b, c]))
    merged = [Artifact.merge(order, tmp_path / f"m{i}") for i, order in enumerate(orders)]
    for artifact in merged:
        rules = [entry for entry in artifact.entries if entry.kind == "rules"]
        assert {artifact.read(entry.digest) for entry in rules} == {b"rules", b"other rules"}
        assert [entry.name for entry in rules] == ["rules", "rules"]
        assert len(artifact.load_all(kinds=["rules"])) == 2
    assert len({artifact.digest for artifact in merged}) == 1
    assert not merged[0].diff(Artifact.merge([merged[0].path, a], tmp_path / "again"))


def test_merging_nothing_and_damaged_files_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        Artifact.merge([], tmp_path / "out")
    a = write(tmp_path / "a")
    data = bytearray(a.read_bytes())
    data[128] ^= 1
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(ArtifactCorruptError, match="bad: entry"):
        Artifact.merge([a, tmp_path / "bad"], tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        Artifact.merge([a, tmp_path / "missing"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_entries_are_ordered_values():
    a = Entry("frame", "f", "0" * 64, 1, 1)
    assert a == Entry("frame", "f", "0" * 64, 1, 1) and hash(a) == hash(dataclasses.replace(a))
    assert a < dataclasses.replace(a, name="g")


def test_importing_it_does_not_import_torch(run):
    run(
        """
import sys
import precomp.artifact
precomp.Artifact
heavy = {"torch", "numpy", "triton", "sympy", "asyncio", "multiprocessing"} & sys.modules.keys()
assert not heavy, heavy
"""
    )
