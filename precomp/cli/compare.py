"""Which guards and plans of two artifacts differ, by function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from precomp import guard_words
from precomp.artifact import Artifact, ArtifactDiff, Entry
from precomp.cli import records

_PARTS = {
    "key": "the source of the function differs",
    "module": "the module differs",
    "backend": "the arguments of torch.compile differ",
    "inlined": "functions that it inlines differ",
    "sources": "the source of modules that it inlines from differs",
    "torch": "functions of torch that it inlines differ",
    "values": "default values or globals of functions that it inlines differ",
    "watched": "the names that it looks up differ",
    "classes": "the classes of its objects differ",
    "code": "the transformed bytecode differs",
}
_MODULES = {"fw": "the forward module differs", "bw": "the backward module differs"}


@dataclass
class _Frame:
    """A frame entry with what is compared of it."""

    path: str
    entry: Entry
    guards: Counter[str]
    parts: dict[str, Any]
    plans: list[tuple[str, dict[str, Any]]]


def details(left: Artifact, right: Artifact, difference: ArtifactDiff) -> list[str]:
    """Lines about the functions whose frames differ: their guards, plans, code and sources.

    Of several frames of one name those are compared that have most guards in common.
    """
    mine = _by_name(left, difference.only_left)
    theirs = _by_name(right, difference.only_right)
    lines: list[str] = []
    for name in sorted(mine.keys() & theirs.keys()):
        for one, other in _alike(mine[name], theirs[name]):
            lines += [f"  {name}:", *(f"    {line}" for line in _compare(one, other))]
    return lines


def _alike(
    mine: list[_Frame], theirs: list[_Frame]
) -> Iterator[tuple[_Frame | None, _Frame | None]]:
    """Pairs of frames, those with most guards in common first; then the ones without a partner."""
    pairs = [(one, other) for one in mine for other in theirs]
    pairs.sort(key=lambda pair: -(pair[0].guards & pair[1].guards).total())
    paired: set[int] = set()
    for one, other in pairs:
        if not paired & {id(one), id(other)}:
            paired |= {id(one), id(other)}
            yield one, other
    yield from ((one, None) for one in mine if id(one) not in paired)
    yield from ((None, other) for other in theirs if id(other) not in paired)


def _by_name(artifact: Artifact, entries: Iterable[Entry]) -> dict[str, list[_Frame]]:
    plans = {entry.digest: entry for entry in artifact.entries if entry.kind == "plan"}
    named: dict[str, list[_Frame]] = {}
    for entry in entries:
        if entry.kind != "frame":
            continue
        record = records.read(artifact, entry)
        with records.reading(artifact, entry):
            digests = [spec[1] for _, spec in record["globals"] if spec[0] == "plan"]
            frame = _Frame(
                artifact.path,
                entry,
                Counter(guard.text for guard in guard_words.of_frame(record)),
                {part: record[part] for part in _PARTS},
                [(digest, records.read(artifact, plans[digest])) for digest in digests],
            )
        named.setdefault(entry.name, []).append(frame)
    return named


def _compare(one: _Frame | None, other: _Frame | None) -> Iterator[str]:
    if one is None or other is None:
        yield from (f"only in {f.path}: {f.entry.digest[:16]}" for f in (one, other) if f)
        return
    yield from (f"guard only in {one.path}: {text}" for text in one.guards - other.guards)
    yield from (f"guard only in {other.path}: {text}" for text in other.guards - one.guards)
    yield from (text for part, text in _PARTS.items() if one.parts[part] != other.parts[part])
    for (digest, plan), (its_digest, its_plan) in zip(one.plans, other.plans, strict=False):
        if digest != its_digest:
            changes = "; ".join(_changes(plan, its_plan))
            yield f"plan {digest[:16]} -> {its_digest[:16]}: {changes}"


def _changes(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    """The fields of two plan records that differ; of a module only that it does."""
    for key in sorted(one.keys() | other.keys()):
        if one.get(key) != other.get(key):
            yield _MODULES.get(key) or f"{key} {one.get(key)!r} -> {other.get(key)!r}"
