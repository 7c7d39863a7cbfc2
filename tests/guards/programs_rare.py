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


# ------------------------------------------------------------------ subclasses, opaque objects


class Pair(torch.Tensor):
    """Two tensors in one; *note* is metadata."""

    @staticmethod
    def __new__(cls, a, b, note):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape, dtype=a.dtype, device=a.device, strides=a.stride()
        )

    def __init__(self, a, b, note):
        self.a, self.b, self.note = a, b, note

    def __tensor_flatten__(self):
        return ["a", "b"], {"note": self.note, "rows": self.a.shape[0]}

    @classmethod
    def __tensor_unflatten__(cls, inner, metadata, size, stride):
        return cls(inner["a"], inner["b"], metadata["note"])

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        def half(name: str) -> Any:
            return [getattr(arg, name) if isinstance(arg, Pair) else arg for arg in args]

        results = function(*half("a"), **(kwargs or {})), function(*half("b"), **(kwargs or {}))
        return cls(*results, "made")


class LoosePair(Pair):
    """Compares the first letter of its note only."""

    @classmethod
    def __metadata_guard__(cls, before, now):
        return before["note"][:1] == now["note"][:1]


def pair(note: Any = "note", rows: int = 3, kind: type = Pair, dtype: Any = torch.float32) -> Any:
    return (kind(x(rows, 2), x(rows, 2, dtype=dtype), note),)


@program
def subclass_metadata() -> Program:
    return Program(
        alone,
        pair(),
        {
            "equal": pair,
            "note": lambda: pair("other"),
            "note_type": lambda: pair(("note",)),
            "rows": lambda: pair(rows=4),
            "inner_dtype": lambda: pair(dtype=torch.float64),
            "other_class": lambda: pair(kind=LoosePair),
            "plain": lambda: (x(3, 2),),
        },
    )


@program
def symbolic_metadata() -> Program:
    return Program(
        alone,
        pair(rows=4),
        {
            "rows": lambda: pair(rows=5),
            "note": lambda: pair("other", rows=4),
            "plain": lambda: (x(4, 2),),
        },
        dynamic=True,
    )


@program
def own_metadata_guard() -> Program:
    return Program(
        alone,
        pair(kind=LoosePair),
        {
            "same_letter": lambda: pair("nothing", kind=LoosePair),
            "other_letter": lambda: pair("other", kind=LoosePair),
            "other_class": pair,
        },
    )


def nested(*rows: int) -> Any:
    return (torch.nested.nested_tensor([x(n, 3) for n in rows], layout=torch.jagged),)


@program
def jagged_dynamic() -> Program:
    """Its shape guards import modules of torch when they run."""
    return Program(
        alone,
        nested(2, 3),
        {
            "other_lengths": lambda: nested(4, 2),
            "more": lambda: nested(4, 2, 3),
            "plain": lambda: (x(2, 3),),
        },
        dynamic=True,
        loads_compiler=True,
    )


@program
def jagged() -> Program:
    return Program(
        alone,
        nested(2, 3),
        {
            "other_lengths": lambda: nested(4, 2),
            "more": lambda: nested(4, 2, 3),
            "plain": lambda: (x(2, 3),),
        },
        loads_compiler=True,
    )


class Handle(torch._opaque_base.OpaqueBase):
    """An opaque object; its level is guarded."""

    def __init__(self, level: int) -> None:
        self.level = level


class BareHandle(torch._opaque_base.OpaqueBase):
    """An opaque object of which only the type is guarded."""


def level_of(handle):
    return [handle.level]


def two_levels_of(handle):
    return [handle.level, 0]


def register_handles() -> None:
    from torch._library import opaque_object

    opaque_object.register_opaque_type(Handle, typ="reference", guard_fn=level_of)
    opaque_object.register_opaque_type(BareHandle, typ="reference")


register_handles()


def with_handle(t, handle):
    return t * 2 if isinstance(handle, Handle) else t


def other_guard() -> Any:
    from torch._library.opaque_object import get_opaque_obj_info

    return attribute(get_opaque_obj_info(Handle), "guard_fn", two_levels_of)


@program
def opaque_object() -> Program:
    handle = Handle(3)
    return Program(
        with_handle,
        (x(3), handle),
        {
            "equal": lambda: (x(3), Handle(3)),
            "level": lambda: (x(3), Handle(4)),
            "level_in_place": lambda: attribute(handle, "level", 5),
            "other_class": lambda: (x(3), BareHandle()),
            "other_guard": other_guard,
        },
    )


def with_bare_handle(t, handle):
    return t * 2 if isinstance(handle, BareHandle) else t


@program
def bare_opaque_object() -> Program:
    return Program(
        with_bare_handle,
        (x(3), BareHandle()),
        {"equal": lambda: (x(3), BareHandle()), "other_class": lambda: (x(3), Handle(3))},
    )


# ------------------------------------------------------------------ DTensor


@functools.cache
def mesh(*names: str) -> Any:
    from torch import distributed
    from torch.distributed.device_mesh import DeviceMesh

    if not distributed.is_initialized():
        distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    shape = torch.zeros((1,) * len(names), dtype=torch.int64)
    return DeviceMesh("cpu", shape, mesh_dim_names=names)


def sharded(*placements: str, names: tuple[str, ...] = ("rows",), dtype: Any = None) -> Any:
    from torch.distributed import tensor as distributed

    kinds = {
        "S0": distributed.Shard(0),
        "S1": distributed.Shard(1),
        "R": distributed.Replicate(),
        "P": distributed.Partial("sum"),
    }
    return (
        distributed.DTensor.from_local(
            x(4, 4, dtype=dtype), mesh(*names), [kinds[name] for name in placements]
        ),
    )


@program
def dtensor() -> Program:
    return Program(
        alone,
        lambda: sharded("S0"),
        {
            "equal": lambda: sharded("S0"),
            "other_dimension": lambda: sharded("S1"),
            "replicated": lambda: sharded("R"),
            "partial": lambda: sharded("P"),
            "mesh_names": lambda: sharded("S0", names=("columns",)),
            "mesh_shape": lambda: sharded("S0", "R", names=("a", "b")),
            "dtype": lambda: sharded("S0", dtype=torch.float64),
            "plain": lambda: (x(4, 4),),
        },
        loads_compiler=True,
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
    return t + len(TABLE) + sum([1, 2])


@program
def replaced_builtins() -> Program:
    import builtins

    return Program(
        adds_lengths,
        (x(3),),
        {
            "builtin": lambda: attribute(builtins, "len", lambda value: 7),
            "other_builtin": lambda: attribute(builtins, "sum", lambda value: 7),
            "more": lambda: call(lambda: TABLE.update(b=3), lambda: TABLE.pop("b")),
            "value": lambda: item(TABLE, "a", 5),
        },
    )
