"""Which guards and plans of two artifacts differ, by function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

from precomp import guard_words
from precomp.artifact import Artifact, ArtifactDiff, Entry
from precomp.cli import records

_Frame = tuple[Entry, dict[str, Any]]


def details(left: Artifact, right: Artifact, difference: ArtifactDiff) -> list[str]:
    """Lines about the functions whose frames differ: their guards, plans, code and sources.

    Frames of one name are compared in the order of the file.
    """
    mine = _by_name(left, difference.only_left)
    theirs = _by_name(right, difference.only_right)
    lines: list[str] = []
    for name in sorted(mine.keys() & theirs.keys()):
        for one, other in zip_longest(mine[name], theirs[name]):
            found = list(_compare(left, right, one, other))
            lines += [f"  {name}:", *(f"    {line}" for line in found)]
    return lines


def _by_name(artifact: Artifact, entries: Iterable[Entry]) -> dict[str, list[_Frame]]:
    named: dict[str, list[_Frame]] = {}
    for entry in entries:
        if entry.kind == "frame":
            named.setdefault(entry.name, []).append((entry, records.read(artifact, entry)))
    return named


def _compare(
    left: Artifact, right: Artifact, one: _Frame | None, other: _Frame | None
) -> Iterator[str]:
    if one is None or other is None:
        artifact, frame = (right, other) if one is None else (left, one)
        assert frame is not None
        yield f"only in {artifact.path}: {frame[0].digest[:16]}"
        return
    try:
        yield from _guards(left, right, one[1], other[1])
        for key, text in (
            ("key", "the source of the function differs"),
            ("module", "the module differs"),
            ("backend", "the arguments of torch.compile differ"),
            ("inlined", "functions that it inlines differ"),
            ("sources", "functions that it inlines differ"),
            ("code", "the transformed bytecode differs"),
        ):
            if one[1][key] != other[1][key]:
                yield text
        plans = [_plans(artifact, frame) for artifact, frame in ((left, one), (right, other))]
        for (digest, plan), (its_digest, its_plan) in zip(*plans, strict=False):
            if digest != its_digest:
                yield f"plan {digest[:16]} -> {its_digest[:16]}: {_changes(plan, its_plan)}"
    except (KeyError, IndexError, TypeError, ValueError) as error:
        reason = f"not a frame record: {type(error).__name__}: {error}"
        raise records.broken(left, one[0], reason) from None


def _guards(
    left: Artifact, right: Artifact, one: dict[str, Any], other: dict[str, Any]
) -> Iterator[str]:
    mine = Counter(guard.text for guard in guard_words.of_frame(one))
    theirs = Counter(guard.text for guard in guard_words.of_frame(other))
    yield from (f"guard only in {left.path}: {text}" for text in mine - theirs)
    yield from (f"guard only in {right.path}: {text}" for text in theirs - mine)


def _plans(artifact: Artifact, frame: _Frame) -> list[tuple[str, dict[str, Any]]]:
    entries = {entry.digest: entry for entry in artifact.entries if entry.kind == "plan"}
    return [
        (spec[1], records.read(artifact, entries[spec[1]]))
        for _, spec in frame[1]["globals"]
        if spec[0] == "plan"
    ]


def _changes(one: dict[str, Any], other: dict[str, Any]) -> str:
    """The fields of two plan records that differ; of a module only that it does."""
    words = []
    for key in sorted(one.keys() | other.keys()):
        if one.get(key) != other.get(key):
            if key in ("fw", "bw"):
                words.append({"fw": "the forward", "bw": "the backward"}[key] + " module differs")
            else:
                words.append(f"{key} {one.get(key)!r} -> {other.get(key)!r}")
    return "; ".join(words)
