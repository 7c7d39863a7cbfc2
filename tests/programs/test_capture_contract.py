"""What ``precomp.capture`` promises: it records, names what it cannot record, disturbs nothing."""

from __future__ import annotations

import textwrap

import pytest

HEAD = """
    import torch
    from torch import nn
    torch.set_num_threads(1)
    import precomp

    def f(x):
        return x.sin() * 2 + 1

    def problems(call):
        try:
            call()
            return None
        except precomp.UnsupportedCaptureError as error:
            return {"text": str(error), "problems": [list(p) for p in error.problems]}
"""


def script(place, body: str, *args, **options):
    return place.script(textwrap.dedent(HEAD) + textwrap.dedent(body), *args, **options).facts


def test_an_exception_inside_writes_nothing(here):
    facts = script(
        here,
        """
        before = torch.compile
        try:
            with precomp.capture("out.precomp"):
                torch.compile(f)(torch.ones(3))
                raise KeyError("mine")
        except KeyError as error:
            seen = str(error)
        done(seen=seen, files=sorted(os.listdir(".")), restored=torch.compile is before)
        """,
    )
    assert facts == {"seen": "'mine'", "files": ["script.py"], "restored": True}


def test_a_clean_exit_with_a_path_writes_the_artifact(here):
    facts = script(
        here,
        """
        with precomp.capture("out.precomp") as capture:
            torch.compile(f)(torch.ones(3))
        artifact = precomp.Artifact.open("out.precomp")
        artifact.verify()
        done(kinds=sorted({e.kind for e in artifact.entries}), report=str(capture.report()))
        """,
    )
    assert {"frame", "kernel", "module", "plan"} <= set(facts["kinds"])
    assert "f" in facts["report"]


def test_finalize_may_come_later_and_twice(here):
    facts = script(
        here,
        """
        with precomp.capture() as capture:
            torch.compile(f)(torch.ones(3))
        one = capture.finalize("one.precomp")
        two = capture.finalize("two.precomp")
        done(same=one.digest == two.digest)
        """,
    )
    assert facts == {"same": True}


def test_finalize_before_the_end_is_an_error(here):
    facts = script(
        here,
        """
        with precomp.capture() as capture:
            torch.compile(f)(torch.ones(3))
            try:
                capture.finalize("out.precomp")
            except precomp.PrecompError as error:
                text = str(error)
        done(text=text, files=sorted(os.listdir(".")))
        """,
    )
    assert facts["files"] == ["script.py"]
    assert facts["text"]


def test_captures_do_not_nest(here):
    facts = script(
        here,
        """
        try:
            with precomp.capture():
                with precomp.capture():
                    pass
        except (precomp.PrecompError, RuntimeError) as error:
            text = str(error)
        with precomp.capture("out.precomp"):
            torch.compile(f)(torch.ones(3))
        done(text=text)
        """,
    )
    assert facts["text"]


def test_code_compiled_before_is_named(here):
    facts = script(
        here,
        """
        g = torch.compile(f)
        g(torch.ones(3))
        with precomp.capture() as capture:
            g(torch.ones(3))
        done(**problems(lambda: capture.finalize("out.precomp")), files=os.listdir("."))
        """,
    )
    assert any("f" in function for function, _ in facts["problems"])
    assert "before" in facts["text"]
    assert "out.precomp" not in facts["files"]


def test_reset_records_code_that_was_compiled_before(here, bare):
    artifact = here.root / "out.precomp"
    body = """
        x = torch.linspace(0, 1, 5)
        if sys.argv[1] == "capture":
            g = torch.compile(f)
            g(x)
            with precomp.capture(sys.argv[2], reset=True):
                y = g(x)
        else:
            precomp.prepare(sys.argv[2])
            with precomp.strict_no_compile():
                y = torch.compile(f)(x)
        done(y=y.tolist())
    """
    captured = script(here, body, "capture", artifact)
    assert script(bare, body, "serve", artifact) == captured


UNSUPPORTED = """
    weight = torch.ones(3)

    def uses(weight=weight):
        "What id() gives is another number in each process."
        return weight * (2 if id(weight) % 32 else 3)
"""


def test_what_cannot_be_frozen_is_refused_by_name(here):
    facts = script(
        here,
        textwrap.dedent(UNSUPPORTED)
        + textwrap.dedent("""
        with precomp.capture() as capture:
            torch.compile(f)(torch.ones(3))
            torch.compile(uses)()
        done(found=problems(lambda: capture.finalize("out.precomp")), files=os.listdir("."))
        """),
    )
    assert facts["found"] is not None, "an identity that means nothing elsewhere was frozen"
    assert facts["found"]["problems"]
    for function, reason in facts["found"]["problems"]:
        assert "uses" in function or "step" in function
        assert reason in facts["found"]["text"]
    assert "out.precomp" not in facts["files"]


