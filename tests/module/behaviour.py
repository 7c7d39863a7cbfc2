"""Checks of loading in a process of its own: ``python behaviour.py WHAT CAPTURED [ARGUMENT]``.

Prints one JSON line; the tests compare it.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from served import Entries, check, clone

from precomp import _core, data, torch_api
from precomp.serve.kernel import KernelTable
from precomp.serve.module import load

CAPTURED = torch.load(sys.argv[2], weights_only=False)
ARTIFACT = Entries(CAPTURED["entries"])


def cases(*names: str) -> list[dict[str, Any]]:
    return [case for case in CAPTURED["cases"] if case["name"] in names]


def record(case: dict[str, Any]) -> dict[str, Any]:
    return data.loads(ARTIFACT.read(case["digest"]))


def mapped() -> int:
    """Libraries in memory that came from anonymous files."""
    with open("/proc/self/maps") as maps:
        return len({line.split()[4] for line in maps if "memfd:precomp" in line})


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> dict[str, Any]:
    tables = [KernelTable(ARTIFACT) for _ in range(2)]
    failures: list[str] = []
    seen: list[list[Any]] = []
    barrier = threading.Barrier(8)
    before = descriptors()

    def work(number: int) -> None:
        try:
            table = tables[number % 2]
            barrier.wait()
            for case in cases("products", "elementwise", "indexing"):
                call = load(record(case), table)
                failures.extend(check_quietly(call, case))
            seen.append([table(digest) for digest in table.digests])
        except Exception as error:  # noqa: BLE001  reported to the test
            failures.append(repr(error))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {
        "failures": failures,
        "same": all(functions == seen[0] for functions in seen),
        "kernels": len(tables[0].digests),
        "loaded": mapped(),
        "descriptors": descriptors() - before,
    }


def check_quietly(call: Any, case: dict[str, Any]) -> list[str]:
    """Run without comparing random numbers: threads share the generator."""
    failures = []
    for recorded in case["calls"]:
        with torch.no_grad():
            call([clone(value) for value in recorded["inputs"]])
    return failures


def leaks() -> dict[str, Any]:
    table = KernelTable(ARTIFACT)
    records = [record(case) for case in cases("products", "constants", "branches")]
    images = [(digest, ARTIFACT.read(digest)) for digest in table.digests[:4]]

    def once() -> None:
        for item in records:
            load(item, table)
        for digest, image in images:
            _core.load_kernel(image, "kernel", digest)
        _core.load_kernels(images)
        for bad in (b"", images[0][1][:5000]):
            try:
                _core.load_kernel(bad)
            except Exception:  # noqa: BLE001  any refusal will do here
                continue

    for _ in range(10):
        once()
    references = sys.getrefcount(table(table.digests[0]))
    open_before = descriptors()
    rounds = []
    for _ in range(4):
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(10):
            once()
        gc.collect()
        rounds.append(sys.getallocatedblocks() - before)
    return {
        "blocks": min(rounds),  # a leak is in every round, the caches of classes are not
        "references": sys.getrefcount(table(table.digests[0])) - references,
        "descriptors": descriptors() - open_before,
    }


def fork() -> dict[str, Any]:
    table = KernelTable(ARTIFACT)
    first, second = cases("elementwise"), cases("products")
    calls = [(load(record(case), table), case) for case in first]
    child = os.fork()
    if child == 0:
        calls += [(load(record(case), table), case) for case in second]
        differences = [check(call, r) for call, case in calls for r in case["calls"]]
        os._exit(1 if any(differences) else 0)
    status = os.waitpid(child, 0)[1]
    differences = [check(call, r) for call, case in calls for r in case["calls"]]
    return {"status": status or int(any(differences))}


def constants() -> dict[str, Any]:
    table = KernelTable(ARTIFACT)
    (case,) = cases("constants")
    call = load(record(case), table)
    again = load(record(case), table)
    gc.collect()
    junk = [torch.randn(1000) for _ in range(100)]
    differences = [*check(call, case["calls"][0]), *check(again, case["calls"][0])]
    del junk
    return {"differences": differences}


def evaluator() -> dict[str, Any]:
    """Run a module below a callback of the frame evaluator and see which code reaches it."""
    api = torch_api.serve()
    importlib.import_module("programs")
    table = KernelTable(ARTIFACT)
    (case,) = cases("operators")
    call = load(record(case), table)
    recorded = case["calls"][0]
    check(call, recorded)  # the first call of an operator imports what it needs
    seen: list[str] = []
    default = api.FrameExecStrategy(api.FrameAction.DEFAULT, api.FrameAction.DEFAULT)

    class Return:
        guarded_code = None
        apply_to_code = False
        frame_exec_strategy = default

    def callback(frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        seen.append(frame.f_code.co_name)
        return Return()

    inputs = [clone(value) for value in recorded["inputs"]]

    def run() -> Any:
        return call(inputs)

    previous = api.set_eval_frame(callback)
    try:
        run()
    finally:
        api.set_eval_frame(previous)
    return {"differences": check(call, recorded), "seen": seen}


CHANGES = {
    "none": ("", ""),
    "called": ("", ""),
    "schema": ("factor: float) ->", "factor: float = 2.0) ->"),
    "fake": ("return torch.empty_like(x)", "return torch.zeros_like(x)"),
    "backward": ("return grad * ctx.factor, None", "return grad / ctx.factor, None"),
    "implementation": ("return product(x, factor)", "return product(factor, x)"),
    "helper": ("return x * factor", "return factor * x"),
}


def stale() -> dict[str, Any]:
    change = sys.argv[3]
    if change != "absent":
        source = Path(__file__).with_name("operator_scale.py").read_text()
        edited = "\n\n# moved\n" + source.replace(*CHANGES[change])
        assert change in ("none", "called") or source.replace(*CHANGES[change]) != source
        path = Path("edited_operator.py")
        path.write_text(edited)
        spec = importlib.util.spec_from_file_location("operator_scale", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["operator_scale"] = module
        spec.loader.exec_module(module)
        if change == "called":
            module.scale(torch.ones(3, requires_grad=True), 2.0).sum().backward()
    (case, *_) = cases("operator_training")
    try:
        load(record(case), KernelTable(ARTIFACT))
    except _core.Stale as reason:
        return {"reason": str(reason)}
    return {"reason": None}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
