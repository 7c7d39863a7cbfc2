"""Kernels that a program launches itself, on a GPU: ``python gpu_triton.py OUT.json``.

One process captures the launches of triton_samples.py and some of its own, another one serves them
under the strict gate, with an empty Triton cache and no compiler on PATH; all memory must be the
same bits afterwards. Exit status: 0 all right, 1 something wrong, 2 no GPU. Needs torch with CUDA
and Triton.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ELEMENTS = 8192


class Memory:
    """Tensors on the GPU with reproducible contents, all kept."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def __call__(self, address: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor that is aligned as *address* is."""
        generator = torch.Generator().manual_seed(address)
        values = torch.randint(-8, 8, (ELEMENTS,), generator=generator).to(dtype)
        whole = torch.zeros(ELEMENTS + 16, dtype=dtype, device="cuda")
        start = address % 16 // dtype.itemsize
        part = whole[start : start + ELEMENTS]
        part.copy_(values)
        self.tensors.append(part)
        return part

    def matrix(self, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        made = torch.randn(512, 512, generator=generator).to("cuda", torch.bfloat16)
        self.tensors.append(made)
        return made


@functools.cache
def calls() -> dict[str, Callable[[Memory], object]]:
    import gpu_check
    import triton
    import triton_samples
    from triton.tools.tensor_descriptor import TensorDescriptor

    configs = [
        triton.Config({"BM": m, "BN": 64, "BK": 32}, num_warps=warps, num_stages=stages)
        for m, warps, stages in ((64, 4, 3), (128, 8, 4), (128, 4, 2))
    ]
    matmul = triton.autotune(configs, key=["M", "N", "K"])(gpu_check.matmul)

    def multiply(memory: Memory) -> None:
        a, b, c = (memory.matrix(seed) for seed in (1, 2, 3))

        def grid(meta: dict[str, Any]) -> tuple[int, int]:
            return triton.cdiv(512, meta["BM"]), triton.cdiv(512, meta["BN"])

        matmul[grid](a, b, c, 512, 512, 512)

    def described(memory: Memory) -> None:
        """Scratch memory: descriptors made on the device."""
        triton.set_allocator(
            lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda")
        )
        x, y = (memory(64, torch.float32)[:4096].view(64, 64) for _ in range(2))
        gpu_check.described[(2, 2)](x, y, 64, 64, BM=32, BN=32)

    def many_blocks_together(memory: Memory) -> None:
        x, y, z = (memory(64 * seed, torch.float32) for seed in (1, 2, 3))
        triton_samples.add[(8,)](x, y, z, 1000, BLOCK=128, num_ctas=2)

    def on_a_stream(memory: Memory) -> None:
        stream = torch.cuda.Stream()
        x, y, z = (memory(64 * seed, torch.float32) for seed in (1, 2, 3))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            triton_samples.add[(8,)](x, y, z, 1000)
        stream.synchronize()

    def described_slices(memory: Memory) -> None:
        """Descriptors of parts of matrices: other bases and strides."""
        part = [slice(64, 320), slice(128, 384)]
        a, b, c = (
            TensorDescriptor.from_tensor(memory.matrix(seed)[part], block)
            for seed, block in ((1, [128, 64]), (2, [64, 128]), (3, [128, 128]))
        )
        triton_samples.multiplied[(2, 2)](a, b, c, 256, BM=128, BN=128, BK=64, num_stages=3)

    own = {
        "matmul": multiply,
        "described slices": described_slices,
        "descriptors": described,
        "clusters": many_blocks_together,
        "stream": on_a_stream,
    }
    return {**triton_samples.CALLS, **triton_samples.DESCRIBED, **own}


def outputs() -> dict[str, list[torch.Tensor]]:
    found = {}
    for name, call in calls().items():
        memory = Memory()
        call(memory)
        torch.cuda.synchronize()
        found[name] = [tensor.cpu() for tensor in memory.tensors]
    return found


def capture(folder: Path) -> dict[str, Any]:
    import precomp

    with precomp.capture(folder / "all.precomp") as captured:
        outputs()
    # Again: tuning ran kernels more than once on the same memory.
    torch.save(outputs(), folder / "outputs.pt")
    return {"captured": str(captured.report())}


def serve(folder: Path) -> dict[str, Any]:
    import precomp

    expected = torch.load(folder / "outputs.pt")
    prepared = precomp.prepare(folder / "all.precomp", runtime="lean")
    with precomp.strict_no_compile():
        found = outputs()
        graph = in_a_graph()
    import triton

    for name, tensors in expected.items():
        for mine, theirs in zip(found[name], tensors, strict=True):
            assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8)), name
    assert triton.runtime.driver._active is None, "Triton's driver was started"
    coverage = prepared.coverage()
    assert not coverage.missing and not coverage.never_asked, str(coverage)
    prepared.uninstall()
    return {"served": len(coverage.served), "compared": sorted(expected), "graph": graph}


def in_a_graph() -> str:
    """A served launch is recorded in a CUDA graph and replayed."""
    import triton_samples

    memory = Memory()
    x, y, z = (memory(64 * seed, torch.float32) for seed in (1, 2, 3))
    triton_samples.add[(8,)](x, y, z, 1000)
    expected = z.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        triton_samples.add[(8,)](x, y, z, 1000)
    z.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(z[:1000], expected[:1000]) and not z[1000:].any()
    return "replayed"


def missed(folder: Path) -> dict[str, Any]:
    """Without a gate Triton compiles what was not captured; with one it is a violation."""
    import triton_samples

    import precomp

    prepared = precomp.prepare(folder / "all.precomp")
    memory = Memory()
    x, y, z = (memory(64 * seed, torch.float32) for seed in (1, 2, 3))
    try:
        with precomp.strict_no_compile():
            triton_samples.add[(8,)](x, y, z, 1000, BLOCK=64)
        raise AssertionError("no violation")
    except precomp.CompileViolation as error:
        why = error.why
    compiled = triton_samples.add[(32,)](x, y, z, 1000, BLOCK=64)
    theirs = z.clone()
    triton_samples.add[(8,)](x, y, z.zero_(), 1000)
    torch.cuda.synchronize()
    assert torch.equal(z[:1000], theirs[:1000])
    return {"why": why, "compiled": compiled.name, "missing": prepared.coverage().missing}


ROLES = {"capture": capture, "serve": serve, "missed": missed}


def run(role: str, folder: Path) -> dict[str, Any]:
    env = dict(os.environ) | {"TRITON_CACHE_DIR": str(folder / f"triton-{role}")}
    if role == "serve":
        env |= {"PATH": "", "CC": "/bin/false"}
    command = [sys.executable, __file__, role, str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    if done.returncode != 0:
        return {"failed": f"{done.stdout}\n{done.stderr}"[-4000:]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(output: str) -> int:
    if not torch.cuda.is_available():
        print("no GPU")
        return 2
    with tempfile.TemporaryDirectory() as name:
        results = {role: run(role, Path(name)) for role in ROLES}
    failed = [role for role, result in results.items() if "failed" in result]
    import triton

    facts = {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "failed": failed,
        "results": results,
    }
    text = json.dumps(facts, indent=1)
    print(text)
    Path(output).write_text(text + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1] in ROLES:
        print(json.dumps(ROLES[sys.argv[1]](Path(sys.argv[2]))))
    else:
        sys.exit(main(sys.argv[1]))
