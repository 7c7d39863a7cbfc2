"""Frozen kernels against Triton's own launches, on a GPU: ``python gpu_check.py OUT.json``.

Each kernel is compiled and launched by Triton, then its stripped image is launched by
``CudaLauncher`` from a record made of Triton's metadata; the outputs must be equal bit for bit.
Then contexts, streams, graphs, devices and errors. Exit status: 0 all right, 1 something wrong,
2 no GPU. Needs torch with CUDA and Triton; no torch.compile is involved.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from precomp import ArtifactCorruptError, CudaError, _core

CODES = {"i1": "B", "i8": "b", "i16": "h", "i32": "i", "i64": "l", "u8": "B", "u16": "H"}
CODES |= {"u32": "I", "u64": "K", "fp16": "e", "bf16": "y", "fp32": "f", "fp64": "d"}


@triton.jit
def scaled_add(x, y, out, n, wide, scale, cut, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    value = tl.load(x + i, mask=mask) * scale + tl.load(y + i, mask=mask) * cut
    tl.store(out + i, value + wide.to(tl.float32), mask=mask)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        left = tl.load(a + m[:, None] * K + (start + k)[None, :])
        right = tl.load(b + (start + k)[:, None] * N + n[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + m[:, None] * N + n[None, :], total.to(tl.bfloat16))


@triton.jit
def described(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Makes tensor descriptors on the device, in global scratch memory."""
    source = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(out, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    target.store([m, n], source.load([m, n]) * 2)


def record_of(compiled: Any, arguments: dict[str, Any], grid: tuple[int, ...]) -> dict[str, Any]:
    """The launch record of a kernel that Triton compiled; a call has all *arguments* in order."""
    meta = compiled.metadata
    names = list(arguments)
    kept = [
        name
        for name, kind in compiled.src.signature.items()
        if kind != "constexpr" and name in arguments
    ]
    codes = ["P" if (k := compiled.src.signature[n]).startswith("*") else CODES[k] for n in kept]
    scratch = tuple(
        (int(getattr(meta, f"{name}_size")), int(getattr(meta, f"{name}_align")))
        for name in ("global_scratch", "profile_scratch")
        if hasattr(meta, f"{name}_size")
    )
    return {
        "symbol": meta.name,
        "arch": int(meta.target.arch),
        "args": len(names),
        "codes": "".join(codes),
        "select": tuple(names.index(name) for name in kept),
        "scratch": scratch,
        "grid": tuple((int(size),) for size in (*grid, 1, 1)[:3]),
        "num_warps": int(meta.num_warps),
        "num_ctas": int(meta.num_ctas),
        "shared": int(meta.shared),
        "pdl": bool(getattr(meta, "launch_pdl", False)),
        "cooperative": bool(getattr(meta, "launch_cooperative_grid", False)),
        "tensormaps": (),
    }


class Case:
    """One kernel: launched by Triton, and frozen."""

    def __init__(self, kernel, grid, arguments, out, **options):
        self.grid, self.out = grid, out
        self.arguments = dict(arguments)
        self.compiled = kernel[grid](**arguments, **options)
        torch.cuda.synchronize()
        self.expected = arguments[out].clone()
        self.image = _core.strip_cubin(self.compiled.asm["cubin"])
        self.record = record_of(self.compiled, self.arguments, grid)
        self.library = _core.CudaLibrary(self.image, self.record["symbol"])
        self.launcher = _core.CudaLauncher(self.library, self.record)

    def launch(self, **changes):
        """Launch it frozen into a fresh output, which is returned."""
        values = self.arguments | {self.out: torch.zeros_like(self.expected)} | changes
        self.launcher(*values.values(), stream=current_stream())
        return values[self.out]

    def check(self):
        result = self.launch()
        torch.cuda.synchronize()
        assert torch.equal(result, self.expected), (result, self.expected)


def current_stream() -> int:
    return int(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()))


def add_case(**options):
    n = 100_000
    x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
    arguments = {"x": x, "y": y, "out": torch.zeros(n, device="cuda"), "n": n}
    arguments |= {"wide": 2**40 + 1, "scale": 0.3, "cut": 1.7}
    return Case(scaled_add, (triton.cdiv(n, 256),), arguments, "out", BLOCK=256, **options)


def matmul_case(**options):
    shape = 512, 512
    a = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    arguments = {"a": a, "b": b, "c": torch.zeros_like(a), "M": 512, "N": 512, "K": 512}
    options = {"num_stages": 4, "num_warps": 8} | options
    return Case(matmul, (4, 4), arguments, "c", BM=128, BN=128, BK=64, **options)


def descriptor_case():
    triton.set_allocator(
        lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda")
    )
    x = torch.randn(256, 256, device="cuda")
    arguments = {"x": x, "out": torch.zeros_like(x), "M": 256, "N": 256}
    return Case(described, (4, 4), arguments, "out", BM=64, BN=64)


# --- checks --------------------------------------------------------------------------------------


def plain_kernel():
    add_case().check()


def much_shared_memory():
    case = matmul_case()
    assert case.record["shared"] > 48 * 1024, case.record["shared"]
    case.check()


def cluster():
    case = add_case(num_ctas=2)
    assert case.record["num_ctas"] == 2
    case.check()


def programmatic_dependent_launch():
    case = add_case(launch_pdl=True)
    assert case.record["pdl"]
    case.check()


