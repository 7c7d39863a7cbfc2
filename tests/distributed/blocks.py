"""A small network whose parameters no world size divides."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import relu
from torch.utils.checkpoint import checkpoint

FEATURES = 6


class Block(nn.Module):
    def __init__(self, *widths: int, last: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(nn.Linear, widths, widths[1:]))
        self.last = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if self.last or i + 1 < len(self.layers):
                x = relu(x)
        return x


class Net(nn.Module):
    def __init__(self, width: int = 13, checkpoint: bool = False) -> None:
        super().__init__()
        self.bottom = Block(FEATURES, width, 7)
        self.scale = nn.Parameter(torch.rand(7))
        self.top = Block(7, 1, last=False)
        self.checkpoint = checkpoint

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.checkpoint:
            h = checkpoint(self.bottom, x, use_reentrant=False)
        else:
            h = self.bottom(x)
        return self.top(h * self.scale + h.sin())
