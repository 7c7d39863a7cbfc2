"""What users see of torch.compile is the same in a prepared process as in torch's own.

One script prints everything it can see of it. It runs under torch (captured) and prepared, in a
place without a compiler, and both have to print the same: first what needs no compiler of torch,
which must not be imported then, then what does.
"""

from __future__ import annotations

import textwrap

import pytest
from processes import Place, differences

CODE = """
    import copy, functools, inspect, io, pickle, re, warnings
    import torch
    from torch import nn
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    import precomp
    side, artifact = sys.argv[1:3]
    prepared = precomp.prepare(artifact) if side == "serve" else None
    import user
    from user import Model, Methods, plain

    seen = {}

    def error(call):
        try:
            call()
        except Exception as e:
            return f"{type(e).__name__}: {e}"
        return "no error"

    import torch._dynamo
    torch._dynamo.config.recompile_limit = 64  # so many callables share one wrapper

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
        seen["dir"] = sorted(dir(compiled))
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
        seen["bad mode"] = error(lambda: torch.compile(plain, mode="nonesuch"))
        seen["bad mode type"] = error(lambda: torch.compile(plain, mode=3))
        seen["bad option"] = error(lambda: torch.compile(plain, options={"nonesuch": 1}))
        seen["bad option type"] = error(lambda: torch.compile(plain, options={"max_autotune": 3}))
        seen["options no dict"] = error(lambda: torch.compile(plain, options=3))
        seen["empty options"] = torch.compile(plain, options={})(x).tolist()
        seen["option with dash"] = error(lambda: torch.compile(plain, options={"max-autotune": 3}))
        seen["errors when disabled"] = [
            error(lambda: torch.compile(plain, disable=True, mode="nonesuch")),
            error(lambda: torch.compile(plain, disable=True, options={"nonesuch": 1})),
        ]
        seen["unknown keyword"] = error(lambda: torch.compile(plain, nonesuch=1))
        seen["compile None"] = error(lambda: torch.compile()(None))
        seen["mode and options"] = error(
            lambda: torch.compile(plain, mode="default", options={"a": 1}))
        seen["not callable"] = error(lambda: torch.compile(3))

        # torch.compiler
        seen["is_compiling"] = torch.compiler.is_compiling()
        seen["disable"] = torch.compiler.disable(plain)(x).tolist()
        seen["disable name"] = torch.compiler.disable(plain).__name__

    def is_compiled_module(module):
        if not hasattr(torch, "_dynamo"):
            return False
        return isinstance(module, torch._dynamo.eval_frame.OptimizedModule)

    def look_at_modules():
        torch.manual_seed(0)
        x = torch.linspace(-1, 1, 32).reshape(4, 8)
        model = user.Model()
        compiled = torch.compile(model)
        seen["checks"] = [is_compiled_module(compiled), is_compiled_module(model),
                          isinstance(compiled, torch._dynamo.OptimizedModule),
                          isinstance(compiled, Model), compiled.__class__.__name__,
                          type(compiled).__module__, type(compiled).__qualname__]
        seen["is torch compile"] = [compiled._is_torch_compile, "_is_torch_compile" in vars(model)]
        seen["context"] = [callable(compiled.dynamo_ctx), "dynamo_ctx" in vars(compiled),
                           compiled.dynamo_ctx(user.plain)(x).tolist(),
                           type(compiled.dynamo_ctx(Model())).__name__]
        seen["own attributes"] = sorted(vars(compiled))
        seen["own methods"] = sorted(n for n in vars(type(compiled)) if n != "__annotations__")
        calls = []
        hooked = torch.compile(Model())
        hooked.register_forward_pre_hook(lambda m, a: calls.append(type(m).__name__))
        hooked.register_forward_hook(lambda m, a, o: o * 2)
        hooked.load_state_dict(compiled.state_dict())
        seen["hooks on wrapper"] = [torch.equal(hooked(x), compiled(x) * 2), calls]
        seen["recompiled"] = [type(torch.compile(compiled)).__name__,
                              torch.equal(torch.compile(compiled)(x), compiled(x))]
        seen["linear"] = torch.compile(nn.Linear(8, 8))(x).tolist()
        seen["sequential"] = torch.compile(nn.Sequential(nn.Linear(8, 4), nn.ReLU()))(x).tolist()
        seen["sequential parts"] = [len(torch.compile(nn.Sequential(nn.ReLU()))),
                                    error(lambda: torch.compile(nn.ReLU())[0])]
        outer = user.Outer(torch.compile(user.Inner()))
        seen["inner compiled"] = [outer(x).tolist(), sorted(outer.state_dict())]
        outer = torch.compile(user.Outer(torch.compile(user.Inner())))
        seen["both compiled"] = [outer(x).tolist(), sorted(outer.state_dict())]
        again = user.Model()
        wrapper = torch.compile(again)
        seen["wrapper compiled in place"] = [wrapper.compile(), type(wrapper).__name__,
                                             wrapper(x).tolist()]
        lazy = torch.compile(nn.LazyLinear(3))
        seen["lazy"] = [lazy(x).tolist(), lazy(x).tolist(), lazy._orig_mod.weight.shape[1],
                        sorted(lazy.state_dict())]
        seen["disabled module"] = torch.compile(model, disable=True) is model
        seen["disabled"] = [torch.compile(user.Kind, disable=True) is user.Kind,
                            torch.compile(torch.sin, disable=True) is torch.sin,
                            torch.compile(disable=True)(plain) is plain,
                            error(lambda: torch.compile(3, disable=True))]
        wrapper = torch.compile(user.Model())
        seen["delete"] = [error(lambda: delattr(wrapper, "nothing")), delattr(wrapper, "scale"),
                          hasattr(wrapper._orig_mod, "scale")]

    def about(f):
        return [getattr(f, "__name__", None), getattr(f, "__qualname__", None),
                getattr(f, "__doc__", None) and f.__doc__[:30], type(f).__name__,
                getattr(getattr(f, "__wrapped__", None), "__name__", None),
                sorted(n for n in getattr(f, "__dict__", ()) if not n.startswith("__"))]

    def look_at_callables():
        x = torch.linspace(-1, 1, 32).reshape(4, 8)
        for name, f in {
            "builtin": torch.sin,
            "torch function": torch.nn.functional.softsign,
            "torch Python function": torch.nn.functional.gelu,
            "partial": functools.partial(plain, k=7.0),
            "callable": user.Callable(),
            "bound": user.Callable().times,
            "wrapped": user.wrapped,
            "generated": user.generated,
        }.items():
            g = torch.compile(f)
            seen[f"callable {name}"] = [about(g), g(x).tolist()]
        seen["class"] = [torch.compile(user.Kind) is user.Kind, user.Kind()(x).tolist()]
        seen["generator"] = [t.tolist() for t in torch.compile(user.generator)(x)]
        f = torch.compile(plain)
        seen["innermost"] = [torch.compile(f)._torchdynamo_orig_callable is plain, about(f)]
        seen["wraps a compiled one"] = error(
            lambda: torch.compile(functools.wraps(f)(lambda *a: f(*a))))
        seen["module with the name"] = error(lambda: torch.compile(user.Named()))
        m = user.Orders()
        seen["orders"] = [user.Orders.static(x).tolist(), user.Orders.klass(x).tolist(),
                          m.plain(x).tolist(), error(lambda: m.klass_outside(x)),
                          str(inspect.signature(m.plain)), m.part(x).tolist()]
        whole = torch.compile(plain, fullgraph=True)
        seen["fullgraph"] = [whole(x).tolist(), whole(x).tolist(), error(lambda: whole(x, 1, 2))]

    def look_at_tracers():
        from torch.fx import symbolic_trace
        x = torch.linspace(-1, 1, 32).reshape(4, 8)
        f = torch.compile(plain)
        seen["fx"] = error(lambda: symbolic_trace(f))
        seen["fx of a user"] = error(lambda: symbolic_trace(lambda t: f(t) + 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen["jit trace"] = error(lambda: torch.jit.trace(f, (x,))).splitlines()[0]
        seen["afterwards"] = f(x).tolist()

    def look_with_compiler():
        import torch._dynamo
        from torch._dynamo.eval_frame import OptimizedModule
        x = torch.linspace(-1, 1, 32).reshape(4, 8)
        y = torch.linspace(-1, 1, 9).reshape(3, 3)
        torch.manual_seed(0)
        early = torch.compile(Model())
        first = early(x)
        seen["an error inside"] = error(lambda: torch.compile(user.fails)(x))
        seen["bad backend"] = error(lambda: torch.compile(plain, backend="nonesuch")(x))
        seen["backends"] = "inductor" in torch.compiler.list_backends()
        late = torch.compile(Model())
        late.load_state_dict(early.state_dict())
        seen["real checks"] = [isinstance(m, OptimizedModule) for m in (early, late)]
        seen["real types"] = [type(m) is OptimizedModule for m in (early, late)]
        seen["real out"] = [torch.equal(early(x), first), torch.equal(late(x), first)]
        seen["real pickle"] = [torch.equal(pickle.loads(pickle.dumps(m))(x), first)
                               for m in (early, late)]
        seen["real copy"] = [torch.equal(copy.deepcopy(m)(x), first) for m in (early, late)]
        seen["real dir"] = sorted(dir(early)) == sorted(dir(late))
        config = torch.compile(plain).get_compiler_config()
        seen["compiler config"] = [type(config).__name__, config["max_autotune"]]

        f = torch.compile(user.staged)
        whole = torch.compile(user.staged, fullgraph=True)
        seen["stance"] = {}
        f(x), whole(x)
        for stance in ("force_eager", "eager_on_recompile", "fail_on_recompile", "default"):
            with torch.compiler.set_stance(stance):
                rows = seen["stance"][stance] = []
                user.SEEN.clear()
                for g, t in (f, x), (whole, x), (f, y), (whole, y):
                    if stance != "default" or t is x:
                        text = error(lambda: rows.append(g(t).tolist()))
                        # A path, and the number of the compilation before each reason.
                        text = re.sub("- [^ ]*/[^ ]*: ", "- ", text.replace(user.__file__, "FILE"))
                        rows.append(list(dict.fromkeys(text.splitlines())))
                rows.append(len(user.SEEN))
        seen["no stance"] = error(lambda: torch.compiler.set_stance("nonesuch") and f(x))
        torch.compiler.set_stance("default")
        with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
            seen["unsafe"] = f(x).tolist()
        seen["default again"] = f(x).tolist()

        exported = torch.export.export(user.Outer(torch.compile(user.Inner())), (x,))
        seen["export"] = exported.module()(x).tolist()
        seen["config verbose"] = error(
            lambda: torch.compile(user.broken, fullgraph=True)(x)).split("Explanation")[0]

    LOOK
"""

