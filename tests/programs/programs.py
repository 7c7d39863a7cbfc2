"""The programs that capture and serve are tested with.

A program is user code: it knows nothing of precomp. ``Program.build()`` makes the model (this draws
from torch's random numbers) and returns ``run(step)``, which does the work and returns a tree of
tensors, numbers and texts. ``run`` wraps every step in ``with step():``, so that a caller can let
several threads take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F

Step = Callable[[], AbstractContextManager[Any]]
Run = Callable[[Step], Any]

STEPS = 20


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)
        )
        self.scale = 1.5

    def forward(self, x):
        return self.net(x) * self.scale


class Encoder(nn.Module):
    def __init__(self, layers: int = 4, width: int = 64, dropout: float = 0.1) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=dropout)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


class ConvNorm(nn.Module):
    """Running statistics: buffers that the graph updates."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Random(nn.Module):
    """Dropout, random numbers drawn inside, and an exponential average kept in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 10)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("average", torch.zeros(10))

    def forward(self, x):
        y = self.dropout(self.linear(x)) + torch.randn(10) * 0.01
        self.average.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return y + self.average


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(32, 64)
        self.b = nn.Linear(64, 10)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.b(torch.relu(self.a(x)))
        return y.float()


class Checkpointed(nn.Module):
    """Non-reentrant activation checkpointing with dropout inside."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(32, 64)
        self.b = nn.Linear(64, 64)
        self.c = nn.Linear(64, 10)

    def forward(self, x):
        def block(t):
            return F.dropout(torch.tanh(self.b(t)), 0.2, self.training)

        h = torch.utils.checkpoint.checkpoint(block, self.a(x), use_reentrant=False)
        return self.c(h)


class Aliasing(nn.Module):
    """Outputs: fresh, alias of an input, the input itself, alias of an intermediate, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 10)
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("last", torch.zeros(32))

    def forward(self, x):
        self.count.add_(1)
        self.last.copy_(x.detach().mean(0))
        h = self.linear(x)
        fresh = h.view(-1, 2, 5).sum(1).sum(1, keepdim=True) + h
        return fresh, x.t(), x, (h * 2).t(), self.count


class GraphBreaks(nn.Module):
    """Two graph breaks, hence two resume functions."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(32, 64)
        self.b = nn.Linear(64, 10)

    def forward(self, x):
        x = torch.relu(self.a(x))
        torch._dynamo.graph_break()
        y = self.b(x)
        print(end="")
        return y.tanh()


@torch.compiler.disable
def twice_and_one(x):
    return x * 2 + 1


class CallsDisabled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(32, 64)
        self.b = nn.Linear(64, 10)

    def forward(self, x):
        return self.b(twice_and_one(torch.relu(self.a(x))))


class NestedFunctions(nn.Module):
    """A function made before a graph break and called after it, and a break in a comprehension."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 10) for _ in range(2))

    def forward(self, x):
        factor = x.mean()

        def scaled(value: torch.Tensor, by: float = 2.0, *, shift: float = 1.0) -> torch.Tensor:
            return value * factor * by + shift

        first, second = [twice_and_one(layer(x)) for layer in self.layers]
        return scaled(first) + scaled(second, shift=0.5)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.linear(self.norm(x)))


def sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 10))


def batches(*shapes: tuple[int, ...], n: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """*n* batches, the shapes in turn; they do not touch torch's own random numbers."""
    generator = torch.Generator().manual_seed(1)
    for i in range(n):
        shape = shapes[i % len(shapes)]
        x = torch.randn(shape, generator=generator)
        yield x, torch.randint(0, 10, (shape[0],), generator=generator)


def tensors(items) -> list[torch.Tensor | None]:
    return [None if t is None else t.detach().clone() for t in items]


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return tensors(p.grad for p in model.parameters())


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


def in_place(model: nn.Module) -> nn.Module:
    model.compile()
    return model


