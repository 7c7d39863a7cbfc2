"""record.py OUT [NAME ...]: records programs and writes their tapes and torch's decisions."""

import json
import sys
from pathlib import Path

import harness
import programs

from precomp import data
from precomp.freeze.store import Unsupported


def main(out: Path, names: list[str]) -> None:
    recording = harness.Recording()
    results = {}
    for name in names or programs.PROGRAMS:
        program = programs.PROGRAMS[name]()
        try:
            manager, record, specs = harness.compile_and_record(recording, program)
        except Unsupported as error:
            results[name] = {"refused": str(error)}
            continue
        (out / f"{name}.tape").write_bytes(data.dumps(record))
        check = manager.root.check
        decisions = {}
        for variation in program.variations:
            decisions[variation] = harness.decide(program, variation, check)
            decisions[f"{variation}, undone"] = harness.decide_base(program, check)
        results[name] = {"specs": specs, "decisions": decisions, "loads": program.loads_compiler}
    recording.close()
    (out / "recorded.json").write_text(json.dumps(results))


main(Path(sys.argv[1]), sys.argv[2:])
