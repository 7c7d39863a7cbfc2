from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torches import OLD

from precomp import _core
from precomp.errors import ArtifactCorruptError

LEAF = ("add_none_match_guard", 0, (("text",),))
NODE = ("framelocals_manager", 0, 1, ("t", (("k", "x"), ("k", 0))), "L['x']", "o")


def record(*ops: Any, nodes: int = 1, **changes: Any) -> dict[str, Any]:
    return {"nodes": nodes, "ops": ops, "tls": None, "device": ("k", None)} | changes


def test_counts_its_ops() -> None:
    tape = _core.GuardTape(record(NODE, LEAF, nodes=2))
    assert tape.ops == 2 and tape.binds is False


def test_binds_when_it_relates_objects() -> None:
    relation = ("add_epilogue_lambda_guard", 0, (("rel", ()), ("text",)))
    assert _core.GuardTape(record(relation)).binds is True


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"nodes": 1}, "no field"),
        (record(LEAF, tls=(1,)), "malformed field"),
        (record(LEAF, device=None), "malformed field"),
        (record(LEAF, nodes=0), "bad number of nodes"),
        (record(LEAF, nodes=3), "bad number of nodes"),
        (record(LEAF, nodes=2**70), "bad number of nodes"),
        (record(LEAF, nodes="1"), "malformed field"),
        (record(3), r"ops\[0\]: expected a tuple"),
        (record(LEAF, ("add_new_guard", 0, ())), r"ops\[1\]: unknown method 'add_new_guard'"),
        (record((3, 0, ())), "unknown method 3"),
        (record(("add_none_match_guard", 1, (("text",),))), "node number out of range"),
        (record(("add_none_match_guard", "0", (("text",),))), "expected a node number"),
        (record(LEAF, ("add_none_match_guard", 1, (("t",),)), nodes=2), "nodes are not in order"),
        (record(("add_none_match_guard", 0, ())), "too few arguments"),
        (record(("add_none_match_guard", 0, (("a",), ("b",)))), "too many arguments"),
        (record(("add_none_match_guard", 0, (("a", 1),))), "malformed argument"),
        (record(("add_none_match_guard", 0, [])), "expected a tuple of arguments"),
        (record(("add_none_match_guard", 0, (("t",),), 1)), "a guard has three fields"),
        (record(NODE[:5], nodes=2), "a manager has six fields"),
        (record(NODE, NODE, nodes=3), "nodes are not in order"),
        (record((*NODE[:3], None, *NODE[4:]), nodes=2), "malformed key"),
        (record((*NODE[:4], 3, "o"), nodes=2), "expected the text of a source"),
        (record((*NODE[:5], 3), nodes=2), "malformed category"),
        (record((*NODE[:5], ("D", ("k", 1))), nodes=2), "malformed category"),
        (
            record(("install_object_aliasing_guard", -1, (0, 5, ("t",)))),
            "malformed argument",
        ),
        (record(("add_tensor_match_guard", 0, (("cpu", 1, 2, 3),) * 7)), "malformed argument"),
    ],
)
def test_malformed_records_are_refused(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ArtifactCorruptError, match=words):
        _core.GuardTape(bad)


def test_unknown_categories_and_bad_arguments_fail_the_replay() -> None:
    from precomp import torch_api

    torch_api.serve()
    tape = _core.GuardTape(record((*NODE[:5], "zz"), nodes=2))
    for arguments in ((), ({},), ({}, 1, 2, 3), (3, 1, None, 3)):
        with pytest.raises(TypeError):
            tape.replay(*arguments)
    with pytest.raises(TypeError):
        _core.GuardTape(3)
    with pytest.raises(AttributeError):
        tape.replay({}, object, None, print)


def test_replay_keeps_nothing_whatever_fails(recorded: Path, script: Any) -> None:
    assert script("tape_memory.py", str(recorded)).endswith("OK\n")


@pytest.mark.skipif(OLD, reason="no program binds there")
def test_objects_bind_once_per_tree(recorded: Path, script: Any) -> None:
    program = f"""
import harness, programs
from pathlib import Path
from precomp import _core, data, torch_api
from precomp.serve import guards
torch_api.serve()
record = data.loads((Path({str(recorded)!r}) / "copied_config.tape").read_bytes())
import json
specs = json.loads((Path({str(recorded)!r}) / "recorded.json").read_text())["copied_config"]
one, two = programs.copied_config(), programs.copied_config()
f_globals = harness.globals_of(one)
harness.install_globals(specs["specs"], f_globals)
tape = _core.GuardTape(record)
assert tape.binds
def build():
    return guards.build(tape, f_globals, None, harness.GuardManagerType, harness.building())
first, keep = build()
assert first.check(harness.locals_of(one))
assert not first.check(harness.locals_of(two))
assert first.check(harness.locals_of(one))
second, keep2 = build()
assert second.check(harness.locals_of(two)) and not second.check(harness.locals_of(one))
# A tree that rejected for another reason is not bound.
third, keep3 = build()
one.function.config.width = 9
assert not third.check(harness.locals_of(one))
assert third.check(harness.locals_of(two))
"""
    script("-c", program)


def test_registry_of_pytree_nodes_is_guarded(recorded: Path, script: Any) -> None:
    program = f"""
import harness, programs, torch, json
from pathlib import Path
from precomp import _core, data, torch_api
from precomp.serve import guards
import torch.utils._pytree as pytree
torch_api.serve()
folder = Path({str(recorded)!r})
record = data.loads((folder / "vmapped.tape").read_bytes())
specs = json.loads((folder / "recorded.json").read_text())["vmapped"]["specs"]
f_globals = harness.globals_of(programs.vmapped())
harness.install_globals(specs, f_globals)
assert any(op[0] == "add_lambda_guard" and op[2][0][0] == "nodes" for op in record["ops"])
root, keep = guards.build(
    _core.GuardTape(record), f_globals, None, harness.GuardManagerType, harness.building()
)
f_locals = harness.locals_of(programs.vmapped())
assert root.check(f_locals)
class Node: pass
pytree.register_pytree_node(Node, lambda n: ([], None), lambda c, x: Node())
assert not root.check(f_locals)
pytree._deregister_pytree_node(Node)
assert root.check(f_locals)
"""
    script("-c", program)
