"""Each door has a program that goes through it: it compiles, the gate stops it, warm it passes."""

import os
import runpy
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = HERE / "triggers.py"
NAMES = runpy.run_path(str(SCRIPT))
TRIGGERS = NAMES["TRIGGERS"]


needs_gpu = pytest.mark.skipif(not os.path.exists("/dev/nvidia0"), reason="no GPU")


def with_mode(mode):
    return [
        pytest.param(name, marks=needs_gpu) if item.gpu else name
        for name, item in TRIGGERS.items()
        if mode in item.modes
    ]


@pytest.fixture
def ask(request):
    def ask(name, mode):
        with_torch = name not in TRIGGERS or TRIGGERS[name].torch
        server = request.getfixturevalue("server" if with_torch else "bare_server")
        return server.ask(name, mode)

    return ask


@pytest.mark.parametrize("name", with_mode("bare"))
def test_program_compiles_without_gate(ask, name):
    assert ask(name, "bare")["evidence"]


@pytest.mark.parametrize("name", with_mode("gated"))
def test_gate_stops_program_and_it_works_afterwards(ask, name):
    item = TRIGGERS[name]
    answer = ask(name, "gated")
    violation = answer["violation"]
    assert violation is not None, "not raised"
    assert answer["recorded"][0] == violation
    assert answer["returned"] == item.swallowed
    assert violation["kind"] == item.kind
    assert item.what in violation["what"]
    assert item.why in violation["why"]
    assert violation["why"] and violation["hint"]
    assert "no details" not in violation["why"]
    if name not in ("swallow_thread", "swallow_future", "gpu_lazy_backward"):
        file, _, line = violation["where"].rpartition(":")
        assert file == str(SCRIPT) and int(line) > 0


@pytest.mark.parametrize("name", with_mode("warm"))
def test_gate_lets_warm_program_pass(ask, name):
    answer = ask(name, "warm")
    item = TRIGGERS[name]
    if item.warm_raises:
        assert answer["violation"]["kind"] == item.kind
    else:
        assert answer["violation"] is None


@pytest.mark.parametrize("target", NAMES["DIRECT"])
def test_door_without_a_program_here_closes(ask, target):
    violation = ask(target, "direct")["violation"]
    assert violation is not None
    assert violation["kind"] == NAMES["DIRECT"][target][0]


def test_every_door_has_a_program():
    from precomp.doors import all_doors

    covered = {item.door for item in TRIGGERS.values()} | set(NAMES["DIRECT"])
    assert {door.target for door in all_doors()} - covered == set()
    assert covered - {door.target for door in all_doors()} == {""}
