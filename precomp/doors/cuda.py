"""Doors of NVRTC and of the driver's compiler of PTX, as torch's Python calls them.

What libtorch itself calls from C++ (jiterator, special functions) is seen by
``_core.gate_watch_nvrtc``.
"""

from __future__ import annotations

from typing import Any

from precomp.doors import Door, Trip

_CODE = (b"\x7fELF", b"\x50\xed\x55\xba", b"\xb1\x43\x62\x46")
"""How a cubin, a fat binary and the wrapper of one start: the driver does not compile them."""


def _nvrtc(args: dict[str, Any]) -> Trip:
    return Trip(
        f"CUDA kernel {args.get('kernel_name', '')}",
        "NVRTC is about to compile it",
        "compile it before the gate",
    )


def _load(args: dict[str, Any]) -> Trip | None:
    image = args.get("ptx")
    if isinstance(image, bytes) and image.startswith(_CODE):
        return None
    names = ", ".join(map(str, args.get("kernel_names") or ())) or "(no name)"
    return Trip(
        f"CUDA kernel {names}",
        "the CUDA driver is about to compile its PTX",
        "load it before the gate",
    )


DOORS = (
    Door("NVRTC", "build", "torch.cuda._utils:_nvrtc_compile", _nvrtc, required=False),
    Door("PTX", "driver_jit", "torch.cuda._utils:_cuda_load_module", _load, required=False),
)
