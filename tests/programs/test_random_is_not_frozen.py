"""Python's and numpy's random numbers are drawn anew, as in the captured program."""

from __future__ import annotations

import pytest
from processes import Place
from torches import OLD

pytestmark = pytest.mark.skipif(OLD, reason="refused there by name (docs/limitations.md)")

CODE = """
    import random
    import numpy
    import torch
    torch.set_num_threads(1)
    import precomp
    side, artifact = sys.argv[1:]
    if side == "serve":
        prepared = precomp.prepare(artifact)

    def mixed(x):
        items = [1, 2, 3, 4, 5, 6, 7]
        random.shuffle(items)
        chosen = random.sample(range(1000), 3)
        return x * items[0] - items[3] + chosen[0] + random.random()

    def numpys(x):
        return x + numpy.random.rand()

    def seeded(x):
        random.seed(3)
        return x + random.random()

    FUNCTIONS = (mixed, numpys, seeded)
    COMPILED = {f.__name__: torch.compile(f) for f in FUNCTIONS}
    X = torch.ones(3)

    def run(calls, seed):
        random.seed(seed)
        numpy.random.seed(seed)
        torch.manual_seed(seed)
        results = {name: [call(X).tolist() for _ in range(3)] for name, call in calls.items()}
        # Where each stream of random numbers stands afterwards.
        ends = random.random(), float(numpy.random.rand()), torch.rand(1).item()
        return results, ends

    seeds = (11, 12)
    if side == "capture":
        with precomp.capture(artifact):
            results = [run(COMPILED, seed) for seed in seeds]
        eager = [run({f.__name__: f for f in FUNCTIONS}, seed) for seed in seeds]

        def integer(x):
            return x + random.randint(1, 1000)

        capture = precomp.capture(reset=True)
        with capture:
            torch.compile(integer)(X)
        try:
            capture.finalize("integer.precomp")
            refused = None
        except precomp.UnsupportedCaptureError as error:
            refused = str(error)
        done(results=results, eager=eager, refused=refused)
    else:
        with precomp.strict_no_compile():
            done(results=[run(COMPILED, seed) for seed in seeds])
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory, inductor_cache):
    root = tmp_path_factory.mktemp("random")
    here = Place(root / "here", cache=inductor_cache)
    bare = Place(root / "bare", compiler=False)
    artifact = root / "random.precomp"
    captured = here.script(CODE, "capture", artifact).facts
    return captured, bare.script(CODE, "serve", artifact).facts


def test_numbers_and_streams_are_those_of_the_captured_program(both):
    captured, served = both
    assert served["results"] == captured["results"]


def test_they_are_those_of_the_eager_program(both):
    captured, _ = both
    assert captured["results"] == captured["eager"]


def test_another_seed_gives_other_numbers(both):
    _, served = both
    (first, _), (second, _) = served["results"]
    assert [name for name in first if first[name] == second[name]] == ["seeded"]
    assert len({str(value) for value in first["mixed"]}) == 3


def test_numbers_that_become_inputs_of_a_graph_are_refused_by_name(both):
    captured, _ = both
    assert "random numbers that Dynamo draws for a graph" in captured["refused"]
