"""A custom operator with fake and autograd registrations; the tests edit this source."""

from __future__ import annotations

import torch


def product(x, factor):
    return x * factor


@torch.library.custom_op("precomp_test::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return product(x, factor)


@scale.register_fake
def _(x, factor):
    return torch.empty_like(x)


def setup(ctx, inputs, output):
    ctx.factor = inputs[1]


def backward(ctx, grad):
    return grad * ctx.factor, None


scale.register_autograd(backward, setup_context=setup)