MODULE = """
    import functools
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

    def decorated(fn):
        @functools.wraps(fn)
        def inner(*args):
            return fn(*args) + 100
        return inner

    @decorated
    def wrapped(t):
        "Doc of wrapped."
        return t.sin()

    exec("def generated(t): return t.cos() + 17")

    class Callable:
        def __init__(self):
            self.k = 6.0

        def __call__(self, t):
            return t * self.k + 1

        def times(self, t):
            "Doc of times."
            return t * self.k - 1

    class Kind:
        def __call__(self, t):
            return t * 11

    class Named(nn.Module):
        def get_compiler_config(self):
            return None

        def forward(self, t):
            return t

    def generator(t):
        yield t + 1
        yield t + 2

    class Orders:
        @torch.compile
        @staticmethod
        def static(t):
            return t * 21

        @classmethod
        @torch.compile
        def klass(cls, t):
            return t * 22

        try:
            @torch.compile
            @classmethod
            def klass_outside(cls, t):
                return t * 23
        except Exception as e:
            text = f"{type(e).__name__}: {e}"

            def klass_outside(self, t):
                raise ValueError(Orders.text)

        @torch.compile
        def plain(self, t, k=2):
            return t * 24 + k

        part = functools.partialmethod(plain, k=9)

    def fails(t):
        raise ValueError("an own error")

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, t):
            return self.a(t).sin()

    class Outer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, t):
            return self.inner(t) * 2 + 1

    SEEN = []

    def staged(t):
        if not torch.compiler.is_compiling():
            SEEN.append(1)
        return t.tan() * 51

    def broken(t):
        t = t.sin()
        torch._dynamo.graph_break()
        return t.cos()
"""

