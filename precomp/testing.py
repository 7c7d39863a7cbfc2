"""Checks precomp against torch on programs it was not written for (docs/testing.md)."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections import Counter
from types import TracebackType
from typing import Any

__all__ = ["Disagreement", "ShadowGuards", "reason_kind", "shadow_guards"]


@dataclasses.dataclass(frozen=True)
class Disagreement:
    """One case in which the thawn guards were not what torch's are."""

    name: str  # qualified name of the code
    where: str  # file:line
    guard: str  # text of the guard, "" where it is not known
    what: str

    def __str__(self) -> str:
        guard = f": {self.guard}" if self.guard else ""
        return f"{self.name} ({self.where}): {self.what}{guard}"


class ShadowGuards:
    """What ``shadow_guards`` found; the context manager itself.

    * ``compiles``: frames that Dynamo compiled
    * ``checks``: those whose guards were frozen, thawn, and found equal to torch's and accepting
    * ``refused``: those whose guards precomp refuses to freeze, by name
    * ``refusals``: why, as ``Counter`` of kinds of reasons; one frame may have several
    * ``verdicts``: later answers of torch's guards that the thawn ones were compared with
    * ``disagreements``: list of :class:`Disagreement`
    * ``lost``: names of other processes that were to report and did not
    """

    def __init__(self, raise_on_disagreement: bool = False) -> None:
        self.compiles = 0
        self.checks = 0
        self.refused = 0
        self.verdicts = 0
        self.refusals: Counter[str] = Counter()
        self.disagreements: list[Disagreement] = []
        self.lost: list[str] = []
        self._raises = raise_on_disagreement
        self._lock = threading.Lock()
        self._shadow: Any = None

    def __enter__(self) -> ShadowGuards:
        from precomp.freeze.guard_shadow import Shadow

        shadow = Shadow(self)
        shadow.install()
        self._shadow = shadow
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        shadow, self._shadow = self._shadow, None
        shadow.remove()
        if self._raises and self.disagreements and error is None:
            raise AssertionError(self.report())

    def count(self, **numbers: int) -> None:
        """Add to the numbers of those names; any thread may."""
        with self._lock:
            for name, number in numbers.items():
                setattr(self, name, getattr(self, name) + number)

    def refuse(self, reasons: str) -> None:
        """Count a frame that was refused for *reasons*, one a line."""
        kinds = {reason_kind(line) for line in reasons.splitlines()}
        with self._lock:
            self.refused += 1
            self.refusals.update(kinds)

    def disagree(self, found: Disagreement) -> None:
        with self._lock:
            self.disagreements.append(found)

    def as_data(self) -> dict[str, Any]:
        """All of it as plain data: numbers, texts, lists and dicts."""
        return {
            "compiles": self.compiles,
            "checks": self.checks,
            "refused": self.refused,
            "verdicts": self.verdicts,
            "refusals": dict(self.refusals.most_common()),
            "disagreements": [dataclasses.asdict(found) for found in self.disagreements],
        }

    def add(self, data: dict[str, Any]) -> None:
        """Add what another process found, as its ``as_data()``."""
        names = ("compiles", "checks", "refused", "verdicts")
        self.count(**{name: data[name] for name in names})
        self.refusals.update(data["refusals"])
        self.disagreements += [Disagreement(**found) for found in data["disagreements"]]

    def report(self) -> str:
        """A few lines for a person."""
        lines = [
            f"{self.compiles} compiled, {self.checks} thawn and equal, {self.refused} refused, "
            f"{self.verdicts} later verdicts compared, {len(self.disagreements)} disagreements"
        ]
        lines += [f"refused {count} times: {kind}" for kind, count in self.refusals.most_common()]
        lines += [f"missing: the counts of {name}, which did not report" for name in self.lost]
        lines += [f"disagreement: {found}" for found in self.disagreements]
        return "\n".join(lines)


def shadow_guards(*, raise_on_disagreement: bool = False) -> ShadowGuards:
    """Freeze and thaw the guards of every frame that Dynamo compiles in this process, and compare.

    A context manager. While it is active, after each compile the guards are frozen, read back and
    rebuilt: the rebuilt tree must have the same nodes and guards as torch's own and must accept the
    frame; and whenever torch asks its own guards about a later call of that code, the rebuilt tree
    must give the same verdict. What the program does stays as it is. Nothing is raised, unless
    *raise_on_disagreement*: then leaving raises AssertionError with the report.

        with precomp.testing.shadow_guards() as shadow:
            run_the_program()
        print(shadow.report())

    Imports torch's compiler on entry. Raises PrecompError on a torch that is not supported.
    """
    return ShadowGuards(raise_on_disagreement)


_NAMED = re.compile(
    r"(?:\b(the (?:class|function|code)) |\b(class|function) (?=[\w<>]+\.))[\w.<>]+"
)
_OBJECT = re.compile(r"\ban? [\w<>]+(?:\.[\w<>]+)+")
_SPLIT = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\[({]|[\])}]|: """)


def reason_kind(reason: str) -> str:
    """*reason* without the place it is about and the names in it: what refusals are counted by."""
    depth = 0
    for found in _SPLIT.finditer(reason):
        text = found[0]
        if text == ": " and depth == 0:
            place = reason[: found.start()]
            if place == "the frame" or re.match(r"[\w.]+[\[(]", place):
                reason = reason[found.end() :]
            break
        depth += (text in "[({") - (text in "])}")
    return _OBJECT.sub("an object", _NAMED.sub(r"\1\2 ...", reason))
