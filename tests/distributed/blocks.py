"""A small network of the layers of examples/recsys, whose parameters no world size divides."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "recsys"))

from dlrm import DLRM, MLP

__all__ = ["DLRM", "FEATURES", "MLP", "Net"]

FEATURES = 6


class Net(nn.Module):
    def __init__(self, width: int = 13, checkpoint: bool = False) -> None:
        super().__init__()
        self.bottom = MLP(FEATURES, width, 7)
        self.scale = nn.Parameter(torch.rand(7))
        self.top = MLP(7, 1, last=False)
        self.checkpoint = checkpoint

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.checkpoint:
            h = checkpoint(self.bottom, x, use_reentrant=False)
        else:
            h = self.bottom(x)
        return self.top(h * self.scale + h.sin())
