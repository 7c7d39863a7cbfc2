"""Guards on arguments: plain values, containers, iterators, objects."""

from __future__ import annotations

import collections
import enum
import itertools
from collections.abc import Callable
from typing import Any

import torch
from program_base import AMBIENT, Program, call, item, program, x
from programs_shapes import DimRange
from torch import nn


class Mode(enum.Enum):
    A = 1
    B = 2


MODE = Mode.A


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


@program
def layouts() -> Program:
    image = x(2, 3, 4, 4)
    weight = x(3, 3)
    return Program(
        lambda_sum,
        (image, weight),
        {
            "channels_last": lambda: (image.to(memory_format=torch.channels_last), weight),
            "expanded": lambda: (x(2, 3, 1, 1).expand(2, 3, 4, 4), weight),
            "view": lambda: (x(2, 3, 4, 8)[..., ::2], weight),
            "complex": lambda: (image.to(torch.complex64), weight),
            "conjugate": lambda: (image.to(torch.complex64).conj(), weight),
            "bfloat16": lambda: (image.bfloat16(), weight),
            "meta": lambda: (image.to("meta"), weight),
            "sparse": lambda: (image, weight.to_sparse()),
            "no_dimensions": lambda: (image, torch.tensor(1.0)),
            "inference": lambda: (inference_tensor(), weight),
            "grad_in_place": lambda: call(
                lambda: weight.requires_grad_(True), lambda: weight.requires_grad_(False)
            ),
            "data_in_place": lambda: call(lambda: weight.mul_(2), lambda: weight.div_(2)),
        },
    )


def lambda_sum(image, weight):
    return image.sum() + weight.sum()


def inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return x(2, 3, 4, 4)


def which_constant(t, values):
    for place, value in enumerate(values):
        if value is Ellipsis:
            t = t + place
        elif value is torch.float32:
            t = t * 2
        elif value == ():
            t = t - 1
        elif value == 3:
            t = t * place
    return t


@program
def shared_constants() -> Program:
    """Values of which a process has only one object."""
    a = (Ellipsis, torch.float32, (), 3, None)

    def put(i: int, value: Any) -> Callable[[], Any]:
        return lambda: (x(3), (*a[:i], value, *a[i + 1 :]))

    return Program(
        which_constant,
        (x(3), a),
        {
            "no_ellipsis": put(0, None),
            "not_implemented": put(0, NotImplemented),
            "other_dtype": put(1, torch.float64),
            "dtype_for_empty": put(2, torch.float32),
            "list_for_empty": put(2, []),
            "other_int": put(3, 4),
            "true": put(3, True),
            "empty_for_none": put(4, ()),
        },
    )


def keywords(t, *rest, scale=1.0, **more):
    return t * scale + sum(rest) + more["shift"]


@program
def keyword_arguments() -> Program:
    def arguments(*rest: int, **more: Any) -> Any:
        return x(3), *rest, more

    return Program(
        unpacked,
        arguments(1, 2, scale=2.0, shift=3),
        {
            "equal": lambda: arguments(1, 2, scale=2.0, shift=3),
            "other_order": lambda: arguments(1, 2, shift=3, scale=2.0),
            "rest": lambda: arguments(1, 3, scale=2.0, shift=3),
            "shift": lambda: arguments(1, 2, scale=2.0, shift=4),
            "less": lambda: arguments(1, 2, shift=3),
            "more": lambda: arguments(1, 2, scale=2.0, shift=3, other=4),
        },
    )


def unpacked(t, one, two, more):
    return keywords(t, one, two, **more)


def asks_copy_on_write(image, weight):
    return image + weight if torch._C._is_cow_tensor(image) else image - weight


@program
def copy_on_write() -> Program:
    return Program(
        # torch 2.13 cannot compile the question
        asks_copy_on_write if torch.__version__ >= "2.14" else lambda_sum,
        lambda: (torch._lazy_clone(x(3)), x(3)),
        {
            "equal": lambda: (torch._lazy_clone(x(3)), x(3)),
            "plain": lambda: (x(3), x(3)),
            "both": lambda: (torch._lazy_clone(x(3)), torch._lazy_clone(x(3))),
        },
    )
