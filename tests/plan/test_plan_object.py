"""The plan object over hand-written graphs: no compiler, every path of the C code."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import torch

from precomp import _core, torch_api
from precomp.serve import plan as serve_plan

Tensor = torch.Tensor


def record(kind: str, inputs: int, /, *, count: int = 1, **changes: Any) -> dict[str, Any]:
    """A record with *count* ordinary outputs that require grad."""
    made: dict[str, Any] = {
        "kind": kind,
        "fw": "f" * 64,
        "bw": "b" * 64 if kind == "training" else None,
        "inputs": inputs,
        "unwrap": (),
        "disable_autocast": False,
        "forward_aligned": (),
        "version_bumps": (),
        "mutated": (),
        "outputs": (("non_alias", None, None, kind == "training", None),) * count,
        "bases": 0,
        "grad_mode": None,
    }
    if kind == "training":
        made.update(
            detach=(),
            non_differentiable=(),
            saved_unchecked=0,
            saved_opaque=0,
            saved_symints=0,
            gradients=(),
            dynamic_saved=(),
            tangents=tuple((i, "contiguous_format") for i in range(count)),
            inputs_require_grad=True,
            mutates_in_backward=False,
            deterministic=None,
            donated=False,
            backward_aligned=(),
        )
    return made | changes


def emptied(args: list[Any]) -> list[Any]:
    """What a compiled graph does with its arguments."""
    taken = list(args)
    args.clear()
    return taken


def product_plan(**changes: Any) -> Any:
    """x * w, saving both."""

    def forward(args):
        x, w = emptied(args)
        return (x * w, x, w)

    def backward(args):
        x, w, grad = emptied(args)
        return (grad * w, grad * x)

    return serve_plan.build(record("training", 2, **changes), forward, backward)


class States:
    """The thread's states that a plan changes for the time of a call."""

    def __enter__(self) -> States:
        self.set_eval_frame = torch_api.serve().set_eval_frame
        self.set_eval_frame(False)
        torch._C._set_view_replay_enabled(False)
        self.grad = torch.is_grad_enabled()
        return self

    def __exit__(self, *exc: Any) -> None:
        prior = self.set_eval_frame(None)
        assert prior is False
        assert torch._C._is_view_replay_enabled() is False
        assert torch.is_grad_enabled() is self.grad
        assert not torch.is_autocast_enabled("cpu")


# -- records -----------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    sorted(
        set(record("training", 1)) - {"fw", "bw", "kind", "outputs", "tangents", "gradients"}
    ),
)
def test_missing_key_is_named(key):
    broken = record("training", 1)
    del broken[key]
    with pytest.raises(ValueError, match=f"'{key}': missing"):
        serve_plan.build(broken, len, len)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "export"),
        ("inputs", -1),
        ("inputs", "1"),
        ("bases", 1.5),
        ("disable_autocast", 1),
        ("version_bumps", (1,)),
        ("forward_aligned", ((1, True),)),
        ("backward_aligned", ((0,),)),
        ("version_bumps", [0]),
        ("mutated", ((0, True, False, False),)),
        ("mutated", ((5, True, False, False, False),)),
        ("mutated", ((0, 1, False, False, False),)),
        ("outputs", (("alias", None, None, True, None),)),
        ("outputs", (("is_input", 1, None, True, None),)),
        ("outputs", (("alias_of_intermediate", 0, None, True, None),)),
        ("outputs", (("alias_of_input", None, None, True, None),)),
        ("detach", (-1,)),
        ("non_differentiable", (1,)),
        ("saved_symints", -2),
        ("saved_opaque", -1),
        ("unwrap", (1,)),
        ("gradients", ((-1, None),)),
        ("gradients", (("0", None),)),
        ("dynamic_saved", ((0,),)),
        ("tangents", ((3, None),)),
        ("tangents", ((0, ((1,), 1)),)),
        ("donated", None),
    ],
)
def test_malformed_record_is_refused(key, value):
    with pytest.raises(ValueError, match="plan record: '|unknown tag"):
        serve_plan.build(record("training", 1, **{key: value}), len, len)


