"""Grids of launches: Inductor's text becomes a program that gives the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import Place

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("grids"))
    return place.run(HERE / "grids.py").facts


def test_every_grid_of_inductor_gives_the_numbers_that_its_text_gives(found):
    assert found["wrong"] == [] and found["not covered"] == []
    assert found["checked"] > 40 * found["cases"]


def test_whatever_is_not_integer_arithmetic_is_refused_by_name(found):
    assert found["accepted"] == []
    assert all(text.startswith("grid of the launch: ") for text in found["refused"])
