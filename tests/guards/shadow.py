"""Prints, as JSON, what shadow_guards finds in a few programs, sound and unsound."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from precomp import _capture, testing, torch_api
from precomp.freeze import guard_shadow, guards

torch.set_num_threads(1)
x = torch.ones(3)
CASES: dict[str, Callable[[], Any]] = {}


def case(make: Callable[[], Any]) -> Callable[[], Any]:
    CASES[make.__name__] = make
    return make


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.scale = 2.0

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return self.linear(t) * self.scale


def scaled(t, number):
    return t * (number + 1)


def fresh(function: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="eager", **options)


@contextlib.contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


def without(record: dict[str, Any], method: str) -> dict[str, Any]:
    return record | {"ops": tuple(op for op in record["ops"] if op[0] != method)}


def call_both_ways(compiled: Any) -> None:
    compiled(x, 1)
    compiled(x, 1)
    compiled(x, 2)
    compiled(x, 1)


@case
def sound() -> Any:
    results = []
    with testing.shadow_guards() as shadow:
        model = Layer()
        compiled = fresh(model)
        results.append(compiled(x))
        model.scale = 3.0
        results.append(compiled(x))
        model.scale = 2.0
        results.append(compiled(x))
        with torch.no_grad():
            results.append(compiled(x))
    same = [torch.equal(a, b * f) for a, b, f in ((results[1], results[0], 1.5),)]
    return shadow.as_data() | {"same": same, "report": shadow.report()}


@case
def recompiles() -> Any:
    with testing.shadow_guards() as shadow:
        call_both_ways(fresh(scaled, dynamic=False))
    return shadow.as_data()


@case
def accepts_too_much() -> Any:
    thaw = guard_shadow.thaw
    wrong = lambda record, *rest: thaw(without(record, "add_equals_match_guard"), *rest)  # noqa: E731
    with replaced(guard_shadow, "thaw", wrong), testing.shadow_guards() as shadow:
        call_both_ways(fresh(scaled, dynamic=False))
    return shadow.as_data()


@case
def rejects_too_much() -> Any:
    thaw = guard_shadow.thaw

    def wrong(record: Any, f_locals: Any, f_globals: Any) -> Any:
        root, keep = thaw(record, f_locals, f_globals)
        root.add_lambda_guard(lambda _: False, ["never"], None)
        return root, keep

    with replaced(guard_shadow, "thaw", wrong), testing.shadow_guards() as shadow:
        call_both_ways(fresh(scaled, dynamic=False))
    return shadow.as_data()


class Raising:
    def check(self, f_locals: Any) -> bool:
        raise ValueError("cannot tell")


@case
def raises() -> Any:
    with (
        replaced(guard_shadow, "thaw", lambda *_: (Raising(), None)),
        testing.shadow_guards() as shadow,
    ):
        call_both_ways(fresh(scaled, dynamic=False))
    return shadow.as_data()


@case
def other_tree() -> Any:
    make = guards.make_record
    wrong = lambda *rest: without(make(*rest), "add_equals_match_guard")  # noqa: E731
    with replaced(guards, "make_record", wrong), testing.shadow_guards() as shadow:
        call_both_ways(fresh(scaled, dynamic=False))
    return shadow.as_data()


@case
def recorder_fails() -> Any:
    def broken(*_: Any) -> Any:
        raise KeyError("broken")

    with replaced(guards, "encode_argument", broken), testing.shadow_guards() as shadow:
        results = [float(fresh(scaled)(x, 1).sum()) for _ in range(2)]
    return shadow.as_data() | {"results": results}


@case
def refused() -> Any:
    class Local:
        factor = 3

    def reads(t, thing):
        return t * thing.factor

    with testing.shadow_guards() as shadow:
        compiled = fresh(reads)
        compiled(x, Local())
        compiled(x, Local())
        fresh(scaled)(x, 1)
    return shadow.as_data()


@case
def part_of_the_guards() -> Any:
    """With this stance torch does not ask the whole tree."""
    with testing.shadow_guards() as shadow:
        compiled = fresh(scaled, dynamic=False)
        call_both_ways(compiled)
        before = shadow.verdicts
        with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
            compiled(x, 1)
    return shadow.as_data() | {"asked": shadow.verdicts - before}


@case
def threads() -> Any:
    with testing.shadow_guards() as shadow:
        compiled = fresh(scaled, dynamic=False)
        compiled(x, 1)

        def work() -> None:
            for _ in range(50):
                call_both_ways(compiled)

        all_threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in all_threads:
            thread.start()
        for thread in all_threads:
            thread.join()
    return shadow.as_data()


@case
def inside_a_capture() -> Any:
    """A probe is no guard: a capture and another shadow do not see it."""
    with (
        _capture.capture(on_unsupported="skip") as captured,
        testing.shadow_guards() as outer,
        testing.shadow_guards() as shadow,
    ):
        call_both_ways(fresh(scaled, dynamic=False))
    return shadow.as_data() | {
        "outer": outer.as_data(),
        "problems": [reason for _, reason in captured.report().problems],
    }


@case
def asked_to_raise() -> Any:
    thaw = guard_shadow.thaw
    wrong = lambda record, *rest: thaw(without(record, "add_equals_match_guard"), *rest)  # noqa: E731
    try:
        with (
            replaced(guard_shadow, "thaw", wrong),
            testing.shadow_guards(raise_on_disagreement=True),
        ):
            call_both_ways(fresh(scaled, dynamic=False))
    except AssertionError as error:
        return str(error)
    return None


def hooks() -> list[Any]:
    names, serve = torch_api.capture(), torch_api.serve()
    owners = (
        serve.GuardManager,
        serve.DictGuardManager,
        serve.RootGuardManager,
        names.CatchErrorsWrapper,
        names.GuardManagerWrapper,
        names.check_function_manager,
        names.guards_module,
    )
    return [dict(vars(owner)) for owner in owners]


@case
def afterwards() -> Any:
    """Nothing is left in torch, and trees that live on answer as before."""
    before = hooks()
    with testing.shadow_guards() as shadow:
        compiled = fresh(scaled, dynamic=False)
        compiled(x, 1)
    verdicts = shadow.verdicts
    call_both_ways(compiled)
    now = hooks()
    left = [
        name
        for was, at in zip(before, now, strict=True)
        for name in was.keys() | at.keys()
        if was.get(name) is not at.get(name) and name != "__dict__"
    ]
    return {"left": left, "asked": shadow.verdicts - verdicts}


print(json.dumps({name: make() for name, make in CASES.items()}))
