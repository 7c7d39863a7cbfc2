"""Freezes wrappers that are written by hand: reads ``{name: {source, ...}}`` as JSON from stdin.

For each case prints the reason of a refusal, or whether the frozen function returns what the
original returns, and the names that it needs.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch._inductor.output_code
import torch._inductor.select_algorithm
from served import Entries, same

from precomp import data, torch_api
from precomp.freeze.module import freeze_module
from precomp.freeze.store import Store, Unsupported
from precomp.serve.kernel import KernelTable
from precomp.serve.module import load

HEADER = """
import torch
import math
from math import inf, nan
from torch._inductor.select_algorithm import extern_kernels
aten = torch.ops.aten
assert_size_stride = torch._C._dynamo.guards.assert_size_stride
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
"""

CONSTANTS = {
    "plain": torch.arange(6.0).reshape(2, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "expanded": torch.arange(3).reshape(3, 1).expand(3, 4),
    "part": torch.arange(20.0).to(torch.bfloat16)[3:15].reshape(3, 4)[:, 1:3],
    "flags": torch.tensor([True, False, True]),
    "complex": torch.tensor([1 + 2j, 3 - 4j]),
    "zero_dimensional": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.empty(0, 4),
}


class Subclass(torch.Tensor):
    pass


BAD_CONSTANTS = {
    "sparse": torch.eye(3).to_sparse(),
    "quantized": torch.empty(0),
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "subclass": torch.ones(2).as_subclass(Subclass),
    "not_a_tensor": 7,
    "meta": torch.empty(2, device="meta"),
}


def graph(case: dict[str, Any]) -> Any:
    """A CompiledFxGraph as it is after post_compile, around *source*."""
    compiled = torch_api.capture().CompiledFxGraph
    result = compiled.__new__(compiled)
    maker = SimpleNamespace(triton=lambda *_: object(), wait=lambda _: None)
    space: dict[str, Any] = {"async_compile": maker, "__name__": "generated"}
    source = HEADER + case["source"]
    exec(compile(source, "generated.py", "exec"), space)
    constants = {name: CONSTANTS[name] for name in case.get("constants", ())}
    constants.update({name: BAD_CONSTANTS[name] for name in case.get("bad", ())})
    space.update(constants)
    result.__dict__.update(
        source_code=source,
        constants=constants,
        current_callable=eval(case.get("callable", "call"), space),
        compiled_fn_runner=space.get("runner"),
        recursively_apply_fns=None,
        device_types=set(case.get("devices", ["cpu"])),
        frozen_param_names={},
        torchbind_constants=dict.fromkeys(case.get("torchbind", ())),
        opaque_value_type_classes=dict.fromkeys(case.get("opaque", ())),
        _defers_input_alignment=False,
        _wrap_compiled_regions=False,
    )
    return result


def attempt(case: dict[str, Any]) -> dict[str, Any]:
    store = Store()
    compiled = graph(case)
    try:
        digest = freeze_module(compiled, store)
    except Unsupported as reason:
        return {"refused": str(reason)}
    artifact = Entries(store.entries)
    record = data.loads(artifact.read(digest))
    call = load(record, KernelTable(artifact))
    inputs = [torch.arange(6.0).reshape(2, 3), 3]
    return {
        "same": same(compiled.current_callable(list(inputs)), call(list(inputs))),
        "extern": [name for name, _ in record["extern"]],
    }


if __name__ == "__main__":
    print(json.dumps({name: attempt(case) for name, case in json.load(sys.stdin).items()}))