def test_constructor_checks_its_arguments():
    with pytest.raises(ValueError, match="backward_call must be given"):
        _core.Plan(record("training", 1), len)
    with pytest.raises(ValueError, match="backward_call must be None"):
        _core.Plan(record("inference", 1), len, len)
    with pytest.raises(TypeError, match="callables"):
        _core.Plan(record("inference", 1), 1)
    with pytest.raises(TypeError, match="expected a dict"):
        _core.Plan([], len)
    plan = _core.Plan(record("training", 1), len, len)
    with pytest.raises(RuntimeError, match="bind"):
        plan(torch.ones(1))
    with pytest.raises(TypeError, match="bound training plan"):
        plan.backward_autograd(None, [])
    plan = _core.Plan(record("inference", 1), len)
    with pytest.raises(ValueError, match="inference"):
        plan.bind(1, 2, 3, 4)
    assert repr(plan) == "<precomp._core.Plan inference, 1 inputs, 1 outputs>"
    assert (plan.kind, plan.inputs, plan.outputs) == ("inference", 1, 1)


def test_call_checks_its_arguments():
    plan = serve_plan.build(record("inference", 1), lambda args: args)
    with pytest.raises(TypeError, match=r"takes 1 arguments \(2 given\)"):
        plan(1, 2)
    with pytest.raises(TypeError, match="keyword"):
        plan(1, x=2)


def test_digests_name_every_module_once():
    one = record("training", 1)
    two = record("inference", 1)
    split = {"kind": "split", "program": (), "plans": (one, two)}
    assert serve_plan.digests(split) == ("f" * 64, "b" * 64)
    assert serve_plan.digests(two) == ("f" * 64,)


# -- states of the thread ----------------------------------------------------


class Boom(Exception):
    pass


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", ["inference", "training"])
def test_states_inside_a_graph(kind, grad):
    seen = []

    def forward(args):
        seen.append(
            (
                torch.is_grad_enabled(),
                torch._C._is_view_replay_enabled(),
                torch.is_autocast_enabled("cpu"),
            )
        )
        return (emptied(args)[0] * 2,)

    plan = serve_plan.build(
        record(kind, 1, disable_autocast=True), forward, None if kind == "inference" else len
    )
    with torch.set_grad_enabled(grad), torch.autocast("cpu"):
        plan(torch.ones(1))
        assert torch.is_autocast_enabled("cpu")
        assert torch.is_grad_enabled() is grad
    # autograd.Function itself runs forward without grad mode
    assert seen == [(False, kind == "training", False)]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", ["inference", "training"])
@pytest.mark.parametrize("replay", [False, True])
def test_states_are_restored_after_an_exception(kind, grad, replay):
    def forward(args):
        raise Boom("forward")

    plan = serve_plan.build(
        record(kind, 1, disable_autocast=True), forward, None if kind == "inference" else len
    )
    with States(), torch.set_grad_enabled(grad):
        torch._C._set_view_replay_enabled(replay)
        with pytest.raises(Boom, match="forward"):
            plan(torch.ones(1))
        assert torch._C._is_view_replay_enabled() is replay
        assert torch.is_grad_enabled() is grad
        torch._C._set_view_replay_enabled(False)


@pytest.mark.parametrize("kind", ["inference", "training"])
def test_wrong_number_of_outputs(kind):
    plan = serve_plan.build(
        record(kind, 1, count=2), lambda args: emptied(args), None if kind == "inference" else len
    )
    message = "expected 2 outputs, got 1" if kind == "inference" else "expected at least 2 outputs"
    with States(), pytest.raises(AssertionError, match=message):
        plan(torch.ones(1))


def test_exceptions_of_backward_restore_states():
    def backward(args):
        emptied(args)
        raise Boom("backward")

    plan = serve_plan.build(
        record("training", 1, disable_autocast=True),
        lambda args: (args[0] * 2, args[0]),
        backward,
    )
    x = torch.ones(2, requires_grad=True)
    out = plan(x)[0]
    with States(), pytest.raises(Boom, match="backward"):
        out.sum().backward()


