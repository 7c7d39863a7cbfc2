"""Functions of every kind that Dynamo inlines or calls.

Each line that ends in ``# run: place`` holds one number; changing it changes the result of
RUNS[run] and of no other. ``scaled`` needs no compiled kernel, only an operator of ATen.
"""

import collections
import contextlib
import dataclasses
import enum
import functools
import operator
import typing

import torch
from torch import nn

ZEROS = torch.zeros(4, 4)
X = torch.linspace(0.1, 1, 16).view(4, 4)


def scaled(t, k):
    return torch.addmm(t, t, t, beta=k, alpha=0)


def traced(function):
    @functools.wraps(function)
    def wrapper(*args):
        return scaled(function(*args), 1.01)  # decorated: wrapper

    return wrapper


def by(amount):
    def decorate(function):
        def inner(*args):
            return scaled(function(*args), amount)

        return inner

    return decorate


@traced
def wrapped(t):
    return scaled(t, 1.02)  # decorated: function


@by(1.03)  # decorated: amount
def amounted(t):
    return scaled(t, 1.04)  # decorated: second function


def decorated(x):
    return amounted(wrapped(x))


class Times:
    def __init__(self, function):
        self.function = function

    def __call__(self, t):
        return scaled(self.function(t), 1.05)  # objects: call


class Slotted:
    __slots__ = ("hidden",)

    def __init__(self, function):
        self.hidden = function

    def __call__(self, t):
        return self.hidden(t)


@Times
def timed(t):
    return scaled(t, 1.06)  # objects: function in an attribute


@Slotted
def slotted(t):
    return scaled(t, 1.07)  # objects: function in a slot


def objects(x):
    return slotted(timed(x))


def make(factor):
    def inner(t):
        return scaled(t, factor + 0.08)  # containers: closure

    return inner


made = make(1.09)  # containers: value in a closure
TABLE = {"one": lambda t: scaled(t, 1.11), "two": None}  # containers: lambda in a dict
LIST = [lambda t, k=1.12: scaled(t, k)]  # containers: default of a lambda
SCALE = 1.13  # containers: global
PAIR = (2, 1.14)  # containers: tuple
CONFIG = {"a": [1.15]}  # containers: dict
PART = functools.partial(scaled, k=1.16)  # containers: argument of a partial
DOUBLE = functools.partial(operator.mul, 1.17)  # containers: partial of a builtin


def containers(x):
    t = LIST[0](TABLE["one"](made(x)))
    return PART(scaled(t, SCALE * PAIR[1] * CONFIG["a"][0] * DOUBLE(2)))


def generate(n):
    for i in range(n):
        yield i + 0.18  # inside: generator


@functools.lru_cache
def cached(n):
    return n * 0.19  # inside: lru_cache


@contextlib.contextmanager
def managed(n):
    yield n * 0.21  # inside: context manager


def inside(x):
    k = sum([i * 0.22 for i in range(3)]) + sum(generate(2)) + cached(2)  # inside: comprehension
    with managed(2) as n:
        x = scaled(x, k + n)
    return (lambda t, k=1.23: scaled(t, k))(x)  # inside: lambda


class Constant:
    def __init__(self, value):
        self.value = value

    def __get__(self, owner, kind=None):
        return self.value + 0.24  # model: code of a descriptor


class Base(nn.Module):
    factor = 1.25  # model: attribute of a class

    def inherited(self, t):
        return scaled(t, 1.26)  # model: inherited method

    def replaced(self, t):
        return scaled(t, 1.27)  # model: another inherited method


class Mixin:
    def mixed(self, t):
        return scaled(t, 1.28)  # model: method of a mixin


EIGHTY = functools.partial(scaled, k=1.81)  # model: partial as a default


class Model(Base, Mixin):
    constant = Constant(1.29)  # model: value of a descriptor
    table = {"key": 1.31}  # model: dict of a class
    small = staticmethod(lambda t: scaled(t, 1.32))  # model: lambda in a class

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = lambda t: scaled(t, 1.33)  # model: lambda of an instance
        self.part = functools.partial(scaled, k=1.34)  # model: partial of an instance

    @property
    def gain(self):
        return self.linear.in_features * 1.35  # model: property

    @staticmethod
    def static(t):
        return scaled(t, 1.37)  # model: static method

    @classmethod
    def of_class(cls, t):
        return scaled(t, cls.factor + 0.38)  # model: class method

    def default(self, t, k=1.39):  # model: default
        return scaled(t, k)

    def keyword(self, t, *, k=1.41, name=None):  # model: keyword default
        return scaled(t, k)

    def partial(self, t, function=EIGHTY):
        return function(t)

    @traced
    def decorated(self, t):
        return t

    @by(1.42)  # model: argument of a decorator
    def amounted(self, t):
        return scaled(t, 1.43)  # model: decorated method

    def forward(self, x):
        t = scaled(self.linear(x), self.gain * self.constant * self.table["key"])
        t = self.amounted(self.part(self.act(self.small(t))))
        t = self.keyword(self.partial(self.default(self.of_class(self.static(t)))))
        return self.mixed(self.replaced(self.inherited(t)))


class Kind(enum.Enum):
    FIRST = 1.44  # enums: value
    SECOND = 2.0


class Grade(enum.IntEnum):
    LOW = 45  # enums: integer value


def enums(x, kind):
    return scaled(scaled(x, kind.value), Grade.LOW + (3 if kind is Kind.SECOND else 2))


