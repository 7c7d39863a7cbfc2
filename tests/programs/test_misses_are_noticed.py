"""What guards protect: each change is noticed, with the reason; the original is served again."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import Place

PROGRAMS = Path(__file__).parent

CODE = """
    import torch
    torch.set_num_threads(1)
    import precomp
    prepared = precomp.prepare(sys.argv[1])
    sys.path.insert(0, sys.argv[2])
    from programs import MLP

    torch.manual_seed(0)
    model = MLP().train()
    compiled = torch.compile(model)
    x = torch.randn(8, 32)
    first = compiled(x)
    results = {}

    def call(argument):
        with precomp.strict_no_compile():
            return compiled(argument)

    def attempt(name, change=None, undo=None, argument=x):
        if change:
            change()
        try:
            call(argument)
            results[name] = {"kind": None}
        except precomp.CompileViolation as v:
            results[name] = {"kind": v.kind, "what": v.what, "why": v.why, "where": v.where}
        if undo:
            undo()
        results[name]["original"] = torch.equal(call(x), first)

    def weight(on):
        return lambda: model.net[0].weight.requires_grad_(on)

    relu = model.net[1]
    attempt("nothing")
    attempt("dtype", argument=x.double())
    attempt("shape", argument=torch.randn(3, 32))
    attempt("strides", argument=torch.randn(32, 8).t())
    attempt("rank", argument=torch.randn(8, 1, 32))
    attempt("input requires grad", argument=torch.randn(8, 32, requires_grad=True))
    attempt("not a tensor", argument=[1.0])
    attempt("attribute", lambda: setattr(model, "scale", 2.5), lambda: setattr(model, "scale", 1.5))
    attempt("layer", lambda: model.net.__setitem__(1, torch.nn.Sigmoid()),
            lambda: model.net.__setitem__(1, relu))
    attempt("parameter requires grad", weight(False), weight(True))
    attempt("grad mode", lambda: torch._C._set_grad_enabled(False),
            lambda: torch._C._set_grad_enabled(True))
    attempt("threads", lambda: torch.set_num_threads(2), lambda: torch.set_num_threads(1))
    attempt("default dtype", lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32))

    @torch.compile
    def unknown(t):
        return t + 1

    try:
        with precomp.strict_no_compile():
            unknown(x)
        results["unknown"] = {"kind": None}
    except precomp.CompileViolation as v:
        results["unknown"] = {"kind": v.kind, "what": v.what, "why": v.why, "where": v.where}
    compiler = [m for m in ("torch._dynamo.convert_frame", "torch._inductor.compile_fx", "sympy",
                            "triton") if m in sys.modules]
    done(results=results, compiler=compiler)
"""

# What the reason has to name: the thing, what was expected, what was found (in lower case).
REASONS = {
    "dtype": ("dtype", "float32", "float64"),
    "shape": ("shape", "[8, 32]", "[3, 32]"),
    "strides": ("stride", "32", "1"),
    "rank": ("2", "3"),
    "input requires grad": ("requires_grad",),
    "not a tensor": ("tensor", "list"),
    "attribute": ("scale", "1.5", "2.5"),
    "layer": ("relu", "sigmoid"),
    "parameter requires grad": ("requires_grad", "weight"),
    "grad mode": ("grad_mode",),
    "threads": ("num_threads",),
    "default dtype": ("default_dtype",),
}


@pytest.fixture(scope="module")
def trials(captured, tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("misses"), compiler=False)
    return place.script(CODE, captured("mlp").artifact, PROGRAMS).facts


def test_unchanged_call_is_served(trials):
    assert trials["results"]["nothing"] == {"kind": None, "original": True}


@pytest.mark.parametrize("change", REASONS)
def test_change_is_noticed_with_expected_and_found(trials, change):
    result = trials["results"][change]
    assert result["kind"] == "trace"
    assert "forward" in result["what"]
    for text in REASONS[change]:
        assert text in result["why"].lower(), f"{text!r} is not in {result['why']!r}"


@pytest.mark.parametrize("change", REASONS)
def test_original_is_served_again_afterwards(trials, change):
    assert trials["results"][change]["original"]


def test_reason_names_the_users_line(trials):
    """The line of the user's code that made the call."""
    file, _, line = trials["results"]["dtype"]["where"].rpartition(":")
    assert file.endswith("script.py")
    assert "compiled(" in Path(file).read_text().splitlines()[int(line) - 1]


def test_unknown_function_is_noticed(trials):
    result = trials["results"]["unknown"]
    assert result["kind"] == "trace"
    assert "unknown" in result["what"]
    assert "not captured" in result["why"]


def test_noticing_a_miss_imports_no_compiler(trials):
    assert trials["compiler"] == []
