"""shadow_guards: thawn guards beside torch's own, in the program that compiles."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from precomp.testing import ShadowGuards, reason_kind


@pytest.fixture(scope="module")
def shadow(script: Callable[..., str]) -> dict[str, Any]:
    return json.loads(script("shadow.py"))


def whats(found: dict[str, Any]) -> list[str]:
    return [one["what"] for one in found["disagreements"]]


SOUND = ("sound", "recompiles", "refused", "part_of_the_guards", "threads", "inside_a_capture")


@pytest.mark.parametrize("name", SOUND)
def test_sound_guards_agree(name: str, shadow: dict[str, Any]) -> None:
    found = shadow[name]
    assert found["disagreements"] == []
    assert found["checks"] >= 1
    assert found["compiles"] == found["checks"] + found["refused"]


def test_each_compile_is_checked_and_each_later_verdict_compared(shadow: dict[str, Any]) -> None:
    found = shadow["sound"]
    assert (found["compiles"], found["checks"]) == (3, 3)
    # The four calls ask 0, 1, 2 and 2 trees at least, Dynamo itself asks why it has to recompile.
    assert found["verdicts"] >= 5
    assert found["report"] == (
        f"3 compiled, 3 thawn and equal, 0 refused, {found['verdicts']} later verdicts compared, "
        "0 disagreements"
    )


def test_the_program_does_what_it_does(shadow: dict[str, Any]) -> None:
    assert shadow["sound"]["same"] == [True]
    assert shadow["recorder_fails"]["results"] == [6.0, 6.0]


def test_thawn_guards_that_accept_too_much_are_reported(shadow: dict[str, Any]) -> None:
    found = shadow["accepts_too_much"]
    assert set(whats(found)) == {"torch's guards reject, the thawn guards accept"}
    first = found["disagreements"][0]
    assert (first["name"], first["guard"]) == ("scaled", "L['number'] == 1")
    assert first["where"].partition("shadow.py:")[2].isdigit()


def test_thawn_guards_that_reject_too_much_are_reported(shadow: dict[str, Any]) -> None:
    found = shadow["rejects_too_much"]
    assert set(whats(found)) == {"torch's guards accept, the thawn guards reject"}
    assert found["disagreements"][0]["guard"] == "never"


def test_thawn_guards_that_raise_are_reported(shadow: dict[str, Any]) -> None:
    said = "the thawn guards raise ValueError: cannot tell"
    assert set(whats(shadow["raises"])) == {
        f"torch's guards accept, {said}",
        f"torch's guards reject, {said}",
    }


def test_tree_that_differs_is_reported(shadow: dict[str, Any]) -> None:
    found = shadow["other_tree"]
    assert found["checks"] == 0
    assert whats(found) == ["the thawn tree is not torch's"] * 2
    assert "L['number']" in found["disagreements"][0]["guard"]


def test_failure_of_the_recorder_is_reported_and_not_raised(shadow: dict[str, Any]) -> None:
    assert whats(shadow["recorder_fails"]) == ["KeyError: 'broken'"] * 2


def test_refusal_is_counted_by_kind(shadow: dict[str, Any]) -> None:
    found = shadow["refused"]
    assert found["refused"] == 1
    assert found["refusals"] == {
        "no module leads to the class ...: a class must be found again by its name": 1
    }


def test_part_of_the_guards_is_not_compared(shadow: dict[str, Any]) -> None:
    assert shadow["part_of_the_guards"]["asked"] == 0


def test_all_threads_are_compared(shadow: dict[str, Any]) -> None:
    assert shadow["threads"]["verdicts"] > 3 * 50 * 4


def test_probes_are_no_guards(shadow: dict[str, Any]) -> None:
    found = shadow["inside_a_capture"]
    assert found["outer"]["checks"] == 2 and found["outer"]["disagreements"] == []
    assert found["problems"] == ["backend 'eager' is not supported, only 'inductor'"] * 2


def test_raises_only_when_asked(shadow: dict[str, Any]) -> None:
    assert shadow["asked_to_raise"].endswith("the thawn guards accept: L['number'] == 2")


def test_nothing_is_left_in_torch(shadow: dict[str, Any]) -> None:
    assert shadow["afterwards"] == {"left": [], "asked": 0}


REASONS = {
    "L['a: b'].x: no module leads to the class m.f.<locals>.C: a class must be found again by its "
    "name": "no module leads to the class ...: a class must be found again by its name",
    "the frame: a guard that calls the function a.b": "a guard that calls the function ...",
    "type(L['x']).__mro__[1]: identity of class a.B": "identity of class ...",
    "L['o']: identity of a torch.optim.sgd.SGD": "identity of an object",
    "G['d']: the version of a dict (DICT_VERSION)": "the version of a dict (DICT_VERSION)",
    "torch takes an a.B for immutable: True": "torch takes an object for immutable: True",
}


@pytest.mark.parametrize("reason", REASONS)
def test_kind_of_a_reason_has_no_place_and_no_names(reason: str) -> None:
    assert reason_kind(reason) == REASONS[reason]


def test_counts_of_processes_add_up() -> None:
    one, all_ = ShadowGuards(), ShadowGuards()
    one.count(compiles=3, checks=2, verdicts=7)
    one.refuse("L['x']: the version of a dict\nL['y']: the version of a dict\nthe frame: other")
    for _ in range(2):
        all_.add(one.as_data())
    assert all_.as_data() == {
        "compiles": 6,
        "checks": 4,
        "refused": 2,
        "verdicts": 14,
        "refusals": {"the version of a dict": 2, "other": 2},
        "disagreements": [],
    }


# ------------------------------------------------------------------ the option of pytest

TORCH = """
import torch
def scaled(t, number): return t * (number + 1)
def test_it():
    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    for number in (1, 1, 2):
        compiled(torch.ones(3), number)
