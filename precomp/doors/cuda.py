"""Door of NVRTC as torch's Python calls it. NVRTC inside libtorch is called from C++, unseen."""

from __future__ import annotations

from typing import Any

from precomp.doors import Door, Trip


def _nvrtc(args: dict[str, Any]) -> Trip:
    return Trip(
        f"CUDA kernel {args.get('kernel_name', '')}",
        "NVRTC is about to compile it",
        "compile it before the gate",
    )


DOORS = (Door("NVRTC", "build", "torch.cuda._utils:_nvrtc_compile", _nvrtc, required=False),)
