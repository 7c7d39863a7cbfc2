"""``Prepared.uninstall`` restores the process exactly."""

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

        def forward(self, x):
            return torch.relu(self.linear(x)) * 1.5
"""

CAPTURE = """
    import torch
    torch.set_num_threads(1)
    import precomp
    from user import Model
    torch.manual_seed(0)
    with precomp.capture(sys.argv[1]):
        y = torch.compile(Model())(torch.ones(4, 8))
    done(y=y.tolist())
"""

# Every attribute of every module of torch, and of the classes in them, by identity.
SNAPSHOT = """
    import torch, types
    torch.set_num_threads(1)
    import precomp
    with precomp.strict_no_compile():
        pass  # what the gate puts up stays, asleep

    def snapshot():
        seen = {}
        for name, module in sorted(sys.modules.items()):
            if name.split(".")[0] not in ("torch", "builtins", "importlib", "sys"):
                continue
            seen[name] = module
            if not isinstance(module, types.ModuleType):
                continue
            for key, value in list(vars(module).items()):
                seen[f"{name}:{key}"] = value
                if isinstance(value, type) and value.__module__ == name:
                    for attribute, item in list(vars(value).items()):
                        seen[f"{name}:{key}.{attribute}"] = item
                if isinstance(value, types.FunctionType):
                    seen[f"{name}:{key} code"] = value.__code__
        seen["finders"] = list(map(id, sys.meta_path))
        seen["path hooks"] = list(map(id, sys.path_hooks))
        seen["eval frame"] = torch._C._dynamo.eval_frame.get_eval_frame_callback()
        return seen

    def changed(before, after):
        return sorted(key for key in before if key not in after or
                      (before[key] is not after[key] and before[key] != after[key]))
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory, inductor_cache):
    place = Place(tmp_path_factory.mktemp("uninstall"), cache=inductor_cache)
    place.write("user.py", MODULE)
    path = place.root / "model.precomp"
    return path, place.script(CAPTURE, path).facts["y"]


def test_everything_is_as_before(artifact, bare):
    path, _ = artifact
    bare.write("user.py", MODULE)
    code = f"""{SNAPSHOT}
    before = snapshot()
    prepared = precomp.prepare(sys.argv[1])
    during = changed(before, snapshot())
    prepared.uninstall()
    done(during=during, after=changed(before, snapshot()))
    """
    facts = bare.script(code, path).facts
    assert facts["during"], "the comparison sees nothing"
    assert facts["after"] == []


def test_after_serving_all_is_as_if_only_torch_itself_had_imported_its_compiler(artifact, bare):
    """torch's C++ keeps an enum of the stand-in, so uninstall makes it the real package."""
    path, y = artifact
    bare.write("user.py", MODULE)
    oracle = f"""{SNAPSHOT}
    from user import Model
    before = snapshot()
    import torch._dynamo
    done(after=changed(before, snapshot()))
    """
    expected = bare.script(oracle, name="oracle.py").facts["after"]
    code = f"""{SNAPSHOT}
    from user import Model
    before = snapshot()
    with precomp.prepare(sys.argv[1]) as prepared:
        torch.manual_seed(0)
        with precomp.strict_no_compile():
            y = torch.compile(Model())(torch.ones(4, 8)).tolist()
    after = changed(before, snapshot())
    done(y=y, after=after, real="torch._dynamo.convert_frame" in sys.modules)
    """
    facts = bare.script(code, path).facts
    assert facts == {"y": y, "after": expected, "real": True}


def test_torch_compiles_as_usual_afterwards(artifact, here):
    path, y = artifact
    here.write("user.py", MODULE)
    code = """
    import torch
    torch.set_num_threads(1)
    import precomp
    from user import Model
    with precomp.prepare(sys.argv[1]):
        torch.manual_seed(0)
        with precomp.strict_no_compile():
            served = torch.compile(Model())(torch.ones(4, 8))
    torch.manual_seed(0)
    compiled = torch.compile(Model())(torch.ones(4, 8))
    from torch._dynamo.utils import counters
    done(served=served.tolist(), compiled=compiled.tolist(),
         frames=counters["frames"]["ok"], type=type(torch.compile(Model())).__module__)
    """
    facts = here.script(code, path).facts
    assert facts == {
        "served": y,
        "compiled": y,
        "frames": 1,
        "type": "torch._dynamo.eval_frame",
    }


def test_uninstall_twice_and_prepare_again(artifact, bare):
    path, y = artifact
    bare.write("user.py", MODULE)
    code = """
    import torch
    torch.set_num_threads(1)
    import precomp
    from user import Model
    results = []
    for _ in range(3):
        prepared = precomp.prepare(sys.argv[1])
        torch.manual_seed(0)
        with precomp.strict_no_compile():
            results.append(torch.compile(Model())(torch.ones(4, 8)).tolist())
        prepared.uninstall()
        prepared.uninstall()
    done(results=results)
    """
    assert bare.script(code, path).facts["results"] == [y] * 3