def test_exception_in_each_torch_call_of_the_epilogue():
    class Fails:
        def __getattr__(self, name):
            raise Boom(name)

    cases: list[tuple[dict[str, Any], tuple[Any, ...], tuple[Any, ...], str]] = [
        ({"version_bumps": (0,)}, (3,), (1,), ""),
        ({"mutated": ((0, True, False, False, False),)}, (Fails(),), (1, 1), "copy_"),
        ({"mutated": ((0, True, False, False, True),)}, (Fails(),), (1, 1), "requires_grad"),
        ({"mutated": ((0, False, True, False, False),)}, (Fails(),), (Fails(), 1), "size"),
        ({"mutated": ((0, True, True, False, False),)}, (Fails(),), (Fails(), 1), "size"),
        ({"mutated": ((0, False, True, True, False),)}, (Fails(),), (1, 1), "set_"),
        (
            {"outputs": (("alias_of_input", 0, None, False, None),)},
            (Fails(),),
            (Fails(),),
            "_base",
        ),
        ({"outputs": (("non_alias", None, (0,), False, None),)}, (1,), (Fails(),), ""),
    ]
    for changes, args, outs, message in cases:
        plan = serve_plan.build(record("inference", 1, **changes), lambda _, outs=outs: outs)
        with States(), pytest.raises((Boom, TypeError, RuntimeError, AttributeError)) as caught:
            plan(*args)
        assert message in str(caught.value)


# -- mutation ----------------------------------------------------------------


def test_order_of_write_backs_and_outputs():
    def forward(args):
        x, y = emptied(args)
        return [x + 1, y.t() * 2, x * 3]

    changes = {"mutated": ((0, True, False, False, False), (1, True, True, False, False))}
    plan = serve_plan.build(record("inference", 2, **changes), forward)
    x, y = torch.zeros(2), torch.arange(6.0).view(2, 3)
    expected = y.t() * 2
    (out,) = plan(x, y)
    assert x.tolist() == [1, 1]
    assert y.shape == (3, 2)
    assert y.stride() == expected.stride()
    assert torch.equal(y, expected)
    assert out.tolist() == [0, 0]


@pytest.mark.parametrize("grad", [False, True])
def test_storage_is_set_without_grad_mode(grad):
    plan = serve_plan.build(
        record("inference", 2, mutated=((0, False, True, True, False),)),
        lambda args: [args[1], args[1] * 2],
    )
    x, y = torch.zeros(2), torch.ones(3)
    with torch.set_grad_enabled(grad):
        plan(x, y)
        assert torch.is_grad_enabled() is grad
    assert x.data_ptr() == y.data_ptr()
    assert x.shape == (3,)


def test_storage_is_set_in_training():
    plan = serve_plan.build(
        record(
            "training",
            3,
            mutated=((0, False, True, True, False),),
            non_differentiable=(0,),
            tangents=((1, "contiguous_format"),),
        ),
        lambda args: [args[1], args[1] * args[2], args[1]],
        lambda args: [None, None, args[0] * args[1]],
    )
    x, y, w = torch.zeros(2), torch.ones(3), torch.ones(3, requires_grad=True)
    (out,) = plan(x, y, w)
    out.sum().backward()
    assert x.data_ptr() == y.data_ptr()
    assert w.grad.tolist() == [1, 1, 1]


def test_data_and_storage_together_are_refused_as_by_torch():
    plan = serve_plan.build(
        record(
            "training",
            2,
            mutated=((0, True, True, True, False),),
            tangents=((1, "contiguous_format"),),
        ),
        lambda args: [args[1] * 1, args[1] * 2],
        len,
    )
    with States(), pytest.raises(AssertionError, match="expected TensorAlias, got <class 'torch"):
        plan(torch.zeros(2), torch.ones(2, requires_grad=True))


def test_mutation_without_change_is_skipped():
    plan = serve_plan.build(
        record("inference", 1, mutated=((0, False, False, False, False),)),
        lambda args: [None, args[0] * 2],
    )
    x = torch.ones(1)
    plan(x)
    assert x._version == 0


