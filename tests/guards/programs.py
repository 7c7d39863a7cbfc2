"""Programs whose guards are recorded in one process and rebuilt in another.

Importing this module must not import torch's compiler. Each program is a function that gives a
:class:`Program`; ``variations`` lists changes of state or arguments under which the guards have to
decide. What they have to decide is asked from torch in the recording process.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SCALE = 3
ITEMS = [1, 2, 3]
CONFIG = {"k": 2.0, "act": "relu"}


class Mode(enum.Enum):
    A = 1
    B = 2


MODE = Mode.A


@dataclasses.dataclass
class Program:
    function: Callable[..., Any]
    # a tuple, or what makes one for each call
    arguments: Any
    # name -> arguments or a context manager
    variations: dict[str, Callable[[], Any]]
    around: Callable[[], Any] = contextlib.nullcontext
    dynamic: bool | None = None
    backend: str = "eager"


PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[make.__name__] = make
    return make


# ------------------------------------------------------------------ changes of state


@contextlib.contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    own = (
        name.startswith("__")
        or not hasattr(owner, "__dict__")
        or any(
            name in getattr(owner, place, {})
            for place in ("__dict__", "_modules", "_parameters", "_buffers")
        )
    )
    before = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def global_(name: str, value: Any) -> Iterator[None]:
    before = globals()[name]
    globals()[name] = value
    try:
        yield
    finally:
        globals()[name] = before


@contextlib.contextmanager
def item(owner: Any, key: Any, value: Any) -> Iterator[None]:
    before = owner[key]
    owner[key] = value
    try:
        yield
    finally:
        owner[key] = before


@contextlib.contextmanager
def call(do: Callable[[], Any], undo: Callable[[], Any]) -> Iterator[None]:
    do()
    try:
        yield
    finally:
        undo()


def training(module: nn.Module, mode: bool) -> Any:
    return call(lambda: module.train(mode), lambda: module.train(not mode))


@contextlib.contextmanager
def restrided(parameter: nn.Parameter) -> Iterator[None]:
    before = parameter.data
    parameter.data = before.t().contiguous().t()
    try:
        yield
    finally:
        parameter.data = before


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


AMBIENT: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default_dtype": lambda: default_dtype(torch.float64),
    "default_device": lambda: torch.device("meta"),
    "num_threads": lambda: threads(2),
    "deterministic": lambda: call(
        # The public function imports torch._inductor.
        lambda: torch._C._set_deterministic_algorithms(True, warn_only=False),
        lambda: torch._C._set_deterministic_algorithms(False, warn_only=False),
    ),
    "function_mode": lambda: torch.overrides.BaseTorchFunctionMode(),
}


def x(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(*shape, **options)


# ------------------------------------------------------------------ plain arguments


def plain_function(t, n, f, s, items, table):
    y = t * n + f
    if s == "relu":
        y = y.relu()
    for i in items:
        y = y + i
    return y * table["a"] - table["b"][0]


@program
def plain() -> Program:
    a = (x(4, 3), 2, 0.5, "relu", [1, 2], {"a": 2, "b": (1, 2)})

    def put(i: int, value: Any) -> Callable[[], Any]:
        return lambda: (*a[:i], value, *a[i + 1 :])

    return Program(
        plain_function,
        a,
        {
            "dtype": put(0, x(4, 3).double()),
            "shape": put(0, x(5, 3)),
            "strides": put(0, x(3, 4).t()),
            "requires_grad": put(0, x(4, 3, requires_grad=True)),
            "parameter": put(0, nn.Parameter(x(4, 3), requires_grad=False)),
            "no_tensor": put(0, 3),
            "int": put(1, 3),
            "bool_for_int": put(1, True),
            "float": put(2, 0.25),
            "nan": put(2, float("nan")),
            "str": put(3, "x"),
            "list_item": put(4, [1, 3]),
            "list_length": put(4, [1, 2, 3]),
            "tuple_for_list": put(4, (1, 2)),
            "dict_value": put(5, {"a": 3, "b": (1, 2)}),
            "dict_extra": put(5, {"a": 2, "b": (1, 2), "z": 1}),
            "dict_less": put(5, {"a": 2}),
            **AMBIENT,
        },
    )


def many_kinds(t, kinds):
    y = t
    for value in kinds:
        if isinstance(value, (int, float)):
            y = y + value
    for i in kinds[5]:
        y = y * i
    if torch.float64 in kinds:
        y = y.double()
    return y[kinds[3]]


@program
def kinds() -> Program:
    a = (1, 2.5, float("nan"), slice(0, 2), "s", range(1, 3), torch.float64, Mode.A, None, b"b")

    def put(i: int, value: Any) -> Callable[[], Any]:
        return lambda: (x(4), (*a[:i], value, *a[i + 1 :]))

    return Program(
        many_kinds,
        (x(4), a),
        {
            "int": put(0, 2),
            "nan_gone": put(2, 1.0),
            "slice": put(3, slice(1, 2)),
            "range": put(5, range(1, 4)),
            "dtype": put(6, torch.float32),
            "enum": put(7, Mode.B),
            "none": put(8, 1),
            "bytes": put(9, b"c"),
        },
    )


# ------------------------------------------------------------------ modules


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 32)
        self.act = nn.GELU()
        self.b = nn.Linear(32, 16)
        self.drop = nn.Dropout(0.1)
        self.norm = nn.BatchNorm1d(16)
        self.scale = 1.5
        self.flags = {"res": True}

    def forward(self, t):
        y = self.norm(self.drop(self.b(self.act(self.a(t)))) * self.scale)
        return t + y if self.flags["res"] else y


@program
def mlp() -> Program:
    torch.manual_seed(0)
    m = MLP().eval()
    t = x(4, 16)
    return Program(
        m,
        (t,),
        {
            "dtype": lambda: (t.double(),),
            "shape": lambda: (x(7, 16),),
            "train": lambda: training(m, True),
            "scale": lambda: attribute(m, "scale", 2.0),
            "flags": lambda: item(m.flags, "res", False),
            "approximate": lambda: attribute(m.act, "approximate", "tanh"),
            "dropout_p": lambda: attribute(m.drop, "p", 0.3),
            "other_activation": lambda: attribute(m, "act", nn.ReLU()),
            "equal_layer": lambda: attribute(m, "a", nn.Linear(16, 32).eval()),
            "no_bias": lambda: attribute(m, "a", nn.Linear(16, 32, bias=False).eval()),
            "parameter_dtype": lambda: attribute(
                m.b, "weight", nn.Parameter(m.b.weight.detach().double())
            ),
            "forward_replaced": lambda: attribute(
                m.a, "forward", lambda t: t[:, :1].expand(-1, 32)
            ),
            "frozen_in_place": lambda: call(
                lambda: m.a.weight.requires_grad_(False), lambda: m.a.weight.requires_grad_(True)
            ),
            "restrided_in_place": lambda: restrided(m.b.weight),
            "buffer_dtype": lambda: attribute(m.norm, "running_mean", x(16).double()),
            "weight_edited": lambda: call(
                lambda: m.a.weight.data.mul_(2), lambda: m.a.weight.data.div_(2)
            ),
            **AMBIENT,
        },
    )


def call_module(m, t):
    return m(t)


@program
def encoder() -> Program:
    torch.manual_seed(0)
    m = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0).train()
    t = x(2, 8, 32)
    return Program(
        call_module,
        (m, t),
        {
            "eval": lambda: training(m, False),
            "norm_first": lambda: attribute(m, "norm_first", True),
            "heads": lambda: attribute(m.self_attn, "num_heads", 2),
            "eps": lambda: attribute(m.norm1, "eps", 1e-3),
            "activation": lambda: attribute(m, "activation", F.gelu),
            "dropout_p": lambda: attribute(m.dropout1, "p", 0.5),
            "shape": lambda: (m, x(2, 9, 32)),
            "other_module": lambda: (nn.Linear(32, 32), t),
        },
    )


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, t):
        for name, layer in self.layers.named_children():
            t = layer(t) if name != "9" else t
        return t


@program
def stack() -> Program:
    m = Stack()
    t = x(2, 8)
    return Program(
        m,
        (t,),
        {
            "fewer_layers": lambda: attribute(m, "layers", nn.ModuleList(list(m.layers)[:2])),
            "other_order": lambda: attribute(
                m, "layers", nn.ModuleList([m.layers[1], m.layers[0], m.layers[2]])
            ),
            "wider": lambda: attribute(m.layers, "1", nn.Linear(8, 8, bias=False)),
        },
    )


# ------------------------------------------------------------------ globals and functions


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
            "int": lambda: global_("SCALE", 4),
            "list_item": lambda: item(ITEMS, 1, 7),
            "dict_str": lambda: item(CONFIG, "act", "no"),
            "dict_float": lambda: item(CONFIG, "k", 3.0),
            "enum": lambda: global_("MODE", Mode.B),
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
            "rebound": lambda: global_("with_defaults", other_defaults),
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


# ------------------------------------------------------------------ shapes, aliasing, state


def dynamic_shapes(a, b, n):
    z = torch.cat([a, b], 0)
    return z.view(-1) * n if z.shape[0] % 2 == 0 else z.sum()


@program
def dynamic() -> Program:
    b = x(4, 3)
    return Program(
        dynamic_shapes,
        (x(6, 3), b, 5),
        {
            "other_size": lambda: (x(8, 3), b, 6),
            "both_odd": lambda: (x(7, 3), x(5, 3), 6),
            "odd": lambda: (x(7, 3), b, 6),
            "columns": lambda: (x(6, 5), x(4, 5), 7),
            "mismatch": lambda: (x(6, 5), b, 7),
            "one": lambda: (x(1, 3), b, 7),
            "transposed": lambda: (x(3, 6).t(), b, 5),
        },
        dynamic=True,
    )


DimRange = collections.namedtuple("DimRange", "dim min max")


def marked(rows: int, columns: int = 3, dim: int | None = 0) -> torch.Tensor:
    """What torch._dynamo.mark_dynamic leaves on a tensor."""
    t = x(rows, columns)
    if dim is not None:
        t._dynamo_dynamic_indices = {dim}
        t._dynamo_dynamic_range = {DimRange(dim, None, None)}
        t._dynamo_hint_overrides = {}
        t._specialize_on = {dim: []}
        t._has_dynamo_dim_marking = True
    return t


def marked_function(a, b):
    return (a + 1) @ b if a.shape[0] > 4 else a @ b - 1


@program
def marking() -> Program:
    b = x(3, 3)
    return Program(
        marked_function,
        (marked(8), b),
        {
            "other_size": lambda: (marked(9), b),
            "unmarked": lambda: (marked(100, dim=None), b),
            "other_dim": lambda: (marked(8, dim=1), b),
            "small": lambda: (marked(3), b),
            "columns": lambda: (marked(8, 4), x(4, 4)),
            "other_marked": lambda: (marked(8), marked(3)),
            "alias": lambda: (b, b),
        },
    )


def aliased(a, b, items):
    a.add_(1)
    return a * b + items[0] + items[-1]


@program
def aliasing() -> Program:
    a, b = x(3), x(3)
    return Program(
        aliased,
        (a, b, [a, b]),
        {
            "no_alias": lambda: (x(3), b, [x(3), b]),
            "all_same": lambda: (a, a, [a, a]),
            "swapped": lambda: (a, b, [b, a]),
        },
    )


def overlapping(a, b):
    a.add_(1)
    return a.sum() + b.sum()


@program
def overlap() -> Program:
    base = x(8)
    return Program(
        overlapping,
        (base[0:4], base[2:6]),
        {
            "apart": lambda: (base[0:4], base[4:8]),
            "other_storage": lambda: (base[0:4], x(4)),
            "same": lambda: (base[0:4], base[0:4]),
        },
        backend="aot_eager",
        dynamic=True,
    )


def grad_modes(t):
    with torch.no_grad():
        y = t * 2
    return y + t if torch.is_grad_enabled() else y


@program
def grad_mode() -> Program:
    return Program(grad_modes, (x(3, requires_grad=True),), AMBIENT)


@program
def inference() -> Program:
    base = mlp()
    m = base.function
    return Program(
        m,
        base.arguments,
        {
            "train": lambda: training(m, True),
            "outside": lambda: torch.inference_mode(False),
        },
        around=torch.inference_mode,
    )


def default_device(t):
    return t + torch.zeros(3)


@program
def device_context() -> Program:
    return Program(
        default_device,
        (x(3),),
        {"meta": lambda: torch.device("meta")},
        around=lambda: torch.device("cpu"),
    )


def uses_grad(t):
    return t * 2 if t.grad is None else t + t.grad


@program
def grad_attribute() -> Program:
    t = x(3, requires_grad=True)
    t.grad = x(3)
    return Program(
        uses_grad,
        (t,),
        {
            "no_grad_yet": lambda: call(
                lambda: setattr(t, "grad", None), lambda: setattr(t, "grad", x(3))
            ),
        },
    )


def iterators(t, pair, numbers, counter):
    for value in pair:
        t = t + value
    for value in numbers:
        t = t * value
    return t + next(counter)


@program
def iterator_arguments() -> Program:
    def arguments(pair=(1, 2), numbers=range(1, 3), start=5):
        return x(3), iter(pair), iter(numbers), itertools.count(start)

    return Program(
        iterators,
        arguments,
        {
            "tuple_length": lambda: arguments(pair=(1, 2, 3)),
            "tuple_item": lambda: arguments(pair=(1, 3)),
            "range": lambda: arguments(numbers=range(1, 4)),
            "count": lambda: arguments(start=6),
        },
    )


def sets(t, names, numbers):
    if "a" in names:
        t = t + 1
    if "z" not in names:
        t = t * 2
    return t * 3 if 3 in numbers else t


@program
def set_arguments() -> Program:
    return Program(
        sets,
        (x(3), {"a", "b"}, frozenset({3, 4})),
        {
            "more": lambda: (x(3), {"a", "b", "c"}, frozenset({3, 4})),
            "without_a": lambda: (x(3), {"b"}, frozenset({3, 4})),
            "with_z": lambda: (x(3), {"a", "z"}, frozenset({3, 4})),
            "other_frozen": lambda: (x(3), {"a", "b"}, frozenset({4})),
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


def copies(t, table):
    import copy

    other = copy.deepcopy(table)
    return t * other["a"] + len(other["b"])


class Config:
    def __init__(self) -> None:
        self.width = 2
        self.names = ["a", "b"]


class Copier(nn.Module):
    """deepcopy puts an id guard on everything it meets."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()

    def forward(self, t):
        import copy

        config = copy.deepcopy(self.config)
        return t * config.width + len(config.names)


