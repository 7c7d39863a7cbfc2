"""Doors of autotuning: Inductor's Triton heuristics, template selection, benchmarks."""

from __future__ import annotations

from typing import Any

from precomp.doors import Door, Trip, fixed
from precomp.torch_api.modules import INDUCTOR

_HINT = "tune it before the gate, or capture the choice"
_AUTOTUNER = f"{INDUCTOR}.runtime.triton_heuristics:CachingAutotuner"


def _kernel(tuner: Any) -> str:
    meta = getattr(tuner, "inductor_meta", None) or {}
    function = getattr(tuner, "fn", None)
    return str(meta.get("kernel_name") or getattr(function, "__name__", "Triton kernel"))


def _compile_config(args: dict[str, Any]) -> Trip:
    return Trip(
        f"Inductor Triton kernel {_kernel(args['self'])}",
        f"config {args['cfg']} not compiled before",
        _HINT,
    )


def _all_configs(args: dict[str, Any]) -> Trip:
    tuner = args["self"]
    info = getattr(tuner, "autotune_cache_info", None)
    why = f"{len(tuner.launchers)} configs and no choice stored"
    if info:
        why += f" (autotune cache: {info})"
    return Trip(f"Inductor Triton kernel {_kernel(tuner)}", why, _HINT)


def _descent(args: dict[str, Any]) -> Trip:
    return Trip(
        f"Inductor Triton kernel {_kernel(args['self'])}",
        "coordinate descent tuning: no result stored",
        _HINT,
    )


def _combo(args: dict[str, Any]) -> Trip:
    return Trip(
        f"Inductor combo kernel {_kernel(args['self'])}", "tuned at its first launch", _HINT
    )


def _bench(args: dict[str, Any]) -> Trip:
    name = _kernel(args["self"])
    return Trip(f"Inductor Triton kernel {name}", "timed to choose a config", _HINT)


def _select(args: dict[str, Any]) -> Trip:
    count = len(args.get("choices") or ())
    return Trip(
        f"max-autotune of {args.get('name', 'a kernel')}",
        f"{count} choices and no choice stored (key {args.get('inputs_key', '?')})",
        _HINT,
    )


def _choices(args: dict[str, Any]) -> Trip:
    count = len(args.get("choices") or ())
    return Trip("max-autotune", f"{count} choices are timed", _HINT)


def _pool_job(args: dict[str, Any]) -> Trip | None:
    name = getattr(args.get("fn"), "__name__", "")
    if "warm" in name or "ready" in name:
        return None
    return Trip(f"autotuning worker: {name}", "a job goes to the tuning process", _HINT)


_TIMED = fixed(
    "benchmark", "a kernel is timed to choose one", "to measure under the gate, allow 'tune'"
)


def _benchmarkers() -> tuple[Door, ...]:
    module = f"{INDUCTOR}.runtime.benchmarking"
    names = (
        ("Benchmarker.benchmark", True),
        ("Benchmarker.benchmark_cpu", True),
        ("TritonBenchmarker.benchmark_gpu", True),
        ("InductorBenchmarker.benchmark_gpu", True),
        ("Benchmarker.benchmark_gpu_with_cuda_graph", False),
        ("TorchProfilerBenchmarker.benchmark_gpu", False),
    )
    return tuple(
        Door(f"Inductor {name}", "tune", f"{module}:{name}", _TIMED, required=required)
        for name, required in names
    )


DOORS = (
    Door(
        "Inductor Triton kernel build", "build", f"{_AUTOTUNER}._precompile_config", _compile_config
    ),
    Door("Inductor autotuning", "tune", f"{_AUTOTUNER}.benchmark_all_configs", _all_configs),
    Door("coordinate descent", "tune", f"{_AUTOTUNER}._coordinate_descent_tuning", _descent),
    Door(
        "combo kernel tuning",
        "tune",
        f"{_AUTOTUNER}._combo_sequential_autotune",
        _combo,
        required=False,  # times through bench
    ),
    Door("Inductor kernel timing", "tune", f"{_AUTOTUNER}.bench", _bench),
    Door(
        "max-autotune",
        "tune",
        f"{INDUCTOR}.select_algorithm:AlgorithmSelectorCache.do_autotuning",
        _select,
    ),
    Door(
        "max-autotune timing",
        "tune",
        f"{INDUCTOR}.select_algorithm:AlgorithmSelectorCache.benchmark_choices",
        _choices,
    ),
    Door(
        "tuning process",
        "tune",
        f"{INDUCTOR}.autotune_process:TuningProcess.start",
        fixed("autotuning process", "a process that times kernels starts", _HINT),
    ),
    Door(
        "tuning worker",
        "tune",
        f"{INDUCTOR}.autotune_process:AutotuneProcessPool.submit",
        _pool_job,
        required=False,
    ),
    Door(
        "multi-kernel",
        "tune",
        f"{INDUCTOR}.codegen.multi_kernel:MultiKernelCall.benchmark_sub_kernels",
        fixed("multi-kernel", "its variants are timed at the first launch", _HINT),
    ),
    *_benchmarkers(),
    Door("do_bench", "tune", "triton.testing:do_bench", _TIMED),
    Door("do_bench with CUDA graph", "tune", "triton.testing:do_bench_cudagraph", _TIMED),
)
