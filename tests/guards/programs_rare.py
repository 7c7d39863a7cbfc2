"""Guards that few programs have. Some are put there by the backend (``planted``)."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from program_base import Program, attribute, call, item, planted, program, x
from torch import nn


def beside(t, other):
    return t * 2


def alone(t):
    return t * 2


class Thing:
    def __init__(self, factor: float = 2.0) -> None:
        self.factor = factor

    def __obj_flatten__(self):
        return (("factor", self.factor),)

    def get_base(self):
        return self.factor


# ------------------------------------------------------------------ accessors


@program
def generic_attribute() -> Program:
    thing = Thing()
    return Program(
        beside,
        (x(3), thing),
        {
            "in_place": lambda: attribute(thing, "factor", 3.0),
            "equal": lambda: (x(3), Thing()),
            "other": lambda: (x(3), Thing(4.0)),
            "absent": lambda: (x(3), object()),
        },
        backend=planted(
            lambda S, B: S.GenericAttrSource(S.LocalSource("other"), "factor").make_guard(
                B.EQUALS_MATCH
            )
        ),
    )


@program
def tensor_properties() -> Program:
    def guard(name: str, index: int | None) -> Callable[[Any, Any], Any]:
        return lambda S, B: S.TensorPropertySource(
            S.LocalSource("t"), S.TensorProperty[name], index
        ).make_guard(B.EQUALS_MATCH)

    return Program(
        alone,
        (x(6, 4)[2:],),
        {
            "size": lambda: (x(6, 5)[2:],),
            "stride": lambda: (x(6, 8)[2:, :4],),
            "offset": lambda: (x(6, 4)[1:5],),
            "rows": lambda: (x(7, 4)[2:],),
        },
        dynamic=True,
        backend=planted(guard("SIZE", 1), guard("STRIDE", 0), guard("STORAGE_OFFSET", None)),
    )


@program
def indexed_value() -> Program:
    return Program(
        beside,
        (x(3), "a"),
        {"equal": lambda: (x(3), "a"), "other": lambda: (x(3), "b")},
        backend=planted(
            lambda S, B: S.IndexedSource(S.LocalSource("other"), 1).make_guard(B.EQUALS_MATCH)
        ),
    )


@program
def present_gradient() -> Program:
    t = x(3, requires_grad=True)
    t.grad = x(3)

    def gradient(value: Any) -> Any:
        return call(lambda: setattr(t, "grad", value), lambda: setattr(t, "grad", x(3)))

    return Program(
        alone,
        (t,),
        {
            "absent": lambda: gradient(None),
            "equal": lambda: gradient(x(3)),
            "sparse": lambda: gradient(x(3).to_sparse()),
        },
        backend=planted(
            lambda S, B: S.GradSource(S.LocalSource("t"), "grad").make_guard(B.NOT_NONE_MATCH),
            lambda S, B: S.AttrSource(
                S.GradSource(S.LocalSource("t"), "grad"), "layout"
            ).make_guard(B.EQUALS_MATCH),
        ),
    )


@dataclasses.dataclass
class TwoFields:
    a: int = 1
    b: int = 2


@dataclasses.dataclass
class ThreeFields(TwoFields):
    c: int = 3


TwoNames = collections.namedtuple("TwoNames", "a b")
OtherNames = collections.namedtuple("OtherNames", "a c")


@program
def dataclass_fields() -> Program:
    return Program(
        beside,
        (x(3), TwoFields()),
        {
            "other_values": lambda: (x(3), TwoFields(5, 6)),
            "more": lambda: (x(3), ThreeFields()),
            "none": lambda: (x(3), 3),
        },
        backend=planted(
            lambda S, B: S.DataclassFieldsSource(S.LocalSource("other")).make_guard(
                B.SEQUENCE_LENGTH
            )
        ),
    )


@program
def namedtuple_fields() -> Program:
    return Program(
        beside,
        (x(3), TwoNames(1, 2)),
        {
            "other_values": lambda: (x(3), TwoNames(3, 4)),
            "other_names": lambda: (x(3), OtherNames(1, 2)),
            "none": lambda: (x(3), (1, 2)),
        },
        backend=planted(
            lambda S, B: S.NamedTupleFieldsSource(S.LocalSource("other")).make_guard(B.EQUALS_MATCH)
        ),
    )


@program
def number_in_a_tensor() -> Program:
    def scalar(value: Any) -> Any:
        return x(3), torch.tensor(value)

    return Program(
        beside,
        scalar(3),
        {"equal": lambda: scalar(3), "other": lambda: scalar(4)},
        backend=planted(
            lambda S, B: S.CallMethodItemSource(S.LocalSource("other")).make_guard(B.EQUALS_MATCH),
            lambda S, B: S.DynamicScalarSource(S.LocalSource("other"), True).make_guard(
                B.EQUALS_MATCH
            ),
        ),
    )


@program
def number_as_a_tensor() -> Program:
    return Program(
        beside,
        (x(3), 2.5),
        {"other": lambda: (x(3), 3.5), "no_number": lambda: (x(3), "a")},
        dynamic=True,
        backend=planted(
            lambda S, B: S.AttrSource(
                S.FloatTensorSource(S.LocalSource("other")), "dtype"
            ).make_guard(B.EQUALS_MATCH)
        ),
    )


@program
def flattened_object() -> Program:
    """Accessors that torch uses for script objects and for proxies of modules."""
    thing = Thing()
    return Program(
        beside,
        (x(3), thing),
        {
            "equal": lambda: (x(3), Thing()),
            "in_place": lambda: attribute(thing, "factor", 3.0),
            "none": lambda: (x(3), 3),
        },
        backend=planted(
            lambda S, B: S.FlattenScriptObjectSource(S.LocalSource("other")).make_guard(
                B.EQUALS_MATCH
            ),
            lambda S, B: S.AttrProxySource(S.LocalSource("other")).make_guard(B.EQUALS_MATCH),
        ),
    )


def script_object(kind: str) -> Any:
    quantized = torch.quantize_per_tensor(x(2, 2), 0.1, 0, torch.qint8)
    if kind == "linear":
        return torch.ops.quantized.linear_prepack(quantized, None)
    return torch.ops.quantized.embedding_bag_prepack(
        torch.quantize_per_channel(x(2, 2), x(2), x(2), 0, torch.quint8)
    )


@program
def script_object_name() -> Program:
    return Program(
        beside,
        (x(3), script_object("linear")),
        {
            "equal": lambda: (x(3), script_object("linear")),
            "other": lambda: (x(3), script_object("embedding")),
            "none": lambda: (x(3), 3),
        },
        backend=planted(
            lambda S, B: S.ScriptObjectQualifiedNameSource(S.LocalSource("other")).make_guard(
                B.EQUALS_MATCH
            )
        ),
    )


class Stream:
    pass


class OtherStream:
    pass


@program
def current_stream() -> Program:
    def streams(kind: type) -> Any:
        return attribute(torch.accelerator, "current_stream", lambda device=None: kind())

    return Program(
        alone,
        (x(3),),
        {"other": lambda: streams(OtherStream)},
        around=lambda: streams(Stream),
        backend=planted(
            lambda S, B: S.CurrentStreamSource(torch.device("cpu")).make_guard(B.TYPE_MATCH)
        ),
    )


class Parent:
    FACTOR = 3

    def scaled(self, t):
        return t * self.FACTOR


class Child(Parent):
    def scaled(self, t):
        return super().scaled(t) + 1


def call_super(t, thing):
    return thing.scaled(t)


@program
def parent_class() -> Program:
    child = Child()
    return Program(
        call_super,
        (x(3), child),
        {
            "equal": lambda: (x(3), Child()),
            "parent": lambda: (x(3), Parent()),
            "class_attribute": lambda: attribute(Parent, "FACTOR", 4),
            "own_attribute": lambda: attribute(child, "FACTOR", 5),
            "parent_method": lambda: attribute(Parent, "scaled", lambda self, t: t),
        },
    )


def count_subclasses(t):
    return t + len(Parent.__subclasses__())


@contextlib.contextmanager
def another_subclass() -> Iterator[None]:
    import gc

    made = type("Another", (Parent,), {})
    try:
        yield
    finally:
        del made
        gc.collect()


@program
def subclasses() -> Program:
    return Program(count_subclasses, (x(3),), {"one_more": another_subclass})


# ------------------------------------------------------------------ values


def real_part(t, numbers):
    return t + numbers[0].real if isinstance(numbers[0], complex) else t


@program
def complex_nan() -> Program:
    return Program(
        real_part,
        (x(3), (complex("nan"),)),
        {
            "again": lambda: (x(3), (complex("nan"),)),
            "number": lambda: (x(3), (complex(1, 2),)),
            "float": lambda: (x(3), (float("nan"),)),
        },
    )


def on_cpu(t, keys):
    return t + 1 if keys.has(torch._C.DispatchKey.CPU) else t


@program
def dispatch_keys() -> Program:
    return Program(
        on_cpu,
        (x(3), torch._C._dispatch_keys(x(3))),
        {
            "equal": lambda: (x(3), torch._C._dispatch_keys(x(4))),
            "meta": lambda: (x(3), torch._C._dispatch_keys(torch.empty(3, device="meta"))),
            "less": lambda: (x(3), torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)),
        },
    )


def proxied(t, table):
    for name in table.keys():
        t = t * table[name]
    return t


@program
def mapping_proxy() -> Program:
    def proxy(**items: int) -> Any:
        return x(3), types.MappingProxyType(items)

    return Program(
        proxied,
        proxy(a=1, b=2),
        {
            "equal": lambda: proxy(a=1, b=2),
            "order": lambda: proxy(b=2, a=1),
            "value": lambda: proxy(a=1, b=3),
            "more": lambda: proxy(a=1, b=2, c=3),
            "less": lambda: proxy(a=1),
            "dict": lambda: (x(3), {"a": 1, "b": 2}),
        },
    )


class Numbers(set):
    pass


def added(t, numbers):
    for number in numbers:
        t = t + number
    return t


@program
def set_items() -> Program:
    return Program(
        added,
        (x(3), Numbers({1, 2})),
        {
            "equal": lambda: (x(3), Numbers({2, 1})),
            "other": lambda: (x(3), Numbers({1, 3})),
            "less": lambda: (x(3), Numbers({1})),
            "set": lambda: (x(3), {1, 2}),
        },
    )


@program
def same_object() -> Program:
    """The guard on aliasing that C++ evaluates, off by default."""
    t = x(3)
    return Program(
        beside,
        (t, t),
        {"two": lambda: (t, x(3)), "one": lambda: (lambda a: (a, a))(x(3))},
        backend=planted(
            lambda S, B: S.LocalSource("t").make_guard(
                functools.partial(B.DUPLICATE_INPUT, source_b=S.LocalSource("other"))
            )
        ),
        config={"use_lamba_guard_for_object_aliasing": False},
    )


def forward_derivative(t):
    return torch.func.jvp(torch.sin, (t,), (t,))[0]


@program
def jvp() -> Program:
    return Program(
        forward_derivative,
        (x(3),),
        {
            "shape": lambda: (x(4),),
            "inside_level": torch.autograd.forward_ad.dual_level,
            "no_grad": torch.no_grad,
        },
    )


# ------------------------------------------------------------------ hooks of modules


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, t):
        return self.inner(t)


@contextlib.contextmanager
def hook(register: Callable[..., Any], function: Callable[..., Any]) -> Iterator[None]:
    handle = register(function)
    try:
        yield
    finally:
        handle.remove()


def hooks_of(module: Hooked) -> dict[str, Callable[[], Any]]:
    every = nn.modules.module
    return {
        "forward_hook": lambda: hook(module.inner.register_forward_hook, lambda m, a, o: o * 2),
        "pre_hook": lambda: hook(module.inner.register_forward_pre_hook, lambda m, a: a),
        "backward_hook": lambda: hook(
            module.inner.register_full_backward_hook, lambda m, a, b: None
        ),
        "global_hook": lambda: hook(every.register_module_forward_hook, lambda m, a, o: o * 2),
        "global_pre_hook": lambda: hook(every.register_module_forward_pre_hook, lambda m, a: a),
    }


@program
def hooks() -> Program:
    """By default torch does not guard on hooks: skip_nnmodule_hook_guards."""
    module = Hooked()
    return Program(module, (x(2, 4),), hooks_of(module))


@program
def guarded_hooks() -> Program:
    module = Hooked()
    return Program(
        module, (x(2, 4),), hooks_of(module), config={"skip_nnmodule_hook_guards": False}
    )


TABLE = {"a": 2}


def adds_lengths(t):
    return t + len(TABLE) + sum([1, 2]) + abs(-3)


@program
def replaced_builtins() -> Program:
    import builtins

    return Program(
        adds_lengths,
        (x(3),),
        {
            "builtin": lambda: attribute(builtins, "abs", lambda value: 7),
            "other_builtin": lambda: attribute(builtins, "sum", lambda value: 7),
            "more": lambda: call(lambda: TABLE.update(b=3), lambda: TABLE.pop("b")),
            "value": lambda: item(TABLE, "a", 5),
        },
    )
