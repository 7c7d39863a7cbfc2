"""torch's C++ reads settings of torch._dynamo.config while it builds a tree."""

from __future__ import annotations

import json
from collections.abc import Callable

SOURCE = """
import json
import torch
import torch._dynamo.config as config

from precomp import _core, torch_api
from precomp.serve import guards, standin

torch_api.serve()
ops = [
    ("framelocals_manager", 0, i + 1, ("t", (("k", f"x{i}"), ("k", i))), f"L['x{i}']", "o")
    for i in range(50)
]
tape = _core.GuardTape({"nodes": 51, "ops": tuple(ops), "tls": None, "device": ("k", None)})
name = "max_saved_pointers_for_recursive_dict_tags_check"
kind, slow, reads, inside = type(config), type(config).__getattr__, [], []

def counted(module, asked):
    reads.append(asked)
    return slow(module, asked)

def broken(*_):
    inside.append(getattr(config, name))
    raise _core.Stale("gone")

before = dict(vars(config))
lambda_op = ("lambda_manager", 0, 1, ("module", ("k", None)), "x", "o")
stale = _core.GuardTape({"nodes": 2, "ops": (lambda_op,), "tls": None, "device": ("k", None)})
kind.__getattr__ = counted
with config.patch(**{name: 7}):
    reads.clear()
    guards.build(tape, globals(), None, standin.enum_type())
    count = len(reads)
    guards.decode_function = broken
    try:
        guards.build(stale, globals(), None, standin.enum_type())
    except _core.Stale:
        pass
    left = [key for key in vars(config) if key not in before]
    value = getattr(config, name)
print(json.dumps({"reads": count, "inside": inside, "left": left, "value": value}))
"""


def test_each_setting_is_read_once_and_stays_as_it_is(script: Callable[..., str]) -> None:
    found = json.loads(script("-c", SOURCE))
    assert found["reads"] <= 4  # whether it is there, and its value
    assert found["inside"] == [7]
    assert (found["left"], found["value"]) == ([], 7)
