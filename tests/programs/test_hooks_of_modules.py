"""Hooks that are added after the capture do in a prepared process what they do in torch.compile."""

from __future__ import annotations

import pytest
from processes import Place

CODE = """
    import warnings
    import torch
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    import precomp
    side, artifact = sys.argv[1:]
    if side == "serve":
        precomp.prepare(artifact)
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).requires_grad_(False)
    compiled = torch.compile(model)
    x = torch.ones(2, 4)
    results = {}

    def hooked(name, register, function):
        handle = register(function)
        results[name] = compiled(x).tolist()
        handle.remove()
        results[name + ", removed"] = compiled(x).tolist()

    def double(module, arguments, output):
        return output * 2

    def double_first(module, arguments):
        return (arguments[0] * 2,)

    def all_hooks():
        hooked("inner", model[0].register_forward_hook, double)
        hooked("outer", model.register_forward_hook, double)
        hooked("outer before", model.register_forward_pre_hook, double_first)
        hooked("compiled", compiled.register_forward_hook, double)
        hooked("all modules", nn.modules.module.register_module_forward_hook, double)
        hooked("before all", nn.modules.module.register_module_forward_pre_hook, double_first)

    if side == "capture":
        with precomp.capture(artifact):
            results["none"] = compiled(x).tolist()
        all_hooks()
    else:
        with precomp.strict_no_compile():
            results["none"] = compiled(x).tolist()
            all_hooks()
    done(results=results)
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory, inductor_cache):
    root = tmp_path_factory.mktemp("hooks")
    here = Place(root / "here", cache=inductor_cache)
    bare = Place(root / "bare", compiler=False)
    artifact = root / "hooks.precomp"
    captured = here.script(CODE, "capture", artifact).facts["results"]
    return captured, bare.script(CODE, "serve", artifact).facts["results"]


def test_results_are_those_of_torch_compile(both):
    captured, served = both
    assert served == captured


def test_hooks_that_act_are_among_them(both):
    _, served = both
    acting = [name for name in served if served[name] != served["none"]]
    assert acting == ["compiled", "all modules", "before all"]
