"""A stand-in for Triton's driver, on a machine without a GPU.

Triton compiles for it as for a GPU of compute capability 9.0; what its launcher is handed is kept,
with the parameter bytes that Triton's own launcher would send.
"""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import GPUDriver

FORMATS = {
    "i1": "B", "u1": "B", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I",
    "i64": "q", "u64": "Q", "fp16": "e", "fp32": "f", "fp64": "d",
}  # fmt: skip


def packed(kind: str, value: Any) -> bytes:
    """The bytes of a parameter, as extract* of Triton's driver.c writes them."""
    if kind.startswith("*"):
        if value is None or isinstance(value, int):
            return struct.pack("<Q", value or 0)
        return struct.pack("<Q", value.data_ptr())
    if kind.startswith("tensordesc"):
        return b""  # its parameters are not looked at
    if kind == "bf16":
        return struct.pack("<f", value)[2:]
    return struct.pack("<" + FORMATS[kind], value)


def leaves(kind: Any, value: Any) -> list[tuple[str, Any]]:
    """(type, value) of each parameter of the kernel, constants left out."""
    if isinstance(kind, tuple):
        return [leaf for pair in zip(kind, value, strict=True) for leaf in leaves(*pair)]
    return [] if kind == "constexpr" else [(kind, value)]


class Launcher:
    """What Triton makes for each kernel; a call is one launch."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self.src = src
        self.metadata = metadata

    def __call__(self, x: int, y: int, z: int, stream: int, function: Any, *rest: Any) -> None:
        kinds, values = self.src.signature.values(), rest[4:]
        pairs = [leaf for pair in zip(kinds, values, strict=True) for leaf in leaves(*pair)]
        Driver.launches.append(
            {
                "name": self.metadata.name,
                "kinds": [kind for kind, _ in pairs],
                "parameters": [packed(*pair).hex() for pair in pairs],
                "grid": [x, y, z],
                "stream": stream,
                "threads": 32 * self.metadata.num_warps,
                "shared": self.metadata.shared,
                "clusters": self.metadata.num_ctas,
            }
        )


class Driver(GPUDriver):
    launches: list[dict[str, Any]] = []
    stream = 7

    def __init__(self) -> None:
        self.launcher_cls = Launcher
        self.utils = SimpleNamespace(
            load_binary=lambda name, image, shared, device: (object(), object(), 16, 0, 1024),
            get_device_properties=lambda device: {"max_shared_mem": 232448},
        )
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda device: Driver.stream
        self.get_device_capability = lambda device: (9, 0)

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> Any:
        raise NotImplementedError

    def get_benchmarker(self) -> Any:
        """Tries a configuration twice; the fewest warps win."""

        def bench(call: Any, **_: Any) -> list[float]:
            for _ in range(2):
                call()
            return [float(Driver.launches[-1]["threads"])] * 3

        return bench

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError


def install() -> type[Driver]:
    triton.runtime.driver.set_active(Driver())
    return Driver
