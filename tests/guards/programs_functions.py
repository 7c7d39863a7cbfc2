"""Guards on globals, functions and objects with methods."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from typing import Any

import torch
from program_base import Program, attribute, call, item, program, x

SCALE = 3
ITEMS = [1, 2, 3]
CONFIG = {"k": 2.0, "act": "relu"}


class Mode(enum.Enum):
    A = 1
    B = 2


MODE = Mode.A


def global_values(t):
    y = t * SCALE + sum(ITEMS) + math.sqrt(4.0)
    if CONFIG["act"] == "relu":
        y = y.relu() * CONFIG["k"]
    if MODE is Mode.A:
        y = y + 1
    return y


@program
def globals_() -> Program:
    t = x(3)
    return Program(
        global_values,
        (t,),
        {
            "int": lambda: item(globals(), "SCALE", 4),
            "list_item": lambda: item(ITEMS, 1, 7),
            "dict_str": lambda: item(CONFIG, "act", "no"),
            "dict_float": lambda: item(CONFIG, "k", 3.0),
            "enum": lambda: item(globals(), "MODE", Mode.B),
            "library_function": lambda: attribute(math, "sqrt", lambda v: 0.0),
        },
    )


def make_closure(a, function):
    cell = [a]

    def inner(t):
        return function(t) * a + cell[0]

    return inner


def sine(t):
    return t.sin()


def cosine(t):
    return t.cos()


def apply(function, t):
    return function(t) + 1


@program
def closure() -> Program:
    body = lambda t: t.relu() + 1  # noqa: E731
    t = x(3)
    c = make_closure(2.0, body)
    return Program(
        apply,
        (c, t),
        {
            "new_closure": lambda: (make_closure(2.0, body), t),
            "value": lambda: (make_closure(3.0, body), t),
            "other_lambda": lambda: (make_closure(2.0, lambda t: t.relu() + 2), t),
            "other_function": lambda: (sine, t),
        },
    )


def scaled(t, k, act=None):
    return act(t) * k


@program
def partial() -> Program:
    t = x(3)
    p = functools.partial(scaled, k=2, act=sine)
    return Program(
        apply,
        (p, t),
        {
            "equal": lambda: (functools.partial(scaled, k=2, act=sine), t),
            "k": lambda: (functools.partial(scaled, k=3, act=sine), t),
            "act": lambda: (functools.partial(scaled, k=2, act=cosine), t),
            "function": lambda: (functools.partial(sine), t),
        },
    )


def with_defaults(t, k=2, *, act=sine, items=(1, 2)):
    return act(t) * k + sum(items)


def call_default(t):
    return with_defaults(t)


@program
def defaults() -> Program:
    t = x(3)
    return Program(
        call_default,
        (t,),
        {
            "defaults": lambda: attribute(with_defaults, "__defaults__", (3,)),
            "kwdefaults": lambda: item(with_defaults.__kwdefaults__, "act", cosine),
            "kwdefault_tuple": lambda: item(with_defaults.__kwdefaults__, "items", (1, 3)),
            "code": lambda: attribute(with_defaults, "__code__", other_defaults.__code__),
            "rebound": lambda: item(globals(), "with_defaults", other_defaults),
        },
    )


def other_defaults(t, k=2, *, act=sine, items=(1, 2)):
    return act(t) - k + sum(items)


@dataclasses.dataclass
class Settings:
    alpha: float = 1.0
    n: int = 2
    acts: tuple[str, ...] = ("relu", "sin")
    dtype: torch.dtype = torch.float32


def use_settings(t, settings):
    y = t.to(settings.dtype) * settings.alpha
    for name in settings.acts:
        y = getattr(torch, name)(y)
    for _ in range(settings.n):
        y = y + 1
    return y


@program
def dataclass() -> Program:
    t = x(3)
    s = Settings()
    return Program(
        use_settings,
        (t, s),
        {
            "equal": lambda: (t, Settings()),
            "alpha": lambda: (t, Settings(alpha=2.0)),
            "n": lambda: (t, Settings(n=3)),
            "acts": lambda: (t, Settings(acts=("sin", "relu"))),
            "dtype": lambda: (t, Settings(dtype=torch.float64)),
            "in_place": lambda: attribute(s, "alpha", 3.0),
            "other_class": lambda: (t, Mode.A),
        },
    )


class Wrapper:
    """An ordinary object with attributes, slots of behaviour and a property."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.more = {"x": [1, 2]}

    @property
    def doubled(self) -> float:
        return self.factor * 2

    @functools.cached_property
    def cached(self) -> float:
        return self.factor * 3

    @staticmethod
    def plus(t):
        return t + 1

    @classmethod
    def times(cls, t):
        return t * cls.CLASS_FACTOR

    CLASS_FACTOR = 4

    def __call__(self, t):
        return self.times(self.plus(t)) * self.doubled + self.more["x"][1]


