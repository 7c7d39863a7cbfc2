"""Kernels that a program launches itself, and launches of them: ``CALLS`` of name -> function of
``Buffer``. Each launches one kernel."""

from collections import namedtuple
from typing import Any

import torch
import triton
import triton.language as tl

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
