"""Wrappers that Inductor generates for a GPU, on a machine without one.

``source(ordinal)`` lowers a graph on fake tensors of ``cuda:<ordinal>``, with the settings of
Inductor that are current. What Inductor asks of the GPU is answered here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no workers: nothing is compiled

import torch
import torch._inductor.compile_fx as compile_fx
import triton
from torch._dynamo import device_interface
from torch._guards import TracingContext, tracing
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.replace_random import replace_random_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from triton.backends.compiler import GPUTarget

PROPERTIES = {
    "type": "cuda", "name": "GPU", "gcnArchName": "sm_90", "major": 9, "minor": 0, "cc": 90,
    "multi_processor_count": 132, "regs_per_multiprocessor": 65536, "warp_size": 32,
    "max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024,
    "total_memory": 1 << 37, "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448, "L2_cache_size": 1 << 25, "clock_rate": 1,
}  # fmt: skip


@contextlib.contextmanager
def gpu(ordinal: int) -> Iterator[None]:
    """As if ``cuda:<ordinal>`` were there and current."""
    properties = SimpleNamespace(**PROPERTIES, index=ordinal)

    def answer(value: Any) -> Any:
        return staticmethod(lambda *_: value)

    answers = {
        "current_device": answer(ordinal),
        "get_device_properties": answer(properties),
    }
    interface = device_interface.CudaInterface
    worker = type("Worker", (interface.Worker,), answers)
    more = {
        "Worker": worker,
        "device_count": answer(8),
        "get_compute_capability": answer(90),
        "is_available": answer(True),
        "is_triton_capable": answer(True),
        "raise_if_triton_unavailable": answer(None),
    }
    made = type("Interface", (interface,), answers | more)
    device_interface.get_interface_for_device("cpu")  # fills the table
    known = {name: made for name in ("cuda", *(f"cuda:{i}" for i in range(8)))}
    target = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: ordinal,
        get_active_torch_device=lambda: torch.device("cuda", ordinal),
    )
    triton.runtime.driver.set_active(target)
    values = {
        "_lazy_init": None,
        "current_device": ordinal,
        "device_count": 8,
        "get_device_capability": (9, 0),
        "get_device_properties": properties,
        "is_available": True,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(device_interface.device_interfaces, known))
        for name, value in values.items():
            patch = mock.patch.object(torch.cuda, name, lambda *_, found=value: found)
            stack.enter_context(patch)
        # Makes a tensor on the GPU, where torch was built for one.
        stack.enter_context(mock.patch.object(fake_tensor, "init_gpu_context", lambda *_: None))
        yield


def program(x: Any, w: Any, b: Any) -> Any:
    """A fused norm, a reduction, random numbers, operators that fall back, a copy to the CPU."""
    y = torch.nn.functional.layer_norm(x @ w, (64,), b, b).relu()
    z = y.sum(0) + torch.arange(64, device=x.device)
    noise = torch.rand(64, device=x.device)
    return z, noise, y.sort(stable=True)[0], torch.randperm(5, device=x.device), z.cpu()


def source(ordinal: int, *function: Any) -> str:
    """The file that Inductor writes for *program* on ``cuda:<ordinal>``, or for what ``lowered`` is
    given."""
    return lowered(ordinal, *function)[0]


def lowered(
    ordinal: int,
    function: Callable[..., Any] = program,
    shapes: Sequence[tuple[int, ...]] = ((8, 32), (32, 64), (64,)),
) -> tuple[str, GraphLowering]:
    """That file for *function* of tensors of these shapes, and what Inductor made it of."""
    with gpu(ordinal):
        device = torch.device("cuda", ordinal)
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with fake:
            inputs = [torch.empty(shape, device=device) for shape in shapes]
            graph = make_fx(function, decomposition_table=select_decomp_table())(*inputs)
        compile_fx.view_to_reshape(graph)
        with tracing(TracingContext(fake)), V.set_fake_mode(fake):
            replace_random_passes(graph)
            compile_fx._recursive_post_grad_passes(graph, is_inference=True)
            lowering = GraphLowering(graph, example_inputs=inputs, is_inference=True)
            with V.set_debug_handler(DebugContext()), V.set_graph_handler(lowering):
                lowering.run(*inputs)
                return str(lowering.codegen()[0].value), lowering
