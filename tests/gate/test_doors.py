"""Each door has a program that goes through it: it compiles, the gate stops it, warm it passes."""

import importlib.metadata
import os
import runpy
from pathlib import Path

import pytest

from precomp.doors import all_doors

HERE = Path(__file__).parent
SCRIPT = HERE / "triggers.py"
NAMES = runpy.run_path(str(SCRIPT))
TRIGGERS = NAMES["TRIGGERS"]


VERSION = ".".join(importlib.metadata.version("torch").split(".")[:2])
ABSENT = NAMES["ABSENT"].get(VERSION, set())

needs_gpu = pytest.mark.skipif(not os.path.exists("/dev/nvidia0"), reason="no GPU")


def marks(target, gpu=False):
    if gpu:
        return needs_gpu
    return pytest.mark.skipif(target in ABSENT, reason=f"torch {VERSION} does not have it")


def with_mode(mode):
    return [
        pytest.param(name, marks=marks(item.door, item.gpu))
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


@pytest.fixture(scope="module")
def lacking(server):
    return server.ask("all", "lacking")


@pytest.mark.parametrize("target", [door.target for door in all_doors()])
def test_door_has_its_function_in_this_torch(lacking, target):
    if target not in ABSENT:
        assert target not in lacking, lacking[target]


def test_doors_that_may_be_absent_are_listed_exactly(lacking):
    assert set(lacking) == ABSENT
    assert not {door.target for door in all_doors() if door.required} & ABSENT


@pytest.mark.parametrize("name", with_mode("bare"))
def test_program_compiles_without_gate(ask, name):
    assert NAMES["faults"](name, "bare", ask(name, "bare")) == []


@pytest.mark.parametrize("name", with_mode("gated"))
def test_gate_stops_program_and_it_works_afterwards(ask, name):
    assert NAMES["faults"](name, "gated", ask(name, "gated")) == []


@pytest.mark.parametrize("name", with_mode("warm"))
def test_gate_lets_warm_program_pass(ask, name):
    assert NAMES["faults"](name, "warm", ask(name, "warm")) == []


@pytest.mark.parametrize("target", [pytest.param(t, marks=marks(t)) for t in NAMES["DIRECT"]])
def test_door_without_a_program_here_closes(ask, target):
    violation = ask(target, "direct")["violation"]
    assert violation is not None
    assert violation["kind"] == NAMES["DIRECT"][target][0]


def test_every_door_has_a_program():
    covered = {item.door for item in TRIGGERS.values()} | set(NAMES["DIRECT"])
    assert {door.target for door in all_doors()} - covered == set()
    assert covered - {door.target for door in all_doors()} == {""}
