"""Compiled functions and modules inside compiled ones, and lazy modules."""

from __future__ import annotations

import pytest
from processes import Place

SCRIPT = """
    import torch
    torch.set_num_threads(1)
    import precomp
    from torch import nn

    side, directory, *names = sys.argv[1:]
    if side == "serve":
        for name in names:
            precomp.prepare(os.path.join(directory, name + ".precomp"))

    X = torch.linspace(0, 1, 16).view(4, 4)

    def scaled(t, k):
        return torch.addmm(t, t, t, beta=k, alpha=0)

    @torch.compile
    def inner(t):
        return scaled(t, 3)

    @torch.compile
    def outer(t):
        return scaled(inner(scaled(t, 2)), 4)

    @torch.compile
    def apply(function, t):
        return function(scaled(t, 5))

    @torch.compile(fullgraph=True)
    def whole(t):
        return scaled(t, 6)

    @torch.compile
    def calls_whole(t):
        return scaled(whole(t), 2)

    def local():
        @torch.compile
        def first(t):
            return scaled(t, 7)

        @torch.compile
        def second(t):
            return scaled(first(t), 8)

        return second(X)

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return scaled(self.linear(x), 2)

    class Outer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return scaled(self.inner(x), 3)

    def compiled_submodule():
        return torch.compile(Outer(torch.compile(Inner())))(X)

    def submodule_compiled_in_place():
        module = Inner()
        module.compile()
        return torch.compile(Outer(module))(X)

    def compiled_forward():
        module = Inner()
        module.forward = torch.compile(module.forward)
        return torch.compile(Outer(module))(X)

    def lazy():
        torch.manual_seed(0)
        model = torch.compile(nn.LazyLinear(4))
        return torch.stack([model(X), model(X)])

    def lazy_inside():
        torch.manual_seed(0)
        return torch.compile(Outer(nn.LazyLinear(4)))(X)

    RUNS = {
        "calls": lambda: outer(X),
        "both": lambda: inner(X) + outer(X),
        "argument": lambda: apply(inner, X),
        "whole": lambda: calls_whole(X),
        "local": local,
        "submodule": compiled_submodule,
        "in_place": submodule_compiled_in_place,
        "forward": compiled_forward,
        "lazy": lazy,
        "lazy_inside": lazy_inside,
    }

    results = {}
    with torch.no_grad():
        for name in names or RUNS:
            if side == "capture":
                try:
                    with precomp.capture(os.path.join(directory, name + ".precomp"), reset=True):
                        result = RUNS[name]()
                    results[name] = result.tolist()
                except precomp.UnsupportedCaptureError as error:
                    results[name] = str(error)
            else:
                with precomp.strict_no_compile():
                    results[name] = RUNS[name]().tolist()
    done(compiler="torch._dynamo.convert_frame" in sys.modules, **results)
"""
REFUSED = {
    "forward": "torch._dynamo.eval_frame.unset is state of its module",
    "lazy_inside": "call the model once before it is compiled",
}


@pytest.fixture(scope="module")
def captured(tmp_path_factory, inductor_cache):
    place = Place(tmp_path_factory.mktemp("nested"), cache=inductor_cache)
    facts = place.script(SCRIPT, "capture", place.root).facts
    del facts["compiler"]
    return place.root, facts


def test_nested_compiled_functions_and_modules_are_served(captured, bare):
    directory, results = captured
    expected = {name: result for name, result in results.items() if name not in REFUSED}
    facts = bare.script(SCRIPT, "serve", directory, *expected).facts
    assert facts == {"compiler": False, **expected}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_by_name(captured, name):
    _, results = captured
    assert REFUSED[name] in results[name]
