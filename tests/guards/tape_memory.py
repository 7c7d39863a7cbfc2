"""Checks in a process of its own that replaying keeps nothing, whatever fails.

Prints OK. Arguments: the folder with the recorded tapes.
"""

import gc
import json
import sys
from pathlib import Path

import harness
import programs
import torch

from precomp import _core, data, torch_api
from precomp.freeze.guard_tree import LEAVES
from precomp.serve import guards

serve = torch_api.serve()
FOLDER = Path(sys.argv[1])
F_GLOBALS = vars(programs)


def load(name):
    return data.loads((FOLDER / f"{name}.tape").read_bytes())


def left(work, rounds=8):
    for _ in range(4):  # caches of the interpreter fill first
        work()
    found = []
    for _ in range(rounds):
        gc.collect()
        before = sys.getallocatedblocks()
        work()
        gc.collect()
        found.append(sys.getallocatedblocks() - before)
    return min(found)


def replay(tape):
    return guards.build(tape, F_GLOBALS, None, harness.GuardManagerType)


TAGS = ("k", "t", "l", "d", "P", "PF", "C", "M", "A", "gs", "dk")


class Broken(Exception):
    pass


def ambient():
    return (
        serve.device_module.CURRENT_DEVICE,
        torch._C._dispatch_tls_local_include_set().raw_repr(),
        torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        gc.isenabled(),
    )


def fails_everywhere(record):
    """Each op in turn replaced by one that fails when it is replayed."""
    ops = record["ops"]
    for i, op in enumerate(ops):
        broken = ("P", "math", "not_there", "")
        if op[0].endswith("_manager"):
            if op[3] is None:
                continue
            new = (*op[:3], broken, *op[4:])
        elif op[0].startswith("install_"):
            continue
        else:
            spots = [
                n for n, arg in enumerate(op[2]) if type(arg) is tuple and arg and arg[0] in TAGS
            ]
            if not spots:
                continue
            args = list(op[2])
            args[spots[0]] = broken
            new = (op[0], op[1], tuple(args))
        yield record | {"ops": (*ops[:i], new, *ops[i + 1 :])}


def identities(record):
    """All objects whose ids the tree of *record* stores, found anew."""
    for op in record["ops"]:
        if op[0].endswith("_manager"):
            kinds = [op[5][1]] if type(op[5]) is tuple else []
        elif op[0] == "add_torch_function_mode_stack_guard":
            kinds = op[2][0]
        else:
            letters = LEAVES.get(op[0], "").replace("u", "")
            kinds = [arg for letter, arg in zip(letters, op[2], strict=False) if letter == "i"]
        yield from (_core.decode(kind) for kind in kinds)


def check_identities_are_kept():
    checked = 0
    for name, entry in json.loads((FOLDER / "recorded.json").read_text()).items():
        if entry["loads"]:
            continue
        record = load(name)
        if record["live"] is not None:  # the tree keeps no live object: who replays drops it
            continue
        root, keep = replay(_core.GuardTape(record))
        kept = set(map(id, keep))
        for value in identities(record):
            assert value is dict or id(value) in kept, (name, value)
            checked += 1
        del root
    assert checked > 500, checked


def main():
    check_identities_are_kept()
    for name in ("mlp", "copied_config"):
        record = load(name)
        for specs in ("linear", "module", "dropout", "activation", "batchnorm", "container"):
            __import__(f"torch.nn.modules.{specs}")
        tape = _core.GuardTape(record)

        def good(tape=tape):
            for _ in range(40):
                replay(tape)

        grown = left(good)
        assert grown < 40, (name, "replay", grown)

        def make(record=record):
            for _ in range(10):
                _core.GuardTape(record)

        grown = left(make)
        assert grown < 10, (name, "tape", grown)

    record = load("mlp")
    before = ambient()
    failing = [_core.GuardTape(broken) for broken in fails_everywhere(record)]
    assert len(failing) > 80, len(failing)

    def bad():
        for tape in failing:
            try:
                replay(tape)
            except (_core.Stale, guards.NeedsCompiler, TypeError, ValueError):
                pass
            else:
                raise AssertionError("a broken tape was replayed")
            assert ambient() == before

    grown = left(bad)
    assert grown < len(failing), ("failing replays", grown)

    def raising(encoded, f_globals):
        raise Broken

    tape = _core.GuardTape(record)
    for enum_type, function, error in (
        (harness.GuardManagerType, raising, Broken),
        (object, guards.decode_function, AttributeError),
    ):
        try:
            tape.replay(F_GLOBALS, enum_type, None, function)
        except error:
            pass
        else:
            raise AssertionError(error)
        assert ambient() == before

    # An inference tape sets dispatch keys and leaves the thread as it was.
    replay(_core.GuardTape(load("inference")))
    replay(_core.GuardTape(load("device_context")))
    assert ambient() == before

    # Objects whose ids are in the tree are kept alive by what replay returns.
    root, keep = replay(tape)
    assert programs.MLP in keep and type(root) is serve.RootGuardManager
    gc.disable()
    replay(tape)
    assert not gc.isenabled()
    print("OK")


with harness.building():
    main()
