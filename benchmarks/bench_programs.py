"""The programs that the benchmarks run: (model, batch) for each name."""

from __future__ import annotations

import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)
        )

    def forward(self, x):
        return self.net(x) * 1.5


class Encoder(nn.Module):
    """A 4-layer TransformerEncoder with dropout and a classification head."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


class Language(nn.Module):
    """A 4-layer transformer over 8192 tokens in bfloat16; the output is that of the last token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(64, 512)
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(512, 8192, bias=False)

    def forward(self, x):
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.head(self.encoder(self.embed(x))[:, -1]).float()


PROGRAMS = {
    "mlp": (MLP, (8, 32)),
    "enc": (Encoder, (4, 16, 64)),
    "language": (Language, (8, 256, 64)),  # for a GPU
}


class Work:
    """One program, ready to run: ``step()`` is a training step or an inference call."""

    def __init__(self, name: str, kind: str, compile: bool, device: str = "cpu") -> None:
        make, shape = PROGRAMS[name]
        torch.manual_seed(0)
        self.model = make().to(device).train(kind == "train")
        self.compiled = torch.compile(self.model) if compile else self.model
        self.x = torch.randn(shape, device=device)
        self.y = torch.randint(0, 10, shape[:1], device=device)
        self.step = self.train if kind == "train" else self.infer
        if kind == "train":
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def train(self) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.compiled(self.x), self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def infer(self) -> torch.Tensor:
        with torch.no_grad():
            return self.compiled(self.x)