def training(
    make: Callable[[], nn.Module],
    *shapes: tuple[int, ...],
    compile: Callable[[nn.Module], Any] = torch.compile,
    mark_dynamic: bool = False,
) -> Callable[[], Run]:
    """A program that trains: ``STEPS`` steps of AdamW on a classification loss."""

    def build() -> Run:
        torch.manual_seed(0)
        model = make().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        compiled = compile(model)

        def run(step: Step) -> Any:
            losses, grads = [], []
            for x, y in batches(*shapes, n=STEPS):
                with step():
                    if mark_dynamic:
                        torch._dynamo.mark_dynamic(x, 0)
                    out = compiled(x)
                    if isinstance(out, tuple):
                        out = out[0]
                    loss = F.cross_entropy(out, y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.detach().clone())
                    grads.append(gradients(model))
            with step():
                return {
                    "losses": losses,
                    "gradients": grads,
                    "state": state(model),
                    "optimizer": tensors(t for s in optimizer.state.values() for t in s.values()),
                    "random": torch.get_rng_state(),
                }

        return run

    return build


def alias() -> Run:
    """Everything a user can see of aliasing outputs, with and without gradients."""
    torch.manual_seed(0)
    model = Aliasing()
    compiled = torch.compile(model)

    def seen(out, x):
        return [
            {
                "shape": tuple(t.shape),
                "strides": t.stride(),
                "offset": t.storage_offset(),
                "requires_grad": t.requires_grad,
                "view": t._base is not None,
                "view of x": t._base is x,
                "is x": t is x,
                "is buffer": t is model.count,
                "shares x": t.untyped_storage().data_ptr() == x.untyped_storage().data_ptr(),
                "version": t._version,
                "grad_fn": type(t.grad_fn).__name__,
                "value": t.detach().clone(),
            }
            for t in out
        ]

    def run(step: Step) -> Any:
        results = []
        generator = torch.Generator().manual_seed(2)
        for requires_grad in (False, True):
            with step():
                x = torch.randn(8, 32, generator=generator).requires_grad_(requires_grad)
                out = compiled(x)
                results.append(seen(out, x))
                results.append([model.count.clone(), model.last.clone(), model.count._version])
                total = out[0].sum() + out[3].pow(2).sum()
                if requires_grad:
                    total = total + (out[1] * 3).sum()
                total.backward()
                results.append([None if x.grad is None else x.grad.clone(), gradients(model)])
                model.zero_grad()
        with step(), torch.no_grad():
            x = torch.randn(8, 32, generator=generator)
            results.append(seen(compiled(x), x))
            results.append(model.count.clone())
        return results

    return run


def modes() -> Run:
    """Grad modes, pending forwards, accumulation, retained graphs, strides, autocast, a thread."""
    torch.manual_seed(0)
    model = MLP()
    compiled = torch.compile(model)
    x = torch.randn(8, 32)

    def run(step: Step) -> Any:
        r: dict[str, Any] = {}
        with step():
            a, b = compiled(x), compiled(x * 2)
            (a.sum() + b.pow(2).sum()).backward()
            r["two pending forwards"] = gradients(model)
        with step():
            model.zero_grad()
            compiled(x).backward(torch.ones(10, 8).t())
            r["tangent with other strides"] = gradients(model)
        with step():
            model.zero_grad()
            compiled(x).sum().backward()
            compiled(x).sum().backward()
            r["accumulated"] = gradients(model)
        with step():
            y = compiled(x)
            try:
                y.sum().backward(retain_graph=True)
                y.sum().backward()
                r["retained"] = gradients(model)
            except RuntimeError as error:
                r["retained"] = str(error)
        with step():
            model.eval()
            with torch.no_grad():
                r["no_grad"] = compiled(x).clone()
            with torch.inference_mode():
                r["inference_mode"] = compiled(x).clone()
            r["eval requires grad"] = compiled(x).requires_grad
        with step():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = compiled(x)
                r["autocast"] = [str(y.dtype), y.detach().clone()]
                y.float().sum().backward()
            r["autocast gradients"] = gradients(model)
        with step():
            try:
                (g,) = torch.autograd.grad(
                    compiled(x).sum(), [model.net[0].weight], create_graph=True
                )
                g.sum().backward()
                r["double backward"] = "no error"
            except RuntimeError as error:
                r["double backward"] = str(error).splitlines()[0]
        with step():
            other: list[torch.Tensor] = []
            thread = threading.Thread(target=lambda: other.append(compiled(x).detach().clone()))
            thread.start()
            thread.join()
            r["from another thread"] = other
        return r

    return run


