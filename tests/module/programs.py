"""Programs that cover what Inductor generates for CPUs: name -> () -> (function, inputs, options).

``options`` are ``torch.compile``'s, plus ``config`` (patches of torch._inductor.config) and
``train`` (run the backward of the sum of the floating point outputs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from operator_scale import scale

PROGRAMS: dict[str, Callable[[], tuple[Any, list[Any], dict[str, Any]]]] = {}


def program(make: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS[make.__name__] = make
    return make


@torch.library.custom_op("precomp_test::double_", mutates_args=("x",))
def double_(x: torch.Tensor) -> None:
    x.mul_(2)


library = torch.library.Library("precomp_test", "FRAGMENT")
library.define("plus_one(Tensor x) -> Tensor")


def _plus_one(x):
    return x + 1


library.impl("plus_one", _plus_one, "CPU")


@torch.library.register_fake("precomp_test::plus_one")
def _plus_one_fake(x):
    return torch.empty_like(x)


@program
def elementwise():
    def f(x, i, b, h):
        y = (x.sin() + i).relu()
        return y.masked_fill(b, float("-inf")), i // 3 ^ 5, b.logical_not() | (i > 2), h.exp() + x

    x = torch.randn(5, 7)
    i = torch.arange(35).reshape(5, 7) - 10
    return f, [x, i, x > 0.5, x.to(torch.bfloat16)], {}


@program
def reductions():
    def f(x):
        return x.sum(0), x.var(1), x.softmax(-1), x.argmax(1), x.amax(), x.bool().all(1), x.prod(0)

    return f, [torch.randn(6, 33)], {}


@program
def products():
    def f(x, w, b, h):
        y = torch.addmm(b, x, w).relu()
        return torch.bmm(y.view(2, 2, 6), h), y @ w.t()

    inputs = [torch.randn(4, 5), torch.randn(5, 6), torch.randn(6), torch.randn(2, 6, 3)]
    return f, inputs, {"train": True}


@program
def convolution():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.GELU(),
        torch.nn.MaxPool2d(2),
    )  # fmt: skip
    return net, [torch.randn(2, 2, 8, 8)], {"train": True}


@program
def indexing():
    table = torch.nn.Embedding(11, 6)

    def f(i, x):
        rows = table(i).tanh()
        put = torch.zeros(11, 6).index_put((i,), rows, accumulate=True)
        spread = torch.zeros(11, 6).scatter_add(0, i[:, None].expand(-1, 6), rows)
        return put, spread, x[:, i].sum()

    return f, [torch.tensor([1, 4, 4, 10, 0, 4]), torch.randn(3, 11)], {"train": True}


@program
def ordering():
    def f(x):
        values, order = x.sort(-1)
        edges = torch.linspace(-1, 1, 9)
        return values, order, x.topk(3).indices, x.cumsum(0), torch.bucketize(x, edges)

    return f, [torch.randn(4, 9)], {}


@program
def randomness():
    def f(x):
        return F.dropout(x, 0.4) + torch.randn(5), torch.rand_like(x), torch.randint(0, 9, (4,))

    return f, [torch.randn(3, 5)], {"train": True}


@program
def dynamic():
    def f(x, n):
        return (x * n).sum(0).view(-1, 2), torch.full((x.shape[0], n), n + 0.5), x.reshape(-1)[:n]

    return f, [torch.randn(6, 8), 3], {"dynamic": True}


@program
def views():
    def f(x):
        y = x + 1
        return y.t(), y[1:, ::2], x.view(-1)[3:], y.unfold(1, 2, 1)

    return f, [torch.randn(4, 6)], {}


@program
def constants():
    def f(x):
        c = torch.tensor([float(i * i) for i in range(20)]) / 3
        m = torch.tensor([i % 3 == 0 for i in range(20)])
        k = torch.tensor([[i + 2j for i in range(10)]])
        return x * c, x[m], c, (k * x[:10]).real

    return f, [torch.randn(20)], {}


@program
def fallbacks():
    def f(x):
        y = x @ x.t() + torch.eye(4)
        far = torch.cdist(x, x + 1, p=float("inf"))
        return torch.linalg.inv(y), torch.linalg.eigvalsh(y), far, torch.fft.rfft(x).abs()

    return f, [torch.randn(4, 4)], {}


@program
def operators():
    def f(x):
        y = x.cos()
        double_(y)
        return torch.ops.precomp_test.plus_one(scale(y, 1.5)) + y

    return f, [torch.randn(8)], {}


@program
def operator_training():
    def f(x):
        return scale(x.cos(), 0.7).sin()

    return f, [torch.randn(8)], {"train": True}


@program
def branches():
    def f(x, p):
        return torch.cond(p, lambda x: x.sin() @ x, lambda x: x.cos() + 1, (x,))

    return f, [torch.randn(4, 4), torch.tensor(True)], {}


@program
def unbacked():
    def f(x):
        found = x.nonzero()
        return found * 2, x.sum().item() + x

    return f, [torch.tensor([1.0, 0.0, 2.0, 3.0])], {"fullgraph": True}


@program
def mutation():
    def f(x, y):
        x.add_(y)
        y.mul_(x.sum())
        return x * 2

    return f, [torch.randn(3, 4), torch.randn(3, 4)], {}


@program
def pools():
    def f(x):
        y = (x.sin() @ x.t()).relu()
        z = (y @ y).sum(0)
        return (z[:, None] + y) @ x

    return f, [torch.randn(6, 4)], {"dynamic": True, "config": {"memory_planning": True}}


@program
def threads():
    def f(x):
        return x.exp().sum(0), x.tanh()

    return f, [torch.randn(64, 1024)], {"config": {"cpp.threads": 2}}


@program
def parameters_frozen():
    return torch.nn.Linear(32, 32).eval(), [torch.randn(64, 32)], {"config": {"freezing": True}}


@program
def regions_wrapped():
    def f(x):
        return x + 1

    return f, [torch.randn(4)], {"config": {"wrap_inductor_compiled_regions": True}}


@program
def marked_for_the_profiler():
    def f(x):
        return x + 2

    return f, [torch.randn(4)], {"config": {"profiler_mark_wrapper_call": True}}
