"""What an artifact holds, as plain facts and as text."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from typing import Any

from precomp import guard_words, triton_kernels
from precomp.artifact import Artifact, Entry
from precomp.cli import records, source
from precomp.ordinals import place as place_of
from precomp.value_words import of_value


def artifact(opened: Artifact, *, guards: bool = False) -> dict[str, Any]:
    """All facts about an open artifact, as JSON has them; with *guards* the frames in detail.

    Sizes are bytes. Raises ArtifactCorruptError when an entry that is read is damaged.
    """
    products: dict[str, dict[str, int]] = {}
    seen: set[str] = set()
    for entry in opened.entries:
        row = products.setdefault(entry.kind, {"entries": 0, "raw_size": 0, "stored_size": 0})
        row["entries"] += 1
        if entry.digest not in seen:  # entries of equal content share one blob
            seen.add(entry.digest)
            row["raw_size"] += entry.raw_size
            row["stored_size"] += entry.stored_size
    facts: dict[str, Any] = {
        "path": opened.path,
        "size": os.path.getsize(opened.path),
        "digest": opened.digest,
        "fingerprint": opened.fingerprint,
        "environment": opened.environment,
        "products": products,
        "entries": [
            {
                "kind": entry.kind,
                "name": entry.name,
                "digest": entry.digest,
                "raw_size": entry.raw_size,
                "stored_size": entry.stored_size,
            }
            for entry in opened.entries
        ],
    }
    if guards:
        facts["frames"] = [
            _frame(opened, entry, record) for entry, record in records.of_kind(opened, "frame")
        ]
        facts["launches"] = [
            _launch(opened, entry, record) for entry, record in records.of_kind(opened, "triton")
        ]
        facts["choices"] = [
            _choice(opened, entry, record) for entry, record in records.of_kind(opened, "tuned")
        ]
    return facts


def _frame(opened: Artifact, entry: Entry, record: dict[str, Any]) -> dict[str, Any]:
    with records.reading(opened, entry):
        found = source.locate(record["module"], record["name"])
        written, resumed = source.original(record["name"])
        facts = {
            "name": record["name"],
            "function": written,
            "resumed_at": resumed,
            "module": record["module"],
            "file": None if found is None else found[0],
            "line": None if found is None else found[1],
            "digest": entry.digest,
            "backend": _backend(record["backend"]),
            "devices": place_of(record["devices"]),
            "inlined": [_inlined(module, steps) for module, steps, _ in record["inlined"]],
            "plans": [spec[1] for _, spec in record["globals"] if spec[0] == "plan"],
            "guards": [dataclasses.asdict(guard) for guard in guard_words.of_frame(record)],
        }
    return facts


def _launch(opened: Artifact, entry: Entry, record: dict[str, Any]) -> dict[str, Any]:
    """A specialisation of a Triton kernel that the program launches itself."""
    with records.reading(opened, entry):
        names = [row[0] for row in record["source"]["parameters"]]
        return {
            "name": record["name"],
            "arch": f"sm_{record['launch']['arch']}",
            "digest": entry.digest,
            "cubin": record["launch"]["cubin"],
            "arguments": triton_kernels.explained(names, record["words"]),
        }


def _choice(opened: Artifact, entry: Entry, record: dict[str, Any]) -> dict[str, Any]:
    """What an autotuner chose."""
    with records.reading(opened, entry):
        return {
            "name": record["name"],
            "keys": list(record["tuner"]["keys"]),
            "key": repr(record["key"]),
            "choice": triton_kernels.shown_config(record["choice"]),
            "digest": entry.digest,
        }


def _backend(record: dict[str, Any]) -> str:
    words = [str(record["backend"])]
    if record.get("dynamic") is not None:
        words.append(f"dynamic={record['dynamic']}")
    words += [f"{name}={_plain(value)}" for name, value in sorted(record["config"].items())]
    return ", ".join(words)


def _plain(value: Any) -> str:
    return of_value(value) if type(value) is tuple and value else repr(value)


def _inlined(module: str, steps: tuple[tuple[str, Any], ...]) -> str:
    return ".".join([module, *(str(step) for kind, step in steps if kind == "a")])


# ------------------------------------------------------------------ text


def size(count: int) -> str:
    """Bytes in the unit that suits."""
    if count < 10_000:
        return f"{count} B"
    return f"{count / 1000:.1f} kB" if count < 10_000_000 else f"{count / 1e6:.1f} MB"


def table(rows: list[list[str]], right: tuple[int, ...] = ()) -> list[str]:
    """Rows as aligned lines; the columns *right* are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def summary(opened: Artifact) -> str:
    """One line about an artifact."""
    counts = Counter(entry.kind for entry in opened.entries)
    held = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "no entries"
    return f"{opened.path}: {held}, {size(os.path.getsize(opened.path))}"


def place(frame: dict[str, Any]) -> str:
    """A frame's function with file and line, as far as they are known here."""
    text = str(frame["function"])
    if frame["resumed_at"] is not None:
        text += f", after the graph break at line {frame['resumed_at']}"
    if frame["file"] is None:
        return f"{text} (module {frame['module']}, not found here)"
    line = "not in it now" if frame["line"] is None else frame["line"]
    return f"{text} ({frame['file']}:{line})"


def text(facts: dict[str, Any]) -> str:
    """The facts as lines for people."""
    lines = [
        f"{facts['path']}: {len(facts['entries'])} entries, {size(facts['size'])}",
        f"digest       {facts['digest']}",
        f"fingerprint  {facts['fingerprint']}",
        "",
        "environment",
        *table([[name, value] for name, value in sorted(facts["environment"].items())] or [["-"]]),
        "",
        "products",
    ]
    rows = [["kind", "entries", "bytes", "in the file"]]
    for kind, row in facts["products"].items():
        rows.append([kind, *map(str, (row["entries"], row["raw_size"], row["stored_size"]))])
    lines += [*table(rows, right=(1, 2, 3)), "", "entries"]
    rows = [["kind", "digest", "bytes", "name"]]
    for entry in facts["entries"]:
        name = "" if entry["name"] == entry["digest"] else entry["name"]
        rows.append([entry["kind"], entry["digest"][:16], str(entry["raw_size"]), name])
    lines += table(rows, right=(2,))
    for frame in facts.get("frames", ()):
        lines += ["", place(frame), f"  {frame['backend']}, {len(frame['guards'])} guards"]
        lines += [f"  served on {frame['devices']}"] if frame["devices"] else []
        lines += [f"  inlines {name}" for name in frame["inlined"]]
        lines += [f"    {guard['text']}" for guard in frame["guards"]]
    for launch in facts.get("launches", ()):
        lines += ["", f"{launch['name']} ({launch['arch']})"]
        lines += [f"    {name}: {text}" for name, text in launch["arguments"].items()]
    for choice in facts.get("choices", ()):
        by = ", ".join(choice["keys"]) or "types alone"
        lines += [
            "",
            f"{choice['name']}, tuned by {by}",
            f"    {choice['key']}: {choice['choice']}",
        ]
    return "\n".join(lines)
