"""Changes that torch's own serialised guards accept, with wrong numbers, and what they reject.

torch drops the guards on identities when it saves them (``torch.compile`` with
``caching_precompile``). Here each change is a miss, with its reason, and marked dynamic sizes hit.
"""

from __future__ import annotations

import pytest
from processes import Place

MODULE = """
    import enum, functools, math
    import torch
    from torch import nn
    torch.set_num_threads(1)

    class Mode(enum.Enum):
        PLAIN = 1
        DOUBLE = 2

    MODE = Mode.PLAIN

    def by_mode(x):
        return x * 2 if MODE is Mode.DOUBLE else x + 1

    def by_root(x):
        return x * math.sqrt(4.0)

    def sine(x):
        return x.sin()

    def cosine(x):
        return x.cos()

    def closure(scale, function):
        def inner(x):
            return function(x) * scale
        return inner

    def scaled(x, k, act):
        return act(x) * k

    def apply(function, x):
        return function(x) + 1

    def apply_partial(function, x):
        return function(x) - 1

    def rows(x):
        return x.sin() * 2 if x.shape[0] > 4 else x

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    layer.requires_grad_(False)  # a forward graph only

    def marked(n):
        x = torch.linspace(0, 1, 3 * n).reshape(n, 3)
        torch._dynamo.mark_dynamic(x, 0)
        return x

    X = torch.linspace(0, 1, 8)
    BATCH = torch.linspace(0, 1, 32).reshape(1, 4, 8)
    CALLS = {
        "enum": (by_mode, (X,)),
        "library function": (by_root, (X,)),
        "closure": (apply, (closure(2.0, sine), X)),
        "partial": (apply_partial, (functools.partial(scaled, k=2, act=sine), X)),
        "activation": (layer, (BATCH,)),
        "marked": (rows, (marked(6),)),
    }
    COMPILED = {name: torch.compile(function) for name, (function, _) in CALLS.items()}
"""

CAPTURE = """
    import precomp
    from upstream import CALLS, COMPILED
    with precomp.capture(sys.argv[1]):
        results = {name: COMPILED[name](*args).tolist() for name, (_, args) in CALLS.items()}
    done(results=results)
"""

SERVE = """
    import precomp
    prepared = precomp.prepare(sys.argv[1])
    import functools, math
    import torch
    import upstream
    from upstream import CALLS, COMPILED, X, closure, cosine, scaled, sine

    def attempt(name, args=None):
        try:
            with precomp.strict_no_compile():
                return COMPILED[name](*(args or CALLS[name][1])).tolist()
        except precomp.CompileViolation as violation:
            return violation.why

    served = {name: attempt(name) for name in CALLS}
    changed = {}
    upstream.MODE = upstream.Mode.DOUBLE
    changed["enum"] = attempt("enum")
    upstream.MODE = upstream.Mode.PLAIN

    root, math.sqrt = math.sqrt, lambda value: 3.0
    changed["library function"] = attempt("library function")
    math.sqrt = root

    changed["closure"] = attempt("closure", (closure(2.0, cosine), X))
    changed["partial"] = attempt("partial", (functools.partial(scaled, k=2, act=cosine), X))

    activation, upstream.layer.activation = upstream.layer.activation, torch.nn.functional.gelu
    changed["activation"] = attempt("activation")
    upstream.layer.activation = activation
    again = {name: attempt(name) for name in CALLS}

    sizes = {n: attempt("marked", (upstream.marked(n),)) for n in (5, 9)}
    plain = torch.linspace(0, 1, 21).reshape(7, 3)
    sizes["unmarked"] = attempt("marked", (plain,))
    expected = {n: (upstream.marked(n).sin() * 2).tolist() for n in (5, 9)}
    expected["unmarked"] = (plain.sin() * 2).tolist()
    compiler = "torch._dynamo.convert_frame" in sys.modules

    # Another function of the module that needs the dict of builtins, compiled by torch afterwards.
    exec("def other(x):\\n    return x + len([1, 2]) + sum([3])", vars(upstream))
    other = torch.compile(upstream.other, backend="eager")(X).tolist()
    after = {name: attempt(name) for name in CALLS}
    done(served=served, changed=changed, again=again, after=after, sizes=sizes, expected=expected,
         compiler=compiler, other=other == (X + 5).tolist())
"""

# What the reason of each change has to name.
REASONS = {
    "enum": ("MODE", "Mode.DOUBLE"),
    "library function": ("sqrt",),
    "closure": ("function", "cosine"),
    "partial": ("act", "cosine"),
    "activation": ("activation",),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory, inductor_cache):
    root = tmp_path_factory.mktemp("upstream")
    artifact = root / "upstream.precomp"
    sides = []
    for name, code, compiler in (("here", CAPTURE, True), ("bare", SERVE, False)):
        place = Place(root / name, compiler=compiler, cache=inductor_cache if compiler else None)
        place.write("upstream.py", MODULE)
        sides.append(place.script(code, artifact).facts)
    return sides


def test_every_call_is_served_with_the_captured_result(both):
    captured, facts = both
    assert facts["served"] == captured["results"]
    assert not facts["compiler"]


@pytest.mark.parametrize("change", REASONS)
def test_change_is_a_miss_never_a_wrong_result(both, change):
    _, facts = both
    why = facts["changed"][change]
    assert isinstance(why, str), "served though the program has changed"
    assert [word for word in REASONS[change] if word not in why] == [], why


def test_original_is_served_again(both):
    captured, facts = both
    assert facts["again"] == captured["results"]


def test_marked_dynamic_sizes_hit(both):
    _, facts = both
    assert facts["sizes"] == facts["expected"]


def test_another_function_of_the_module_compiles_beside(both):
    captured, facts = both
    assert facts["other"] and facts["after"] == captured["results"]
