"""What the driver gets of launches by Triton's own driver module and of the same ones served.

``python triton_native.py capture|serve LIBCUDA FOLDER MAJOR``, where LIBCUDA is the stand-in, a
device of compute capability MAJOR.0. Triton's C code is built by gcc and runs on the stand-in;
FOLDER/all.precomp is written, or served. Prints one JSON line.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from typing import Any

import torch
from scenes import Buffer, Driver
from triton_samples import CALLS, DESCRIBED

import precomp

MAJOR = int(sys.argv[4]) if __name__ == "__main__" else 9
# Those without tensor maps differ in nothing but descriptors.
ALL = CALLS | DESCRIBED if MAJOR > 8 else DESCRIBED
PARAMETER = re.compile(r"\s*\.param (?:\.align \d+ )?\.[a-z](\d+) .*_param_\d+(?:\[(\d+)\])?")


def install() -> None:
    """Triton's own driver module, on a machine that seems to have one GPU."""
    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (MAJOR, 0)
    import triton
    from triton.backends.nvidia.driver import CudaDriver

    driver = CudaDriver()

    def bench(call: Any, **_: Any) -> list[float]:
        call()
        return [1.0] * 3

    driver.get_benchmarker = lambda: bench
    triton.runtime.driver.set_active(driver)


def sizes(compiled: Any) -> list[int]:
    """Bytes of the parameters, of the text that Triton's compiler wrote."""
    head = compiled.asm["ptx"].partition(".entry")[2].partition("{")[0]
    found = [PARAMETER.match(line) for line in head.splitlines()]
    return [int(row[1]) // 8 * int(row[2] or 1) for row in found if row]


def seen(driver: Driver, count: list[int]) -> dict[str, Any]:
    launch = driver.launch()
    return {
        "grid": list(launch.grid),
        "block": list(launch.block),
        "shared": launch.shared,
        "stream": launch.stream,
        "attributes": launch.attribute_count,
        "parameters": [bytes(launch.parameters[i][:n]).hex() for i, n in enumerate(count)],
    }


def capture(driver: Driver, folder: str) -> dict[str, Any]:
    install()
    facts = {}
    with precomp.capture(os.path.join(folder, "all.precomp")) as captured:
        for name, call in ALL.items():
            driver.sizes([])  # not known before it is compiled
            count = sizes(call(Buffer))
            driver.sizes(count)
            call(Buffer)
            facts[name] = {"sizes": count, "seen": seen(driver, count)}
    return {"launches": facts, "problems": captured.report().problems}


def serve(driver: Driver, folder: str) -> dict[str, Any]:
    with open(os.path.join(folder, "capture.json")) as file:
        expected = json.load(file)["launches"]
    prepared = precomp.prepare(os.path.join(folder, "all.precomp"), runtime="lean")
    facts = {}
    with precomp.strict_no_compile():
        for name, call in ALL.items():
            count = expected[name]["sizes"]
            driver.sizes(count)
            assert call(Buffer) is None
            facts[name] = {"sizes": count, "seen": seen(driver, count)}
    import triton

    coverage = prepared.coverage()
    return {
        "launches": facts,
        "missing": [*coverage.missing, *coverage.never_asked],
        "driver": triton.runtime.driver._active is None,
    }


if __name__ == "__main__":
    role, libcuda, place, _ = sys.argv[1:]
    library = ctypes.CDLL(libcuda, ctypes.RTLD_GLOBAL)  # found by its name from now on
    (ctypes.c_int * 2).in_dll(library, "fake_capability")[:] = [MAJOR, 0]
    torch._C._cuda_getDevice = lambda: 0
    torch._C._cuda_clearCublasWorkspaces = lambda: None
    torch._C._cuda_getCurrentRawStream = lambda device: 7
    print(json.dumps({"capture": capture, "serve": serve}[role](Driver(libcuda), place)))
