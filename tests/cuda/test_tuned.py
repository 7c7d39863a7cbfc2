"""Inductor's autotuners launch through Triton's own C code; frozen, the driver gets the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import Place

HERE = Path(__file__).parent
CASES = (
    "combo kernels", "foreach", "multi-kernel", "cooperative", "step by step",
    "step by step, combo kernels",
)  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory, libcuda):
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("tuned")
    place = Place(folder / "place", extra={"TRITON_LIBCUDA_PATH": str(libcuda.parent)})
    return place.run(HERE / "tuned.py", libcuda, folder).facts


@pytest.mark.parametrize("case", CASES)
def test_what_torch_launches_is_launched(found, case):
    launches = found[case]["launches"]
    assert launches and all(same for _, same, _ in launches), launches


def test_the_chosen_one_of_several_kernels_is_launched(found):
    assert found["multi-kernel"]["kinds"] == ["MultiKernelCall"]


def test_what_was_found_step_by_step_torch_does_not_keep(found):
    """Else the cases of coordinate descent say nothing."""
    for case in ("step by step", "step by step, combo kernels"):
        assert not any(kept for _, _, kept in found[case]["launches"]), case
