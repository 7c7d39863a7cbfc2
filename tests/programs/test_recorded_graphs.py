"""Real plans, autograd and optimizers around recordings: the bits of the program without them.

Recordings are on the CPU, by a stand-in for the GPU, around every graph of a program.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import differences

RECORDED = Path(__file__).with_name("recorded.py")

# Program -> how often its graphs are replayed at least.
REPLAYED = {
    "mlp": 30, "two": 30, "dyn": 20, "modes": 3, "enc": 30, "ck": 30, "brk": 90, "seq": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", REPLAYED)
def test_a_program_gives_the_same_bits_with_its_graphs_recorded(captured, bare, name):
    facts = bare.run(RECORDED, captured(name).directory, name).facts
    assert differences(captured(name).result, facts["results"]) == []
    counts = facts["counts"]
    assert counts.get("replayed", 0) >= REPLAYED[name] and counts.get("recorded", 0) >= 1, counts
    assert set(facts["compiler"]) <= {"sympy"}
