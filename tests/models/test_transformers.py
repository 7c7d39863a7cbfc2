"""Models of transformers: served strict, bit-identical, torch's compiler never executed."""

from __future__ import annotations

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import CACHE, Place, differences

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)

ZOO = Path(__file__).with_name("zoo.py")
CASES = ("bert", "llama")
if os.environ.get("PRECOMP_TEST_ZOO"):  # tools/test zoo
    CASES += ("bert:train", "mamba", "t5", "vit", "mixtral", "llama:train")


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    """``captures(case)`` is (directory, facts of the captured run); two are captured at a time."""
    root = tmp_path_factory.mktemp("zoo")
    cache = Path(os.environ.get(CACHE) or root / "inductor")
    artifacts = root / "artifacts"
    artifacts.mkdir()

    def capture(case: str) -> dict:
        place = Place(root / case.replace(":", "-"), cache=cache)
        return place.run(ZOO, "capture", artifacts, case, timeout=900).facts

    with ThreadPoolExecutor(2) as pool:
        running = {case: pool.submit(capture, case) for case in CASES}
        yield lambda case: (artifacts, running[case].result())
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def bare(tmp_path):
    return Place(tmp_path / "bare", compiler=False)


@pytest.mark.parametrize("case", CASES)
def test_served_bit_identical_without_the_compiler(captures, bare, case):
    directory, captured = captures(case)
    facts = bare.run(ZOO, "serve", directory, case).facts
    assert "why" not in facts, facts
    assert differences(captured["results"], facts["results"]) == []
    assert facts["compiler"] == []


@pytest.mark.parametrize("edit", ("rotate_half", "LlamaMLP.forward"))
def test_edited_inlined_function_is_refused(captures, bare, edit):
    directory, _ = captures("llama")
    facts = bare.run(ZOO, "serve", directory, "llama", edit).facts
    assert "results" not in facts, "a stale entry was served"
    assert edit in facts["why"]