# -- alignment ---------------------------------------------------------------


def test_misaligned_arguments_are_cloned_and_copied_back():
    seen = []

    def forward(args):
        x, y, z = emptied(args)
        seen.append([(t.data_ptr() % 16, tuple(t.shape), t.stride()) for t in (x, y, z)])
        x.add_(1)
        y.add_(1)
        return (x + y + z,)

    plan = serve_plan.build(
        record("inference", 3, forward_aligned=((0, True), (1, False), (2, True))), forward
    )
    buffers = [torch.arange(16.0) for _ in range(3)]
    x = buffers[0][1:13].view(3, 4).t()
    y = buffers[1][1:13].view(3, 4).t()
    z = buffers[2][:12].view(3, 4).t()
    expected = (x + 1) + (y + 1) + z
    (out,) = plan(x, y, z)
    assert seen == [[(0, (4, 3), (1, 4))] * 3]
    assert torch.equal(out, expected)
    assert buffers[0].tolist() == [0, *range(2, 14), 13, 14, 15]
    assert buffers[1].tolist() == list(range(16))
    empty = torch.empty(16)[1:1]
    assert plan(empty, empty, empty)[0].shape == (0,)
    with States(), pytest.raises(AssertionError, match="Expected tensors only, but got"):
        plan(1, y, z)


def test_nothing_is_copied_back_when_the_graph_fails():
    def forward(args):
        args[0].add_(1)
        raise Boom

    plan = serve_plan.build(record("inference", 1, forward_aligned=((0, True),)), forward)
    x = torch.zeros(8)[1:]
    with States(), pytest.raises(Boom):
        plan(x)
    assert x.tolist() == [0] * 7


def test_misaligned_arguments_of_backward():
    seen = []

    def backward(args):
        saved, grad = emptied(args)
        seen.append((saved.data_ptr() % 16, grad.data_ptr() % 16))
        return (grad * saved,)

    plan = serve_plan.build(
        record("training", 1, backward_aligned=((0, False), (1, False))),
        lambda args: (args[0] * 2, torch.ones(4)[1:]),
        backward,
    )
    x = torch.ones(3, requires_grad=True)
    plan(x)[0].backward(torch.ones(4)[1:])
    assert seen == [(0, 0)]
    plan = serve_plan.build(
        record("training", 1, backward_aligned=((7, False),)), lambda args: (args[0] * 2,), len
    )
    with States(), pytest.raises(IndexError, match="aligned argument out of range"):
        plan(x)[0].sum().backward()


# -- autograd ----------------------------------------------------------------


def test_saved_tensors_are_checked_for_changes_unless_unchecked():
    def forward(args):
        (x,) = emptied(args)
        saved = x * 1
        saves.append(saved)
        return (x * 2, saved)

    saves: list[Tensor] = []
    x = torch.ones(2, requires_grad=True)
    for unchecked in (0, 1):
        plan = serve_plan.build(
            record("training", 1, saved_unchecked=unchecked),
            forward,
            lambda args: (args[0] * args[1],),
        )
        out = plan(x)[0].sum()
        saves[-1].add_(1)
        if unchecked:
            out.backward()
            assert x.grad.tolist() == [2, 2]
        else:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                out.backward()


def test_saved_views_are_detached():
    base = torch.ones(3)
    seen = []

    def forward(args):
        return (args[0] * 2, base.view(3), base[:1])

    def backward(args):
        seen.extend(emptied(args))
        return (seen[2],)

    plan = serve_plan.build(record("training", 1, saved_unchecked=1), forward, backward)
    plan(torch.ones(2, requires_grad=True))[0].sum().backward()
    assert not seen[0]._is_view()
    assert not seen[1]._is_view()
    assert seen[0].data_ptr() == base.data_ptr()


