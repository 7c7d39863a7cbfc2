"""The comparison of environments where artifacts that were merged list alternatives."""

from __future__ import annotations

import pytest

from precomp import environment


@pytest.mark.parametrize(
    ("captured", "found"),
    [("2", "2"), ("2 or 8", "2"), ("2 or 8", "8"), ("2 or 8 or 16", "16"), (None, "4")],
)
def test_any_captured_number_of_threads_is_accepted(captured, found):
    expected = {} if captured is None else {"threads": captured}
    assert environment.warnings(expected, {"threads": found}) == ()


@pytest.mark.parametrize(
    ("captured", "found"),
    [("2", "4"), ("2 or 8", "4"), ("12 or 8", "2"), ("2 or 8", "28")],
)
def test_another_number_of_threads_is_a_warning_that_names_both(captured, found):
    (text,) = environment.warnings({"threads": captured}, {"threads": found})
    assert f"torch.get_num_threads() == {captured}, this process has {found}:" in text


def test_the_number_of_threads_is_never_a_difference():
    assert environment.differences({"threads": "2 or 8"}, {"threads": "4"}) == ()
