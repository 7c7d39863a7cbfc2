"""Small programs that caches and serialisers of compiled code were reported to fail on.

``CASES`` maps a name to a function that runs the case and returns a tree of lists and numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.two_tensor import TwoTensor

X = torch.linspace(-1, 1, 24).reshape(4, 6)


def values(*tensors):
    return [t.detach().tolist() if isinstance(t, torch.Tensor) else t for t in tensors]


def loop_with_requires_grad():
    """A trivial loop over tensors that require gradients."""

    @torch.compile
    def f(a, b):
        for i in range(4):
            a = a + b * i
        return a

    a = X.clone().requires_grad_()
    b = (X * 2).requires_grad_()
    out = f(a, b)
    out.sum().backward()
    return values(out, a.grad, b.grad)


def view_of_an_input():
    @torch.compile
    def f(x):
        return x.view(-1)[3:9], x.t()

    x = X.clone()
    a, b = f(x)
    a.add_(100)
    return [*values(a, b, x), a._base is x, b._base is x]


def ellipsis_index():
    @torch.compile
    def f(x, index=(..., 2)):
        return x[...] * 2, x[index]

    return values(*f(X))


class Cast(nn.Module):
    def __init__(self):
        super().__init__()
        self.dtype = torch.float64
        self.device = torch.device("cpu")

    def forward(self, x):
        return x.to(device=self.device, dtype=self.dtype) * 3


def dtype_attribute():
    return values(torch.compile(Cast())(X))


class Locked(nn.Module):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x).relu()


def lock_on_the_module():
    torch.manual_seed(0)
    return values(torch.compile(Locked())(X))


def lock_in_a_closure():
    lock = threading.Lock()

    def f(x):
        with lock:
            return x * 2 + 1

    return values(torch.compile(f)(X))


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


class Wrapped(nn.Module):
    @logged
    def forward(self, x):
        return x.cos()


def wrapped_forward():
    return values(torch.compile(Wrapped())(X))


@dataclasses.dataclass(frozen=True)
class Sizes:
    sizes: list = dataclasses.field(default_factory=lambda: [1, 2, 3])
    scale: float = 2.0


def frozen_dataclass_with_a_list():
    config = Sizes()

    @torch.compile
    def f(x):
        return x * config.scale + sum(config.sizes)

    return values(f(X))


class Stubborn:
    """A configuration that refuses to be pickled."""

    def __init__(self):
        self.scale = 4.0

    def __reduce__(self):
        raise TypeError("not to be pickled")


class Configured(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Stubborn()

    def forward(self, x):
        return x * self.config.scale


def unpicklable_config():
    return values(torch.compile(Configured())(X))


def attribute_set_on_a_tensor():
    x = X.clone()
    x.tag = 5

    @torch.compile
    def f(t):
        return t * t.tag

    return values(f(x))


def partial_as_input():
    @torch.compile
    def f(x, g):
        return g(x) + 1

    return values(f(X, functools.partial(torch.mul, other=3.0)))


def partial_made_inside():
    @torch.compile
    def f(x):
        g = functools.partial(torch.add, alpha=2)
        return g(x, x)

    return values(f(X))


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = [1.0, 2.0, 3.0]

    def forward(self, x):
        return x * sum(p * p for p in self.parts)


def generator_over_an_attribute():
    return values(torch.compile(Listed())(X))


def gradient_scaler():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    compiled = torch.compile(lambda x: model(x).pow(2).sum())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    losses = []
    for _ in range(3):
        loss = compiled(X)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return [losses, *values(*model.parameters())]


def constant_tensor_made_inside():
    @torch.compile
    def f(x):
        return x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])

    return values(f(X))


def import_inside():
    @torch.compile
    def f(x):
        import math

        import torch.nn.functional as F

        return F.silu(x) * math.pi

    return values(f(X))


def same_shapes_other_work():
    """Two graphs that take and give the same shapes; each gets its own."""
    f = torch.compile(lambda x: x * 2 + 1)
    g = torch.compile(lambda x: x * 2 - 1)
    return values(f(X), g(X), f(X + 1), g(X + 1))


def autocast_and_plain():
    """The dtype of the autocast around a call decides which graph serves it."""
    torch.manual_seed(0)
    linear = nn.Linear(6, 6)
    f = torch.compile(lambda x: linear(x).relu())
    plain = f(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lower = f(X)
    return [*values(plain, lower.float(), f(X)), str(plain.dtype), str(lower.dtype)]


def loop_index():
    """An integer that changes with every call becomes dynamic."""

    @torch.compile
    def f(x, i):
        return x * i + i

    return values(*(f(X, i) for i in range(2, 9)))


def empty_tensors():
    @torch.compile
    def f(x):
        return x.sin() * 2, x.sum()

    return values(*f(torch.ones(0, 6)))


def many_outputs_and_inputs():
    @torch.compile
    def f(*xs):
        return [x * i for i, x in enumerate(xs)]

    return values(*f(*(X + i for i in range(60))))


def wrapper_in_cpp():
    f = torch.compile(lambda x: x.sin(), options={"cpp_wrapper": True})
    x = X.clone().requires_grad_()
    out = f(x)
    out.sum().backward()
    return values(out, x.grad)


def mutated_global():
    """A list of the module that the compiled function appends to."""
    SEEN.clear()

    @torch.compile
    def f(x):
        SEEN.append(len(SEEN))
        return x + len(SEEN)

    return [*values(f(X), f(X)), list(SEEN)]


SEEN: list[int] = []


def generator_function():
    @torch.compile
    def f(x):
        def parts():
            yield x.sin()
            yield x.cos()

        return sum(parts())

    return values(f(X))


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        for layer in self.layers[:2]:  # makes a module inside compiled code
            x = layer(x)
        return x


def part_of_a_module_list():
    torch.manual_seed(0)
    return values(torch.compile(Layers())(X))


def lock_on_a_function():
    def f(x):
        return x * 3 - 1

    f.lock = threading.Lock()
    return values(torch.compile(f)(X))


class Setting:
    """A constant of pytrees that holds a list."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __eq__(self, other):
        return type(other) is Setting and self.numbers == other.numbers

    def __hash__(self):
        return hash(tuple(self.numbers))


