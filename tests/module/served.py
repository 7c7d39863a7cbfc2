"""Loads the frozen modules of captured.py in a fresh process and compares every call, bit by bit.

``python served.py IN NAME ...`` prints one JSON line.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import torch

SEED = 1234


class Entries:
    """The part of an artifact that serving needs."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self.blobs = {digest: blob for (_, digest), (_, blob) in entries.items()}
        self.entries = tuple(
            (kind, name, digest, len(blob), len(blob))
            for (kind, digest), (name, blob) in entries.items()
        )

    def read(self, digest: str) -> bytes:
        return self.blobs[digest]


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements: NaN and signed zeros compare as they are."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.stride() == b.stride()
            and a.contiguous()
            .view(-1)
            .view(torch.uint8)
            .equal(b.contiguous().view(-1).view(torch.uint8))
        )
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))  # NaN is NaN here


def clone(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)


def describe(outputs: Any, inputs: list[Any]) -> list[Any]:
    places = [x.untyped_storage().data_ptr() if isinstance(x, torch.Tensor) else 0 for x in inputs]
    described = []
    for value in outputs:
        if isinstance(value, torch.Tensor):
            place = value.untyped_storage().data_ptr()
            shares = places.index(place) if place in places else None
            described.append((value, tuple(value.stride()), shares, value.storage_offset()))
        else:
            described.append(value)
    return described


def check(call: Any, recorded: dict[str, Any]) -> list[str]:
    """Names of what differs from the recorded call."""
    inputs = [clone(value) for value in recorded["inputs"]]
    kept = list(inputs)
    torch.manual_seed(SEED)
    with torch.no_grad():
        outputs = describe(call(inputs), kept)
    differences = [] if inputs == [] else ["list not emptied"]
    for what, got in (("outputs", outputs), ("after", kept), ("rng", torch.rand(3))):
        if not same(recorded[what], got):
            differences.append(what)
    return differences


def main(path: str, names: list[str]) -> None:
    from precomp import data
    from precomp.serve.kernel import KernelTable
    from precomp.serve.module import load

    captured = torch.load(path, weights_only=False)
    cases = [case for case in captured["cases"] if case["name"] in names]
    if any(case["name"].startswith("operator") for case in cases):
        importlib.import_module("programs")  # defines the custom operators
    artifact = Entries(captured["entries"])
    table = KernelTable(artifact)
    before = set(os.listdir("/proc/self/fd"))
    results = {}
    for number, case in enumerate(cases):
        call = load(data.loads(artifact.read(case["digest"])), table)
        for recorded in case["calls"]:
            differences = check(call, recorded)
            differences += check(call, recorded)  # a second call: no state is left
            results[f"{case['name']}/{number}"] = differences
    heavy = ("torch._inductor", "torch._dynamo", "triton", "sympy", "torch._functorch.aot_autograd")
    print(
        json.dumps(
            {
                "results": results,
                "heavy": [name for name in sys.modules if name.startswith(heavy)],
                "fds": sorted(set(os.listdir("/proc/self/fd")) - before),
                "files": os.listdir(os.environ["TMPDIR"]),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