LOOK = """
    import warnings
    look()
    look_at_modules()
    look_at_callables()
    look_at_tracers()
    compiler = [m for m in ("torch._dynamo.convert_frame", "torch._inductor.compile_fx", "sympy",
                            "triton") if m in sys.modules]
    report = str(prepared.report()) if prepared else ""
    look_with_compiler()
"""
CAPTURE = """
    with precomp.capture(artifact):
        LOOK
    done(seen=seen)
"""
SERVE = """
    LOOK
    done(seen=seen, compiler=compiler, report=report)
"""


def code(tail: str) -> str:
    """The script that ends with *tail*."""
    lines = textwrap.dedent(LOOK).strip().splitlines()
    at = tail.index("LOOK")
    indent = " " * (at - tail.rindex("\n", 0, at) - 1)
    return CODE.replace("    LOOK\n", tail.replace("LOOK", f"\n{indent}".join(lines)))


@pytest.fixture(scope="module")
def captured_surface(tmp_path_factory, inductor_cache):
    place = Place(tmp_path_factory.mktemp("surface"), cache=inductor_cache)
    place.write("user.py", MODULE)
    artifact = place.root / "surface.precomp"
    facts = place.script(code(CAPTURE), "capture", artifact, name="surface.py").facts
    return artifact, facts["seen"]


