"""What launching a frozen kernel costs, on a GPU: prints one JSON object.

    python benchmarks/cuda_launch.py [--rounds 60] [--calls 200] [--output FILE]

Microseconds a launch of one small kernel (3 pointers and an int, 1 block), host time only: each
batch of launches starts on an idle device and is shorter than the driver's queue. ``raw`` is
cuLaunchKernelEx in a C loop (cuda_launch.c, needs gcc); ``ratio`` compares with it round by round.
The rows of CachingAutotuner launch the kernel that Inductor makes of an addition.
``load`` is the time to make 500 libraries and launchers, of copies of a few images, and to launch
each for the first time.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from unittest import mock

import torch
import torch._inductor.config as inductor_config
import triton
import triton.language as tl
from processes import machine
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

import precomp
from precomp import _core

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "cuda"))

import gpu_check  # noqa: E402 - the records of Triton's kernels


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def served_add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


def serve(arguments: tuple) -> precomp.Prepared:
    """Capture launches of ``served_add`` and serve them in this process; ``add`` stays Triton's."""
    add.run = MethodType(type(add).run, add)
    path = Path(tempfile.mkdtemp()) / "launch.precomp"
    with precomp.capture(path):
        served_add[(1,)](*arguments, BLOCK=128)
    prepared = precomp.prepare(path)
    served_add[(1,)](*arguments, BLOCK=128)
    assert not prepared.coverage().missing
    return prepared


def inductor(static: bool, x: torch.Tensor, y: torch.Tensor) -> tuple[CachingAutotuner, tuple]:
    """A kernel of Inductor, with torch's static launcher or Triton's, and its arguments."""
    calls: list[tuple] = []
    original = CachingAutotuner.run

    def run(self, *args, **kwargs):
        calls.append((self, args))
        return original(self, *args, **kwargs)

    torch._dynamo.reset()
    settings = {"use_static_cuda_launcher": static, "fx_graph_cache": False, "compile_threads": 1}
    with mock.patch.object(CachingAutotuner, "run", run), inductor_config.patch(settings):
        # torch keeps modules by their text: each launcher has a kernel of its own.
        torch.compile(torch.add if static else torch.mul)(x, y)
    (call,) = calls
    kernel, args = call
    for made in kernel.compile_results:
        assert (type(made).__name__ == "StaticTritonCompileResult") is static, made
    return kernel, args


def raw_loop(image: bytes, symbol: str, threads: int, tensors: list, n: int) -> Callable:
    """A function of the number of launches: nanoseconds a launch."""
    folder = tempfile.mkdtemp()
    library = Path(folder) / "raw.so"
    source = HERE / "cuda_launch.c"
    command = ["gcc", "-O2", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    loop = ctypes.CDLL(str(library)).raw_loop
    loop.restype = ctypes.c_double
    values = [ctypes.c_uint64(t.data_ptr()) for t in tensors]
    values += [ctypes.c_uint64(n), ctypes.c_uint64(0), ctypes.c_uint64(0)]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    kept = ctypes.create_string_buffer(image, len(image))

    def run(count: int) -> float:
        result = loop(kept, symbol.encode(), 1, threads, 0, pointers, None, ctypes.c_long(count))
        assert result >= 0, f"CUDA error {-result:.0f}"
        return float(result)

    run.values = values  # type: ignore[attr-defined] - kept alive with the function
    return run


def loop(call: str, *given: object, **names: object) -> Callable[[int], object]:
    """A function of the number of calls: *call* as a program has it, so that nothing is timed but
    the call itself; ``*`` in it stands for the positional arguments."""
    values = {f"a{i}": value for i, value in enumerate(given)} | names
    text = call.replace("*", ", ".join(f"a{i}" for i in range(len(given))))
    exec(f"def loop(calls):\n    for _ in range(calls):\n        {text}", values)
    return values["loop"]  # type: ignore[return-value]


def batch(calls_of: Callable[[int], object], calls: int) -> float:
    """Microseconds a call."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    calls_of(calls)
    return (time.perf_counter() - start) / calls * 1e6


def load(images: list[tuple[bytes, dict]], count: int, arguments: tuple) -> dict:
    copies = [(bytes(bytearray(image)), record) for image, record in images]
    copies = [copies[i % len(copies)] for i in range(count)]
    copies = [(bytes(bytearray(image)), record) for image, record in copies]
    start = time.perf_counter()
    made = [
        _core.CudaLauncher(_core.CudaLibrary(image, "copy"), record) for image, record in copies
    ]
    prepared = time.perf_counter()
    for launcher in made:
        launcher(*arguments, stream=0)
    torch.cuda.synchronize()
    launched = time.perf_counter()
    return {
        "kernels": count,
        "images": len(images),
        "bytes": sum(len(image) for image, _ in copies),
        "prepare_ms": round((prepared - start) * 1e3, 2),
        "first_launch_us": round((launched - prepared) / count * 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    gpu_check.bind()
    n = 128
    tensors = [torch.randn(n, device="cuda") for _ in range(3)]
    arguments = dict(zip(("x", "y", "out"), tensors, strict=True)) | {"n": n}
    images = []
    for block in (128, 256, 512, 1024):
        case = gpu_check.Case(add, (1,), arguments, "out", BLOCK=block)
        images.append((case.image, case.record))
        if block == 128:
            chosen = case
    call = tuple(arguments.values())
    addresses = [t.data_ptr() for t in tensors]
    tuned = {static: inductor(static, *tensors[:2]) for static in (True, False)}
    prepared = serve(call)
    x, y, out = tensors
    run = "kernel.run(*, stream=0)"
    paths = {
        "CudaLauncher": loop(run, *call, kernel=chosen.launcher),
        "CudaLauncher, addresses": loop(run, *addresses, n, kernel=chosen.launcher),
        "Triton CompiledKernel[grid]": loop(
            "kernel[1, 1, 1](*, 128)", *call, kernel=chosen.compiled
        ),
        "Triton JITFunction[grid]": loop("add[1,](*, BLOCK=128)", *call, add=add),
        "JITFunction[grid], served": loop("add[1,](*, BLOCK=128)", *call, add=served_add),
        "CachingAutotuner.run, static launcher": loop(run, *tuned[True][1], kernel=tuned[True][0]),
        "CachingAutotuner.run, Triton's launcher": loop(
            run, *tuned[False][1], kernel=tuned[False][0]
        ),
        "torch.add(out=)": loop("add(x, y, out=out)", add=torch.add, x=x, y=y, out=out),
    }
    threads = chosen.record["num_warps"] * 32
    raw = raw_loop(chosen.image, chosen.record["symbol"], threads, tensors, n)
    times: dict[str, list[float]] = {"raw": []} | {name: [] for name in paths}
    for _ in range(options.rounds):
        torch.cuda.synchronize()
        times["raw"].append(raw(options.calls) / 1e3)
        for name, path in paths.items():
            times[name].append(batch(path, options.calls))
    assert not prepared.coverage().missing
    rows = {}
    for name, values in times.items():
        ratios = [value / floor for value, floor in zip(values, times["raw"], strict=True)]
        deciles = statistics.quantiles(values, n=10)
        rows[name] = {
            "median_us": round(statistics.median(values), 3),
            "p10_us": round(deciles[0], 3),
            "p90_us": round(deciles[-1], 3),
            "ratio": round(statistics.median(ratios), 3),
        }
    result = {
        "machine": machine(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "gpu": torch.cuda.get_device_name(0),
        "calls": options.calls,
        "rounds": options.rounds,
        "launch": rows,
        "load": load(images, 500, call),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
