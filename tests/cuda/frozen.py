"""Triton kernels as Inductor holds them, frozen and launched through the stand-in driver.

``python frozen.py DRIVER FOLDER`` compiles without a GPU and prints what happened as one JSON line.
"""

from __future__ import annotations

import copy
import json
import os
import struct
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

FOLDER = sys.argv[2]
os.environ["TRITON_CACHE_DIR"] = os.path.join(FOLDER, "triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from scenes import SIZES, Driver, Memory, encoded, unpack  # noqa: E402
from torch._inductor.codegen.multi_kernel import (  # noqa: E402
    MultiKernelCall,
    SizeHintMultiKernelCall,
)
from torch._inductor.runtime.triton_heuristics import TritonCompileResult  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton_samples import moved  # noqa: E402

from precomp import _core, torch_api  # noqa: E402
from precomp.freeze import cuda as freeze_cuda  # noqa: E402
from precomp.freeze.cuda import freeze_launch  # noqa: E402
from precomp.freeze.store import Store, Unsupported  # noqa: E402
from precomp.tensor_descriptor import TensorDescriptor  # noqa: E402

SIGNATURE = {"in_ptr": "*fp32", "out_ptr": "*bf16", "xnumel": "i32", "scale": "fp16", "flag": "i1"}


@triton.jit
def scale_kernel(in_ptr, out_ptr, xnumel, scale, flag, XBLOCK: tl.constexpr):
    at = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    inside = at < xnumel
    value = tl.load(in_ptr + at, mask=inside) * scale
    tl.store(out_ptr + at, tl.where(flag, value, -value), mask=inside)


def autotuner() -> Any:
    """What ``async_compile.triton`` leaves behind once its kernel ran with two configurations."""
    results = []
    for block, warps in ((64, 2), (128, 4)):
        source = triton.compiler.ASTSource(
            scale_kernel,
            signature={**SIGNATURE, "XBLOCK": "constexpr"},
            constexprs={(5,): block},
        )
        kernel = triton.compile(
            source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}
        )
        meta = {
            "signature": {**SIGNATURE, "XBLOCK": "constexpr"},
            "constants": {"XBLOCK": block},
            "device_type": "cuda",
            "device": 0,
            "cc": 90,
        }
        config = triton.Config({"XBLOCK": block}, num_warps=warps)
        results.append(TritonCompileResult(kernel, config, meta, {"grid_type": "Grid1D"}))
    return SimpleNamespace(
        launchers=[Launcher(results[1].config)],
        compile_results=results,
        inductor_meta={"grid_type": "Grid1D"},
    )


def tuned_kernel() -> Any:
    """The same as torch's own type."""
    kind = torch_api.capture().CachingAutotuner
    kernel = kind.__new__(kind)
    vars(kernel).update(vars(autotuner()))
    return kernel


class Launcher:
    """Of torch's launcher functions what precomp looks at."""

    def __init__(self, config: Any) -> None:
        self.config = config


def one_of_two(tuned: Any) -> Any:
    """Two kernels, of which the second was chosen; the last three arguments are its own."""
    multi = MultiKernelCall.__new__(MultiKernelCall)
    multi._kernels = [None, tuned]
    multi.picked_kernel = 1
    multi.arg_index = {
        0: [slice(0, 2), slice(2, 5)],
        1: [slice(0, 2), slice(5, 8)],
    }
    return multi


def launched_step_by_step(tuned: Any) -> dict[str, Any]:
    """The record of a configuration whose compile result torch dropped."""
    patches: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, name: str, value: Any) -> None:
        patches.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    made = Launcher(triton.Config({}))
    last = tuned.compile_results[1]
    with mock.patch.object(TritonCompileResult, "make_launcher", lambda self: made):
        freeze_cuda.install(patch)
        last.make_launcher()
        for owner, name, value in reversed(patches):
            setattr(owner, name, value)
    changed = copy.copy(tuned)
    changed.launchers = [made]
    return freeze_launch(changed, Store())