@pytest.fixture(scope="module")
def served_surface(captured_surface, tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("a bare surface"), compiler=False)
    place.write("user.py", MODULE)
    return place.script(code(SERVE), "serve", captured_surface[0], name="surface.py").facts


def test_everything_seen_is_the_same(captured_surface, served_surface):
    assert differences(captured_surface[1], served_surface["seen"]) == []


def test_nothing_of_it_imports_the_compiler(served_surface):
    assert served_surface["compiler"] == [], served_surface["report"]


EARLY = """
    import torch
    torch.set_num_threads(1)
    side, artifact = sys.argv[1:3]
    from user import broken, several
    x = torch.linspace(-1, 1, 32).reshape(4, 8)
    FORMS = {
        "plain": {},
        "default mode": {"mode": "default"},
        "mode": {"mode": "max-autotune-no-cudagraphs"},
        "options": {"options": {"epilogue_fusion": False}},
        "dynamic": {"dynamic": False},
        "fullgraph": {"fullgraph": True},
    }
    if side != "late":
        early = {n: torch.compile(several[n], **form) for n, form in FORMS.items()}
    import precomp
    facts = {}
    if side == "capture":
        with precomp.capture(artifact):
            facts["results"] = {n: f(x).tolist() for n, f in early.items()}
            torch.compile(broken)(x)
    elif side != "torch":
        precomp.prepare(artifact)
        if side == "late":
            early = {n: torch.compile(several[n], **form) for n, form in FORMS.items()}
        with precomp.strict_no_compile():
            facts["results"] = {n: f(x).tolist() for n, f in early.items()}
        try:
            with precomp.strict_no_compile():
                torch.compile(broken, fullgraph=True)(x)
        except precomp.CompileViolation as violation:
            facts["strict"] = violation.why
    if side != "capture":
        try:
            torch.compile(broken, fullgraph=True)(x)
        except Exception as e:
            facts["broken"] = f"{type(e).__name__}: {e}"
    done(**facts)
"""

EARLY_MODULE = """
    import torch

    names = ("plain", "default mode", "mode", "options", "dynamic", "fullgraph")
    several = {}
    for k, name in enumerate(names):
        exec(f"def f{k}(t): return t.sin() * {k}")
        several[name] = globals()[f"f{k}"]

    def broken(t):
        t = t.sin()
        torch._dynamo.graph_break()
        return t.cos()
"""


@pytest.fixture(scope="module")
def early(tmp_path_factory, inductor_cache):
    place = Place(tmp_path_factory.mktemp("early"), cache=inductor_cache)
    place.write("user.py", EARLY_MODULE)
    artifact = place.root / "early.precomp"
    return artifact, place.script(EARLY, "capture", artifact, name="early.py").facts["results"]


@pytest.mark.parametrize("side", ("early", "late"))
def test_wrappers_made_before_and_after_prepare_are_served(early, bare, side):
    """Each with its own mode or options; those made before are torch's own."""
    artifact, results = early
    bare.write("user.py", EARLY_MODULE)
    facts = bare.script(EARLY, side, artifact, name="early.py").facts
    assert facts["results"] == results
    assert "fullgraph" in facts["strict"]
    oracle = bare.script(EARLY, "torch", artifact, name="early.py").facts
    assert facts["broken"] == oracle["broken"]