def test_dynamic_dimensions_are_noted():
    def forward(args):
        return (args[0] * 2, args[0] + 1, args[0] + 2, 5)

    seen = []

    def backward(args):
        seen.extend(emptied(args))
        return (seen[3],)

    plan = serve_plan.build(
        record(
            "training",
            1,
            outputs=(("non_alias", None, (0,), True, None),),
            saved_unchecked=1,
            saved_symints=1,
            dynamic_saved=((0, (0,)), (1, (0, 1))),
        ),
        forward,
        backward,
    )
    (out,) = plan(torch.ones(2, requires_grad=True))
    assert out._dynamo_propagated_dynamic_indices == {0}
    out.sum().backward()
    assert seen[0] == 5
    assert seen[1]._dynamo_propagated_dynamic_indices == {0}
    assert seen[2]._dynamo_propagated_dynamic_indices == {0, 1}
    plan = serve_plan.build(
        record("inference", 1, outputs=(("is_input", 0, (1,), False, None),)), list
    )
    (out,) = plan(out)
    assert out._dynamo_propagated_dynamic_indices == {0, 1}


def test_dtensors_are_taken_apart_and_gradients_put_together(monkeypatch):
    made = []

    def maker(*form):
        def make(local, mesh):
            made.append((*form, mesh))
            return local

        return make

    monkeypatch.setattr(serve_plan.objects, "dtensor_maker", maker)
    seen = []

    def forward(args):
        plain, local, mesh = emptied(args)
        seen.append(mesh)
        return (plain * local, plain, local, mesh, 7)

    def backward(args):
        seven, plain, local, mesh, grad = emptied(args)
        seen.extend((seven, mesh))
        return [grad * local, grad * plain, mesh]

    plan = serve_plan.build(
        record(
            "training",
            2,
            unwrap=(1,),
            saved_opaque=1,
            saved_symints=1,
            gradients=((0, None), (1, (("k", "metadata"), (2,), (1,)))),
            forward_aligned=((1, False),),
        ),
        forward,
        backward,
    )
    x, w = torch.full((2,), 3.0, requires_grad=True), torch.full((2,), 5.0, requires_grad=True)
    w._local_tensor, w.device_mesh = w.detach(), "mesh"
    (out,) = plan(x, w)
    out.sum().backward()
    assert (out.tolist(), x.grad.tolist(), w.grad.tolist()) == ([15.0] * 2, [5.0] * 2, [3.0] * 2)
    assert seen == ["mesh", 7, "mesh"]
    assert made == [("metadata", (2,), (1,), "mesh")]
    with pytest.raises(AttributeError, match="_local_tensor"):
        plan(x, x)
    plan = serve_plan.build(
        record("training", 1, gradients=((1, None),)),
        lambda args: (args[0] * 2,),
        lambda args: (emptied(args)[-1],),
    )
    with pytest.raises(AssertionError, match="expected more than 1 gradients"):
        plan(x)[0].sum().backward()


def test_saved_values_of_wrong_type_are_refused():
    plan = serve_plan.build(record("training", 1), lambda args: (args[0] * 2, 3), len)
    with pytest.raises(
        AssertionError, match=r"_with_vc_check to be Tensors, got types: \[<class 'int'>\]"
    ):
        plan(torch.ones(1, requires_grad=True))
    plan = serve_plan.build(
        record("training", 1, saved_unchecked=1), lambda args: (args[0] * 2, 3), len
    )
    with pytest.raises(AssertionError, match="tensors_saved_no_vc_check to be Tensors"):
        plan(torch.ones(1, requires_grad=True))
    plan = serve_plan.build(
        record("training", 1, saved_symints=1), lambda args: (args[0] * 2, "s"), len
    )
    with pytest.raises(AssertionError, match="symint_outs to be int/float/SymInt/SymFloat"):
        plan(torch.ones(1, requires_grad=True))
    plan = serve_plan.build(
        record("training", 1, dynamic_saved=((4, (0,)),)), lambda args: (args[0] * 2,), len
    )
    with pytest.raises(IndexError):
        plan(torch.ones(1, requires_grad=True))


def test_backward_that_changes_inputs_is_refused_with_create_graph():
    plan = product_plan(mutates_in_backward=True)
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    plan(x, w)[0].sum().backward()
    with pytest.raises(RuntimeError, match="input mutations with requires_grad in backward"):
        torch.autograd.grad(plan(x, w)[0].sum(), x, create_graph=True)