def test_skip_leaves_out_what_cannot_be_frozen_and_reports_it(here, bare):
    artifact = here.root / "out.precomp"
    facts = script(
        here,
        textwrap.dedent(UNSUPPORTED)
        + textwrap.dedent("""
        with precomp.capture(on_unsupported="skip") as capture:
            torch.compile(f)(torch.ones(3))
            torch.compile(uses)()
        capture.finalize(sys.argv[1])
        done(report=str(capture.report()))
        """),
        artifact,
    )
    assert "not supported" in facts["report"]
    assert "uses" in facts["report"] or "step" in facts["report"]
    served = script(
        bare,
        textwrap.dedent(UNSUPPORTED)
        + textwrap.dedent("""
        precomp.prepare(sys.argv[1])
        with precomp.strict_no_compile():
            torch.compile(f)(torch.ones(3))
        try:
            with precomp.strict_no_compile():
                torch.compile(uses)()
            why = None
        except precomp.CompileViolation as violation:
            why = violation.why
        done(why=why)
        """),
        artifact,
    )
    assert served["why"]


def test_a_wrong_value_of_on_unsupported_is_an_error(here):
    facts = script(
        here,
        """
        try:
            precomp.capture(on_unsupported="ignore")
        except ValueError as error:
            done(text=str(error))
        """,
    )
    assert "ignore" in facts["text"]


@pytest.mark.parametrize("kind", ("LSTM", "GRU"))
def test_a_program_that_compiled_nothing_is_reported(here, kind):
    """Dynamo skips torch's own recurrent modules: the run is eager and says nothing."""
    facts = script(
        here,
        f"""
        import warnings
        model = torch.compile(nn.{kind}(4, 4))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with precomp.capture() as capture:
                model(torch.ones(2, 3, 4))
            found = problems(lambda: capture.finalize("out.precomp"))
        texts = [str(w.message) for w in caught] + [str(capture.report())]
        done(text=" ".join(texts) + (found["text"] if found else ""))
        """,
    )
    assert "nothing" in facts["text"].lower()


def test_capturing_changes_no_result_random_state_or_gradient(here):
    """And the user's step runs exactly once."""
    facts = script(
        here,
        """
        calls = []

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(8, 8)
                self.dropout = nn.Dropout(0.5)
                self.register_buffer("count", torch.zeros(()))

            def forward(self, x):
                self.count.add_(1)
                return self.dropout(self.linear(x))

        def run():
            torch.manual_seed(0)
            model = Model()
            compiled = torch.compile(model)
            for i in range(3):
                calls.append(i)
                compiled(torch.ones(4, 8)).sum().backward()
            gradients = [p.grad.tolist() for p in model.parameters()]
            return [gradients, model.count.item(), torch.get_rng_state().tolist()]

        plain = run()
        n = len(calls)
        with precomp.capture("out.precomp", reset=True):
            captured = run()
        done(same=plain == captured, calls=len(calls) - n, count=captured[1])
        """,
    )
    assert facts == {"same": True, "calls": 3, "count": 3.0}


def test_everything_captures_patch_is_restored(here):
    facts = script(
        here,
        """
        import types
        import torch._dynamo, torch._inductor.compile_fx
        torch.compile(f)(torch.ones(3))
        torch._dynamo.reset()

        def snapshot():
            seen = {}
            for name, module in list(sys.modules.items()):
                if "compile_tasks." in name:
                    continue  # modules that Inductor wrote
                if name.startswith(("torch._dynamo", "torch._inductor", "torch._functorch",
                                    "torch._C")) and isinstance(module, types.ModuleType):
                    for key, value in list(vars(module).items()):
                        if isinstance(value, types.FunctionType):
                            seen[name, key] = value, value.__code__
                        elif isinstance(value, type) and value.__module__ == name:
                            for attribute, item in list(vars(value).items()):
                                if callable(item):
                                    seen[name, key, attribute] = item
            return seen

        before = snapshot()
        with precomp.capture("out.precomp"):
            torch.compile(f)(torch.ones(3))
        after = snapshot()
        done(changed=sorted(".".join(k) for k in before if after.get(k) != before[k]))
        """,
    )
    assert facts == {"changed": []}


def test_aliases_of_the_three_verbs(here):
    facts = script(
        here,
        """
        with precomp.capture_runtime() as capture:
            torch.compile(f)(torch.ones(3))
        artifact = precomp.finalize_cache(capture, "out.precomp")
        torch._dynamo.reset()
        with precomp.prepare_runtime("out.precomp"):
            with precomp.strict_no_compile():
                y = torch.compile(f)(torch.ones(3))
        done(digest=len(artifact.digest), same=torch.allclose(y, f(torch.ones(3))))
        """,
    )
    assert facts == {"digest": 64, "same": True}


def test_an_unknown_torch_is_refused(captured, bare):
    code = """
        import torch
        torch.__version__ = "3.1.0"
        import precomp
        seen = {}
        for name, call in {"capture": lambda: precomp.capture().__enter__(),
                           "prepare": lambda: precomp.prepare(sys.argv[1])}.items():
            try:
                call()
            except precomp.PrecompError as error:
                seen[name] = str(error)
        done(**seen)
    """
    facts = bare.script(code, captured("mlp").artifact).facts
    assert "3.1.0" in facts["capture"] and "\n" not in facts["capture"]
    assert "3.1.0" in facts["prepare"]
