"""Compiled optimizer steps: captured in one process, served in others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from processes import Place, differences
from torches import OLD

pytestmark = pytest.mark.skipif(OLD, reason="refused there (docs/limitations.md)")
HERE = Path(__file__).parent
SOURCE = HERE / "optimizers.py"
NAMES = [
    node.name
    for node in ast.parse(SOURCE.read_text()).body
    if isinstance(node, ast.FunctionDef) and not node.args.args
]

HEAD = """
    import gc, sys, weakref
    import torch
    torch.set_num_threads(1)
    import precomp
    sys.path[:0] = ["modules", sys.argv[2]]
    from runner import plain
"""

CAPTURE = f"""{HEAD}
    from optimizers import OPTIMIZERS
    compiled, captured = {{}}, {{}}
    for name, run in OPTIMIZERS.items():
        torch._dynamo.reset()
        compiled[name] = plain(torch, run())
    with precomp.capture(reset=True) as capture:
        for name, run in OPTIMIZERS.items():
            torch._dynamo.reset()
            captured[name] = plain(torch, run())
    artifact = capture.finalize(sys.argv[1])
    done(compiled=compiled, captured=captured)
"""

SERVE = f"""{HEAD}
    prepared = precomp.prepare(sys.argv[1])
    from optimizers import OPTIMIZERS
    served, errors = {{}}, {{}}
    for name, run in OPTIMIZERS.items():
        try:
            with precomp.strict_no_compile():
                served[name] = plain(torch, run())
        except precomp.CompileViolation as violation:
            errors[name] = str(violation)
    done(served=served, errors=errors, report=str(prepared.report()),
         compiler=[m for m in ("torch._dynamo.convert_frame", "sympy") if m in sys.modules])
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory, inductor_cache):
    place = Place(tmp_path_factory.mktemp("optimizers"), cache=inductor_cache)
    artifact = place.root / "optimizers.precomp"
    facts = place.script(CAPTURE, artifact, HERE, timeout=900).facts
    return artifact, facts


@pytest.fixture(scope="module")
def served(captured, tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("served"), compiler=False)
    return place.script(SERVE, captured[0], HERE).facts


def test_capturing_does_not_change_the_results(captured):
    _, facts = captured
    assert differences(facts["compiled"], facts["captured"]) == []


@pytest.mark.parametrize("name", NAMES)
def test_served_bit_identical(captured, served, name):
    assert served["errors"].get(name) is None
    assert differences(captured[1]["captured"][name], served["served"][name]) == []


def test_served_without_the_compiler(served):
    assert served["compiler"] == [], served["report"]


OTHERS = f"""{HEAD}
    prepared = precomp.prepare(sys.argv[1])
    from torch import nn, optim
    from optimizers import gradients, model

    def names():
        modules = (sys.modules["torch.optim.adam"], sys.modules["torch.optim.optimizer"])
        return sorted(name for module in modules for name in vars(module) if "__pc" in name)

    def live(net, make=lambda p: optim.Adam(p, lr=0.01)):
        optimizer = make(list(net.parameters()))
        gradients(net, 0)
        torch.compile(optimizer.step)()
        return optimizer

    def reason(net, **options):
        try:
            with precomp.strict_no_compile():
                live(net, **options)
        except precomp.CompileViolation as violation:
            return violation.why
        return "served"

    def strided():
        net = model()
        with torch.no_grad():
            net[0].weight.data = net[0].weight.data.t().contiguous().t()
        return net

    def sharing():
        net = model()
        flat = torch.zeros(64)
        net[0].weight.data = flat[:32].view(8, 4)
        net[0].bias.data = flat[:8]
        return net

    class Other(optim.Adam):
        pass

    def frozen_layer():
        net = model()
        for p in net[0].parameters():
            p.requires_grad_(False)
        return net

    why = dict(
        fits=reason(model()),
        shape=reason(nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3))),
        strides=reason(strided()),
        storage=reason(sharing()),
        kind=reason(model(), make=lambda p: Other(p, lr=0.01)),
        fewer=reason(model(), make=lambda p: optim.Adam(p[:2], lr=0.01)),
        hyperparameter=reason(model(), make=lambda p: optim.Adam(p, lr=0.01, eps=0.5)),
        no_gradient=reason(frozen_layer()),
    )

    # Nothing that was served keeps the objects of the program alive.
    net = model()
    with precomp.strict_no_compile():
        optimizer = live(net)
    bound = names()
    parts = [optimizer, *net.parameters(), *optimizer.state[net[0].weight].values()]
    dead = [weakref.ref(part) for part in parts]
    state = optimizer.state[net[0].weight]
    del net, optimizer, parts
    gc.collect()
    kept = [reference() is not None for reference in dead]
    del state
    gc.collect()
    done(why=why, bound=len(bound), kept=kept, left=[r() is not None for r in dead],
         names=names(), again=reason(model()))
"""


