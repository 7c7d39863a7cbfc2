"""Kernels that Inductor tunes, chooses or puts together, launched by torch and Triton and frozen.

``python tuned.py LIBCUDA FOLDER``, where LIBCUDA is the stand-in. Inductor's own autotuners tune by
times that are made up, Triton's own driver module launches, both on the stand-in; each launch is
made again by the frozen kernel. As a rank (``RANK``) it tunes as a captured one does, by times of
its own. Prints one JSON line.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
from typing import Any

LIBCUDA = sys.argv[1]
RANK = int(os.environ.get("RANK", "0"))
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(sys.argv[2], f"inductor{RANK}")
os.environ["TRITON_CACHE_DIR"] = os.path.join(sys.argv[2], f"triton{RANK}")
ctypes.CDLL(LIBCUDA, ctypes.RTLD_GLOBAL)  # found by its name from now on

import torch  # noqa: E402
import triton  # noqa: E402
import wrappers  # noqa: E402
from choices import CASES  # noqa: E402
from relocated import fake  # noqa: E402
from scenes import Driver  # noqa: E402
from torch._dynamo.device_interface import CudaInterface  # noqa: E402
from torch._inductor.codegen.multi_kernel import MultiKernelCall  # noqa: E402
from torch._inductor.runtime.triton_heuristics import CachingAutotuner  # noqa: E402
from triton_native import seen, sizes  # noqa: E402

from precomp import _core  # noqa: E402
from precomp.distributed import tuning  # noqa: E402
from precomp.freeze import cuda  # noqa: E402
from precomp.freeze.store import Store  # noqa: E402

config = torch._inductor.config
STREAM = 7
OWN: dict[str, dict[str, float]] = {}
"""The times of this rank, by kernel and configuration."""


class Buffer:
    """A tensor on the GPU, as a wrapper makes and passes it."""

    made = 0

    def __init__(self, *_: Any) -> None:
        Buffer.made += 1
        self.dtype = torch.float32
        self.address = Buffer.made << 20

    def data_ptr(self) -> int:
        return self.address

    def zero_(self) -> Buffer:
        return self


def one(x: Any) -> Any:
    return x.sin() * 2


def two(x: Any, y: Any) -> Any:
    return x.sin(), y * 2


def bench(self: Any, launcher: Any, *args: Any, **_: Any) -> float:
    """The made-up time of a configuration: few warps and elements win, on rank 1 some more."""
    launcher(*args, stream=STREAM)
    numbers = [n for n in launcher.config.kwargs.values() if type(n) is int]
    time = float(abs(sum(numbers) + launcher.config.num_warps - 500 * RANK))
    OWN.setdefault(self.fn.src, {})[str(launcher.config)] = time
    return time


def compiled(kernel: Any) -> Any:
    """What Triton compiled of the configuration that is launched."""
    tuned = kernel
    if isinstance(kernel, MultiKernelCall):
        tuned = kernel.kernels[kernel.picked_kernel]
    return cuda._launched(tuned).kernel


def torch_kept(kernel: Any) -> bool:
    """Whether torch itself still has the compile result of what it launches."""
    if isinstance(kernel, MultiKernelCall):
        kernel = kernel.kernels[kernel.picked_kernel]
    chosen = kernel.launchers[0].config
    return any(result.config is chosen for result in kernel.compile_results)


def launches(driver: Driver, case: tuple[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    function, shapes, options = case
    found: list[Any] = []
    with config.patch(options), wrappers.gpu(0):
        triton.runtime.driver.set_active(CUDA)
        text = wrappers.source(0, function, shapes)
        triton.runtime.driver.set_active(CUDA)
        space: dict[str, Any] = {"__name__": "generated", "__file__": "generated.py"}
        exec(compile(text, "generated.py", "exec"), space)
        space["empty_strided_cuda"] = Buffer
        driver.sizes([])
        space["call"]([Buffer() for _ in shapes])  # tunes
        kinds = (CachingAutotuner, MultiKernelCall)
        used: dict[str, Any] = {}

        def again(name: str, kernel: Any) -> Any:
            run = kernel.run

            class Twice:
                """Launched by torch, then frozen."""

                def run(self, *args: Any, **keywords: Any) -> None:
                    count = sizes(compiled(kernel))
                    driver.sizes(count)
                    run(*args, **keywords)
                    theirs = seen(driver, count)
                    store = Store()
                    record = cuda.freeze_launch(kernel, store)
                    ((_, (label, image)),) = store.entries.items()
                    library = _core.CudaLibrary(image, label)
                    before = driver.launches
                    _core.CudaLauncher(library, record)(*args, **keywords)
                    assert driver.launches == before + 1
                    same, digest = seen(driver, count) == theirs, hashlib.sha256(image)
                    found.append([name, same, torch_kept(kernel), digest.hexdigest()])

            return Twice()

        for name, value in list(space.items()):
            if isinstance(value, kinds):
                used[name] = value
                space[name] = again(name, value)
        space["call"]([Buffer() for _ in shapes])
    return {"launches": found, "kinds": sorted({type(used[row[0]]).__name__ for row in found})}


def main() -> None:
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    driver = Driver(LIBCUDA)
    torch._C._cuda_getCurrentRawStream = lambda device: STREAM
    for name in ("set_device", "_exchange_device", "_maybe_exchange_device"):
        setattr(torch.cuda, name, fake("torch.cuda", name))
    for name in ("exchange_device", "maybe_exchange_device", "set_device", "synchronize"):
        setattr(CudaInterface, name, staticmethod(lambda *_: 0))
    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    from triton.backends.nvidia.driver import CudaDriver

    global CUDA
    CUDA = CudaDriver()
    CachingAutotuner.bench = bench
    MultiKernelCall.benchmark_sub_kernels = lambda self, *args, **_: [
        (kernel.run(*self._get_filtered_args(args, i), stream=STREAM), float(i * (RANK or -1)))[1]
        for i, kernel in enumerate(self.kernels)
    ]
    cuda.install(setattr)
    tuning.install(setattr)
    settings = {
        "use_static_cuda_launcher": False, "size_asserts": False, "compile_threads": 1,
        "fx_graph_cache": False, "alignment_asserts": False,
    }  # fmt: skip
    step_by_step = {"coordinate_descent_tuning": True}
    names = ("combo kernels", "foreach", "multi-kernel", "cooperative")
    cases = {name: CASES[name] for name in names} | {
        "step by step": (one, ((1000,),), step_by_step),
        "step by step, combo kernels": (
            two, ((1000,), (70,)), step_by_step | {"combo_kernels": True}
        ),
    }  # fmt: skip
    with config.patch(settings):
        found = {name: launches(driver, case) for name, case in cases.items()}
    fastest = {kernel: min(times, key=times.__getitem__) for kernel, times in OWN.items()}
    print(json.dumps(found | {"fastest": fastest}))


if __name__ == "__main__":
    main()