def test_node_has_the_name_users_know_and_needs_no_python_frames():
    plan = product_plan()
    x, w = torch.ones(2, requires_grad=True), torch.ones(2)
    out = plan(x, w)[0]
    assert out.grad_fn.name() == "CompiledFunctionBackward"
    frames = []

    def trace(frame, event, arg):
        frames.append(frame.f_code.co_filename)

    sys.setprofile(trace)
    try:
        out = plan(x, w)[0]
        torch.autograd.backward(out, torch.ones(2))
    finally:
        sys.setprofile(None)
    assert frames
    assert not [f for f in frames if f.endswith(("autograd/function.py", "serve/plan.py"))]


def test_dead_functorch_wrappers_are_unwrapped():
    kept = []
    torch.func.grad(lambda x: kept.append(x) or x.sum())(torch.ones(2))
    seen = []

    def forward(args):
        seen.extend(args)
        return (args[0] * args[1],)

    plan = serve_plan.build(record("training", 2), forward, len)
    plan(kept[0], torch.ones(2, requires_grad=True))
    assert not torch._C._functorch.is_dead_tensor_wrapper(seen[0])


def test_functorch_transforms_are_refused_as_by_torch():
    plan = product_plan()
    w = torch.ones(3)
    with States(), pytest.raises(RuntimeError, match="must override the setup_context"):
        torch.func.vmap(lambda x: plan(x, w)[0])(torch.ones(2, 3))


# -- lifetimes ---------------------------------------------------------------


def test_nothing_is_kept_after_a_step_without_the_collector():
    plan = product_plan()
    gc.collect()
    gc.disable()
    try:
        x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True) * 1
        refs = [weakref.ref(w)]
        out = plan(x, w)[0]
        refs.append(weakref.ref(out))
        refs.append(weakref.ref(out.grad_fn))
        out.sum().backward()
        del w, out
        assert [ref() for ref in refs] == [None, None, None]
        w = torch.ones(2) * 1
        out = plan(x, w)[0]
        refs = [weakref.ref(w), weakref.ref(out)]
        del w, out  # never differentiated
        assert [ref() for ref in refs] == [None, None]
    finally:
        gc.enable()


def test_saved_tensors_and_gradients_are_freed_as_the_graph_uses_them():
    alive = []

    def forward(args):
        (x,) = emptied(args)
        saved = x + 1
        refs.append(weakref.ref(saved))
        return (x * 2, saved)

    def backward(args):
        saved, grad = emptied(args)
        refs.append(weakref.ref(grad))
        result = grad * saved
        del saved, grad
        alive.extend(ref() is not None for ref in refs)
        return (result,)

    refs: list[Any] = []
    plan = serve_plan.build(record("training", 1), forward, backward)
    x = torch.ones(2, requires_grad=True)
    (plan(x)[0] * 3).sum().backward()
    # Before 2.13 the engine holds the gradients until the backward returns.
    assert alive == [False, not torch_api.serve().boxed_grads]


def test_gradients_are_not_copied_on_accumulation():
    pointers = []

    def backward(args):
        (grad,) = emptied(args)
        result = grad * 2
        pointers.append(result.data_ptr())
        return (result,)

    plan = serve_plan.build(record("training", 1), lambda args: (args[0] * 2,), backward)
    x = torch.ones(1000, requires_grad=True)
    plan(x)[0].sum().backward()
    assert x.grad.data_ptr() == pointers[0]


def test_plan_is_collected():
    class Graph:
        def __call__(self, args):
            return (args[0] * 2,)

    graph = Graph()
    ref = weakref.ref(graph)
    plan = serve_plan.build(record("training", 1), graph, len)
    plan(torch.ones(1, requires_grad=True))
    del graph, plan
    gc.collect()
    assert ref() is None


