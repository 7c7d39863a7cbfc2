"""Kernels that a program launches itself, and launches of them: ``CALLS`` of name -> function of
``Buffer``. Each launches one kernel. Those of ``DESCRIBED`` take tensor descriptors."""

from collections import namedtuple
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

SCALE = tl.constexpr(3)
Pair = namedtuple("Pair", ("left", "right"))


@triton.jit
def scaled(x, y):
    return x + y * SCALE


@triton.jit
def twice(x):
    return x * 2


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr = 128):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, scaled(tl.load(x + i, mask=mask), tl.load(y + i, mask=mask)), mask=mask)


@triton.jit
def mixed(out, real, whole, flag, other, BLOCK: tl.constexpr, KIND: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.where(flag, real, whole.to(tl.float32)).to(KIND)
    if other is not None:
        value += tl.load(other + i)
    tl.store(out + i, value)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["x"])
def declared(
    x: tl.const, out, n, small: tl.float16, wide: tl.int64, word: tl.uint8, BLOCK: tl.constexpr
):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n) + small + word
    tl.store(out + i + wide, value)


@triton.jit
def tuples(pointers, sizes, out, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.load(pointers[0] + i, mask=i < sizes[0])
    total += tl.load(pointers[1] + i, mask=i < sizes[1]) * STEPS[1]
    tl.store(out + i, total)


@triton.jit
def applied(x, out, FUNCTION: tl.constexpr, TEXT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i)
    if TEXT == "twice":
        value = FUNCTION(value)
    tl.store(out + i, value)


@triton.autotune(
    [triton.Config({"BLOCK": 64 * n}, num_warps=n, num_stages=2) for n in (4, 2, 8)], key=["n"]
)
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


@triton.autotune([triton.Config({}, num_warps=n) for n in (2, 1)], key=["SHAPE"])
@triton.jit
def shaped(out, SHAPE: tl.constexpr):
    tl.store(out, SHAPE[0] * SHAPE[1])


@triton.autotune([triton.Config({"BLOCK": 256}, num_warps=2)], key=[])
@triton.heuristics({"EVEN": lambda values: values["n"] % values["BLOCK"] == 0})
@triton.jit
def guessed(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + i, tl.load(x + i))
    else:
        tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


def blocks(meta: dict[str, Any]) -> tuple[int, ...]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


f32, f16, b16, i64, u8 = torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8

CALLS = {
    "plain": lambda B: add[(8,)](B(1024, f32), B(2048, f32), B(4096, f32), 1000, BLOCK=256),
    "default": lambda B: add[8, 2](B(1024, f32), B(2048, f32), B(4096, f32), 1000),
    "divisible": lambda B: add[[8, 2, 3]](B(1024, f32), B(2048, f32), B(4096, f32), 1024, 256),
    "unaligned": lambda B: add[(1,)](B(1028, f32), B(2048, f32), B(4100, f32), 999),
    "one": lambda B: add[(1,)](B(1024, f32), B(2048, f32), B(4096, f32), 1),
    "wide": lambda B: add[(1,)](B(1024, f32), B(2048, f32), B(4096, f32), 2**33 + 1),
    "unsigned": lambda B: add[(1,)](B(1024, f32), B(2048, f32), B(4096, f32), 2**63 + 1),
    "negative": lambda B: add[(1,)](B(1024, f32), B(2048, f32), B(4096, f32), -5),
    "elements": lambda B: add[(1,)](B(1024, f16), B(2048, b16), B(4096, i64), 17),
    "options": lambda B: add[(1,)](
        B(1024, f32), B(2048, f32), out=B(4096, f32), n=1000, num_warps=8, BLOCK=512
    ),
    "function grid": lambda B: add[blocks](B(1024, f32), B(2048, f32), B(4096, f32), n=999),
    "nothing": lambda B: mixed[(1,)](B(64, f32), 1.5, 3, True, None, 16, tl.float32),
    "something": lambda B: mixed[(1,)](B(64, f16), 2.5, 48, False, B(128, f16), 16, tl.float16),
    "declared": lambda B: declared[(1,)](B(1028, f32), B(64, f32), 16, 0.1, 1, 200, BLOCK=16),
    "declared, even": lambda B: declared[(1,)](B(1024, f32), B(64, f32), 1, 7.0, 32, 3, BLOCK=16),
    "tuples": lambda B: tuples[(1,)](
        (B(1024, f32), B(2052, f32)), Pair(16, 1), B(64, f32), 16, STEPS=(1, 2)
    ),
    "function argument": lambda B: applied[(1,)](B(1024, f32), B(64, f32), twice, "twice", 16),
    "tuned": lambda B: tuned[blocks](B(1024, f32), B(64, f32), 1000),
    "tuned, other key": lambda B: tuned[blocks](B(1024, f16), B(64, f32), 1000),
    "tuned by a tuple": lambda B: shaped[(1,)](B(64, f32), (2, 4)),
    "heuristics": lambda B: guessed[blocks](B(1024, f32), B(64, f32), 1000),
    "heuristics, even": lambda B: guessed[blocks](B(1024, f32), B(64, f32), 1024),
}


@triton.jit
def moved(source, target, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    target.store([row, column], source.load([row, column]) * 2)


@triton.jit
def moved_5d(source, line, target, n, BLOCK: tl.constexpr):
    value = tl.reshape(source.load([0, 0, 1, 0, 0]), (BLOCK,)) + line.load([n])
    tl.store(target + tl.arange(0, BLOCK), value)


@triton.jit
def multiplied(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(a.load([m, k]), b.load([k, n]), total)
    c.store([m, n], total.to(tl.bfloat16))


def set_blocks(values: dict[str, Any]) -> None:
    """Gives the descriptors the blocks of a configuration, as programs do that tune them."""
    m, n, k = (values[name] for name in ("BM", "BN", "BK"))
    for name, block in (("a", [m, k]), ("b", [k, n]), ("c", [m, n])):
        values[name].block_shape = block


tuned_multiplied = triton.autotune(
    [
        triton.Config({"BM": m, "BN": 32, "BK": 32}, num_warps=4, pre_hook=set_blocks)
        for m in (32, 64)
    ],
    key=["K"],
)(multiplied)


def two_d(B: Any, address: int, dtype: torch.dtype, shape=(64, 128), block=(32, 32), **more: Any):
    return TensorDescriptor(B(address, dtype), list(shape), [128, 1], list(block), **more)


def multiply(B: Any, kernel: Any, block: tuple[int, int, int], **constants: int) -> Any:
    m, n, k = block
    a = two_d(B, 1024, b16, (64, 64), (m, k))
    b = two_d(B, 2048, b16, (64, 64), (k, n))
    c = two_d(B, 4096, b16, (64, 64), (m, n))
    return kernel[lambda values: (64 // values["BM"], 64 // values["BN"])](a, b, c, 64, **constants)


DESCRIBED = {
    "described": lambda B: moved[2, 4](two_d(B, 1024, f16), two_d(B, 4096, f16), 32, 32),
    "described, other elements": lambda B: moved[2, 4](
        two_d(B, 1024, f32), two_d(B, 4096, f32), 32, 32
    ),
    "described, a tuple": lambda B: moved[2, 4](
        TensorDescriptor(B(1024, f16), torch.Size((60, 100)), (128, 1), (32, 32)),
        two_d(B, 4096, f16), 32, 32
    ),
    "described, over the edge": lambda B: moved[2, 4](
        two_d(B, 1024, f32, (50, 100), padding="nan"), two_d(B, 4096, f32), 32, 32
    ),
    "described, other blocks": lambda B: moved[4, 2](
        two_d(B, 1024, u8, block=(16, 64)), two_d(B, 4096, u8, block=(16, 64)), 16, 64
    ),
    "described, 5 dimensions": lambda B: moved_5d[(1,)](
        TensorDescriptor(
            B(1024, f32), [2, 3, 4, 8, 32], [3072, 1024, 256, 32, 1], [1, 1, 2, 4, 32]
        ),
        TensorDescriptor(B(2048, f32), [4096], [1], [256]),
        B(4096, f32), 512, 256
    ),
    "described, product": lambda B: multiply(B, multiplied, (64, 32, 32), BM=64, BN=32, BK=32),
    "described, tuned": lambda B: multiply(B, tuned_multiplied, (32, 32, 32)),
}  # fmt: skip
