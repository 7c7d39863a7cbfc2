"""Wrappers for one GPU, frozen and loaded for others: ``python relocated.py DRIVER FOLDER``.

Prints what happened as one JSON line.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import wrappers
from frozen import tuned_kernel
from scenes import Driver
from torch._inductor.async_compile import AsyncCompile

from precomp import data, torch_api
from precomp.errors import PrecompError
from precomp.freeze.module import freeze_module
from precomp.freeze.store import Store
from precomp.ordinals import ANY, named
from precomp.serve import devices
from precomp.serve.kernel import KernelTable
from precomp.serve.module import load

SEEN: list[Any] = []
WRAPPER = """
import torch
from torch import device
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
from torch._inductor.async_compile import AsyncCompile
async_compile = AsyncCompile()
triton_poi_0 = async_compile.triton('triton_poi_0', '''device cuda:{n}''', device_str='cuda')
async_compile.wait(globals())
del async_compile
class Runner:
    def __init__(self, partitions):
        self.partitions = partitions
    def call(self, args):
        x, out = args
        args.clear()
        with torch.cuda._DeviceGuard({n}):
            torch.cuda.set_device({n})
            raw_stream{n} = get_raw_stream({n})
            triton_poi_0.run(x, out, 1000, 1.5, True, stream=raw_stream{n})
            {body}
runner = Runner(partitions=[])
call = runner.call
"""
PLAIN = "return device(type='cuda', index={n}), torch.device(\"cuda:{n}\"), 'cuda:{n}'"
# Calls that Inductor does not generate today, and a text: these modules stay where they were.
STAYS = {
    "a call of torch.cuda": "return torch.cuda.synchronize({n})",
    "a device that is computed": "return device('cuda', x - {n})",
    "a text": "return 'on cuda:{n}'",
    "a formatted text": "return f'cuda:{n} {{x}}'",
}


def fake(module: str, name: str) -> Any:
    """Stands in for a function of torch that needs a GPU; notes its argument."""

    def function(ordinal: int) -> int:
        SEEN.append([name, ordinal])
        return 100 + ordinal

    function.__module__, function.__name__, function.__qualname__ = module, name, name
    return function


def fake_functions() -> None:
    """Exchange the functions of torch that wrappers call and that need a GPU."""
    torch._C._cuda_getCurrentRawStream = fake("torch._C", "_cuda_getCurrentRawStream")
    for name in ("set_device", "_exchange_device", "_maybe_exchange_device"):
        setattr(torch.cuda, name, fake("torch.cuda", name))


def graph(source: str, kernel: Any, ordinal: int) -> Any:
    """The CompiledFxGraph around *source*."""
    compiled = torch_api.capture().CompiledFxGraph
    result = compiled.__new__(compiled)
    with mock.patch.object(AsyncCompile, "triton", lambda *_, **__: kernel):
        space: dict[str, Any] = {"__name__": "generated"}
        exec(compile(source, "generated.py", "exec"), space)
    result.__dict__.update(
        source_code=source, constants={}, current_callable=space["call"],
        compiled_fn_runner=space.get("runner"), recursively_apply_fns=None,
        device_types={"cuda"}, device_idxs={ordinal}, frozen_param_names={},
        torchbind_constants={}, opaque_value_type_classes={}, _wrap_compiled_regions=False,
    )  # fmt: skip
    return result


def freeze(source: str, kernel: Any, ordinal: int, numbers: dict[int, int]) -> Any:
    """Bytes of the module record and why it stays."""
    store, stays = Store(), list[str]()
    digest = freeze_module(graph(source, kernel, ordinal), store, numbers, stays)
    return store, store.entries["module", digest][1], stays


class Reader:
    """An artifact that is not written."""

    def __init__(self, store: Store) -> None:
        self.entries = tuple((kind, name, digest) for (kind, digest), (name, _) in
                             store.entries.items())  # fmt: skip
        self._store = store

    def read(self, digest: str) -> bytes:
        return next(data for (_, d), (_, data) in self._store.entries.items() if d == digest)


def placed(ordinal: int) -> str:
    """What prepare says to an artifact for sm_90 on a machine whose first four GPUs are."""
    artifact: Any = SimpleNamespace(environment={"gpu": "sm_90"}, path="a.precomp")
    try:
        devices.check(artifact, [{"name": "f", "devices": ANY}], {0: ordinal})
    except PrecompError as error:
        return str(error)
    return "accepted"


def main() -> None:
    driver = Driver(sys.argv[1])
    driver.devices = 8
    fake_functions()
    kernel = tuned_kernel()
    facts: dict[str, Any] = {}

    generated = {n: wrappers.source(n) for n in (1, 3)}
    frozen = {n: freeze(text, kernel, n, {n: 0}) for n, text in generated.items()}
    record = data.loads(frozen[1][1])
    facts["generated"] = {
        "names its gpu": [f"_DeviceGuard({n})" in text for n, text in generated.items()],
        "equal": frozen[1][1] == frozen[3][1],
        "stays": [reason for _, _, stays in frozen.values() for reason in stays],
        "ordinals": record["ordinals"],
        "named": sorted(named(record)),
        "kept": data.loads(freeze(generated[3], kernel, 3, {})[1])["ordinals"],
    }

    text = WRAPPER.format(n=1, body=PLAIN.format(n=1))
    store, blob, stays = freeze(text, kernel, 1, {1: 0})
    other = freeze(WRAPPER.format(n=6, body=PLAIN.format(n=6)), kernel, 6, {6: 0})[1]
    facts["equal"] = blob == other
    facts["stays"] = stays
    record = data.loads(blob)
    ((_, launch),) = record["cuda"]
    driver.parameters(launch["codes"], len(launch["scratch"]))
    table = KernelTable(Reader(store))
    calls = [load(record, table, numbers) for numbers in ({}, {0: 1}, {0: 5})]
    facts["calls"] = []
    for call in calls:
        SEEN.clear()
        values = call([0x1000, 0x2000])
        facts["calls"].append([list(SEEN), driver.launch().stream, list(map(str, values))])
    facts["loads"] = driver.loads
    facts["refused"] = {
        name: freeze(WRAPPER.format(n=1, body=body.format(n=1)), kernel, 1, {1: 0})[2]
        for name, body in STAYS.items()
    }
    facts["machine"] = {ordinal: placed(ordinal) for ordinal in (3, 5, 8)}
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
