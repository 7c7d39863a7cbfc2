"""tools/headline: one artifact of two ranks trains a recommendation model on more, unchanged."""

from __future__ import annotations

import copy
import importlib
import json
from pathlib import Path

import pytest
from processes import Place

TOOLS = Path(__file__).parents[2] / "tools"


def test_the_headline_holds(tmp_path, inductor_cache):
    place = Place(tmp_path)
    words = ("--ranks", 4, "--batches", 20, "--columns", 4, "--preload", "--cache", inductor_cache)
    done = place.run(TOOLS / "headline.py", *words, "--json", "found.json", timeout=900)
    assert done.returncode == 0, done
    found = json.loads((place.work / "found.json").read_text())
    assert (found["ranks"], found["batches"]) == (4, 20)
    assert len(found["checks"]) == 9
    assert [claim for claim, held in found["checks"].items() if not held] == []


# What spoils each claim: the run, the fact, and what is found instead on one rank.
SPOILED = {
    "0 compile ids": ("prepared", "compile_ids", 1),
    "0 cache lookups": ("prepared", "cache_lookups", 1),
    "0 subprocesses": ("prepared", "subprocesses", ["subprocess.Popen ('g++',)"]),
    "0 violations": ("prepared", "violations", ["[trace] f"]),
    "0 misses": ("prepared", "missing", ["f"]),
    "losses bit-equal": ("prepared", "losses", ["0x1.8p-1"]),
    "parameters bit-equal": ("compiled", "parameters", "other"),
    "in the first batch": ("eager", "mean_losses", [0.7501] + [0.75] * 29),
    "then 0.1": ("eager", "mean_losses", [0.75] * 29 + [0.9]),
    "in float64": ("prepared64", "mean_losses", [0.75] * 29 + [0.75 + 1e-11]),
    "the compiled run did compile": ("compiled", "compile_ids", 0),
}


def runs(monkeypatch):
    """The tool, and what two ranks of each of its runs report when all is well."""
    monkeypatch.syspath_prepend(TOOLS)
    headline = importlib.import_module("headline")
    facts = {
        "losses": ["0x1.0p-1"], "mean_losses": [0.75] * 30, "parameters": "same", "violations": [],
        "missing": [], "subprocesses": [], "compile_ids": 0, "cache_lookups": 0,
    }  # fmt: skip
    names = ("prepared", "eager", "prepared64", "eager64")
    reports = {name: [copy.deepcopy(facts) for _ in range(2)] for name in names}
    reports["compiled"] = [{**facts, "compile_ids": 6} for _ in range(2)]
    return headline, reports


def broken(headline, reports) -> list[str]:
    found = {name: headline.launch.Run(0.0, 0.0, rows, "") for name, rows in reports.items()}
    return [claim for claim, held in headline.checks(found).items() if not held]


@pytest.mark.parametrize("words", SPOILED)
def test_each_claim_of_the_headline_can_fail(monkeypatch, words):
    headline, reports = runs(monkeypatch)
    assert broken(headline, reports) == []
    run, fact, value = SPOILED[words]
    rank = 0 if fact == "mean_losses" else 1  # one mean of all ranks
    reports[run][rank][fact] = value
    (claim,) = broken(headline, reports)
    assert words in claim


def test_what_an_eager_rank_starts_too_does_not_count(monkeypatch):
    headline, reports = runs(monkeypatch)
    for name in ("prepared", "eager"):
        reports[name][1]["subprocesses"] = ["subprocess.Popen ('/sbin/ldconfig',)"]
    assert broken(headline, reports) == []
    reports["eager"][1]["subprocesses"] = []
    (claim,) = broken(headline, reports)
    assert "0 subprocesses" in claim
