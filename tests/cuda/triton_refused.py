"""Launches that a capture refuses, by name: ``python triton_refused.py FOLDER``; prints them."""

from __future__ import annotations

import json
import os
import sys

import torch
import triton
import triton.language as tl
import triton_driver
from scenes import Buffer
from triton.tools.tensor_descriptor import TensorDescriptor

import precomp

TABLE = tl.constexpr({"a": 1})


class Mine(TensorDescriptor):
    pass


@triton.jit
def described(source, out):
    tl.store(out + tl.arange(0, 16), tl.reshape(source.load([0, 0]), (16,)))


@triton.jit
def constant(out, VALUE: tl.constexpr):
    tl.store(out, 1.0)


@triton.jit
def optioned(out):
    tl.store(out, 1.0)


@triton.jit
def hooked(out):
    tl.store(out, 1.0)


@triton.jit
def table(out):
    if TABLE is not None:
        tl.store(out, 1.0)


@triton.autotune([triton.Config({}, num_warps=n) for n in (1, 2)], key=["KIND"])
@triton.jit
def by_type(out, KIND: tl.constexpr):
    tl.store(out, tl.full((), 1, KIND))


@triton.jit
def fine(out):
    tl.store(out, 1.0)


def main(folder: str) -> None:
    triton_driver.install()
    out = Buffer(64, torch.float32)
    hooked.add_pre_run_hook(lambda *args, **kwargs: None)
    source = Mine(Buffer(128, torch.float32), [4, 4], [4, 1], [4, 4])
    with precomp.capture(on_unsupported="skip") as captured:
        described[(1,)](source, out)
        constant[(1,)](out, 1j)
        optioned[(1,)](out, extern_libs={})
        hooked[(1,)](out)
        table[(1,)](out)
        by_type[(1,)](out, tl.float32)
        fine[(1,)](out)
    report = captured.report()
    path = os.path.join(folder, "rest.precomp")
    captured.finalize(path)
    captured.on_unsupported = "raise"
    try:
        captured.finalize(os.path.join(folder, "refused.precomp"))
        raise AssertionError("not refused")
    except precomp.UnsupportedCaptureError as error:
        message = str(error)
    facts = {"problems": report.problems, "kernels": report.triton, "message": message}
    print(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1])
