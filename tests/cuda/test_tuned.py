"""Inductor's autotuners launch through Triton's own C code; frozen, the driver gets the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import ranks
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


@pytest.fixture(scope="module")
def of_two(tmp_path_factory, libcuda):
    """The same on two ranks that are captured."""
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("tuned-ranks")
    places = ranks.places(folder, 2, extra={"TRITON_LIBCUDA_PATH": str(libcuda.parent)})
    return [rank.facts for rank in ranks.run(places, HERE / "tuned.py", libcuda, folder)]


@pytest.mark.parametrize("case", CASES)
def test_what_torch_launches_is_launched(found, case):
    launches = found[case]["launches"]
    assert launches and all(same for _, same, *_ in launches), launches


def test_the_chosen_one_of_several_kernels_is_launched(found):
    assert found["multi-kernel"]["kinds"] == ["MultiKernelCall"]


def test_what_was_found_step_by_step_torch_does_not_keep(found):
    """Else the cases of coordinate descent say nothing."""
    for case in ("step by step", "step by step, combo kernels"):
        assert not any(kept for _, _, kept, _ in found[case]["launches"]), case


def test_ranks_tune_the_same_kernels_where_others_are_fastest(of_two):
    first, second = of_two
    assert {case: first[case] for case in CASES} == {case: second[case] for case in CASES}
    both = first["fastest"].keys() & second["fastest"].keys()
    assert [kernel for kernel in both if first["fastest"][kernel] != second["fastest"][kernel]]
