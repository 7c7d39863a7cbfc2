"""What torch puts CUDA graphs around, frozen and loaded: ``python graphed.py DRIVER FOLDER``.

Inductor's own code cuts a graph into partitions and wraps them, without a GPU. Prints what happened
as one JSON line.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any
from unittest import mock

import torch
import wrappers
from frozen import tuned_kernel
from relocated import Reader, fake_functions, graph
from scenes import Driver
from torch._inductor import config, cudagraph_trees
from torch._inductor import output_code as inductor
from torch._inductor.cudagraph_utils import (
    BoxedDeviceIndex,
    CudagraphCachedInfo,
    PlaceholderInfo,
)
from torch._inductor.utils import BoxedBool

from precomp import data
from precomp.freeze import cuda_graphs
from precomp.freeze.module import freeze_module
from precomp.freeze.store import Store, Unsupported
from precomp.serve.kernel import KernelTable
from precomp.serve.module import load

GPU = 1


def program(x: Any, w: Any, b: Any) -> Any:
    """Two parts on the GPU with a way over the CPU between them; it changes b."""
    y = torch.relu(x @ w) + b
    z = y.sum(0).cpu().to(x.device)
    torch.ops.aten.copy_(b, b + 1)
    return y * z, z


class Case:
    """One graph after torch's post_compile."""

    def __init__(
        self,
        kernel: Any,
        static: tuple[int, ...] = (1, 2),
        mutated: tuple[int, ...] = (2,),
        fails: tuple[str, ...] = (),
        backward: bool = False,
        partition: bool = True,
        seen: bool = True,
    ) -> None:
        options = {"triton.cudagraphs": True, "graph_partition": partition}
        with config.patch(options):
            source, lowering = wrappers.lowered(GPU, program)
            self.graph = graph(source, kernel, GPU)
            runner = self.graph.compiled_fn_runner
            places = tuple(PlaceholderInfo(name, None, [], None) for name in "xwb")
            info = dict.fromkeys((f.name for f in dataclasses.fields(CudagraphCachedInfo)), ())
            known = {
                "placeholders": places,
                "stack_traces": [None, None],
                "cudagraph_fail_reasons": list(fails),
            }
            self.graph.__dict__.update(
                cudagraph_info=CudagraphCachedInfo(**(info | known)),
                kernel_free_cudagraph=False,  # torch 2.14
                disabled_cudagraphs_reason=None,
                fx_kwargs={
                    "static_input_idxs": static,
                    "is_backward": backward,
                    "is_inference": not backward,
                },
                inputs_to_check=(0,),
                mutated_input_idxs=set(mutated),
                output_strides=None,
                partition_maps=lowering.partition_maps,
                recursively_apply_fns=getattr(runner, "recursively_apply_fns", None),
                _defers_input_alignment=False,
            )
            wanted = {
                "cudagraphs": BoxedBool(True),
                "is_backward": backward,
                "boxed_forward_device_index": BoxedDeviceIndex(GPU if backward else None),
            }
            patches: list[Any] = []
            if seen:
                cuda_graphs.watch(
                    lambda owner, name, new: patches.append(mock.patch.object(owner, name, new))
                )
            manager = mock.patch.object(cudagraph_trees, "get_manager", lambda *_, **__: object())
            for patch in (*patches, manager):
                patch.start()
            constants = inductor.CompiledFxGraphConstants()
            self.graph.post_compile([], constants, wanted)
            for patch in (*patches, manager):
                patch.stop()
        self.store = Store()

    def record(self) -> dict[str, Any]:
        digest = freeze_module(self.graph, self.store, {GPU: 0})
        return data.loads(self.store.entries["module", digest][1])


CASES: dict[str, dict[str, Any]] = {
    "partitions": {},
    "nothing static": {"static": (), "mutated": ()},
    "against it": {"fails": ("a reason",)},
    "a backward without": {"fails": ("a reason",), "backward": True},
    "a backward with": {"backward": True},
    "whole": {"partition": False},
    "wrapped before": {"seen": False},
    "whole wrapped before": {"partition": False, "seen": False},
}


def main() -> None:
    driver = Driver(sys.argv[1])
    driver.devices = 8
    fake_functions()
    kernel = tuned_kernel()
    facts: dict[str, Any] = {"graphs": {}}
    for name, options in CASES.items():
        case = Case(kernel, **options)
        try:
            facts["graphs"][name] = case.record()["graphs"]
        except Unsupported as error:
            facts["graphs"][name] = str(error)

    for name in ("partitions", "whole"):
        case = Case(kernel, **CASES[name])
        record = case.record()
        for _, launch in record["cuda"]:
            driver.parameters(launch["codes"], len(launch["scratch"]))
        graphs: list[Any] = []
        call = load(record, KernelTable(Reader(case.store)), {0: 5}, graphs)
        plain = load(record, KernelTable(Reader(case.store)), {0: 5})
        parts = call.__self__.partitions if name == "partitions" else [call]
        facts[name] = {
            "devices": [str(item._gpu.device) for item in graphs],
            "in their places": parts == graphs,
            "without": [
                type(part).__name__
                for part in (plain.__self__.partitions if name == "partitions" else [plain])
            ],
            "compiled again": [
                item._call.__code__.co_name == f"partition_{i}"
                if name == "partitions"
                else item._call.__name__ == "call"
                for i, item in enumerate(graphs)
            ],
        }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
