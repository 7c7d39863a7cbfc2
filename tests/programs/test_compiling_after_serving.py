"""What an artifact installs collides with nothing that torch compiles later in the same process."""

from __future__ import annotations

import pytest
from processes import Place

MODULE = """
    import math

    import torch

    COUNT = 3

    def scaled(t, k):
        return torch.addmm(t, t, t, beta=k, alpha=0)

    def f(x):
        y = scaled(x, 2)
        print(end="")  # a graph break: a resume function
        return scaled(y, COUNT)

    def g(x):
        y = scaled(x, 3)
        print(end="")
        z = scaled(y, 4)
        print(end="")
        return scaled(z, math.sqrt(4))

    def h(x, n):
        y = scaled(x, n)
        print(end="")
        return y

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x)
            print(end="")
            return scaled(y, 5)
"""
SCRIPT = """
    import torch
    torch.set_num_threads(1)
    import precomp
    import user

    directory = sys.argv[2]
    X = torch.linspace(0, 1, 16).view(4, 4)

    def path(name):
        return os.path.join(directory, name + ".precomp")

    def run(*names):
        arguments = {"h": (2,)}
        with torch.no_grad():
            for name in names:
                function = user.Model() if name == "Model" else getattr(user, name)
                found = torch.compile(function)(X, *arguments.get(name, ()))
                assert torch.equal(found, function(X, *arguments.get(name, ()))), name

    def capture(name, *names):
        with precomp.capture(path(name), reset=True) as recorded:
            run(*names)
        return sorted(recorded.report().frames)

    def served(*names):
        with precomp.strict_no_compile():
            run(*names)

    def frames(*names):
        entries = [entry for name in names for entry in precomp.Artifact.open(path(name)).entries]
        return sorted(entry.digest for entry in entries if entry.kind == "frame")

    if sys.argv[1] == "capture":
        capture("f", "f")
        capture("g", "g", "Model")
        done(f=frames("f"), g=frames("g"))
    else:
        steps = {}
        before = set(vars(user))
        first = precomp.prepare(path("f"))
        served("f")
        steps["installed"] = sorted(set(vars(user)) - before)
        run("g", "h", "Model", "h")  # torch compiles them, in the same module
        served("f")
        torch._dynamo.reset()
        served("f")
        run("g", "Model")
        second = precomp.prepare(path("g"))
        served("f", "g", "Model")
        steps["captured while prepared"] = capture("h", "f", "h")
        served("f", "g", "Model")
        first.uninstall()
        served("g")
        second.uninstall()
        run("f", "g", "h", "Model")
        capture("f again", "f")
        capture("g again", "g", "Model")
        steps["f"], steps["g"] = frames("f again"), frames("g again")
        precomp.prepare(path("f again")), precomp.prepare(path("g again"))
        served("f", "g", "Model")
        steps["alien"] = sorted(n for n in set(vars(user)) - before if not n.startswith("__"))
        done(**steps)
"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory, inductor_cache):
    place = Place(tmp_path_factory.mktemp("later"), cache=inductor_cache)
    place.write("user.py", MODULE)
    captured = place.script(SCRIPT, "capture", place.root).facts
    return captured, place.script(SCRIPT, "serve", place.root).facts


def test_torch_compiles_captures_and_resets_beside_what_is_served(facts):
    _, steps = facts
    assert steps["alien"] == []


def test_names_that_are_installed_are_the_artifacts_own(facts):
    _, steps = facts
    assert steps["installed"]
    assert all(name.startswith("__pc_") for name in steps["installed"]), steps["installed"]


def test_a_capture_in_a_prepared_process_records_what_the_artifact_lacks(facts):
    _, steps = facts
    assert steps["captured while prepared"] == ["h"]


def test_a_capture_after_serving_freezes_to_the_same_entries(facts):
    captured, steps = facts
    assert {name: steps[name] for name in captured} == captured