torch.utils._pytree.register_constant(Setting)


def registered_constant_with_a_list():
    @torch.compile
    def f(x, setting):
        return x * setting.numbers[1]

    return values(f(X, Setting([1.0, 2.5])))


def forward_replaced_by_a_partial():
    """What libraries of hooks do to the outermost module."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    model.original = model.forward

    def forward(module, *args, **kwargs):
        return module.original(*args, **kwargs) * 2

    model.forward = functools.update_wrapper(functools.partial(forward, model), model.forward)
    return values(torch.compile(model)(X))


def weights_of_other_shapes():
    """Each shape is an entry of its own."""
    torch.manual_seed(0)

    @torch.compile(dynamic=False, fullgraph=True)
    def f(x, weight):
        return (x @ weight).relu()

    return values(*(f(X, torch.randn(6, n)) for n in (2, 3, 5)))


def tensor_subclass_that_requires_grad():
    f = torch.compile(lambda x: x * 2)
    return values(f(TwoTensor(X, X + 1).requires_grad_()).a)


@contextlib.contextmanager
def two_ranks():
    """A process group of two ranks of which this is the first; collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def process_group_as_a_local():
    with two_ranks() as group:

        @torch.compile
        def f(x):
            return x * dist.get_world_size(group) + dist.get_rank(group)

        return values(f(X))


def process_group_as_an_argument():
    @torch.compile
    def f(x, group):
        return collectives.all_reduce(x * 2, "sum", group) + 1

    with two_ranks() as group:
        return values(f(X, group))


CASES = {
    f.__name__: f
    for f in (
        loop_with_requires_grad, view_of_an_input, ellipsis_index, dtype_attribute,
        lock_on_the_module, lock_in_a_closure, wrapped_forward, frozen_dataclass_with_a_list,
        unpicklable_config, attribute_set_on_a_tensor, partial_as_input, partial_made_inside,
        generator_over_an_attribute, gradient_scaler, constant_tensor_made_inside, import_inside,
        same_shapes_other_work, autocast_and_plain, loop_index, empty_tensors,
        many_outputs_and_inputs, wrapper_in_cpp, mutated_global, generator_function,
        part_of_a_module_list, lock_on_a_function, registered_constant_with_a_list,
        forward_replaced_by_a_partial, weights_of_other_shapes, tensor_subclass_that_requires_grad,
        process_group_as_a_local, process_group_as_an_argument,
    )
}  # fmt: skip