@program
def copied_config() -> Program:
    m = Copier()
    t = x(3)
    return Program(
        m,
        (t,),
        {
            "width": lambda: attribute(m.config, "width", 3),
            "names": lambda: call(lambda: m.config.names.append("c"), m.config.names.pop),
            "equal_config": lambda: attribute(m, "config", Config()),
        },
    )


# ------------------------------------------------------------------ less usual values


def numpy_function(t, array, scalar):
    return t + torch.from_numpy(array) * scalar


@program
def numpy_values() -> Program:
    import numpy

    a = (x(3), numpy.ones(3, dtype=numpy.float32), numpy.float32(2))
    return Program(
        numpy_function,
        a,
        {
            "dtype": lambda: (a[0], numpy.ones(3), a[2]),
            "shape": lambda: (a[0], numpy.ones(1, dtype=numpy.float32), a[2]),
            "tensor": lambda: (a[0], x(3), a[2]),
            "scalar_dtype": lambda: (a[0], a[1], numpy.float64(2)),
            "scalar_value": lambda: (a[0], a[1], numpy.float32(3)),
        },
    )


@contextlib.contextmanager
def vmap_level() -> Iterator[None]:
    torch._C._functorch._vmap_increment_nesting(2, "error")
    try:
        yield
    finally:
        torch._C._functorch._vmap_decrement_nesting()


