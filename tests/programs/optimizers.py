"""Programs whose optimizer steps are compiled. ``OPTIMIZERS`` maps a name to a function that runs
the program and returns a tree of tensors and numbers."""

from __future__ import annotations

import copy

import torch
from torch import nn, optim


class Scaled(optim.SGD):
    """An optimizer of the user's own, with its own way to make state."""

    def _init_group(self, group, params, grads, momentum_buffer_list):
        for p in group["params"]:
            self.state[p].setdefault("momentum_buffer", torch.full_like(p, 0.5))
        return super()._init_group(group, params, grads, momentum_buffer_list)


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(i: int) -> torch.Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(i))


def gradients(net: nn.Module, i: int) -> None:
    net.zero_grad()
    net(batch(i)).pow(2).sum().backward()


def values(net: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def train(net: nn.Module, optimizer: optim.Optimizer, steps: int = 3, scheduler=None):
    step = torch.compile(optimizer.step)
    seen = []
    for i in range(steps):
        gradients(net, i)
        step()
        if scheduler is not None:
            scheduler.step()
        seen.append(values(net))
    return seen, optimizer.state_dict(), torch.rand(2)


def sgd_with_a_schedule():
    net = model()
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    return train(net, optimizer, 4, optim.lr_scheduler.StepLR(optimizer, 2))


def nesterov():
    net = model()
    return train(net, optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True))


def parameter_groups():
    net = model()
    groups = [{"params": net[0].parameters(), "lr": 0.1}, {"params": net[2].parameters()}]
    return train(net, optim.Adam(groups, lr=0.01, amsgrad=True, foreach=True))


def capturable_with_a_tensor_for_lr():
    net = model()
    rate = torch.tensor(0.01)
    optimizer = optim.AdamW(net.parameters(), lr=rate, capturable=True)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    return train(net, optimizer, 4, schedule)


def whole_step():
    net = model()
    optimizer = optim.AdamW(net.parameters(), lr=0.01)

    @torch.compile
    def step(x):
        loss = net(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = [step(batch(i)).detach() for i in range(3)]
    return losses, values(net), optimizer.state_dict()


def two_models():
    """Two optimizers on the same code, one of them loaded from a checkpoint halfway."""
    nets = [model(seed) for seed in range(2)]
    optimizers = [optim.Adam(net.parameters(), lr=0.01) for net in nets]
    steps = [torch.compile(optimizer.step) for optimizer in optimizers]
    seen = []
    for i in range(4):
        for net, step in zip(nets, steps, strict=True):
            gradients(net, i)
            step()
            seen.append(values(net))
        if i == 1:
            optimizers[0].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    return seen, [optimizer.state_dict() for optimizer in optimizers]


def own_optimizer():
    net = model()
    return train(net, Scaled(net.parameters(), lr=0.1, momentum=0.9))


OPTIMIZERS = {
    f.__name__: f
    for f in (
        sgd_with_a_schedule, nesterov, parameter_groups, capturable_with_a_tensor_for_lr,
        whole_step, two_models, own_optimizer,
    )
}  # fmt: skip
