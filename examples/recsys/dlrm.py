"""DLRM, the deep learning recommendation model (Naumov et al., 2019, arXiv:1906.00091)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import relu


class MLP(nn.Module):
    """Linear layers with ReLU between them, and after the last if *last*."""

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


class Tables(nn.Module):
    """One embedding table for each categorical column."""

    def __init__(self, columns: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(columns))

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        """(batch, columns) -> (batch, columns, width)."""
        return torch.stack([table(sparse[:, i]) for i, table in enumerate(self.tables)], 1)


class Interaction(nn.Module):
    """Dot products of all pairs of vectors, beside the dense one."""

    def __init__(self, vectors: int) -> None:
        super().__init__()
        row, column = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("pairs", row * vectors + column, persistent=False)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """(batch, width), (batch, columns, width) -> (batch, width + pairs)."""
        vectors = torch.cat([dense.unsqueeze(1), sparse], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return torch.cat([dense, products.index_select(1, self.pairs)], 1)


class DLRM(nn.Module):
    """Click probability (as a logit) from dense numbers and categorical columns."""

    def __init__(
        self, dense: int = 13, columns: int = 26, rows: int = 1000, width: int = 16
    ) -> None:
        super().__init__()
        vectors = columns + 1
        self.tables = Tables(columns, rows, width)
        self.bottom = MLP(dense, 64, width)
        self.interaction = Interaction(vectors)
        self.top = MLP(width + vectors * (vectors - 1) // 2, 64, 32, 1, last=False)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """(batch, dense), (batch, columns) -> (batch,)."""
        interacted = self.interaction(self.bottom(dense), self.tables(sparse))
        return self.top(interacted).squeeze(1)
