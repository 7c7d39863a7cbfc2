"""docs/errors.md: each message in it is given, and each message that is given is in it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from precomp import _core
from precomp.artifact import Artifact
from precomp.errors import ArtifactCorruptError, ArtifactVersionError, EnvironmentMismatchError

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
CLASSES = {
    "ArtifactVersionError": ArtifactVersionError,
    "ArtifactCorruptError": ArtifactCorruptError,
    "ValueError": ValueError,
}
# What stands for something else in a message of the page.
HOLES = {
    r"\.\.\.": ".*",
    r"0x\.\.": "0x[0-9a-f]+",
    r"\$\.path": r"\$\.\S+",
    r"\b(?:N|M)\b": r"-?\d+",
    r"\b(?:KIND|METHOD)\b": r"\w+",
    r"\b(?:NAME|PATH)\b": ".+",
}
Raised = list[tuple[type[Exception], str]]


def part_of_page() -> str:
    return PAGE.read_text().split("\n## Artifacts\n")[1].split("\n## ")[0]


def rows() -> Iterator[tuple[str, str]]:
    """(class, message) for every message in the tables of the part on artifacts."""
    for section in part_of_page().split("\n### ")[1:]:
        title, _, body = section.partition("\n")
        for first in re.findall(r"^\| (`.*?) \|", body, re.M):
            for message in re.findall(r"`([^`]+)`", first):
                yield title, message


def pattern(message: str) -> re.Pattern[str]:
    hole = re.compile("|".join(f"({spelling})" for spelling in HOLES))
    text, at = "", 0
    for found in hole.finditer(message):
        text += re.escape(message[at : found.start()])
        text += list(HOLES.values())[(found.lastindex or 1) - 1]
        at = found.end()
    return re.compile(text + re.escape(message[at:]), re.S)


def collect(raised: Raised, path: Path, act: Callable[[], object]) -> None:
    """Add what *act* raises, without "<path>: " in front."""
    with pytest.raises(Exception) as caught:
        act()
    raised.append((type(caught.value), str(caught.value).removeprefix(f"{path}: ")))


def damaged_files(damage: ModuleType, forge: ModuleType) -> Iterator[bytes]:
    """The files that the tests of damage refuse."""
    hello = forge.table([(b"hello", None)])
    for changes, _, _ in damage.HEADER_FAULTS.values():
        yield forge.file(forge.dump(hello), (b"hello",), **changes)
    for text, _ in damage.JSON_ABUSES.values():
        manifest = forge.dump({"x": "MARK", **hello}).replace(b'"MARK"', text)
        yield forge.file(manifest, (b"hello",))
    raws = (b"hello", b"world", b"third")
    for apply, _ in damage.MANIFEST_FAULTS.values():
        table = forge.table([(raw, None) for raw in raws])
        apply(table)
        yield forge.file(forge.dump(table), raws)
    for make, _ in damage.FRAME_FAULTS.values():
        stored = make(forge)
        yield forge.file(forge.dump(forge.table([(damage.RAW, stored)])), (stored,))
    hello["required_features"] = ["time_travel"]
    yield forge.file(forge.dump(hello), (b"hello",))
    sound = forge.file(forge.dump(forge.table([(b"hello", None)])), (b"hello",))
    yield sound[:128] + b"j" + sound[129:]
    yield from (sound[:99], sound[:-1])


@pytest.fixture(scope="module")
def raised(damage, forge, tmp_path_factory) -> Raised:
    """The class and the message of every way to fail that the tests know."""
    directory = tmp_path_factory.mktemp("errors")
    path = directory / "a.precomp"
    raised: Raised = []
    for data in damaged_files(damage, forge):
        path.write_bytes(data)
        collect(raised, path, lambda: _core.Artifact(path).verify())
    collect(raised, Path("/dev/null"), lambda: _core.Artifact("/dev/null"))
    collect(raised, path, lambda: _core.strip_shared_object(b"no ELF"))

    large = directory / "large.precomp"
    _core.write_artifact(large, {}, [("kernel", "k", bytes(64 << 20))], 0)
    artifact = _core.Artifact(large)
    os.truncate(large, 1000)
    collect(raised, large, artifact.load_all)
    for act in (artifact.load_all, artifact.verify):
        collect(raised, large, lambda act=act: act(threads=-1))
    artifact.close()
    large.unlink()
    for act in (artifact.load_all, artifact.verify, artifact.__enter__):
        collect(raised, large, act)
    collect(raised, large, lambda: artifact.read("0" * 64))
    collect(raised, path, lambda: Artifact.merge([], path))
    for arguments in (
        ({}, [("Kind", "", b"")]),
        ({}, [("kind", "n" * 513, b"")]),
        ({}, [], 99),
        ({"k" * 1025: ""}, []),
        ({f"{i:02}": "a" * (1 << 20) for i in range(17)}, []),
    ):
        collect(raised, path, lambda arguments=arguments: _core.write_artifact(path, *arguments))
    return raised


def test_the_page_is_read():
    assert {title for title, _ in rows()} == CLASSES.keys()
    assert len(list(rows())) > 20
    assert pattern("header: bytes 1..2: N of M").fullmatch("header: bytes 1..2: 7 of 11")
    assert pattern('METHOD "NAME" $.path: 0x..').fullmatch('read "a b" $.x[1].y: 0x1f')
    assert not pattern("N bytes").match("N bytes")


@pytest.mark.parametrize(("title", "message"), list(rows()))
def test_a_documented_message_is_given_with_its_class(raised, title, message):
    wanted = pattern(message)
    classes = {kind for kind, text in raised if wanted.match(text)}
    assert classes == {CLASSES[title]}


def test_a_message_that_is_given_is_documented(raised):
    documented = [(CLASSES[title], pattern(message)) for title, message in rows()]
    for kind, text in raised:
        assert any(kind is wanted and start.match(text) for wanted, start in documented), text


def test_the_message_of_a_refused_merge_is_documented(tmp_path):
    for name in ("2.13.0", "2.14.0"):
        _core.write_artifact(tmp_path / name, {"torch": name}, [])
    with pytest.raises(EnvironmentMismatchError) as caught:
        Artifact.merge([tmp_path / "2.13.0", tmp_path / "2.14.0"], tmp_path / "out")
    section = part_of_page().split("\n### EnvironmentMismatchError from `Artifact.merge`\n")[1]
    found = re.search("`(.*?)`", section)
    assert found is not None
    assert pattern(found[1]).match(str(caught.value))
