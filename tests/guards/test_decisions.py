"""A rebuilt guard tree accepts and rejects exactly what torch's own tree does."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from torches import OLD

from precomp import data, guard_words

HERE = Path(__file__).parent

# torch 2.11 may ask no guard under a module while the tags of its dicts stay; a rebuilt tree asks
# all of them.
TAGGED = ("shift_frozen", "frozen_in_place", "restrided_in_place") if OLD else ()

# The second set of objects of a program that binds: torch recompiles, a fresh tree accepts it.
BINDS = {("copied_config", "equal_config"), ("copied_config", "equal_config, undone")}


def asked(decisions: dict[str, bool]) -> dict[str, bool]:
    """Those for which torch surely asks all guards."""
    return {name: value for name, value in decisions.items() if name not in TAGGED}


def _programs() -> list[str]:
    return [
        node.name
        for part in sorted(HERE.glob("programs_*.py"))
        for node in ast.parse(part.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Name) and d.id == "program" for d in node.decorator_list)
    ]


PROGRAMS = _programs()


@pytest.fixture(autouse=True)
def on_this_torch(request: pytest.FixtureRequest, torch_decisions: dict[str, Any]) -> None:
    """Skip the programs that programs.py leaves out on this torch."""
    name = getattr(request.node, "callspec", None) and request.node.callspec.params.get("name")
    if name in PROGRAMS and name not in torch_decisions:
        pytest.skip("refused on this torch")


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_program_is_refused(name: str, torch_decisions: dict[str, Any]) -> None:
    assert torch_decisions[name].get("refused") is None


@pytest.mark.parametrize("name", PROGRAMS)
def test_rebuilt_tree_decides_as_torch(
    name: str, torch_decisions: dict[str, Any], replayed: dict[str, Any]
) -> None:
    assert replayed["programs"][name]["first"] is True
    found = replayed["programs"][name]["decisions"]
    assert asked(found) == asked(torch_decisions[name]["decisions"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_tree_built_in_a_changed_state_decides_as_torch(
    name: str, torch_decisions: dict[str, Any], replayed: dict[str, Any]
) -> None:
    found = asked(replayed["programs"][name]["before"])
    expected = asked(torch_decisions[name]["decisions"])
    assert {key: value for key, value in found.items() if (name, key) not in BINDS} == {
        key: value for key, value in expected.items() if (name, key) not in BINDS
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_guard_is_told_in_words(name: str, recorded: Path) -> None:
    record = data.loads((recorded / f"{name}.tape").read_bytes())
    leaves = [op for op in record["ops"] if len(op) == 3]
    dicts = [op for op in record["ops"] if len(op) == 6 and type(op[5]) is tuple]
    guards = guard_words.of_tape(record)
    assert len(guards) == len(leaves) + len(dicts)
    raw = [str(guard) for guard in guards if "('k'" in guard.text or "unknown" in guard.text]
    assert raw == [] and all(guard.text for guard in guards)


@pytest.mark.parametrize("name", PROGRAMS)
def test_plain_reading_of_the_tape_agrees(
    name: str, torch_decisions: dict[str, Any], replayed: dict[str, Any]
) -> None:
    found = replayed["programs"][name]["oracle"]
    assert asked(found) == asked(torch_decisions[name]["decisions"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_rejection_has_a_reason(name: str, replayed: dict[str, Any]) -> None:
    program = replayed["programs"][name]
    for variation, reason in asked(program["reasons"]).items():
        assert bool(reason) is not program["decisions"][variation], variation


def test_something_is_accepted_and_something_rejected(torch_decisions: dict[str, Any]) -> None:
    decisions = [
        value
        for entry in torch_decisions.values()
        for variation, value in entry["decisions"].items()
        if not variation.endswith("undone")
    ]
    assert decisions.count(True) > 15 and decisions.count(False) > 100


def test_replaying_loads_nothing_of_the_compiler(replayed: dict[str, Any]) -> None:
    assert replayed["loaded"] == []


def test_only_trees_with_identities_of_objects_bind(replayed: dict[str, Any]) -> None:
    binding = [name for name, entry in replayed["programs"].items() if entry["binds"]]
    assert binding == ([] if OLD else ["copied_config"])


SUBSET = ("kinds", "mlp", "globals_", "set_arguments", "user_object", "copied_config", "vmapped")


def test_records_are_equal_in_two_processes(recorded: Path, script: Any, tmp_path: Path) -> None:
    script("record.py", str(tmp_path), *SUBSET, PYTHONHASHSEED="77")
    for name in SUBSET:
        again = (tmp_path / f"{name}.tape").read_bytes()
        assert again == (recorded / f"{name}.tape").read_bytes(), name


def test_records_hold_no_paths(recorded: Path) -> None:
    for tape in recorded.glob("*.tape"):
        content = tape.read_bytes()
        assert str(HERE).encode() not in content and b"site-packages" not in content


REASONS = {
    ("plain", "shape"): "L['t']: shape expected [4, 3], found [5, 3]",
    ("plain", "dtype"): "L['t']: dtype expected torch.float32, found torch.float64",
    ("plain", "strides"): "L['t']: strides expected [3, 1], found [1, 4]",
    ("plain", "requires_grad"): "L['t']: requires_grad expected False, found True",
    ("plain", "no_tensor"): "type of L['t']: expected Tensor, found <class 'int'>",
    ("plain", "list_length"): "length of L['items']: expected 2, found 3",
    ("plain", "dict_less"): "L['table']['b']: expected a value, found nothing there",
    ("plain", "no_grad"): "global state: grad_mode expected True, found False",
    ("plain", "num_threads"): "global state: num_threads expected 1, found 2",
    ("plain", "autocast"): "global state: autocast_state.enabled[0] expected False, found True",
    ("kinds", "none"): "L['kinds'][8] is None, found 1",
    ("globals_", "int"): "G['SCALE'] == 3, found 4",
    ("mlp", "scale"): "L['self'].scale == 1.5, found 2.0",
    ("mlp", "forward_replaced"): (
        "L['self']._modules['a'].__dict__['forward']: expected nothing, "
        "found <function mlp.<locals>.<lambda>.<locals>.<lambda>>"
    ),
    ("kinds", "enum"): ("L['kinds'][7]: expected programs_arguments.Mode.A, found <Mode.B: 2>"),
    ("closure", "other_function"): "L['function'].__closure__: not a function, found None",
    ("mlp", "default_dtype"): "global state: default_dtype expected float32, found float64",
    ("defaults", "code"): (
        "G['with_defaults'].__code__: expected the code of programs_functions.with_defaults, "
        "unchanged, found code other_defaults (programs_functions.py:135)"
    ),
    ("aliasing", "all_same"): "expected two tensors, found L['a'] is L['b']",
    ("stack", "fewer_layers"): (
        "length of L['self']._modules['layers']._modules: expected 3, found 2"
    ),
    ("dynamic", "mismatch"): (
        "L['b'].size()[1] == L['a'].size()[1], found 3; "
        "L['b'].stride()[0] == L['a'].size()[1], found 3"
    ),
    ("marking", "small"): "5 <= L['a'].size()[0], found L['a'].size()[0] = 3",
    ("function_modes", "one_more"): (
        "torch function modes (torch.device contexts, ...): expected ['BaseTorchFunctionMode'], "
        "found ['BaseTorchFunctionMode', 'OtherMode']"
    ),
}


@pytest.mark.parametrize(("name", "variation"), REASONS)
def test_reason_gives_expected_and_found(
    name: str, variation: str, replayed: dict[str, Any]
) -> None:
    assert replayed["programs"][name]["reasons"][variation] == REASONS[name, variation]