@pytest.fixture(scope="module")
def others(captured, tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("others"), compiler=False)
    return place.script(OTHERS, captured[0], HERE).facts


REASONS = {
    "shape": "L['self'].param_groups[0]['params'][0]: shape expected (8, 4), found (9, 4)",
    "strides": "L['self'].param_groups[0]['params'][0]: stride expected (4, 1), found (1, 8)",
    "storage": "shares its storage with another tensor",
    "kind": "L['args'][0]: expected Adam, found Other",
    "fewer": "L['self'].param_groups[0]['params'][2]: not there",
    "hyperparameter": "L['self'].param_groups[0]['eps'] == 1e-08, found 0.5",
    "no_gradient": "L['self'].param_groups[0]['params'][0]: requires_grad expected True",
}


@pytest.mark.parametrize("name", REASONS)
def test_other_objects_are_refused_with_the_reason(others, name):
    assert others["why"]["fits"] == "served"
    assert REASONS[name] in others["why"][name]


def test_what_was_served_keeps_nothing_alive(others):
    assert others["bound"] > len(others["names"])
    assert others["kept"] == [False] * 5 + [True] * 3
    assert not any(others["left"])
    assert not any("__pc_plan" in name or "__pc_weak" in name for name in others["names"])
    assert others["again"] == "served"


LATE = f"""{HEAD}
    from torch import optim
    from optimizers import gradients, model, values
    import torch._dynamo
    made = model()
    optimizer = optim.Adam(made.parameters(), lr=0.01)
    early = torch.compile(optimizer.step)
    prepared = precomp.prepare(sys.argv[1])
    seen = []

    def steps(net, step):
        for i in range(2):
            gradients(net, i)
            step()
            seen.append(plain(torch, values(net)))

    with precomp.strict_no_compile():
        steps(made, early)
        reference = weakref.ref(optimizer)
        del made, optimizer, early
        gc.collect()
        net = model(1)
        steps(net, torch.compile(optim.Adam(net.parameters(), lr=0.01).step))
    # torch's own compiler goes on beside served and ended entries of the same code
    net = model()
    steps(net, torch.compile(optim.Adam(net.parameters(), lr=0.02).step, backend="eager"))
    done(seen=seen, gone=reference() is None)
"""


def test_an_optimizer_made_before_prepare_with_the_compiler_loaded(captured, here):
    artifact, facts = captured
    late = here.script(LATE, artifact, HERE).facts
    first = facts["captured"]["two_models"][0]
    # two_models takes turns: the steps of the first model, then of the second
    assert differences([first[0], first[2], first[1], first[3]], late["seen"][:4]) == []
    assert late["gone"] and len(late["seen"]) == 6


EDITED = f"""{HEAD}
    precomp.prepare(sys.argv[1])
    from optimizers import own_optimizer
    try:
        with precomp.strict_no_compile():
            own_optimizer()
        why = "served"
    except precomp.CompileViolation as violation:
        why = violation.why
    done(why=why)
"""


def test_an_edited_init_group_is_stale(captured, bare):
    (bare.work / "modules").mkdir()
    edited = SOURCE.read_text().replace("0.5)", "0.25)")
    (bare.work / "modules" / "optimizers.py").write_text(edited)
    why = bare.script(EDITED, captured[0], HERE).facts["why"]
    assert "_init_group" in why and "changed" in why


# As if parameters were on a GPU, for all that Dynamo asks of them by this name.
LIKE_A_GPU = f"""{HEAD}
    import contextlib
    torch.nn.Parameter.is_cuda = property(lambda parameter: True)
    from torch import optim
    from optimizers import model, train
    artifact, _, side = sys.argv[1:]
    if side == "capture":
        around = precomp.capture(artifact, reset=True)
    else:
        precomp.prepare(artifact)
        around = precomp.strict_no_compile()
    net = model()
    groups = [{{"params": net[0].parameters(), "lr": 0.1}}, {{"params": net[2].parameters()}}]
    optimizer = optim.Adam(groups, lr=0.01)
    before = [group["capturable"] for group in optimizer.param_groups]
    with around:
        seen = plain(torch, train(net, optimizer))
    after = [group["capturable"] for group in optimizer.param_groups]
    done(seen=seen, before=before, after=after)
"""


def test_an_optimizer_on_a_gpu_becomes_capturable_as_compiling_makes_it(here, bare):
    artifact = here.root / "capturable.precomp"
    captured = here.script(LIKE_A_GPU, artifact, HERE, "capture").facts
    served = bare.script(LIKE_A_GPU, artifact, HERE, "serve").facts
    assert (captured["before"], captured["after"]) == ([False, False], [True, True])
    assert (served["before"], served["after"]) == ([False, False], [True, True])
    assert differences(captured["seen"], served["seen"]) == []
