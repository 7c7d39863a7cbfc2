"""Launches through Triton's own C code and served ones send the driver the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import Place

HERE = Path(__file__).parent


def launches(libcuda, folder, major):
    """What the driver got of all launches: by Triton, and served."""
    pytest.importorskip("triton")
    env = {"TRITON_LIBCUDA_PATH": str(libcuda.parent), "TRITON_CACHE_DIR": str(folder / "cache")}
    script = HERE / "triton_native.py"
    place = Place(folder / "capture", extra=env)
    captured = place.run(script, "capture", libcuda, folder, major).facts
    (folder / "capture.json").write_text(json.dumps(captured))
    place = Place(folder / "serve", compiler=False, extra={"TRITON_CACHE_DIR": str(folder / "new")})
    return captured, place.run(script, "serve", libcuda, folder, major).facts


@pytest.fixture(scope="module")
def both(tmp_path_factory, libcuda):
    return launches(libcuda, tmp_path_factory.mktemp("native"), 9)


@pytest.fixture(scope="module")
def without_maps(tmp_path_factory, libcuda):
    return launches(libcuda, tmp_path_factory.mktemp("without_maps"), 8)


def same(captured, served):
    assert captured["problems"] == []
    for name, launch in captured["launches"].items():
        assert served["launches"][name] == launch, name
    assert served["missing"] == [] and served["driver"]


def test_served_launches_are_tritons_own(both):
    same(*both)


def test_served_launches_are_tritons_own_on_devices_without_tensor_maps(without_maps):
    same(*without_maps)
    found = without_maps[0]["launches"]["described"]["sizes"]
    assert 128 not in found and found[:5] == [8] * 5


def test_tensor_maps_are_parameters(both):
    """The comparison above is about them: the second word is the stand-in's mark."""
    maps = {
        name: [row for row in launch["seen"]["parameters"] if len(row) == 256]
        for name, launch in both[0]["launches"].items()
    }
    assert {name: len(rows) for name, rows in maps.items() if rows} == {
        "described": 2, "described, other elements": 2, "described, a tuple": 2,
        "described, over the edge": 2, "described, other blocks": 2, "described, 5 dimensions": 2,
        "described, product": 3, "described, tuned": 3,
    }  # fmt: skip
    assert all(row[16:32] == "f" * 16 for rows in maps.values() for row in rows)
