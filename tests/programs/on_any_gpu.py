"""Functions that hold a GPU as a value, so that a machine without one can trace them.

A ``torch.device`` needs no GPU: it is guarded, compared, named and returned as on a machine that
has one. Most compute the same, so that one kernel is built for them.
"""

from __future__ import annotations

import torch
from torch import nn


def returned(x, place):
    y = x + (1 if place.type == "cuda" else 2)
    return y, place, f"on {place}", {place: y}


def named(x, place):
    return x + 1, str(place), [place, "cuda"]


def compared(x, place, other):
    return x + 1 if place == other else x + 2


class Holder(nn.Module):
    def __init__(self, place):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.place = place

    def forward(self, x):
        y = self.layer(x)
        torch._dynamo.graph_break()
        return y + 1, self.place


class Text(Holder):
    """Holds the name of a GPU instead."""


def documented(x, place):
    """The docstring of code that runs on cuda:7 or cuda:0."""
    return x + 1, place


# Functions that depend on a number; each is served on its own GPU alone.


def reads_index(x, place):
    return x + place.index, place


def made_of_number(x, place, number):
    return x + 1, torch.device("cuda", number)


def source_names_one(x, place):
    return x + 1 if str(place) == "cuda:0" else x + 2


def default_names_one(x, place, fallback="cuda:0"):
    return x + 1, place, fallback


def inlines_default(x, place):
    return default_names_one(x, place)


def takes_apart(x, place):
    return x + 1, str(place).split(":")


def both(x, place, other):
    return x + 1, place, other


def plain(value):
    """*value* as JSON has it."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if isinstance(value, (bool, int, str)) else str(value)


def call(name: str, ordinal: int, other: int | None = None):
    x, place = torch.arange(4.0), torch.device("cuda", ordinal)
    torch.manual_seed(0)
    target = globals()[name]
    if isinstance(target, type):
        module = target(str(place) if target is Text else place)
        return plain(torch.compile(module)(x))
    more = ()
    if name in ("compared", "both"):
        more = (torch.device("cuda", ordinal if other is None else other),)
    elif name == "made_of_number":
        more = (ordinal,)
    return plain(torch.compile(target)(x, place, *more))
