"""What Inductor writes around kernels that it tunes, chooses or puts together is linked."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import Place

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("choices")
    return Place(folder / "place").run(HERE / "choices.py", folder).facts


def test_every_wrapper_is_linked_with_its_kernels(found):
    assert all(facts["kernels"] and not facts["stays"] for facts in found.values()), found


def test_the_cases_are_what_they_are_named_after(found):
    """Else Inductor wrote something else and the test above says nothing of them."""
    for name in ("combo kernels", "foreach", "foreach, combo kernels"):
        assert any("ComboKernelGrid" in grid for grid in found[name]["grids"]), name
    assert "CooperativeReductionGrid" in found["cooperative"]["grids"]
    assert found["cooperative"]["workspace"] and not found["looped"]["workspace"]


def test_several_kernels_are_one_launch(found):
    assert found["multi-kernel"]["several"] >= 1
    assert found["looped"]["several"] == 0
    ((part,),) = found["multi-kernel"]["arguments"]
    assert part[0] == 0 and part[1] > 3  # all arguments go to each kernel
