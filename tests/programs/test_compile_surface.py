"""What users see of torch.compile is the same in a prepared process as in torch's own.

One script prints everything it can see of it; it runs under torch (captured) and prepared, and both
have to print the same.
"""

from __future__ import annotations

import pytest
from processes import Place, differences

CODE = """
    import copy, functools, inspect, io, pickle
    import torch
    from torch import nn
    torch.set_num_threads(1)
    import precomp
    side, artifact = sys.argv[1:3]
    prepared = precomp.prepare(artifact) if side == "serve" else None
    from user import Model, Methods, plain

    seen = {}

    def error(call):
        try:
            call()
        except Exception as e:
            return f"{type(e).__name__}: {str(e).splitlines()[0][:100]}"
        return "no error"

    def look():
        torch.manual_seed(0)
        x = torch.linspace(-1, 1, 32).reshape(4, 8)
        seen["signature"] = str(inspect.signature(torch.compile))
        seen["name"] = [torch.compile.__name__, torch.compile.__module__,
                        (torch.compile.__doc__ or "")[:80]]

        # a module
        model = Model()
        compiled = torch.compile(model)
        seen["module type"] = type(compiled).__name__
        seen["bases"] = [c.__name__ for c in type(compiled).__mro__]
        seen["is module"] = isinstance(compiled, nn.Module)
        seen["keys"] = sorted(compiled.state_dict())
        seen["parameters"] = [n for n, _ in compiled.named_parameters()]
        seen["modules"] = [n for n, _ in compiled.named_modules()]
        seen["children"] = [n for n, _ in compiled.named_children()]
        seen["original"] = compiled._orig_mod is model
        seen["attribute"] = [compiled.scale, compiled.linear is model.linear, compiled.training]
        compiled.scale = 2.0
        seen["set through"] = [model.scale, "scale" in vars(compiled)]
        compiled.scale = 1.5
        seen["missing"] = error(lambda: compiled.nothing)
        seen["dir"] = sorted(n for n in dir(compiled) if not n.startswith("_"))
        seen["repr"] = repr(compiled)
        seen["out"] = compiled(x).tolist()
        seen["keyword"] = compiled(x=x).tolist()
        seen["too many"] = error(lambda: compiled(x, x, x))
        seen["forward"] = compiled.forward(x).tolist()
        seen["call"] = compiled.__call__(x).tolist()
        seen["eval"] = [compiled.eval() is compiled, model.training, compiled.training]
        seen["train"] = [compiled.train() is compiled, model.training]
        seen["to"] = compiled.to(torch.float32) is compiled
        seen["len"] = error(lambda: len(compiled))
        seen["greet"] = compiled.greet("you")
        fresh = torch.compile(Model())
        seen["load"] = str(fresh.load_state_dict(compiled.state_dict()))
        seen["loaded"] = torch.equal(fresh(x), compiled(x))
        seen["module signature"] = str(inspect.signature(compiled.forward))
        hooks = []
        handle = model.register_forward_hook(lambda m, a, o: hooks.append(type(m).__name__))
        handle.remove()

        # copies and pickles
        twin = copy.deepcopy(compiled)
        seen["copy"] = [type(twin).__name__, twin._orig_mod is not model,
                        torch.equal(twin(x), compiled(x))]
        again = pickle.loads(pickle.dumps(compiled))
        seen["pickle"] = [type(again).__name__, again._orig_mod is not model,
                          torch.equal(again(x), compiled(x)), sorted(again.state_dict())]
        buffer = io.BytesIO()
        torch.save(compiled, buffer)
        buffer.seek(0)
        saved = torch.load(buffer, weights_only=False)
        seen["saved"] = [type(saved).__name__, torch.equal(saved(x), compiled(x))]
        buffer = io.BytesIO()
        torch.save(compiled.state_dict(), buffer)
        buffer.seek(0)
        seen["saved keys"] = sorted(torch.load(buffer))

        # a module compiled in place
        inside = Model()
        seen["in place"] = [inside.compile(), type(inside).__name__, sorted(inside.state_dict())]
        inside.load_state_dict(model.state_dict())
        seen["in place out"] = torch.equal(inside(x), compiled(x))
        twin = copy.deepcopy(inside)
        seen["in place copy"] = torch.equal(twin(x), compiled(x))
        again = pickle.loads(pickle.dumps(inside))
        seen["in place pickle"] = torch.equal(again(x), compiled(x))

        # functions and methods
        for name, form in {
            "call": lambda f: torch.compile(f),
            "decorator": lambda f: torch.compile()(f),
            "fullgraph": lambda f: torch.compile(fullgraph=True)(f),
            "dynamic": lambda f: torch.compile(f, dynamic=False),
            "mode": lambda f: torch.compile(f, mode="default"),
            "options": lambda f: torch.compile(f, options={"epilogue_fusion": False}),
            "model keyword": lambda f: torch.compile(model=f),
            "disabled": lambda f: torch.compile(f, disable=True),
        }.items():
            g = form(plain)
            seen[f"function {name}"] = [
                g.__name__, g.__doc__, g.__module__, g.__qualname__, str(inspect.signature(g)),
                getattr(g, "__wrapped__", None) is plain, inspect.isfunction(g), callable(g),
                g(x).tolist(), g(x, k=3.0).tolist(), error(lambda g=g: g(x, wrong=1)),
            ]
        f = torch.compile(plain)
        seen["function original"] = getattr(f, "_torchdynamo_orig_callable", None) is plain
        seen["function twice"] = torch.compile(f)(x).tolist()
        seen["lambda"] = torch.compile(lambda t: t + 41)(x).tolist()
        seen["partial"] = torch.compile(functools.partial(plain, k=5.0))(x).tolist()
        m = Methods()
        seen["method"] = [m.method(x).tolist(), Methods.method(m, x).tolist(),
                          Methods.static(x).tolist(), m.static(x).tolist(),
                          Methods.klass(x).tolist(), m.klass(x).tolist(),
                          torch.compile(m.bare)(x).tolist(), m.method.__name__,
                          m.method.__self__ is m]
        seen["copy of function"] = copy.deepcopy(f) is f

        # errors
        seen["bad backend"] = error(lambda: torch.compile(plain, backend="nonesuch")(x))
        seen["mode and options"] = error(
            lambda: torch.compile(plain, mode="default", options={"a": 1}))
        seen["bad mode"] = error(lambda: torch.compile(plain, mode="nonesuch"))
        seen["bad option"] = error(lambda: torch.compile(plain, options={"nonesuch": 1}))
        seen["not callable"] = error(lambda: torch.compile(3))

        # torch.compiler
        seen["is_compiling"] = torch.compiler.is_compiling()
        seen["disable"] = torch.compiler.disable(plain)(x).tolist()
        seen["disable name"] = torch.compiler.disable(plain).__name__
        seen["backends"] = "inductor" in torch.compiler.list_backends()

    LOOK
"""

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

        def greet(self, name):
            return f"{type(self).__name__} {name}"

    def plain(t, k=2.0):
        "Doc of plain."
        return t.cos() * k

    class Methods:
        factor = 3.0

        @torch.compile
        def method(self, t):
            return t * self.factor

        @staticmethod
        @torch.compile
        def static(t):
            return t * 5

        @classmethod
        @torch.compile
        def klass(cls, t):
            return t * cls.factor + 1

        def bare(self, t):
            return t - self.factor