def fn() -> Run:
    """A function with an integer argument that becomes dynamic."""
    torch.manual_seed(1)

    @torch.compile
    def f(x, k, d):
        return (x.sin() * k + d["a"]).relu(), x.shape[0]

    x, x9, d = torch.randn(6, 4), torch.randn(9, 4), {"a": torch.randn(4)}

    def run(step: Step) -> Any:
        results = []
        for x_, k in ((x, 2), (x, 3), (x, 4), (x, 5), (x9, 7)):
            with step():
                results.append(f(x_, k, d))
        return results

    return run


def kw() -> Run:
    """Keyword-only, variable and dict arguments; dict, list and None in the output."""
    torch.manual_seed(0)

    @torch.compile
    def f(batch, *rest, scale=1.0, flags=(True, "a"), **more):
        h = batch["x"] @ batch["w"] * scale
        for r in rest:
            h = h + r
        return {"h": h, "extra": [more["z"].t(), h.shape[0], None], "same": batch["x"]}

    w, x = nn.Parameter(torch.randn(4, 3)), torch.randn(5, 4)
    zs = [torch.randn(2, 6) for _ in range(2)]

    def run(step: Step) -> Any:
        results = []
        for z in zs:
            with step():
                out = f({"x": x, "w": w}, torch.ones(3), torch.zeros(5, 1), scale=0.5, z=z)
                out["h"].sum().backward()
                results.append(
                    [
                        list(out),
                        out["h"].detach().clone(),
                        out["extra"][0].clone(),
                        out["extra"][1:],
                        out["same"] is x,
                        w.grad.clone(),
                    ]
                )
        return results

    return run


def regional() -> Run:
    """Four compiled blocks that share one code object."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(16) for _ in range(4)])
    for block in model:
        block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = [torch.randn(4, 16) for _ in range(STEPS)]

    def run(step: Step) -> Any:
        losses = []
        for x in data:
            with step():
                loss = model(x).pow(2).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach().clone())
        return [losses, gradients(model), state(model)]

    return run


def infer() -> Run:
    """Inference only: nothing here imports Dynamo, in eager either."""
    torch.manual_seed(0)
    model = Encoder().eval()
    compiled = torch.compile(model)
    x = torch.randn(4, 16, 64)

    def run(step: Step) -> Any:
        results = []
        for mode in (torch.no_grad, torch.no_grad, torch.no_grad, torch.inference_mode):
            with step(), mode():
                results.append(compiled(x).clone())
        return results

    return run


def update() -> Run:
    """Parameters changed in place inside a compiled function, under no_grad."""
    torch.manual_seed(0)

    @torch.compile
    def descend(params, grads, rate):
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p.add_(g, alpha=-rate)

    params = [nn.Parameter(torch.randn(5, 3)) for _ in range(3)]
    grads = [torch.randn(5, 3) for _ in params]

    def run(step: Step) -> Any:
        for _ in range(2):
            with step():
                descend(params, grads, 0.1)
        return [tensors(params), [p._version for p in params]]

    return run


@dataclass(frozen=True)
class Program:
    """A scenario and what a test must know of it."""

    build: Callable[[], Run]
    turns: bool = False
    """Threads must take turns: it draws random numbers, or which entry serves depends on order."""
    sympy: bool = False
    """torch's core imports sympy by itself here, in eager too."""


PROGRAMS: dict[str, Program] = {
    "mlp": Program(training(MLP, (8, 32))),
    "enc": Program(training(Encoder, (4, 16, 64)), turns=True),
    "bn": Program(training(ConvNorm, (4, 3, 8, 8))),
    "rnd": Program(training(Random, (8, 32)), turns=True),
    "amp": Program(training(Autocast, (8, 32))),
    "ck": Program(training(Checkpointed, (8, 32)), turns=True),
    "ali": Program(training(Aliasing, (8, 32))),
    "brk": Program(training(GraphBreaks, (8, 32))),
    "dis": Program(training(CallsDisabled, (8, 32))),
    "nst": Program(training(NestedFunctions, (8, 32))),
    "two": Program(training(MLP, (8, 32), (5, 32)), turns=True),
    "dyn": Program(training(MLP, (8, 32), mark_dynamic=True)),
    "modc": Program(training(Encoder, (4, 16, 64), compile=in_place), turns=True),
    "seq": Program(training(sequential, (8, 32))),
    "alias": Program(alias),
    "modes": Program(modes, sympy=True),
    "fn": Program(fn, turns=True),
    "kw": Program(kw),
    "regional": Program(regional),
    "infer": Program(infer),
    "update": Program(update),
}
