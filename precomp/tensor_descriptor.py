"""What code that Inductor generated hands to kernels in place of Triton's tensor descriptors."""

from __future__ import annotations

import torch


class TensorDescriptor:
    """A tensor and the shape of its blocks, with the attributes that a launcher reads of
    ``triton.tools.tensor_descriptor.TensorDescriptor``."""

    __slots__ = ("base", "shape", "strides", "block_shape", "padding", "round_f32_to_tf32")

    def __init__(self, base: torch.Tensor, block_shape: list[int]) -> None:
        self.base = base
        self.shape = base.shape
        self.strides = base.stride()
        self.block_shape = block_shape
        self.padding = "zero"
        self.round_f32_to_tf32 = False
