"""A Triton kernel and the function that launches it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def scale_add_kernel(x, y, out, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside) + factor * tl.load(y + at, mask=inside)
    tl.store(out + at, value, mask=inside)


def scale_add(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
    """``x + factor * y`` for contiguous tensors of one shape."""
    out = torch.empty_like(x)
    n = x.numel()
    scale_add_kernel[(triton.cdiv(n, 256),)](x, y, out, n, factor, BLOCK=256)
    return out
