"""Every kind of plan behaves as torch's own wrappers around the same graphs."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def kinds(twin):
    return [[output[0] for output in record["outputs"]] for record in twin.records]


# -- inference ---------------------------------------------------------------


def test_inference_outputs_of_all_sorts(twin):
    def fn(x, y, n):
        return (x + y).relu(), None, n + 1, x.shape[0], [x.t() * 2, (y.sum(),)], {"k": x > 0}

    t = twin(fn)

    def scenario(call):
        with torch.no_grad():
            return call(torch.randn(3, 4), torch.randn(4), 5)

    t.compare(scenario)
    assert [r["kind"] for r in t.records] == ["inference"]


def test_inference_with_parameters_requiring_grad(twin):
    model = nn.Linear(4, 4)
    t = twin(model)

    def scenario(call):
        x = torch.ones(2, 4)
        with torch.no_grad():
            out = call(x)
        return [out, torch.is_grad_enabled()]

    t.compare(scenario)


def test_inference_mode(twin):
    t = twin(lambda x: (x.sin(), x.view(-1), x))

    def scenario(call):
        with torch.inference_mode():
            x = torch.randn(2, 3)
            return [call(x), x]

    t.compare(scenario)


def test_empty_and_zero_dimensional_tensors(twin):
    t = twin(lambda x, y: (x * 2, y + 1, y.expand(3)))
    t.compare(lambda call: call(torch.empty(0, 3), torch.tensor(2.5)))


def test_random_stream_and_dropout(twin):
    def fn(x):
        return torch.nn.functional.dropout(x, 0.5) + torch.randn(3, 3)

    t = twin(fn)

    def scenario(call):
        x = torch.ones(3, 3, requires_grad=True)
        out = call(x)
        out.sum().backward()
        return [out, x.grad, torch.rand(2)]

    t.compare(scenario)


def test_bfloat16_and_complex(twin):
    def fn(x, z):
        return (x @ x.t()).to(torch.float32), z * 2, torch.view_as_real(z), x.t()

    t = twin(fn)

    def scenario(call):
        x = torch.randn(2, 3, dtype=torch.bfloat16, requires_grad=True)
        z = torch.randn(2, 2, dtype=torch.complex64)
        outs = call(x, z)
        outs[0].sum().backward()
        return [outs, x, z, x.grad]

    t.compare(scenario)


# -- training ----------------------------------------------------------------


def test_training_step_with_module_and_no_grad_outputs(twin):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    state = {k: v.clone() for k, v in model.state_dict().items()}

    def fn(x):
        y = model(x)
        return y, y.detach(), y.argmax(1), y.sum()

    t = twin(fn)

    def scenario(call):
        model.load_state_dict(state)
        model.zero_grad()
        x = torch.randn(5, 4)
        outs = call(x)
        (outs[0].square().mean() + outs[3]).backward()
        return [outs, [p.grad for p in model.parameters()], x]

    t.compare(scenario)
    assert t.records[0]["non_differentiable"]


def test_batch_norm_updates_buffers(twin):
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    state = {k: v.clone() for k, v in model.state_dict().items()}
    t = twin(model)

    def scenario(call):
        model.load_state_dict(state)
        model.zero_grad()
        model.train()
        out = call(torch.randn(2, 2, 6, 6))
        out.sum().backward()
        grads = [p.grad for p in model.parameters()]
        versions = [b._version for b in model.buffers()]
        versions = [v - versions[0] for v in versions]
        return [out, grads, [b.clone() for b in model.buffers()], versions]

    t.compare(scenario)


def test_gradients_accumulate(twin):
    t = twin(lambda x, w: (x @ w).tanh())

    def scenario(call):
        w = torch.randn(3, 3, requires_grad=True)
        for _ in range(3):
            call(torch.randn(2, 3), w).sum().backward()
        return [w, w.grad]

    t.compare(scenario)


def test_several_forwards_pending(twin):
    t = twin(lambda x: x.sin() * x.cos())

    def scenario(call):
        xs = [torch.randn(3, requires_grad=True) for _ in range(3)]
        outs = [call(x) for x in xs]
        for out in (outs[1], outs[0], outs[2]):
            out.sum().backward()
        return [xs, outs, [x.grad for x in xs]]

    t.compare(scenario)


def test_output_used_twice_and_nested_in_eager(twin):
    t = twin(lambda x: (x.exp(), x.sin()))

    def scenario(call):
        x = torch.randn(3, requires_grad=True)
        a, b = call(x * 2)
        c, d = call(a)
        (a + c * d + b).sum().backward()
        return [a, b, c, d, x.grad]

    t.compare(scenario)


def test_some_outputs_unused_in_backward(twin):
    t = twin(lambda x, y: (x.sin(), y.cos(), (x * y).sum()))

    def scenario(call):
        x = torch.randn(3, requires_grad=True)
        y = torch.randn(3, requires_grad=True)
        outs = call(x, y)
        outs[0].sum().backward()
        return [outs, x.grad, y.grad]

    t.compare(scenario)


@pytest.mark.parametrize("dynamic", [False, True])
def test_tangents_with_foreign_strides(twin, dynamic):
    t = twin(lambda x: x.sin(), dynamic=dynamic)

    def scenario(call):
        x = torch.randn(4, 6, requires_grad=True)
        out = call(x)
        out.backward(torch.arange(24.0).view(6, 4).t())
        y = torch.randn(4, 6, requires_grad=True)
        call(y).backward(torch.ones(1, 1).expand(4, 6))
        return [out, x.grad, y.grad]

    t.compare(scenario)


def test_channels_last_tangents(twin):
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    t = twin(conv)

    def scenario(call):
        conv.zero_grad()
        x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
        out = call(x)
        out.backward(torch.ones(2, 4, 6, 6))
        return [out, x.grad, conv.weight.grad]

    t.compare(scenario)


def test_autocast_inside_and_outside(twin):
    model = nn.Linear(4, 4)

    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    t = twin(fn)

    def scenario(call):
        model.zero_grad()
        out = call(torch.randn(2, 4))
        out.float().sum().backward()
        return [out, model.weight.grad, torch.is_autocast_enabled("cpu")]

    t.compare(scenario)
    t = twin(lambda x: model(x) * 2)

    def outside(call):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = call(torch.randn(2, 4))
            seen = torch.is_autocast_enabled("cpu")
        out.float().sum().backward()
        return [out, model.weight.grad, seen]

    t.compare(outside)
    assert t.records[0]["disable_autocast"] is True


def test_dynamic_shapes_save_symints(twin):
    def fn(x, w):
        return (x @ w).view(-1).sin(), x.shape[0] * 2, x.new_ones(x.shape[0])

    t = twin(fn, dynamic=True)

    def scenario(call):
        seen = []
        for n in (4, 7):
            x = torch.randn(n, 3)
            w = torch.randn(3, 5, requires_grad=True)
            outs = call(x, w)
            outs[0].sum().backward()
            seen += [outs, w.grad]
        return seen

    t.compare(scenario)
    assert any(output[2] for output in t.records[0]["outputs"])


def test_symints_saved_for_backward(twin):
    def fn(x):
        return x.expand(x.shape[0], x.shape[0]).sum(1) * x.shape[0]

    t = twin(fn, dynamic=True)

    def scenario(call):
        x = torch.randn(5, requires_grad=True)
        call(x).sum().backward()
        return [x.grad]

    t.compare(scenario)
    assert t.records[0]["saved_symints"] > 0


def test_graph_that_changes_grad_mode(twin):
    def fn(x):
        y = x.sin()
        torch.set_grad_enabled(False)
        return y, y * 2

    t = twin(fn)

    def scenario(call):
        x = torch.randn(3, requires_grad=True)
        try:
            outs = call(x)
            mode = torch.is_grad_enabled()
        finally:
            torch.set_grad_enabled(True)
        outs[0].sum().backward()
        return [outs, mode, x.grad]

    t.compare(scenario)


def test_grad_mode_inside_a_graph(twin):
    def fn(x):
        with torch.no_grad():
            a = x * 2
        with torch.enable_grad():
            b = x * 3
        return a, b, a + b

    t = twin(fn)

    def scenario(call):
        x = torch.randn(3, requires_grad=True)
        outs = call(x)
        outs[2].sum().backward()
        with torch.no_grad():
            y = torch.randn(3, requires_grad=True)
            inner = call(y)
        inner[1].sum().backward()
        return [outs, x.grad, inner, y.grad]

    t.compare(scenario)


def test_int_and_none_outputs_beside_gradients(twin):
    t = twin(lambda x: (x * 2, None, 3, x.size(0), "s"))

    def scenario(call):
        x = torch.randn(2, requires_grad=True)
        outs = call(x)
        outs[0].sum().backward()
        return [outs, x.grad]

    t.compare(scenario)


def test_graphs_without_operations(twin):
    def identity(x, n):
        return x.view(-1), None, x

    t = twin(identity)
    t.compare(lambda call: call(torch.randn(2, 2), 3))
    t = twin(lambda x, y: (x + y, y.sum()))

    def scenario(call):
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        out = call(x, y)[0]
        out.backward(torch.ones(3))
        return [out, x.grad, y.grad]

    t.compare(scenario)

    def views(x):
        return x.view(-1), x.t(), x.detach()

    t = twin(views)

    def training(call):
        x = torch.randn(2, 3, requires_grad=True)
        outs = call(x)
        (outs[0].sum() + outs[1].sum()).backward()
        return [outs, x, x.grad]

    t.compare(training)


def test_backward_without_operations(direct):
    def scenario(call):
        x = torch.randn(3, requires_grad=True)
        (out,) = call(x)
        out.backward(torch.arange(3.0))
        return [out, x.grad]

    record = direct(lambda x: (x + 1,), scenario)
    assert record["bw"] == (("i", 0),)


# -- mutation ----------------------------------------------------------------


def test_inputs_written_in_place(twin):
    def fn(x, y):
        x.add_(1)
        y.mul_(2)
        return x + y

    t = twin(fn)

    def scenario(call):
        x, y = torch.randn(3), torch.randn(3)
        out = call(x, y)
        return [out, x, y]

    t.compare(scenario)


def test_non_leaf_input_written_in_place(twin):
    def fn(x, w):
        x.add_(w)
        return x.sin()

    t = twin(fn)

    def scenario(call):
        w = torch.randn(3, requires_grad=True)
        x = (w * 2).clone()
        out = call(x, w)
        (out + x).sum().backward()
        return [out, x, w.grad]

    t.compare(scenario)
    assert t.records[0]["mutated"]


def test_leaf_written_under_no_grad_or_detached(twin):
    def fn(p, g):
        with torch.no_grad():
            p.sub_(g)
        q = p.detach()
        q.mul_(0.5)
        return p * 2

    t = twin(fn)

    def scenario(call):
        p = torch.randn(3, requires_grad=True)
        before = p._version
        out = call(p, torch.ones(3))
        out.sum().backward()
        return [out, p, p.grad, p._version - before]

    t.compare(scenario)


def transpose_and_scale(x, y):
    x.t_()
    y.transpose_(0, 1)
    y.mul_(2)
    return x * 2, y.sum()


def test_metadata_of_an_input_changes(direct):
    def scenario(call):
        x, y = torch.randn(2, 3), torch.randn(2, 3)
        return [call(x, y), x, y]

    record = direct(transpose_and_scale, scenario)
    assert [m[1:4] for m in record["mutated"]] == [(False, True, False), (True, True, False)]


def test_metadata_of_an_input_changes_in_training(direct):
    def fn(x, y, w):
        x.t_()
        y.transpose_(0, 1)
        y.add_(w.sum())
        return (x + w.t(), y.sum())

    def scenario(call):
        x, y = torch.randn(2, 3), torch.randn(2, 3)
        w = torch.randn(2, 3, requires_grad=True)
        out, total = call(x, y, w)
        (out.sum() + total + (y * 2).sum()).backward()
        return [out, total, x, y, w.grad]

    record = direct(fn, scenario)
    assert [m[1:4] for m in record["mutated"]] == [(False, True, False), (True, True, False)]


def test_storage_of_an_input_is_set(direct):
    def fn(x, y):
        x.set_(y)
        return (x * 2,)

    def scenario(call):
        x, y = torch.randn(3), torch.randn(3)
        return [call(x, y), x, y, torch.is_grad_enabled()]

    direct(fn, scenario)


def test_storage_of_an_input_is_set_in_training(direct):
    def fn(x, y, w):
        x.set_(y)
        return (x * w,)

    def scenario(call):
        x, y, w = torch.randn(3), torch.randn(3), torch.randn(3, requires_grad=True)
        (out,) = call(x, y, w)
        out.sum().backward()
        return [out, x, y, w.grad]

    direct(fn, scenario)


def test_changed_buffer_is_returned(twin):
    buffer = torch.zeros(3)

    def fn(x):
        buffer.add_(x.detach())
        return buffer, x * buffer

    t = twin(fn)

    def scenario(call):
        buffer.zero_()
        version = buffer._version
        x = torch.randn(3, requires_grad=True)
        out, y = call(x)
        y.sum().backward()
        return [out is buffer, y, x.grad, buffer.clone(), buffer._version - version]

    t.compare(scenario)


# -- aliases -----------------------------------------------------------------


def alias_fn(x, y):
    mid = y * 2
    return x, x.view(-1), x[1:], x.t(), mid.view(-1), mid[0], mid, x.detach(), y.unsqueeze(0)


@pytest.mark.parametrize("grads", ["none", "x", "y", "both", "no_grad"])
def test_outputs_that_alias(twin, grads):
    t = twin(alias_fn)

    def scenario(call):
        x = torch.randn(3, 4, requires_grad=grads in ("x", "both", "no_grad"))
        y = torch.randn(3, 4, requires_grad=grads in ("y", "both"))
        with torch.set_grad_enabled(grads != "no_grad"):
            outs = call(x, y)
        total = sum(o.sum() for o in outs)
        if total.requires_grad:
            total.backward()
        return [outs, x, y, x.grad, y.grad]

    t.compare(scenario)
    assert "alias_of_input" in kinds(t)[0]


def test_views_of_an_intermediate_share_its_storage_and_gradient(twin):
    def fn(x):
        mid = x.sin()
        return mid.view(-1), mid[0], mid.unsqueeze(1)

    t = twin(fn)

    def scenario(call):
        x = torch.randn(3, 4, requires_grad=True)
        a, b, c = call(x)
        with torch.no_grad():
            a.detach().mul_(2)
        (a.sum() + b.sum() * 2 + c.sum() * 3).backward()
        return [a, b, c, x.grad]

    t.compare(scenario)
    assert t.records[0]["bases"] == 1


def test_in_place_on_a_returned_view(twin):
    def fn(x):
        mid = x * 2
        return mid, mid.view(-1)

    t = twin(fn)

    def scenario(call):
        x = torch.randn(2, 3, requires_grad=True)
        mid, flat = call(x)
        flat.mul_(3)
        mid.sum().backward()
        return [mid, flat, x.grad]

    t.compare(scenario)


def test_alias_of_input_with_other_dtype_or_conjugate(twin):
    def fn(x, z):
        return x.view(torch.int32), torch.view_as_real(z), z.conj(), z.real

    t = twin(fn)
    t.compare(lambda call: call(torch.randn(4), torch.randn(3, dtype=torch.complex64)))


def test_alias_with_symbolic_views(twin):
    def fn(x, n):
        return x.view(n, -1), x[: x.shape[0] // 2], x.t()

    t = twin(fn, dynamic=True)

    def scenario(call):
        seen = []
        for rows in (4, 6):
            x = torch.randn(rows, 4, requires_grad=True)
            outs = call(x, 2)
            sum(o.sum() for o in outs).backward()
            seen += [outs, x.grad]
        return seen

    t.compare(scenario)


def test_no_grad_view_of_an_input_that_requires_grad(twin):
    def fn(x):
        with torch.no_grad():
            return x.view(-1), x.sin(), x

    t = twin(fn)

    def scenario(call):
        x = torch.randn(2, 2, requires_grad=True)
        return [call(x), x]

    t.compare(scenario)


def test_view_of_changed_input(twin):
    def fn(x):
        x.mul_(2)
        return x.view(-1), x

    t = twin(fn)

    def scenario(call):
        base = torch.randn(2, 3, requires_grad=True)
        x = base.clone()
        outs = call(x)
        outs[0].sum().backward()
        return [outs, x, base.grad]

    t.compare(scenario)


def test_split_and_unbind(twin):
    def fn(x):
        a, b = x.chunk(2)
        return a, b, *x.unbind(1), (x * 2).split(1)

    t = twin(fn)

    def scenario(call):
        x = torch.randn(2, 3, requires_grad=True)
        outs = call(x)
        (outs[0].sum() + outs[2].sum() + outs[-1][0].sum()).backward()
        return [outs, x.grad]

    t.compare(scenario)


# -- modes of backward -------------------------------------------------------


def test_retain_graph_where_nothing_is_donated(twin):
    t = twin(lambda x, w: x @ w)

    def scenario(call):
        x, w = torch.randn(2, 3), torch.randn(3, 2, requires_grad=True)
        out = call(x, w)
        out.sum().backward(retain_graph=True)
        out.sum().backward()
        return [w.grad]

    t.compare(scenario)


def error_of(function):
    try:
        function()
    except Exception as error:  # noqa: BLE001 the text is compared
        return [type(error).__name__, str(error)]
    return ["no error"]


def test_errors_of_backward_have_torchs_text(twin):
    def fn(x):
        y = x.sin().cos()
        return y.exp() * y

    t = twin(fn)

    def scenario(call):
        seen = []
        x = torch.randn(3, requires_grad=True)
        call(x).sum().backward()

        out = call(x)
        seen.append(error_of(lambda: out.sum().backward(retain_graph=True)))
        out = call(x)
        out.sum().backward()
        seen.append(error_of(lambda: out.sum().backward()))
        out = call(x)
        seen.append(error_of(lambda: torch.autograd.grad(out.sum(), x, create_graph=True)))
        z = torch.randn(3, requires_grad=True)
        y = z * 2
        out = call(y)
        y.detach().add_(1)
        y.add_(1)
        seen.append(error_of(lambda: out.sum().backward()))
        out = call(x)
        torch.use_deterministic_algorithms(True)
        try:
            seen.append(error_of(lambda: out.sum().backward()))
        finally:
            torch.use_deterministic_algorithms(False)
        seen.append(error_of(lambda: call(x).sum().backward()))
        node = call(x).grad_fn
        seen.append(error_of(lambda: node.apply()))
        seen.append(error_of(lambda: node.apply_boxed(1, 2)))
        return [seen, torch.is_grad_enabled()]

    t.compare(scenario)


def test_double_backward_is_refused(twin):
    t = twin(lambda x, w: (x @ w).square())

    def scenario(call):
        x = torch.randn(2, 3, requires_grad=True)
        w = torch.randn(3, 2, requires_grad=True)
        with torch._functorch.config.patch(donated_buffer=False):
            call(x, w).sum().backward()
            out = call(x, w)
            (grad,) = torch.autograd.grad(out.sum(), w, create_graph=True)
            message = error_of(lambda: grad.sum().backward())
        return [grad, message]

    with torch._functorch.config.patch(donated_buffer=False):
        t.compare(scenario)


def test_grad_enabled_backward_through_detached_saved_tensors(twin):
    t = twin(lambda x: x * 3)

    def scenario(call):
        x = torch.randn(2, requires_grad=True)
        call(x).sum().backward()
        (grad,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        return [grad, grad.requires_grad]

    t.compare(scenario)


def test_backward_from_another_thread(twin):
    import threading

    t = twin(lambda x: (x.sin() * x).sum())

    def scenario(call):
        x = torch.randn(4, requires_grad=True)
        out = call(x)
        thread = threading.Thread(target=out.backward)
        thread.start()
        thread.join()
        y = torch.randn(4, requires_grad=True)
        results = []
        thread = threading.Thread(target=lambda: results.append(call(y)))
        thread.start()
        thread.join()
        results[0].backward()
        return [out, x.grad, y.grad]

    t.compare(scenario)


def test_multithreaded_backward_with_context(twin):
    import contextvars

    variable = contextvars.ContextVar("variable", default=0)
    t = twin(lambda x: x.sin().sum())

    def scenario(call):
        variable.set(5)
        x = torch.randn(4, requires_grad=True)
        call(x).backward()
        y = torch.randn(4, requires_grad=True)
        torch._C._stash_obj_in_tls("context", contextvars.copy_context())
        try:
            call(y).backward()
        finally:
            torch._C._stash_obj_in_tls("context", None)
        return [x.grad, y.grad]

    t.compare(scenario)


def test_tangent_of_a_tensor_subclass_is_refused(twin):
    t = twin(lambda x: x.sin())

    def scenario(call):
        x = torch.randn(4, requires_grad=True)
        call(x).backward(torch.ones(4))
        out = call(x)
        kind, text = error_of(lambda: out.backward(nn.Parameter(torch.ones(4))))
        return [kind, text.strip().splitlines()[0]]  # torch words the rest in other ways

    t.compare(scenario)


def test_functorch_transform_around_the_graph(twin):
    t = twin(lambda x: x.sin())

    def scenario(call):
        x = torch.randn(4, requires_grad=True)
        call(x).sum().backward()
        out = call(x)
        message = error_of(
            lambda: torch.func.vmap(lambda g: torch.autograd.grad(out, x, g)[0])(torch.eye(4))
        )
        return [message]

    t.compare(scenario)


def test_saved_tensor_hooks_see_the_same_tensors(twin):
    t = twin(lambda x, w: (x @ w).sin())

    def scenario(call):
        x, w = torch.randn(2, 3), torch.randn(3, 2, requires_grad=True)
        call(x, w).sum().backward()
        packed = []

        def pack(tensor):
            packed.append([tuple(tensor.shape), tensor._is_view(), tensor.requires_grad])
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = call(x, w)
        out.sum().backward()
        return [packed, w.grad]

    t.compare(scenario)


def test_saved_tensor_hooks_see_the_same_states(twin):
    t = twin(lambda x, w: (x @ w).sin())

    def scenario(call):
        seen = []

        def look(tensor):
            seen.append(
                [
                    torch.is_autocast_enabled("cpu"),
                    torch.is_grad_enabled(),
                    torch._C._is_view_replay_enabled(),
                ]
            )
            return tensor

        with torch.autocast("cpu", dtype=torch.bfloat16):
            x, w = torch.randn(2, 3), torch.randn(3, 2, requires_grad=True)
            call(x, w).sum().backward()
            with torch.autograd.graph.saved_tensors_hooks(look, look):
                out = call(x, w)
                out.sum().backward()
        return [seen, w.grad]

    seen = t.compare(scenario)[0]
    assert seen[0][0] is False


def test_graph_breaks_and_nested_calls(twin):
    def fn(x):
        y = x.sin()
        torch._dynamo.graph_break()
        z = y * x.cos()
        return z.sum()

    t = twin(fn)

    def scenario(call):
        x = torch.randn(4, requires_grad=True)
        call(x).backward()
        return [x.grad]

    t.compare(scenario)
    assert len(t.records) == 2