def vmapped_function(t):
    return torch.vmap(lambda row: row * 2)(t)


@program
def vmapped() -> Program:
    return Program(
        vmapped_function,
        (x(3),),
        {"shape": lambda: (x(4),), "inside_vmap": vmap_level, "no_grad": torch.no_grad},
    )


def gradient_function(t):
    return torch.func.grad(lambda v: (v * 2).sum())(t)


@program
def gradient() -> Program:
    return Program(
        gradient_function, (x(3),), {"shape": lambda: (x(4),), "inside_vmap": vmap_level}
    )


def tuple_fields(pair):
    return pair.min * pair.max + pair.dim


@program
def named_tuple() -> Program:
    a = x(3)
    return Program(
        tuple_fields,
        (DimRange(2, a, a),),
        {
            "equal": lambda: (DimRange(2, a, a),),
            "int": lambda: (DimRange(3, a, a),),
            "not_aliased": lambda: (DimRange(2, x(3), a),),
            "other_type": lambda: ((2, a, a),),
        },
    )


ENUM_KEYS = {Mode.A: 2, Mode.B: 3}
TUPLE_KEYS = {(1, "a"): 2}
TYPE_KEYS = {int: 2, torch.float32: 3}


def table_lookups(t):
    return t * ENUM_KEYS[Mode.A] + TUPLE_KEYS[1, "a"] + TYPE_KEYS[int] * TYPE_KEYS[torch.float32]


