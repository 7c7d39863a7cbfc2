"""Guards on symbolic shapes, aliasing and overlap."""

from __future__ import annotations

import collections

import torch
from program_base import Program, program, x


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
