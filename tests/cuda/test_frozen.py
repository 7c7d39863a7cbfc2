"""A Triton kernel that Inductor ran is frozen as it was launched, and launched again as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import Place

HERE = Path(__file__).parent
REASONS = {
    "not launched": "not launched while capturing: 0 configurations",
    "still tuning": "not launched while capturing: 2 configurations",
    "unknown configuration": "whose launched configuration torch did not keep",
    "none chosen": "not launched while capturing: none was chosen",
    "chosen by shapes": "one of which is chosen by shapes at each launch",
    "other device": "a Triton kernel for xpu",
    "parameter type": "a parameter of type nvTmaDesc",
    "grid": "'xnumel / 2' is not integer arithmetic",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory, driver):
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("frozen")
    return Place(folder / "place").run(HERE / "frozen.py", driver, folder).facts


def test_the_launched_configuration_is_launched_again(found):
    assert found["grid"] == [8, 1, 1]  # 1000 elements in blocks of 128, not of 64
    assert found["threads"] == 128
    assert found["stream"] == 7
    assert found["values"] == [0x1000, 0x2000, 1000, 1.5, 1]
    assert found["sizes"] == [8, 8, 4, 2, 1]
    assert set(found["scratch"]) <= {0}


def test_a_configuration_that_tuning_found_step_by_step_is_launched(found):
    assert found["step by step"]


def test_of_several_kernels_the_chosen_one_is_launched(found):
    assert found["one of two"] == [[8, 1, 1], [0x1000, 0x2000, 1000, 1.5, 1]]


def test_the_image_is_stored_once_without_what_belongs_to_the_machine(found):
    assert (found["kind"], found["name"]) == ("cubin", "sm_90")
    assert found["digest"] and found["same_again"]
    assert found["smaller"] and found["no_paths"]


def test_tensor_descriptors_of_a_users_kernel_are_encoded_at_the_launch(found):
    described = found["described"]
    assert described["codes"] == "TT" and described["grid"] == [2, 3, 1]
    assert described["rest"] == [16, 64, 64, 1]
    assert [row["address"] for row in described["maps"]] == [0x1000, 0x2000]
    for row in described["maps"]:
        assert (row["shape"], row["strides"], row["box"]) == ([64, 16], [256], [32, 8])


@pytest.mark.parametrize("what", REASONS)
def test_what_has_no_launch_record_is_refused_by_name(found, what):
    assert REASONS[what] in found["refused"][what]