"""

# What shadows, without torch.
STUB = """
import sys, types

class Shadow:
    def __init__(self, result): Shadow.result = result
    def install(self): pass
    def remove(self): self.result.count(verdicts=100)

module = types.ModuleType("precomp.freeze.guard_shadow")
module.Shadow = Shadow
sys.modules[module.__name__] = module
"""

STUBBED = """
import os, pytest
from precomp.testing import Disagreement
from precomp.freeze.guard_shadow import Shadow

@pytest.mark.parametrize("number", range(4))
def test_it(number):
    Shadow.result.count(compiles=1)
    Shadow.result.refuse("L['x']: a reason")
    if number == 3 and "CRASH" in os.environ:
        os._exit(3)
    if number == 3 and "DISAGREE" in os.environ:
        Shadow.result.disagree(Disagreement("f", "a.py:1", "L['x'] == 1", "they differ"))
"""


@pytest.fixture
def run_pytest(tmp_path: Any) -> Callable[..., tuple[int, str]]:
    def run(source: str, *options: str, conftest: str = "", **environment: str) -> tuple[int, str]:
        (tmp_path / "test_it.py").write_text(source)
        (tmp_path / "conftest.py").write_text(conftest)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "precomp.pytest_plugin", *options]
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}
        done = subprocess.run(
            command,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=os.environ | alone | environment,
        )
        return done.returncode, done.stdout + done.stderr

    return run


OPTION = "--precomp-shadow-guards"


def test_option_compares_what_tests_compile(run_pytest: Any) -> None:
    code, text = run_pytest(TORCH, OPTION)
    assert code == 0, text
    counts = re.search(
        r"2 compiled, 2 thawn and equal, 0 refused, (\d+) later verdicts compared, 0 disag", text
    )
    assert counts is not None and int(counts[1]) >= 2, text


def test_ini_key_is_the_option(run_pytest: Any) -> None:
    code, text = run_pytest(STUBBED, "-o", "precomp_shadow_guards=true", conftest=STUB)
    assert code == 0 and "4 compiled" in text


def test_without_the_option_nothing_is_said(run_pytest: Any) -> None:
    code, text = run_pytest("def test_it(): pass")
    assert code == 0 and "precomp" not in text


WORKERS = [(), ("-p", "xdist", "-n", "2")]


@pytest.mark.parametrize("workers", WORKERS, ids=["one process", "xdist"])
def test_counts_of_all_workers_are_summed(workers: tuple[str, ...], run_pytest: Any) -> None:
    code, text = run_pytest(STUBBED, OPTION, *workers, conftest=STUB)
    assert code == 0, text
    verdicts = 200 if workers else 100
    assert (
        f"4 compiled, 0 thawn and equal, 4 refused, {verdicts} later verdicts compared, "
        "0 disagreements\nrefused 4 times: a reason\n" in text
    )


@pytest.mark.parametrize("workers", WORKERS, ids=["one process", "xdist"])
def test_disagreement_fails_the_run(workers: tuple[str, ...], run_pytest: Any) -> None:
    code, text = run_pytest(STUBBED, OPTION, *workers, conftest=STUB, DISAGREE="1")
    assert code == 1
    assert "4 passed" in text
    assert "disagreement: f (a.py:1): they differ: L['x'] == 1\n" in text


def test_worker_that_does_not_report_is_named(run_pytest: Any) -> None:
    code, text = run_pytest(STUBBED, OPTION, *WORKERS[1], conftest=STUB, CRASH="1")
    assert code == 1
    assert re.search(r"missing: the counts of gw\d, which did not report\n", text), text
