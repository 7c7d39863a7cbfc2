"""What prepare reports can be read by programs."""

from __future__ import annotations

import dataclasses
import json

from precomp.report import Coverage, PrepareReport


def test_a_report_is_plain_data():
    why = ("f", "L['x']: shape expected [8], found [9]")
    coverage = Coverage(served=("f", "g"), never_asked=("h",), missing=(why,))
    seconds = {"read": 0.25}
    report = PrepareReport(
        "m.precomp", "ab", "cd", "auto", 7, 2, seconds, coverage, None, ("a warning",)
    )
    facts = json.loads(json.dumps(dataclasses.asdict(report)))
    assert facts["coverage"] == {
        "served": ["f", "g"],
        "never_asked": ["h"],
        "missing": [list(why)],
    }
    assert (facts["seconds"], facts["warnings"]) == (seconds, ["a warning"])
    for text in (*why, "served 2", "never asked for 1", "missing 1", "warning: a warning"):
        assert text in str(report)