"""

CAPTURE = """
    with precomp.capture(artifact):
        look()
    done(seen=seen)
"""
SERVE = """
    look()
    done(seen=seen)
"""

# These ask torch's compiler something (an error text, a list of its parts), so it may be imported.
ASKS_THE_COMPILER = ("bad backend", "bad mode", "bad option", "backends")


def code(tail: str) -> str:
    return CODE.replace("LOOK", tail.strip())


@pytest.fixture(scope="module")
def surfaces(tmp_path_factory, inductor_cache):
    place = Place(tmp_path_factory.mktemp("surface"), cache=inductor_cache)
    place.write("user.py", MODULE)
    artifact = place.root / "surface.precomp"
    expected = place.script(code(CAPTURE), "capture", artifact, name="surface.py").facts["seen"]
    found = place.script(code(SERVE), "serve", artifact, name="surface.py").facts["seen"]
    return artifact, expected, found


def test_everything_seen_is_the_same(surfaces):
    _, expected, found = surfaces
    assert differences(expected, found) == []


def test_nothing_of_it_imports_the_compiler(surfaces, bare):
    artifact, expected, _ = surfaces
    bare.write("user.py", MODULE)
    lines = [
        line
        for line in code(SERVE).splitlines()
        if not any(f'seen["{name}"]' in line for name in ASKS_THE_COMPILER)
    ]
    tail = """
    look()
    done(seen=seen, compiler=[m for m in ("torch._dynamo.convert_frame",
         "torch._inductor.compile_fx", "sympy", "triton") if m in sys.modules],
         report=str(prepared.report()))
    """
    text = "\n".join(lines).replace(SERVE.strip(), tail.strip())
    facts = bare.script(text, "serve", artifact, name="surface.py").facts
    assert facts["compiler"] == [], facts["report"]
    kept = {name: value for name, value in expected.items() if name not in ASKS_THE_COMPILER}
    assert differences(kept, facts["seen"]) == []