def described(driver: Driver) -> dict[str, Any]:
    """A user's kernel that takes tensor descriptors, as Inductor holds and launches it."""
    kind = "tensordesc<fp32[8, 32]>"
    signature = {"source": kind, "target": kind, "ROWS": "constexpr", "COLUMNS": "constexpr"}
    source = triton.compiler.ASTSource(moved, signature, constexprs={(2,): 8, (3,): 32})
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    constants = {"ROWS": 8, "COLUMNS": 32}
    meta = {"signature": signature, "constants": constants, "device_type": "cuda", "cc": 90}
    names = ["_grid_0", "_grid_1", "_grid_2"]
    inductor = {"grid_type": "FixedGrid", "fixed_grid": names, "extra_launcher_args": names}
    config = triton.Config({})
    result = TritonCompileResult(kernel, config, meta, inductor)
    launchers = [Launcher(config)]
    store = Store()
    record = freeze_launch(
        SimpleNamespace(launchers=launchers, compile_results=[result], inductor_meta=inductor),
        store,
    )
    ((_, (name, image)),) = store.entries.items()
    driver.sizes([128, 4, 4, 8, 8] * 2 + [8] * len(record["scratch"]))
    launcher = _core.CudaLauncher(_core.CudaLibrary(image, name), record)
    bases = [SimpleNamespace(data_ptr=Memory(address).data_ptr, shape=(16, 64),
                             stride=lambda: (64, 1)) for address in (0x1000, 0x2000)]
    launcher.run(*(TensorDescriptor(base, [8, 32]) for base in bases), 2, 3, 1, stream=7)
    launch = driver.launch()
    return {
        "codes": record["codes"],
        "grid": list(launch.grid),
        "maps": [encoded(launch.parameters[i]) for i in (0, 5)],
        "rest": [int.from_bytes(bytes(launch.parameters[i][:8]), "little") for i in range(1, 5)],
    }  # fmt: skip


def refused(value: Any, **changes: Any) -> str:
    changed = copy.copy(value)
    for name, item in changes.items():
        setattr(changed, name, item)
    try:
        freeze_launch(changed, Store())
    except Unsupported as error:
        return str(error)
    return "accepted"


def with_meta(value: Any, **changes: Any) -> list[Any]:
    """The compile results with another compile_meta."""
    first, last = value.compile_results
    other = copy.copy(last)
    other.compile_meta = {**last.compile_meta, **changes}
    return [first, other]


def main() -> None:
    driver = Driver(sys.argv[1])
    kernel = autotuner()
    store, again = Store(), Store()
    record = freeze_launch(kernel, store)
    ((kind, digest), (name, image)) = next(iter(store.entries.items()))
    codes = record["codes"]
    driver.parameters(codes, len(record["scratch"]))
    launcher = _core.CudaLauncher(_core.CudaLibrary(image, name), record)
    launcher.run(0x1000, 0x2000, 1000, 1.5, True, stream=7)
    launch = driver.launch()
    multi = one_of_two(kernel)
    chosen = _core.CudaLauncher(_core.CudaLibrary(image, name), freeze_launch(multi, Store()))
    chosen.run(0x1000, 0x2000, 5, 0.5, False, 1000, 1.5, True, stream=7)
    other = driver.launch()
    by_shapes = SizeHintMultiKernelCall.__new__(SizeHintMultiKernelCall)
    found = {
        "described": described(driver),
        "step by step": launched_step_by_step(kernel) == record,
        "one of two": [
            list(other.grid),
            [unpack(code, other.parameters[i]) for i, code in enumerate(codes)],
        ],
        "kind": kind,
        "name": name,
        "same_again": freeze_launch(kernel, again) == record and again.entries == store.entries,
        "digest": record["cubin"] == digest == _core.sha256(image),
        "smaller": len(image) < len(kernel.compile_results[1].kernel.asm["cubin"]),
        "no_paths": __file__.encode() not in image,
        "grid": list(launch.grid),
        "threads": launch.block[0],
        "stream": launch.stream,
        "values": [
            unpack(code, launch.parameters[i]) for i, code in enumerate(codes)
        ],
        "sizes": [SIZES[code] for code in codes],
        "scratch": [struct.unpack("<Q", bytes(launch.parameters[len(codes) + i][:8]))[0]
                    for i in range(len(record["scratch"]))],
        "refused": {
            "not launched": refused(kernel, launchers=[]),
            "still tuning": refused(kernel, launchers=kernel.launchers * 2),
            "unknown configuration": refused(
                kernel, launchers=[Launcher(triton.Config({}))]
            ),
            "none chosen": refused(multi, picked_kernel=None),
            "chosen by shapes": refused(by_shapes),
            "other device": refused(
                kernel, compile_results=with_meta(kernel, device_type="xpu")
            ),
            "parameter type": refused(
                kernel,
                compile_results=with_meta(
                    kernel, signature={**SIGNATURE, "scale": "nvTmaDesc"}
                ),
            ),
            "grid": refused(
                kernel,
                compile_results=[
                    kernel.compile_results[0],
                    TritonCompileResult(
                        kernel.compile_results[1].kernel,
                        kernel.compile_results[1].config,
                        kernel.compile_results[1].compile_meta,
                        {"grid_type": "FixedGrid", "fixed_grid": ["xnumel / 2", 1, 1]},
                    ),
                ],
            ),
        },
    }  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