def cooperative_grid():
    case = add_case(launch_cooperative_grid=True, num_warps=1)
    assert case.record["cooperative"]
    case.check()


def scratch_memory():
    case = descriptor_case()
    assert any(size for size, _ in case.record["scratch"]), case.record["scratch"]
    case.check()


def other_stream():
    case = add_case()
    with torch.cuda.stream(torch.cuda.Stream()):
        case.check()


def graph_capture():
    case = matmul_case()
    fresh = _core.CudaLauncher(_core.CudaLibrary(case.image, "graph"), case.record)
    out = torch.zeros_like(case.expected)
    values = case.arguments | {case.out: out}
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        fresh(*values.values(), stream=current_stream())  # its code is not on the device yet
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, case.expected)


def in_a_thread(function):
    failures = []

    def run():
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def new_thread_without_context():
    case = add_case()
    values = case.arguments | {case.out: torch.zeros_like(case.expected)}
    stream = current_stream()
    torch.cuda.synchronize()
    in_a_thread(lambda: case.launcher(*values.values(), stream=stream))
    torch.cuda.synchronize()
    assert torch.equal(values[case.out], case.expected)


def autograd_thread():
    case = add_case()

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient + case.launch()

    x = torch.zeros_like(case.expected, requires_grad=True)
    Function.apply(x).backward(torch.zeros_like(case.expected))
    assert torch.equal(x.grad, case.expected)


def second_device():
    if torch.cuda.device_count() < 2:
        return "one device only"
    case = matmul_case()
    for index in (1, 0, 1):
        with torch.cuda.device(index):
            moved = {
                name: value.to(f"cuda:{index}") if isinstance(value, torch.Tensor) else value
                for name, value in case.arguments.items()
            }
            moved[case.out] = torch.zeros_like(case.expected, device=f"cuda:{index}")
            case.launcher(*moved.values(), stream=current_stream())
            torch.cuda.synchronize()
            assert torch.equal(moved[case.out].cpu(), case.expected.cpu())
    return None


def many_launchers_of_one_library():
    case = add_case()
    for _ in range(50):
        case.launcher = _core.CudaLauncher(case.library, case.record)
        case.check()


def raised(kind, call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} not raised")


def errors_are_clear_and_leave_the_device_usable():
    case = add_case()
    texts = []
    texts.append(raised(ValueError, case.launch, x=torch.zeros(3)))
    texts.append(raised(OverflowError, case.launch, n=2**31))
    half = case.image[: len(case.image) // 2]
    texts.append(raised(ArtifactCorruptError, _core.CudaLibrary, half, "half"))
    for change in (
        {"shared": 10**6},
        {"symbol": "absent"},
        {"codes": "P" + case.record["codes"], "select": (0, *case.record["select"])},
        {"codes": case.record["codes"].replace("l", "i")},
        {"scratch": ()},
    ):
        texts.append(raised(CudaError, _core.CudaLauncher, case.library, case.record | change))
    wide = _core.CudaLauncher(case.library, case.record | {"num_warps": 32})
    values = case.arguments.values()
    texts.append(raised(CudaError, wide, *values, stream=current_stream()))
    case.check()
    return texts


def forked_child_is_told():
    case = add_case()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = raised(CudaError, _core.cuda_devices)
        text += " / " + raised(CudaError, case.launcher, *case.arguments.values(), stream=0)
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    text = os.read(reader, 10000).decode()
    assert os.waitpid(pid, 0)[1] == 0
    assert "start it with spawn" in text
    case.check()
    return text


def devices():
    found = _core.cuda_devices()
    expected = [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())]
    assert list(found) == expected
    return str(found)


CHECKS = (
    devices,
    plain_kernel,
    much_shared_memory,
    cluster,
    programmatic_dependent_launch,
    cooperative_grid,
    scratch_memory,
    other_stream,
    graph_capture,
    new_thread_without_context,
    autograd_thread,
    second_device,
    many_launchers_of_one_library,
    errors_are_clear_and_leave_the_device_usable,
    forked_child_is_told,
)


def bind() -> None:
    """What precomp.torch_api and precomp.serve bind otherwise, for any version of torch."""
    names: dict[str, Any] = {"Tensor": torch.Tensor, "Parameter": torch.nn.Parameter}
    names["dlpack_exchange"] = torch.Tensor.__dlpack_c_exchange_api__
    names["cuda_scratch"] = lambda size, stream: torch.empty(size, dtype=torch.uint8, device="cuda")
    _core.bind_torch(names)
    example = torch.empty(0, device="cpu")
    assert _core.read_tensors_like(example, example._cdata)


def main() -> int:
    out = Path(sys.argv[1])
    result: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__}
    if not torch.cuda.is_available():
        print("no GPU: nothing was run")
        return 2
    result |= {"gpu": torch.cuda.get_device_name(0), "devices": torch.cuda.device_count()}
    bind()
    rows = []
    for check in CHECKS:
        row: dict[str, Any] = {"name": check.__name__, "ok": True}
        try:
            note = check()
            if note is not None:
                row["note"] = note
        except BaseException:  # noqa: BLE001 - goes into the result
            row |= {"ok": False, "traceback": traceback.format_exc()[-3000:]}
            print(row["traceback"])
        rows.append(row)
        print("ok  " if row["ok"] else "FAIL", check.__name__, row.get("note", ""), flush=True)
    result |= {"ok": all(row["ok"] for row in rows), "checks": rows}
    out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
