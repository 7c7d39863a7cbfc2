"""Compiles programs, freezes every module and records what Inductor's callable returned.

``python captured.py OUT [NAME ...]`` writes OUT: a dict with the entries of the store and one case
per compiled graph, with the inputs and outputs of each call, or the reason why it was refused. It
prints the digests and reasons as one JSON line. The tests run it in a process of its own.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
from programs import PROGRAMS

from precomp import torch_api
from precomp.freeze.module import freeze_module
from precomp.freeze.store import Store, Unsupported

SEED = 1234


def clone(value: Any) -> Any:
    """A copy with the same strides (and one storage for tensors that share one is not needed)."""
    if not isinstance(value, torch.Tensor):
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return copy.copy_(value.detach())


def describe(outputs: Any, inputs: list[Any]) -> list[Any]:
    """Value, strides and which input shares its memory, for each output."""
    places = [x.untyped_storage().data_ptr() if isinstance(x, torch.Tensor) else 0 for x in inputs]
    described = []
    for value in outputs:
        if isinstance(value, torch.Tensor):
            place = value.untyped_storage().data_ptr()
            shares = places.index(place) if place in places else None
            offset = value.storage_offset()
            described.append((clone(value), tuple(value.stride()), shares, offset))
        else:
            described.append(value)
    return described


def observe(call: Any, inputs: list[Any]) -> dict[str, Any]:
    """Call with a fixed random state: outputs, inputs afterwards and the next random number."""
    torch.manual_seed(SEED)
    kept = list(inputs)
    with torch.no_grad():
        outputs = call(inputs)
    assert inputs == [], "call must empty its list"
    return {
        "outputs": describe(outputs, kept),
        "after": [clone(value) for value in kept],
        "rng": torch.rand(3),
    }


def main(out: str, names: list[str]) -> None:
    compiled = torch_api.capture().CompiledFxGraph
    store, cases = Store(), []
    original = compiled.post_compile
    current = ""

    def post_compile(graph, example_inputs, constants, kwargs):
        original(graph, example_inputs, constants, kwargs)
        try:
            digest = freeze_module(graph, store)
        except Unsupported as reason:
            cases.append({"name": current, "refused": str(reason)})
            return
        assert freeze_module(graph, store) == digest
        case = {"name": current, "digest": digest, "calls": []}
        cases.append(case)
        call = graph.current_callable

        def recorded(inputs):
            result = None

            def run(arguments):
                nonlocal result
                result = call(arguments)
                return result

            before = [clone(value) for value in inputs]
            seen = observe(run, inputs)
            case["calls"].append({"inputs": before, **seen})
            return result

        graph.current_callable = recorded

    compiled.post_compile = post_compile
    torch._dynamo.config.capture_scalar_outputs = True
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    for current in names or PROGRAMS:
        torch._dynamo.reset()
        torch.manual_seed(0)
        function, inputs, options = PROGRAMS[current]()
        train = options.pop("train", False)
        with torch._inductor.config.patch(options.pop("config", {})):
            if train:
                for value in inputs:
                    if isinstance(value, torch.Tensor) and value.is_floating_point():
                        value.requires_grad_()
            with torch.set_grad_enabled(train):
                outputs = torch.compile(function, **options)(*inputs)
            if train:
                outputs = outputs if isinstance(outputs, tuple) else (outputs,)
                sum(x.sum() for x in outputs if x.requires_grad).backward()
    torch.save({"entries": store.entries, "cases": cases}, out)
    summary = [(case["name"], case.get("digest"), case.get("refused")) for case in cases]
    kernels = [digest for kind, digest in store.entries if kind == "kernel"]
    print(json.dumps({"cases": summary, "kernels": kernels}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
