"""Guards on state of the process: modes, functorch, devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from program_base import AMBIENT, Program, call, program, training, x
from programs_modules import mlp


def grad_modes(t):
    with torch.no_grad():
        y = t * 2
    return y + t if torch.is_grad_enabled() else y


@program
def grad_mode() -> Program:
    return Program(grad_modes, (x(3, requires_grad=True),), AMBIENT)


@program
def inference() -> Program:
    base = mlp()
    m = base.function
    return Program(
        m,
        base.arguments,
        {
            "train": lambda: training(m, True),
            "outside": lambda: torch.inference_mode(False),
        },
        around=torch.inference_mode,
    )


def default_device(t):
    return t + torch.zeros(3)


@program
def device_context() -> Program:
    return Program(
        default_device,
        (x(3),),
        {"meta": lambda: torch.device("meta")},
        around=lambda: torch.device("cpu"),
    )


def uses_grad(t):
    return t * 2 if t.grad is None else t + t.grad


@program
def grad_attribute() -> Program:
    t = x(3, requires_grad=True)
    t.grad = x(3)
    return Program(
        uses_grad,
        (t,),
        {
            "no_grad_yet": lambda: call(
                lambda: setattr(t, "grad", None), lambda: setattr(t, "grad", x(3))
            ),
        },
    )


@contextlib.contextmanager
def vmap_level() -> Iterator[None]:
    torch._C._functorch._vmap_increment_nesting(2, "error")
    try:
        yield
    finally:
        torch._C._functorch._vmap_decrement_nesting()


def vmapped_function(t):
    return torch.vmap(lambda row: row * 2)(t)


@program
def vmapped() -> Program:
    return Program(
        vmapped_function,
        (x(3),),
        {"shape": lambda: (x(4),), "inside_vmap": vmap_level, "no_grad": torch.no_grad},
    )


def gradient_function(t):
    return torch.func.grad(lambda v: (v * 2).sum())(t)


@program
def gradient() -> Program:
    return Program(
        gradient_function, (x(3),), {"shape": lambda: (x(4),), "inside_vmap": vmap_level}
    )


class OtherMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def doubled(t):
    return t * 2


@program
def function_modes() -> Program:
    return Program(
        doubled,
        (x(3),),
        {"one_more": OtherMode, "disabled": torch._C.DisableTorchFunction},
        around=torch.overrides.BaseTorchFunctionMode,
    )


@program
def forward_mode() -> Program:
    return Program(
        doubled,
        (x(3),),
        {"grad_mode": torch.no_grad, "outside": lambda: _outer_level()},
        around=torch.autograd.forward_ad.dual_level,
    )


@contextlib.contextmanager
def _outer_level() -> Iterator[None]:
    ad = torch.autograd.forward_ad
    before, ad._current_level = ad._current_level, -1
    try:
        yield
    finally:
        ad._current_level = before