@dataclasses.dataclass
class Pack:
    t: torch.Tensor
    scale: float = 1.46  # data: default of a dataclass

    def unpack(self):
        return scaled(self.t, self.scale * 1.47)  # data: method of a dataclass


class Pair(collections.namedtuple("Pair", "a b", defaults=(1.48,))):  # data: named tuple
    def both(self):
        return scaled(self.a, self.b * 1.49)  # data: method of a named tuple


class Typed(typing.NamedTuple):
    a: torch.Tensor
    b: float = 1.51  # data: typed named tuple

    def both(self):
        return scaled(self.a, self.b * 1.52)  # data: method of a typed named tuple


def data(x):
    return Typed(Pair(Pack(x).unpack()).both()).both()


class Meta(type):
    @property
    def of_type(cls):
        return 1.53  # plain: property of a metaclass


class Plain(metaclass=Meta):
    def __init__(self, value):
        self.value = value + 0.54  # plain: init

    def __getitem__(self, key):
        return key * 1.55  # plain: getitem

    def __contains__(self, item):
        return item > 0.56  # plain: contains

    def __iter__(self):
        yield 1.57  # plain: iterator

    def __enter__(self):
        return 1.58  # plain: enter

    def __exit__(self, *args):
        return False

    def __getattr__(self, name):
        return 1.59  # plain: getattr


def plain(x):
    p = Plain(1.0)
    k = p[2] * sum(p) * Plain.of_type * p.missing * p.value
    with p as n:
        return scaled(x, k * n + (3 if 1.0 in p else 5))


class Truth:
    pass


class Value:
    def __init__(self, v):
        self.v = v


def shapes(x):
    return scaled(x, Value(2.0).v * (2.5 if Truth() else 3.5))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return scaled(x, 1.61)  # gradients: forward

    @staticmethod
    def backward(ctx, g):
        return scaled(g, 1.62)  # gradients: backward


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return forward_helper(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.k = 1.63  # gradients: setup_context

    @staticmethod
    def backward(ctx, g):
        return backward_helper(g, ctx.k)


def forward_helper(x):
    return scaled(x, 1.64)  # gradients: helper of forward


def backward_helper(g, k):
    return scaled(g, k * 1.65)  # gradients: helper of backward


def gradients(x):
    return Cube.apply(Square.apply(x)) @ ZEROS


@torch.compiler.allow_in_graph
def allowed(x):
    return allowed_helper(scaled(x, 1.66))  # allowed: function


DEEP = 1.67  # allowed: global of a helper


def allowed_helper(x, k=1.68):  # allowed: default of a helper
    return scaled(x, k * DEEP * 1.69)  # allowed: helper


def in_graph(x):
    return scaled(allowed(x), 2)


@torch._dynamo.nonstrict_trace
def loose(x):
    return loose_helper(scaled(x, 1.71))  # nonstrict: function


def loose_helper(x):
    return scaled(x, 1.72)  # nonstrict: helper


def nonstrict(x):
    return scaled(loose(x), 2)


@torch.compiler.assume_constant_result
def assumed():
    return assumed_helper() * 1.73  # assumed: function


def assumed_helper():
    return 1.74  # assumed: helper


def constant(x):
    return scaled(x, assumed())


@torch._dynamo.dont_skip_tracing
def unskipped(x):
    return scaled(x, 1.75)  # unskipped: function


def dont_skip(x):
    return unskipped(x)


def opaque(x):
    return scaled(x, 1.76)


@torch._dynamo.substitute_in_graph(opaque, skip_signature_check=True)
def transparent(x):
    return scaled(x, 1.77)  # substituted: function


def substituted(x):
    return opaque(x)


@torch.library.custom_op("goods::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@op.register_fake
def _(x):
    return x.new_empty(4, 4)  # operator: fake


op.register_autograd(
    lambda ctx, g: scaled(g, 1.78),  # operator: backward
    setup_context=lambda ctx, inputs, output: None,
)


def operators(x):
    return op(x) @ ZEROS


def checkpoint_helper(x):
    return scaled(x, 1.79)  # checkpointed: function


def checkpointed(x):
    return torch.utils.checkpoint.checkpoint(checkpoint_helper, x, use_reentrant=False) @ ZEROS


def with_library(x):
    return torch.nn.functional.linear(LINEAR(x), LINEAR.weight)


LINEAR = nn.Linear(4, 4)


def without_grad(f, *args):
    with torch.no_grad():
        return torch.compile(f)(*args)


def with_grad(f):
    x = X.clone().requires_grad_()
    torch.compile(f)(x).sum().backward()
    return x.grad


RUNS = {
    "decorated": lambda: without_grad(decorated, X),
    "objects": lambda: without_grad(objects, X),
    "containers": lambda: without_grad(containers, X),
    "inside": lambda: without_grad(inside, X),
    "model": lambda: without_grad(Model(), X),
    "enums": lambda: without_grad(enums, X, Kind.FIRST),
    "data": lambda: without_grad(data, X),
    "plain": lambda: without_grad(plain, X),
    "shapes": lambda: without_grad(shapes, X),
    "gradients": lambda: with_grad(gradients),
    "allowed": lambda: without_grad(in_graph, X),
    "nonstrict": lambda: without_grad(nonstrict, X),
    "assumed": lambda: without_grad(constant, X),
    "unskipped": lambda: without_grad(dont_skip, X),
    "substituted": lambda: without_grad(substituted, X),
    "operator": lambda: with_grad(operators),
    "checkpointed": lambda: with_grad(checkpointed),
    "library": lambda: without_grad(with_library, X),
}
