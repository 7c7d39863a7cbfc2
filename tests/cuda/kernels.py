"""A Triton kernel for several architectures, compiled without a GPU: ``python kernels.py FOLDER``.

Writes ``FOLDER/<arch>.cubin`` for each of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

ARCHS = (80, 86, 89, 90, 100, 120)
PARAMETERS = {"x": "*fp32", "out": "*fp32", "n": "i32", "m": "i64", "s": "fp16", "b": "u8"}
"""With the two pointers of scratch memory behind them, the kernel's parameters."""


@triton.jit
def scaled(x, out, n, m, s, b, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i + m, tl.load(x + i, mask=mask) * s + b, mask=mask)


def main(folder: Path) -> None:
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    for arch in ARCHS:
        source = triton.compiler.ASTSource(
            scaled, signature={**PARAMETERS, "BLOCK": "constexpr"}, constexprs={(6,): 128}
        )
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32))
        (folder / f"{arch}.cubin").write_bytes(compiled.asm["cubin"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