@program
def user_object() -> Program:
    w = Wrapper(0.5)
    t = x(3)
    return Program(
        apply,
        (w, t),
        {
            "equal": lambda: (Wrapper(0.5), t),
            "factor": lambda: (Wrapper(0.25), t),
            "factor_in_place": lambda: attribute(w, "factor", 7.0),
            "nested_item": lambda: item(w.more["x"], 1, 3),
            "class_attribute": lambda: attribute(Wrapper, "CLASS_FACTOR", 5),
            "method_replaced": lambda: attribute(Wrapper, "plus", staticmethod(lambda t: t + 2)),
        },
    )


class Amount(int):
    pass


AMOUNT = Amount(3)
ACT = lambda t: t * 3  # noqa: E731


def doubling(function):
    # No functools.wraps: the name of the wrapper leads nowhere.
    def wrapper(*args):
        return function(*args) * 2

    return wrapper


@doubling
def incremented(t):
    return t + 1


@functools.lru_cache
def cached_square(n):
    return n * n


def call_functions(t):
    return ACT(t) + incremented(t) + cached_square(3) + AMOUNT


@program
def decorated() -> Program:
    return Program(
        call_functions,
        (x(3),),
        {
            "lambda": lambda: item(globals(), "ACT", lambda t: t * 4),
            "same_lambda": lambda: item(globals(), "ACT", ACT),
            "wrapped": lambda: attribute(
                incremented.__closure__[0], "cell_contents", lambda t: t + 3
            ),
            "not_wrapped": lambda: item(globals(), "incremented", sine),
            "amount": lambda: item(globals(), "AMOUNT", Amount(4)),
            "plain_amount": lambda: item(globals(), "AMOUNT", 3),
        },
    )


def asks_dynamo(t):
    return t * 2 if torch._dynamo.is_compiling() else t


@program
def dynamo_function() -> Program:
    """Its guards look into a module of torch's compiler; the version of torch fixes them."""
    return Program(asks_dynamo, (x(3),), {"shape": lambda: (x(4),)})


def tree_mapped(t, table):
    mapped = torch.utils._pytree.tree_map(lambda leaf: leaf * 2, table)
    return t + mapped["a"][0]


@program
def tree() -> Program:
    t = x(3)
    return Program(
        tree_mapped,
        (t, {"a": [t]}),
        {
            "more": lambda: (t, {"a": [t], "b": 1}),
            "tuple": lambda: (t, {"a": (t,)}),
            "shape": lambda: (t, {"a": [x(1)]}),
        },
    )


def through_weakref(t, reference):
    return t + reference().factor


def dead_reference() -> Any:
    import weakref

    return weakref.ref(Wrapper(2.0))


@program
def weak_reference() -> Program:
    import weakref

    keep = Wrapper(2.0)
    other = Wrapper(3.0)
    t = x(3)
    return Program(
        through_weakref,
        (t, weakref.ref(keep)),
        {
            "other_factor": lambda: (t, weakref.ref(other)),
            "dead": lambda: (t, dead_reference()),
            "in_place": lambda: attribute(keep, "factor", 5.0),
        },
    )


def counter(start: int) -> Any:
    count = start

    def add(t):
        return t + count

    def advance(by: int) -> None:
        nonlocal count
        count += by

    return add, advance


@program
def closure_cell() -> Program:
    add, advance = counter(3)
    return Program(
        apply,
        (add, x(3)),
        {
            "advanced": lambda: call(lambda: advance(1), lambda: advance(-1)),
            "equal": lambda: (counter(3)[0], x(3)),
            "other": lambda: (counter(4)[0], x(3)),
        },
    )


class Scaler:
    UNIT = 2

    @property
    def factor(self):
        return self.UNIT * 3

    def scale(self, t):
        return t * self.factor


def scales(t, scaler):
    return scaler.scale(t)


@program
def class_state() -> Program:
    scaler = Scaler()
    return Program(
        scales,
        (x(3), scaler),
        {
            "equal": lambda: (x(3), Scaler()),
            "class_attribute": lambda: attribute(Scaler, "UNIT", 5),
            "own_attribute": lambda: attribute(scaler, "UNIT", 5),
            "property": lambda: attribute(Scaler, "factor", property(lambda self: 7)),
            "method": lambda: attribute(Scaler, "scale", lambda self, t: t),
            "subclass": lambda: (x(3), type("Sub", (Scaler,), {})()),
        },
    )
