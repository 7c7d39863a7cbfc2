"""Live objects: what has to be like the captured ones, and the call that holds them weakly."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from precomp import _core, live_objects, torch_api
from precomp.freeze.devices import mentioned
from precomp.freeze.live import Held
from precomp.freeze.values import encode
from precomp.ordinals import renumber
from precomp.serve.devices import Placed


@pytest.fixture(scope="module", autouse=True)
def names() -> None:
    torch_api.serve()


def local(name: str) -> tuple[Any, ...]:
    return ("t", (("k", name), ("k", 0)))


OPS = tuple(
    ("framelocals_manager", 0, node, local(name), f"L['{name}']", "o")
    for node, name in enumerate("abc", 1)
)
TAPE = {"nodes": 4, "ops": OPS, "tls": None, "device": ("k", None)}


def row(tensor: torch.Tensor, storage: int, *nodes: int) -> tuple[Any, ...]:
    return (nodes, encode(type(tensor)), live_objects.tensor_facts(tensor), storage, True)


def found(rows: list[Any], **f_locals: Any) -> tuple[Any, ...]:
    record = {"objects": tuple(rows), "steps": ()}
    return live_objects.find(record, live_objects.Reader(TAPE, f_locals, {}, None), None)


X = torch.ones(2, 3)
CHANGES = {
    "dtype expected torch.float32, found torch.float64": lambda: torch.ones(2, 3).double(),
    "shape expected (2, 3), found (3, 2)": lambda: torch.ones(3, 2),
    "stride expected (3, 1), found (1, 2)": lambda: torch.ones(3, 2).t(),
    "storage offset expected 0, found 3": lambda: torch.ones(3, 3)[1:],
    "requires_grad expected False, found True": lambda: torch.ones(2, 3, requires_grad=True),
    "layout expected torch.strided, found torch.sparse_coo": lambda: torch.ones(2, 3).to_sparse(),
    "expected Tensor, found Parameter": lambda: torch.nn.Parameter(torch.ones(2, 3), False),
    "expected Tensor, found NoneType": lambda: None,
}


@pytest.mark.parametrize("reason", CHANGES)
def test_a_tensor_that_is_not_like_the_captured_one(reason: str) -> None:
    assert found([row(X, 1, 1)], a=torch.zeros(2, 3))
    with pytest.raises(live_objects.Unfit) as error:
        found([row(X, 1, 1)], a=CHANGES[reason]())
    assert reason in str(error.value) and "L['a']" in str(error.value)


def test_which_are_the_same_object_has_to_agree() -> None:
    a, b = torch.ones(2, 3), torch.ones(2, 3)
    assert found([row(X, 1, 1, 2)], a=a, b=a) == (a,)
    with pytest.raises(live_objects.Unfit, match="L['a'] is not L['b']".replace("[", r"\[")):
        found([row(X, 1, 1, 2)], a=a, b=b)
    with pytest.raises(live_objects.Unfit, match="is L"):
        found([row(X, 1, 1), row(X, 2, 2)], a=a, b=a)


def test_which_share_a_storage_has_to_agree() -> None:
    a = torch.ones(2, 3)
    together, apart = [row(X, 1, 1), row(X, 1, 2)], [row(X, 1, 1), row(X, 2, 2)]
    assert len(found(together, a=a, b=a[:])) == 2
    assert len(found(apart, a=a, b=a.clone())) == 2
    with pytest.raises(live_objects.Unfit, match="shared a storage do not"):
        found(together, a=a, b=a.clone())
    with pytest.raises(live_objects.Unfit, match="shares its storage"):
        found(apart, a=a, b=a[:])


def test_what_is_missing_is_named() -> None:
    with pytest.raises(live_objects.Unfit, match="not there"):
        found([row(X, 1, 1)], b=X)


class Optimizer:
    """Makes what its test says."""

    def __init__(self, made: list[Any], result: Any = False) -> None:
        self.made, self.result = made, result
        self.param_groups: list[Any] = [{"params": []}]
        self.state: dict[Any, Any] = {}

    def _init_group(self, group: Any, params: list[Any], flag: bool) -> Any:
        assert group is self.param_groups[0] and flag is True
        if self.made is None:
            raise ValueError("nothing to make")
        params += self.made
        return self.result


def encoded_type(monkeypatch: Any, kind: type) -> tuple[Any, ...]:
    """A class of this file, in a module that can be found by name."""
    module = SimpleNamespace(**{kind.__name__: kind})
    monkeypatch.setitem(__import__("sys").modules, kind.__module__, module)
    return ("P", kind.__module__, kind.__name__, _core.kind_of(kind))


def steps(monkeypatch: Any, **f_locals: Any) -> tuple[Any, ...]:
    """What the one call of ``_init_group`` gives: the tensor b and the number 7."""
    kind = encoded_type(monkeypatch, Optimizer)
    items = (("o", 1), ("v", ("k", 7)))
    call = (0, (("g", 0), ("l", items)), (("flag", ("v", ("k", True))),), ("k", False))
    record = {"objects": (((1,), kind, None, None, True), row(X, 1, 2)), "steps": (call,)}
    reader = live_objects.Reader(TAPE, f_locals, {}, None)
    made = live_objects.Steps(record, None)
    made.run(reader)
    objects = live_objects.find(record, reader, None)
    made.check(objects)
    return objects


def test_the_calls_of_init_group_are_made_again(monkeypatch: Any) -> None:
    b = torch.ones(2, 3)
    optimizer = Optimizer([b, 7])
    assert steps(monkeypatch, a=optimizer, b=b)[0] is optimizer


@pytest.mark.parametrize(
    "made, result, reason",
    [
        ([torch.ones(2, 3), 7], False, "other tensors or values"),
        (["b", 8], False, "other tensors or values"),
        (["b"], False, "other tensors or values"),
        (["b", 7], True, "returned True"),
        (None, False, "nothing to make"),
    ],
)
def test_calls_of_init_group_that_give_something_else(
    monkeypatch: Any, made: Any, result: Any, reason: str
) -> None:
    b = torch.ones(2, 3)
    if made is not None:
        made = [b if isinstance(item, str) else item for item in made]
    with pytest.raises(live_objects.Unfit, match=reason):
        steps(monkeypatch, a=Optimizer(made, result), b=b)


def test_an_optimizer_of_another_type_is_not_called(monkeypatch: Any) -> None:
    with pytest.raises(live_objects.Unfit, match="expected Optimizer, found object"):
        steps(monkeypatch, a=object(), b=torch.ones(2, 3))


class Thing:
    pass


def test_a_bound_call_holds_its_arguments_weakly() -> None:
    first = Thing()
    call = _core.BoundCall(lambda *args, **kwargs: (args, kwargs), (first,))
    assert call(1, key=2) == ((first, 1), {"key": 2})
    assert call.first[0]() is first and "BoundCall" in repr(call)
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None
    with pytest.raises(ReferenceError, match="first argument 0 is gone"):
        call(1)


def test_a_bound_call_checks_what_it_is_given() -> None:
    with pytest.raises(TypeError, match="callable"):
        _core.BoundCall(3, ())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _core.BoundCall(len, [])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="weak"):
        _core.BoundCall(len, (3,))
    with pytest.raises(ZeroDivisionError):
        _core.BoundCall(lambda thing: 1 / 0, (Thing,))()


def test_a_tape_refuses_a_live_object_it_was_not_given() -> None:
    ops = (OPS[0], ("add_id_match_guard", 1, (("live", 1), ("text",))))
    tape = _core.GuardTape(TAPE | {"nodes": 2, "ops": ops})
    enum = SimpleNamespace(GUARD_MANAGER=1, DICT_GUARD_MANAGER=2)
    from precomp.errors import ArtifactCorruptError
    from precomp.serve import standin

    with standin.building(), pytest.raises(ArtifactCorruptError, match="no live object"):
        tape.replay({}, standin.enum_type() or enum, None, lambda *args: None, (X,))


# ------------------------------------------------------------------ on a GPU


class OnGpu:
    """Of a parameter on a GPU, or of a tensor beside it, what is asked for."""

    is_cuda = True
    is_cpu = False
    device = "cuda:1"


class Step(OnGpu):
    """A counter that was restored to the CPU."""

    is_cpu = True

    def to(self, device: str) -> str:
        return f"moved to {device}"


class Bare:
    """Of an optimizer what ``_init_group`` and torch's compiler see."""

    def __init__(self, *groups: dict[str, Any], state: Any = ()) -> None:
        self.param_groups = list(groups)
        self.state = dict(state)
        self.capturable: list[Any] = []

    def _init_group(self, group: dict[str, Any]) -> bool:
        self.capturable.append(group.get("capturable"))
        return False


