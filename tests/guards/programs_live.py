"""Guards on objects that only the running program has: they are found from the frame."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator

import torch
from program_base import Program, attribute, item, planted, program, x
from torch import nn

PARAMETER = nn.Parameter(torch.ones(3))
PARAMETER._dynamo_static_input_type = "guarded"  # as a compiled optimizer marks its parameters
PARAMETER_REFERENCE = weakref.ref(PARAMETER)


class Holder:
    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self.again = [parameter]


def scaled(t, holder):
    return t * holder.parameter + holder.again[0]


@contextlib.contextmanager
def dead_reference() -> Iterator[None]:
    with item(globals(), "PARAMETER_REFERENCE", weakref.ref(Holder(PARAMETER))):
        yield


@program
def live_objects() -> Program:
    holder = Holder(PARAMETER)
    other = nn.Parameter(torch.ones(3))
    return Program(
        scaled,
        (x(3), holder),
        {
            "equal_holder": lambda: (x(3), Holder(PARAMETER)),
            "other_parameter": lambda: attribute(holder, "parameter", other),
            "other_in_list": lambda: item(holder.again, 0, other),
            "no_parameter": lambda: attribute(holder, "parameter", None),
            "other_values": lambda: (x(3) * 2, holder),
            "dead": dead_reference,
        },
        backend=planted(
            lambda S, B: S.GlobalWeakRefSource("PARAMETER_REFERENCE").make_guard(B.WEAKREF_ALIVE)
        ),
    )


FOREACH = torch.utils._foreach_utils


def through_type_list(t):
    return t * 2 if FOREACH._foreach_supported_types[0] is torch.Tensor else t


@program
def type_list() -> Program:
    types = FOREACH._foreach_supported_types
    name = "_foreach_supported_types"
    return Program(
        through_type_list,
        (x(3),),
        {
            "more": lambda: attribute(FOREACH, name, [*types, int]),
            "less": lambda: attribute(FOREACH, name, []),
        },
    )
