"""Wrappers of kernels that Inductor tunes, chooses or puts together, linked without a GPU.

``python choices.py FOLDER`` prints one JSON line.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any
from unittest import mock

if __name__ == "__main__":
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(sys.argv[1], "inductor")
    sys.argv[1:] = ["", sys.argv[1]]  # as frozen.py has them

import torch
import wrappers
from frozen import tuned_kernel
from relocated import fake, freeze
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codegen.multi_kernel import MultiKernelCall
from torch.nn import functional as F

from precomp.freeze import module

config = torch._inductor.config


def many(*tensors: Any) -> Any:
    return [x.sin().sum(-1) for x in tensors] + [x.softmax(-1) for x in tensors]


def adam(weight: Any, bias: Any, *grads: Any) -> Any:
    second = torch._foreach_mul(torch._foreach_mul(grads, grads), 0.001)
    steps = torch._foreach_div(torch._foreach_mul(grads, 0.1), torch._foreach_sqrt(second))
    return torch._foreach_add([weight, bias], steps, alpha=-0.01) + second


def reductions(x: Any, w: Any) -> Any:
    y = F.layer_norm(x, (x.shape[-1],), w).relu()
    return y.softmax(-1), y.sum(0), y.amax()


SHAPES = ((333, 1024), (64, 2048), (5, 77))
PAIRED = ((64, 64), (7,), (64, 64), (7,))
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "combo kernels": (many, SHAPES, {"combo_kernels": True}),
    "foreach": (adam, PAIRED, {}),
    "foreach, combo kernels": (adam, PAIRED, {"combo_kernels": True}),
    "multi-kernel": (reductions, ((333, 1024), (1024,)), {"triton.multi_kernel": 1}),
    "looped": (reductions, ((333, 1024), (1024,)), {"triton.persistent_reductions": False}),
    "cooperative": (
        reductions, ((33, 32768), (32768,)), {"triton.force_cooperative_reductions": True}
    ),
}  # fmt: skip


def one_of(_: Any, name: str, kernels: list[Any], arg_index: dict[int, list[slice]]) -> Any:
    """A multi-kernel as it is once its last kernel was chosen."""
    made = MultiKernelCall.__new__(MultiKernelCall)
    made._kernels, made.arg_index, made.picked_kernel = kernels, arg_index, len(kernels) - 1
    return made


def linked(kernel: Any, case: tuple[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    function, shapes, options = case
    frozen: list[Any] = []

    def note(value: Any, store: Any) -> dict[str, Any]:
        frozen.append(value)
        return {}

    with config.patch(options):
        text = wrappers.source(0, function, shapes)
    with (
        mock.patch.object(AsyncCompile, "multi_kernel", one_of),
        mock.patch.object(module, "freeze_launch", note),  # its kernel is another one
    ):
        stays = freeze(text, kernel, 0, {})[2]
    several = [value for value in frozen if isinstance(value, MultiKernelCall)]
    return {
        "stays": stays,
        "grids": sorted(set(re.findall(r"'grid_type': '(\w+)'", text))),
        "workspace": "workspace" in text,
        "kernels": len(frozen),
        "several": len(several),
        "arguments": [
            [[part.start, part.stop] for part in value.arg_index[value.picked_kernel]]
            for value in several[:1]
        ],
    }


def main() -> None:
    torch._C._cuda_getCurrentRawStream = fake("torch._C", "_cuda_getCurrentRawStream")
    for name in ("set_device", "_exchange_device", "_maybe_exchange_device"):
        setattr(torch.cuda, name, fake("torch.cuda", name))
    kernel = tuned_kernel()
    print(json.dumps({name: linked(kernel, case) for name, case in CASES.items()}))


if __name__ == "__main__":
    main()
