"""Without the strict gate a call that is not in the artifact is compiled by torch, as usual."""

from __future__ import annotations

import pytest
from processes import Place

MODULE = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.scale = 1.5

        def forward(self, x):
            return torch.relu(self.linear(x)) * self.scale

    def other(t):
        return t.sin().sum() * 3
"""

CAPTURE = """
    import torch
    torch.set_num_threads(1)
    import precomp
    from user import Model
    torch.manual_seed(0)
    model = torch.compile(Model())
    with precomp.capture(sys.argv[1]):
        y = model(torch.ones(4, 8))
        y.sum().backward()
    done(y=y.tolist())
"""

SERVE = """
    import torch
    torch.set_num_threads(1)
    import precomp
    prepared = precomp.prepare(sys.argv[1])
    from user import Model, other
    torch.manual_seed(0)
    model = Model()
    compiled = torch.compile(model)
    x = torch.ones(4, 8)
    first = compiled(x)
    facts = {"served": first.tolist(), "before": "torch._dynamo.convert_frame" in sys.modules}

    shorter = compiled(torch.ones(3, 8))
    facts["after"] = "torch._dynamo.convert_frame" in sys.modules
    facts["shorter"] = torch.allclose(shorter, model(torch.ones(3, 8)), atol=1e-5)
    from torch._dynamo.utils import counters
    facts["frames"] = counters["frames"]["total"]

    facts["again"] = torch.equal(compiled(x), first)
    for n in (5, 6):
        long = compiled(torch.ones(n, 8))
        facts[f"rows {n}"] = torch.allclose(long, model(torch.ones(n, 8)), atol=1e-5)
    model.zero_grad()
    long.sum().backward()
    facts["gradient"] = model.linear.weight.grad is not None
    f = torch.compile(other)
    facts["other"] = torch.allclose(f(x), other(x))
    model.scale = 2.5
    facts["attribute"] = torch.allclose(compiled(x), model(x), atol=1e-5)
    model.scale = 1.5
    facts["at the end"] = torch.equal(compiled(x), first)
    facts["coverage"] = str(prepared.coverage())
    facts["report"] = str(prepared.report())
    done(**facts)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory, inductor_cache):
    place = Place(tmp_path_factory.mktemp("loose"), cache=inductor_cache)
    place.write("user.py", MODULE)
    artifact = place.root / "loose.precomp"
    captured = place.script(CAPTURE, artifact).facts
    return captured, place.script(SERVE, artifact).facts


def test_captured_call_is_served_without_the_compiler(runs):
    captured, served = runs
    assert served["served"] == captured["y"]
    assert served["before"] is False


def test_missing_call_is_compiled_by_torch(runs):
    _, served = runs
    assert served["after"] is True
    assert served["shorter"]
    assert served["frames"] >= 1


def test_new_entries_and_frozen_entries_live_side_by_side(runs):
    _, served = runs
    assert served["again"]
    assert served["at the end"]
    assert served["attribute"]


def test_automatic_dynamic_shapes_and_backward_work(runs):
    _, served = runs
    assert served["rows 5"] and served["rows 6"]
    assert served["gradient"]


def test_a_function_that_was_never_captured_is_compiled(runs):
    assert runs[1]["other"]


def test_coverage_and_report_name_what_was_missing(runs):
    _, served = runs
    assert "forward" in served["coverage"] + served["report"]