def steps():
    """Closures that each run one path of the C code."""
    product = product_plan()
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)

    def train():
        plan_out = product(x, w)[0]
        plan_out.sum().backward()
        x.grad = w.grad = None

    def create_graph():
        torch.autograd.grad(product(x, w)[0].sum(), x, create_graph=True)

    def failing_backward():
        out = product(x, w)[0].sum()
        out.backward()
        with pytest.raises(RuntimeError):
            out.backward()
        x.grad = w.grad = None

    restrided = product_plan(tangents=((0, ((2,), (1,))),))

    def foreign_tangent():
        out = restrided(x, w)[0]
        out.backward(torch.ones(1).expand(2))
        x.grad = w.grad = None

    aliases = serve_plan.build(
        record(
            "training",
            2,
            mutated=((1, True, False, False, False),),
            outputs=(
                ("alias_of_input", 0, (0,), True, None),
                ("is_input", 1, None, False, None),
                ("alias_of_intermediate_save_as_output", 0, None, True, None),
                ("unsafe_view_alias", None, None, True, None),
            ),
            bases=1,
            non_differentiable=(0, 2),
            tangents=((4, "contiguous_format"), (5, "contiguous_format")),
        ),
        lambda args: (
            args[1] + 1,
            args[0].view(-1),
            args[1],
            (base := args[0] * 2).view(1, 2),
            args[0] * 3,
            base,
        ),
        lambda args: (args[0] * 2, None),
    )

    def alias():
        outs = aliases(x, torch.zeros(2))
        sum(o.sum() for o in outs).backward()
        x.grad = None

    def broken(args):
        raise Boom

    failing = serve_plan.build(record("training", 1, disable_autocast=True), broken, broken)

    def failing_forward():
        with pytest.raises(Boom):
            failing(x)

    def malformed():
        with pytest.raises(ValueError, match="tangents"):
            serve_plan.build(record("training", 1, tangents=((9, None),)), len, len)

    return [
        train,
        create_graph,
        failing_backward,
        foreign_tangent,
        alias,
        failing_forward,
        malformed,
    ]


@pytest.mark.parametrize("index", range(7))
def test_no_reference_is_leaked(index):
    step = steps()[index]
    growth = []
    gc.freeze()  # the compiler's modules make every collection slow
    try:
        while len(growth) < 8 and not (growth and growth[-1] < 100):
            gc.collect()
            before = sys.getallocatedblocks()
            for _ in range(200):
                step()
            gc.collect()
            growth.append(sys.getallocatedblocks() - before)
    finally:
        gc.unfreeze()
    assert growth[-1] < 100, growth  # a leaked object per step would give 200


# -- split plans -------------------------------------------------------------


def test_split_plan_frees_values_after_their_last_use():
    refs = []

    def first(x):
        made = x + 1
        refs.append(weakref.ref(made))
        return (made, 3)

    def second(a, b):
        return [a * b]

    def third(x, pair):
        assert refs[0]() is None
        return (x + pair[0] + pair[1], None)

    program = (
        ("in",),
        ("in",),
        ("call", 0, (("n", 0),), False, ()),
        ("get", ("n", 2), 0, ()),
        ("get", ("n", 2), 1, (2,)),
        ("call", 1, (("n", 3), ("n", 4)), True, (3, 4)),
        ("call", 2, (("n", 5), ("t", (("c", 10), ("n", 1)))), False, (5, 1)),
        ("out", ("t", (("n", 6),))),
    )
    plan = _core.SplitPlan(program, (first, second, third))
    assert plan.inputs == 2
    assert plan(torch.ones(1), 2) == ((torch.tensor([18.0]), None),)
    with States(), pytest.raises(TypeError, match="2 positional"):
        plan(1)


@pytest.mark.parametrize(
    "program",
    [
        (("jump",),),
        (("in",),),
        (("in",), ("call", 3, (), False, ()), ("out", ("n", 0))),
        (("in",), ("out", ("n", 4))),
        (("in",), ("get", ("n", 0))),
        (("in",), 5),
        (("in",), ("out", "n")),
    ],
)
def test_malformed_split_program_is_refused(program):
    with States(), pytest.raises(ValueError, match="split plan"):
        _core.SplitPlan(program, ())(1)
