"""Several artifacts in one process, equal code in two modules, entries for modes and options."""

from __future__ import annotations

import pytest
from processes import Place

BODY = """
    import torch

    FACTOR = {factor}

    def f(x):
        return x.sin() * FACTOR + 1
"""

SCRIPT = """
    import torch
    torch.set_num_threads(1)
    import precomp
    side, artifact, *names = sys.argv[1:]
    import importlib
    x = torch.linspace(0, 1, 7)

    def run():
        return {n: torch.compile(importlib.import_module(n).f)(x).tolist() for n in names}

    if side == "capture":
        with precomp.capture(artifact):
            done(**run())
    else:
        for path in artifact.split(":"):
            precomp.prepare(path)
        with precomp.strict_no_compile():
            done(**run())
"""


def lay_out(place: Place) -> Place:
    place.write("one.py", BODY.format(factor=2.0))
    place.write("two.py", BODY.format(factor=5.0))
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory, inductor_cache):
    return lay_out(Place(tmp_path_factory.mktemp("two"), cache=inductor_cache))


@pytest.fixture(scope="module")
def single(place):
    """Each module captured alone: {name: (artifact, result)}."""
    artifacts = {}
    for name in ("one", "two"):
        path = place.root / f"{name}.precomp"
        artifacts[name] = path, place.script(SCRIPT, "capture", path, name).facts[name]
    return artifacts


@pytest.fixture(scope="module")
def joint(place):
    path = place.root / "joint.precomp"
    return path, place.script(SCRIPT, "capture", path, "one", "two").facts


def test_equal_code_in_two_modules_in_one_artifact(joint, bare):
    path, results = joint
    lay_out(bare)
    assert bare.script(SCRIPT, "serve", path, "one", "two").facts == results
    assert results["one"] != results["two"]


def test_equal_code_in_two_modules_in_either_order(joint, bare):
    path, results = joint
    lay_out(bare)
    assert bare.script(SCRIPT, "serve", path, "two", "one").facts == results


@pytest.mark.parametrize("order", (("one", "two"), ("two", "one")))
def test_two_artifacts_in_one_process(single, bare, order):
    lay_out(bare)
    paths = ":".join(str(single[name][0]) for name in order)
    facts = bare.script(SCRIPT, "serve", paths, "one", "two").facts
    assert facts == {name: result for name, (_, result) in single.items()}


def test_the_artifact_of_one_module_does_not_serve_the_other(single, bare):
    lay_out(bare)
    code = """
    import torch
    torch.set_num_threads(1)
    import precomp
    precomp.prepare(sys.argv[1])
    import two
    try:
        with precomp.strict_no_compile():
            torch.compile(two.f)(torch.linspace(0, 1, 7))
        done(why=None)
    except precomp.CompileViolation as violation:
        done(why=violation.why)
    """
    assert bare.script(code, single["one"][0]).facts["why"]


def test_uninstall_of_one_leaves_the_other(single, bare):
    lay_out(bare)
    code = """
    import torch
    torch.set_num_threads(1)
    import precomp
    before = torch.compile
    first = precomp.prepare(sys.argv[1])
    second = precomp.prepare(sys.argv[2])
    import one, two
    x = torch.linspace(0, 1, 7)
    seen = {}

    def attempt(name, f):
        try:
            with precomp.strict_no_compile():
                seen[name] = torch.compile(f)(x).tolist()
        except precomp.CompileViolation as violation:
            seen[name] = "refused"

    attempt("one", one.f)
    first.uninstall()
    attempt("one afterwards", one.f)
    attempt("two", two.f)
    second.uninstall()
    done(**seen, restored=torch.compile is before)
    """
    facts = bare.script(code, single["one"][0], single["two"][0]).facts
    assert facts == {
        "one": single["one"][1],
        "one afterwards": "refused",
        "two": single["two"][1],
        "restored": True,
    }


MODES = """
    import torch
    torch.set_num_threads(1)
    import precomp
    side, artifact = sys.argv[1:3]
    if side == "serve":
        precomp.prepare(artifact)
    x = torch.linspace(-1, 1, 64).reshape(8, 8)
    seen = []

    def f(t):
        return torch.softmax(t @ t, 1).sum(0)

    FORMS = {
        "plain": {},
        "mode": {"mode": "max-autotune-no-cudagraphs"},
        "options": {"options": {"epilogue_fusion": False}},
        "dynamic": {"dynamic": True},
    }
    def run(**keywords):
        return torch.compile(f, **keywords)(x).tolist()

    if side == "capture":
        with precomp.capture(artifact):
            results = {name: run(**FORMS[name]) for name in ("plain", "options", "dynamic")}
        done(**results)
    else:
        facts = {}
        for name in sys.argv[3:]:
            try:
                with precomp.strict_no_compile():
                    facts[name] = run(**FORMS[name])
            except precomp.CompileViolation as violation:
                facts[name] = violation.why
        done(**facts)
"""


@pytest.fixture(scope="module")
def modes(place):
    path = place.root / "modes.precomp"
    return path, place.script(MODES, "capture", path, name="modes.py").facts


@pytest.mark.parametrize(
    "order", (("plain", "options", "dynamic"), ("dynamic", "options", "plain"))
)
def test_entries_for_options_and_dynamic_shapes(modes, bare, order):
    path, results = modes
    assert bare.script(MODES, "serve", path, *order).facts == results


def test_a_mode_that_was_not_captured_is_a_miss(modes, bare):
    path, _ = modes
    facts = bare.script(MODES, "serve", path, "mode").facts
    assert isinstance(facts["mode"], str), "served with the options of another mode"
    assert "mode" in facts["mode"] or "options" in facts["mode"] or "config" in facts["mode"]


def test_threads_that_prepare_at_once(single, bare):
    """Calls that race for the first use install once; results are right in all."""
    lay_out(bare)
    code = """
    import threading
    import torch
    torch.set_num_threads(1)
    import precomp
    precomp.prepare(sys.argv[1])
    import one
    x = torch.linspace(0, 1, 7)
    barrier = threading.Barrier(8)
    results, errors = [], []

    def work():
        try:
            barrier.wait()
            with precomp.strict_no_compile():
                g = torch.compile(one.f)
                for _ in range(50):
                    results.append(g(x).tolist())
        except BaseException as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    done(errors=errors, count=len(results), same=all(r == results[0] for r in results),
         first=results[0])
    """
    facts = bare.script(code, single["one"][0]).facts
    assert facts == {"errors": [], "count": 400, "same": True, "first": single["one"][1]}