def made_ready(monkeypatch: Any, optimizer: Bare) -> Bare:
    step = (0, (("g", 0),), (), ("k", False))
    kind = encoded_type(monkeypatch, Bare)
    record = {"objects": (((1,), kind, None, None, True),), "steps": (step,)}
    steps = live_objects.Steps(record, None)
    steps.run(live_objects.Reader(TAPE, {"a": optimizer}, {}, None))
    steps.check((optimizer,))
    return optimizer


@pytest.mark.parametrize(
    ("params", "options", "known", "capturable"),
    [
        ([OnGpu(), OnGpu()], {"capturable": False}, False, True),
        ([OnGpu(), OnGpu()], {"capturable": False}, True, False),  # it has state
        ([OnGpu(), X], {"capturable": False}, False, False),
        ([OnGpu()], {}, False, None),
        ([], {"capturable": False}, False, True),
    ],
)
def test_what_compiling_does_to_an_optimizer_is_done(
    monkeypatch, params, options, known, capturable
) -> None:
    state = {param: {"step": OnGpu()} for param in params} if known else {}
    optimizer = made_ready(monkeypatch, Bare({"params": params, **options}, state=state))
    assert optimizer.capturable == [capturable]  # before its state is made


def test_counters_of_steps_go_to_the_device_of_their_parameter(monkeypatch: Any) -> None:
    params = [OnGpu(), OnGpu()]
    state = {params[0]: {"step": Step()}, params[1]: {"other": Step()}}
    optimizer = made_ready(monkeypatch, Bare({"params": params}, state=state))
    assert optimizer.state[params[0]]["step"] == "moved to cuda:1"
    assert isinstance(optimizer.state[params[1]]["other"], Step)


def test_a_counter_that_is_no_tensor_is_told(monkeypatch: Any) -> None:
    param = OnGpu()
    with pytest.raises(live_objects.Unfit, match="_init_group: AttributeError: 'int'"):
        made_ready(monkeypatch, Bare({"params": [param]}, state={param: {"step": 3}}))


def test_facts_of_tensors_on_a_gpu_move_with_the_entry() -> None:
    """Recorded on one GPU they are written for cuda:0, and compared with those of another."""
    facts = ("cuda:3", *live_objects.tensor_facts(X)[1:])
    assert mentioned(Held(X)) == set()
    held = Held(X)
    held.seen = dataclasses.replace(held.seen, facts=facts)
    assert mentioned((("add_id_match_guard", 1, (held,)),)) == {3}
    rows = (((1,), encode(torch.Tensor), renumber(facts, {3: 0}), 1, True),)
    record = {"globals": (), "bind": {"plans": (), "weak": ()}, "tape": {"live": rows}}
    moved = Placed(record, {0: 2}).record["tape"]["live"]
    assert moved[0][2][0] == "cuda:2"
    with pytest.raises(live_objects.Unfit, match="device expected cuda:2, found cpu"):
        found(list(moved), a=X)
