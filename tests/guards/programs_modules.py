"""Guards on modules."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from program_base import AMBIENT, Program, attribute, call, item, program, restrided, training, x
from torch import nn


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


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.ReLU()})
        self.shifts = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(2)])
        self.tail = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.tail[0].weight = self.parts["a"].weight
        self.register_buffer("factor", torch.ones(4), persistent=False)

    def forward(self, t):
        for part in self.parts.values():
            t = part(t)
        for shift in self.shifts:
            t = t + shift
        return self.tail(t) * self.factor


@program
def containers() -> Program:
    m = Containers()

    def extended() -> contextlib.AbstractContextManager[None]:
        return call(lambda: m.tail.append(nn.ReLU()), lambda: m.tail._modules.pop("2"))

    return Program(
        m,
        (x(2, 4),),
        {
            "longer": extended,
            "untied": lambda: attribute(m.tail[0], "weight", nn.Parameter(torch.ones(4, 4))),
            "other_part": lambda: attribute(m.parts, "b", nn.Sigmoid()),
            "shift_dtype": lambda: attribute(
                m.shifts, "0", nn.Parameter(torch.ones(4, dtype=torch.float64))
            ),
            "shift_frozen": lambda: call(
                lambda: m.shifts[1].requires_grad_(False), lambda: m.shifts[1].requires_grad_(True)
            ),
            "buffer": lambda: attribute(m, "factor", torch.full((4,), 2.0)),
            "buffer_shape": lambda: attribute(m, "factor", torch.ones(1)),
            "train": lambda: training(m, False),
        },
    )


@program
def recursive_dict_tags() -> Program:
    """torch may skip guards below a dict that did not change; a rebuilt tree checks them."""
    m = Containers()
    return Program(
        m,
        (x(2, 4),),
        {
            "other_part": lambda: attribute(m.parts, "b", nn.Sigmoid()),
            "shift_frozen": lambda: call(
                lambda: m.shifts[1].requires_grad_(False), lambda: m.shifts[1].requires_grad_(True)
            ),
            "buffer_shape": lambda: attribute(m, "factor", torch.ones(1)),
        },
        config={"use_recursive_dict_tags_for_guards": True},
    )
