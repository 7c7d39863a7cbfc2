"""What Inductor chooses by time, without a GPU: torch's own functions, times that are given."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch.distributed as dist
import triton
from torch._inductor.codecache import PersistentCache
from torch._inductor.codegen.multi_kernel import MultiKernelCall
from torch._inductor.fx_passes import pad_mm
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.runtime.hints import DeviceProperties, HeuristicType
from torch._inductor.runtime.triton_heuristics import CachingAutotuner


@triton.jit
def one(x):
    pass


@triton.jit
def another(x):
    pass


@triton.jit
def programs(x, n, BLOCK: triton.language.constexpr):
    pass


class Launcher:
    """A compiled configuration."""

    n_regs, n_spills, shared = 0, 0, 0

    def __init__(self, config: Any, seconds: float) -> None:
        self.config, self.seconds = config, seconds
        # Triton's digest, of a worker process here and not there.
        self.cache_hash = f"{config} on rank {dist.get_rank()}"


def timed(tuner: Any, launcher: Launcher) -> float:
    """In the place of ``bench``."""
    return launcher.seconds


def inductors(function: Any, configs: list[triton.Config], hint: int = 64) -> CachingAutotuner:
    """A kernel as Inductor tunes it, on the GPU of this rank."""
    device = DeviceProperties("cuda", dist.get_rank(), 132, 90, warp_size=32)
    return CachingAutotuner(
        function,
        triton_meta={"device": device, "signature": {"x": "*fp32"}, "constants": {}},
        configs=configs,
        save_cache_hook=None,
        mutated_arg_names=[],
        optimize_mem=False,
        heuristic_type=HeuristicType.POINTWISE,
        size_hints={"x": hint},
    )


def choice(function: Any, *seconds: float, warps: int = 4, hint: int = 64) -> int:
    """The configuration that the autotuner takes, by its place among *seconds*."""
    configs = [triton.Config({"XBLOCK": 2**i}, num_warps=warps) for i in range(len(seconds))]
    tuner = inductors(function, configs, hint)
    tuner.launchers = list(map(Launcher, configs, seconds))
    tuner.autotune_to_one_config()
    return configs.index(tuner.launchers[0].config)


def kernel(*seconds: float) -> int:
    """Which of several kernels is taken, by its place among *seconds*."""
    call = MultiKernelCall.__new__(MultiKernelCall)
    call._kernels = [inductors(function, [triton.Config({})]) for function in (one, another)]
    with mock.patch.object(benchmarker, "benchmark", side_effect=seconds):
        times = call.benchmark_sub_kernels()
    return times.index(min(times))


def own(function: Any, *seconds: float, key: Any = 1) -> int:
    """The configuration that an autotuner of the program takes, by its place among *seconds*."""
    configs = [triton.Config({"BLOCK": 2**i}) for i in range(len(seconds))]
    tried: list[int] = []
    tuner = triton.autotune(
        configs, key=["n"], do_bench=lambda call, quantiles: call() or [seconds[tried[-1]]] * 3
    )(function)
    with mock.patch.object(
        type(function), "run", lambda *_, BLOCK, **__: tried.append(BLOCK.bit_length() - 1)
    ):
        tuner.run(None, key, grid=(1,))
    return tried[-1]


class Choice:
    """A template or a library call."""

    def __init__(self, name: str) -> None:
        self.name = name

    def hash_key(self) -> str:
        return self.name


def template(inputs: str, *seconds: float, own: str = "") -> int:
    """The choice that max-autotune takes, by its place among *seconds*."""
    choices = [Choice(f"template {own}{i}") for i in range(len(seconds))]
    times = dict(zip(choices, seconds, strict=True))
    timings = PersistentCache().lookup(choices, "mm", inputs, lambda _: times)
    return choices.index(min(timings, key=timings.__getitem__))


def padded(product: str, original: float, padded: float) -> bool:
    """Whether a matrix product is padded, as it is decided first and as torch remembers it."""
    decided = pad_mm.is_padded_faster(product, original, padded)
    assert pad_mm.get_cached_should_pad(product) is decided
    return decided
