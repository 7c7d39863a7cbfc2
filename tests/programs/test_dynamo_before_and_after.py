"""User code may import torch._dynamo before or after prepare: it works, and serving goes on."""

from __future__ import annotations

import pytest
from processes import Place

MODULE = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.b = nn.Linear(8, 2)

        def forward(self, x):
            h = torch.relu(self.a(x))
            torch._dynamo.graph_break()
            return self.b(h).tanh()

    def train(compiled, model, steps=3):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses = []
        for i in range(steps):
            x = torch.linspace(-1, 1, 32).reshape(4, 8) * (i + 1)
            loss = compiled(x).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def run():
        torch.manual_seed(0)
        model = Model()
        return train(torch.compile(model), model)

    def other(t):
        return t.sin().sum() * 3
"""

CAPTURE = """
    import torch
    torch.set_num_threads(1)
    import precomp
    import user
    with precomp.capture(sys.argv[1]):
        losses = user.run()
    done(losses=losses)
"""

SERVE = """
    import torch
    torch.set_num_threads(1)
    import precomp
    BEFORE
    prepared = precomp.prepare(sys.argv[1])
    AFTER
    import user
    with precomp.strict_no_compile():
        losses = user.run()
    MORE
    done(losses=losses, compiled="torch._dynamo.convert_frame" in sys.modules)
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory, inductor_cache):
    place = Place(tmp_path_factory.mktemp("dynamo"), cache=inductor_cache)
    place.write("user.py", MODULE)
    path = place.root / "dynamo.precomp"
    return path, place.script(CAPTURE, path).facts["losses"]


def serve(place, path, before="pass", after="pass", more=("pass",)):
    place.write("user.py", MODULE)
    code = SERVE.replace("BEFORE", before).replace("AFTER", after)
    return place.script(code.replace("MORE", "\n    ".join(more)), path).facts


LIGHT = {
    "import torch._dynamo": "import torch._dynamo",
    "torch._dynamo.config": "import torch._dynamo; torch._dynamo.config.recompile_limit = 16",
    "from torch._dynamo import config": "from torch._dynamo import config",
    "torch._dynamo.disable": "import torch._dynamo; torch._dynamo.disable(lambda: None)()",
    "torch.compiler.disable": "torch.compiler.disable(lambda: None)()",
    "torch._dynamo.mark_dynamic": "import torch._dynamo; torch._dynamo.mark_dynamic",
}

HEAVY = {
    "torch._dynamo.utils.counters": "from torch._dynamo.utils import counters",
    "torch._dynamo.guards": "import torch._dynamo.guards",
    "torch._dynamo.eval_frame": "import torch._dynamo.eval_frame as e; e.innermost_fn",
    "torch._dynamo.reset": "import torch._dynamo; torch._dynamo.reset()",
    "torch._inductor.compile_fx": "import torch._inductor.compile_fx",
    "torch._dynamo.explain": "import torch._dynamo; torch._dynamo.explain",
}


@pytest.mark.parametrize("use", LIGHT)
@pytest.mark.parametrize("when", ("after", "before and after"))
def test_light_use_of_dynamo_stays_light(artifact, bare, use, when):
    """What users write every day does not import the compiler, when prepare came first."""
    path, losses = artifact
    if when == "before and after":
        facts = serve(bare, path, before=LIGHT[use], after=LIGHT[use])
    else:
        facts = serve(bare, path, after=LIGHT[use])
        assert facts["compiled"] is False
    assert facts["losses"] == losses


@pytest.mark.parametrize("use", HEAVY)
@pytest.mark.parametrize("when", ("before", "after"))
def test_any_part_of_the_compiler_may_be_imported(artifact, bare, use, when):
    path, losses = artifact
    assert serve(bare, path, **{when: HEAVY[use]})["losses"] == losses


def test_torch_compile_called_before_prepare(artifact, bare):
    path, losses = artifact
    before = "import user; torch.manual_seed(0); m = user.Model(); c = torch.compile(m)"
    facts = serve(bare, path, before=before, more=["losses = user.train(c, m)"])
    assert facts["losses"] == losses


def test_reset_after_serving_serves_again(artifact, bare):
    path, losses = artifact
    more = [
        "import torch._dynamo",
        "torch._dynamo.reset()",
        "with precomp.strict_no_compile():",
        "    assert user.run() == losses",
    ]
    assert serve(bare, path, more=more)["losses"] == losses


def test_modules_are_the_same_objects_after_the_compiler_arrived(artifact, bare):
    path, losses = artifact
    more = [
        "import torch._dynamo",
        "early = torch._dynamo",
        "import importlib",
        "guards = importlib.import_module('torch._dynamo.guards')",
        "assert torch._dynamo is early is sys.modules['torch._dynamo']",
        "assert torch._dynamo.guards is guards is sys.modules['torch._dynamo.guards']",
        "assert guards.__spec__.name == 'torch._dynamo.guards'",
        "assert importlib.import_module('torch._inductor.config') is torch._inductor.config",
    ]
    assert serve(bare, path, more=more)["losses"] == losses


def test_other_functions_compile_next_to_the_served_one(artifact, here):
    path, losses = artifact
    more = [
        "x = torch.linspace(0, 1, 32).reshape(4, 8)",
        "import torch._dynamo",
        "g = torch._dynamo.optimize('inductor')(user.other)",
        "assert torch.allclose(g(x), user.other(x))",
        "h = torch.compile(user.other, dynamic=True)",
        "assert torch.allclose(h(x[:2]), user.other(x[:2]))",
        "eager = torch.compile(user.Model(), backend='eager')",
        "eager(x)",
        "with precomp.strict_no_compile():",
        "    assert user.run() == losses",
        "torch._dynamo.reset()",
        "with precomp.strict_no_compile():",
        "    assert user.run() == losses",
    ]
    assert serve(here, path, more=more)["losses"] == losses


def test_another_backend_is_not_served(artifact, here):
    """backend="eager" on the same class is compiled by torch with that backend, not served."""
    path, losses = artifact
    more = [
        "seen = []",
        "def backend(graph, inputs):",
        "    seen.append(graph)",
        "    return graph.forward",
        "torch.compile(user.Model(), backend=backend)(torch.ones(4, 8))",
        "assert seen",
    ]
    assert serve(here, path, more=more)["losses"] == losses