@program
def table_keys() -> Program:
    return Program(
        table_lookups,
        (x(3),),
        {
            "enum": lambda: item(ENUM_KEYS, Mode.A, 5),
            "other_enum": lambda: item(ENUM_KEYS, Mode.B, 5),
            "tuple": lambda: item(TUPLE_KEYS, (1, "a"), 5),
            "type": lambda: item(TYPE_KEYS, int, 5),
            "dtype": lambda: item(TYPE_KEYS, torch.float32, 5),
        },
    )


def ordered_items(t, table, ordered, default, queue):
    for name, value in table.items():
        t = t * value + len(name)
    for value in ordered.values():
        t = t - value
    return t + default["a"] + queue[0]


@program
def orders() -> Program:
    def arguments(table=None, ordered=None, default=None, queue=(1, 2)):
        return (
            x(3),
            table or {"a": 1, "b": 2},
            collections.OrderedDict(ordered or {"a": 1, "b": 2}),
            collections.defaultdict(int, default or {"a": 2}),
            collections.deque(queue),
        )

    return Program(
        ordered_items,
        arguments,
        {
            "dict_order": lambda: arguments(table={"b": 2, "a": 1}),
            "dict_more": lambda: arguments(table={"a": 1, "b": 2, "c": 3}),
            "dict_value": lambda: arguments(table={"a": 1, "b": 3}),
            "ordered_order": lambda: arguments(ordered={"b": 2, "a": 1}),
            "ordered_value": lambda: arguments(ordered={"a": 1, "b": 3}),
            "default_value": lambda: arguments(default={"a": 3}),
            "queue": lambda: arguments(queue=(2, 2)),
            "queue_length": lambda: arguments(queue=(1, 2, 3)),
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


class OtherMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def doubled(t):
    return t * 2


@program
def function_modes() -> Program:
    return Program(
        doubled,
        (x(3),),
        {"one_more": OtherMode, "disabled": torch._C.DisableTorchFunction},
        around=torch.overrides.BaseTorchFunctionMode,
    )


@program
def forward_mode() -> Program:
    return Program(
        doubled,
        (x(3),),
        {"grad_mode": torch.no_grad, "outside": lambda: _outer_level()},
        around=torch.autograd.forward_ad.dual_level,
    )


@contextlib.contextmanager
def _outer_level() -> Iterator[None]:
    ad = torch.autograd.forward_ad
    before, ad._current_level = ad._current_level, -1
    try:
        yield
    finally:
        ad._current_level = before


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
            "lambda": lambda: global_("ACT", lambda t: t * 4),
            "same_lambda": lambda: global_("ACT", ACT),
            "wrapped": lambda: attribute(
                incremented.__closure__[0], "cell_contents", lambda t: t + 3
            ),
            "not_wrapped": lambda: global_("incremented", sine),
            "amount": lambda: global_("AMOUNT", Amount(4)),
            "plain_amount": lambda: global_("AMOUNT", 3),
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
