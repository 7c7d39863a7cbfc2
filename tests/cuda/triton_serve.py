"""Serves the launches of triton_samples: ``python triton_serve.py SCENE DRIVER FOLDER``.

Each SCENE is a function here; the libcuda of the process is the stand-in DRIVER. The launches that
the capture saw are in FOLDER/capture.json. Prints one JSON line.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import torch
from scenes import Buffer, Driver

import precomp

FOLDER = sys.argv[3]
CODES = {"i1": "B", "u1": "B", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i"}
CODES |= {"u32": "I", "i64": "l", "u64": "K", "fp16": "e", "bf16": "y", "fp32": "f", "fp64": "d"}
STREAM = 7
torch._C._cuda_getDevice = lambda: 0
torch._C._cuda_clearCublasWorkspaces = lambda: None
torch._C._cuda_getCurrentRawStream = lambda device: STREAM


def prepare(**options: Any) -> precomp.Prepared:
    return precomp.prepare(os.path.join(FOLDER, "all.precomp"), **options)


def captured() -> dict[str, dict[str, Any]]:
    with open(os.path.join(FOLDER, "capture.json")) as file:
        found: dict[str, dict[str, Any]] = json.load(file)["launches"]
    return found


def expect(driver: Driver, launch: dict[str, Any]) -> None:
    """The next kernel that is loaded has the parameters of *launch*, and two of scratch memory."""
    kinds = launch["kinds"]
    driver.parameters("".join("P" if kind[0] == "*" else CODES[kind] for kind in kinds), 2)


def seen(driver: Driver, like: dict[str, Any]) -> dict[str, Any]:
    """The last launch, in the form in which the capture wrote it."""
    launch = driver.launch()
    sizes = [len(text) // 2 for text in like["parameters"]]
    return {
        "name": like["name"],
        "kinds": like["kinds"],
        "parameters": [bytes(launch.parameters[i][:n]).hex() for i, n in enumerate(sizes)],
        "grid": list(launch.grid),
        "stream": launch.stream,
        "threads": launch.block[0],
        "shared": launch.shared,
        "clusters": 1,
    }


def untouched() -> dict[str, Any]:
    """What a hit leaves alone."""
    import triton

    return {
        "driver": triton.runtime.driver._active is None and triton.runtime.driver._default is None,
        "cache": not os.path.exists(os.environ["TRITON_CACHE_DIR"]),
        "compiler": "triton.backends.nvidia.driver" in sys.modules and "cuda_utils" in sys.modules,
        "inductor": "torch._inductor" in sys.modules,
    }


def lean(samples: Any) -> dict[str, str]:
    """With runtime="lean" a miss raises without a gate, too."""
    try:
        samples.add[(1,)](Buffer(4, torch.float32), None, None, 1)
    except precomp.CompileViolation as error:
        return {"hint": error.hint, "kind": error.kind}
    raise AssertionError("no violation")


def everything(driver: Driver) -> dict[str, Any]:
    prepared = prepare(runtime="lean")
    early = "triton" in sys.modules
    import triton_samples

    found, again = {}, {}
    expected = captured()
    with precomp.strict_no_compile():
        for name, call in triton_samples.CALLS.items():
            expect(driver, expected[name])
            result = call(Buffer)
            assert result is None, result
            found[name] = seen(driver, expected[name])
        loads = driver.loads
        for name, call in triton_samples.CALLS.items():
            expect(driver, expected[name])
            call(Buffer)
            again[name] = seen(driver, expected[name])
    coverage = prepared.coverage()
    facts = {
        "imported by prepare": early,
        "found": found,
        "again": again == found,
        "loads": [loads, driver.loads],
        "untouched": untouched(),
        "served": coverage.served,
        "rest": coverage.never_asked,
        "missing": coverage.missing,
        "lean": lean(triton_samples),
    }
    prepared.uninstall()
    jit = sys.modules["triton.runtime.jit"].JITFunction
    facts["undone"] = {
        "run": jit.run.__module__,
        "kernel": "run" in vars(triton_samples.add),
        "choices": len(triton_samples.tuned.cache),
        "tune": type(triton_samples.tuned).run.__module__,
    }
    return facts


def violation(call: Any, *arguments: Any, **keywords: Any) -> list[str]:
    """Kind, what, why and hint of the violation that a call is under a strict gate."""
    try:
        with precomp.strict_no_compile():
            call(*arguments, **keywords)
    except precomp.CompileViolation as error:
        return [error.kind, error.what, error.why, error.where.rpartition("/")[2]]
    raise AssertionError("no violation")


def misses(driver: Driver) -> dict[str, Any]:
    """Launches that were not captured, before Triton's driver is there."""
    prepared = prepare()
    import triton
    import triton_samples as samples

    B, f32 = Buffer, torch.float32
    x, y, z = B(1024, f32), B(2048, f32), B(4096, f32)

    @triton.jit
    def unknown(x):
        pass

    class Descriptor:
        pass

    calls = {
        "alignment": lambda: samples.add[(1,)](x, B(2052, f32), z, 1000, BLOCK=128),
        "dtype": lambda: samples.add[(1,)](x, y, B(64, torch.float64), 1000),
        "width": lambda: samples.add[(1,)](x, y, z, 2**31),
        "constant": lambda: samples.add[(1,)](x, y, z, 1000, BLOCK=64),
        "type of a constant": lambda: samples.add[(1,)](x, y, z, 1000, BLOCK=128.0),
        "option": lambda: samples.add[(1,)](x, y, z, 1000, num_warps=16, BLOCK=512),
        "none": lambda: samples.add[(1,)](x, y, None, 1000),
        "tuple": lambda: samples.tuples[(1,)]((x, x, x), (16, 16), z, 16, (1, 2)),
        "function": lambda: samples.applied[(1,)](x, z, samples.scaled, "twice", 16),
        "no form": lambda: samples.add[(1,)](Descriptor(), y, z, 1000),
        "kernel": lambda: unknown[(1,)](x),
        "tuning key": lambda: samples.tuned[samples.blocks](x, z, 77),
    }
    facts = {name: violation(call) for name, call in calls.items()}
    try:
        samples.add[(1,)](x, y)
    except TypeError as error:
        facts["does not fit"] = str(error)
    try:
        expect(driver, captured()["default"])
        samples.add[(1,)](torch.zeros(8), torch.zeros(8), torch.zeros(8), 1000)
    except ValueError as error:
        facts["cpu"] = str(error)
    facts["missing"] = [name for name, _ in prepared.coverage().missing]
    facts["untouched"] = untouched()
    facts["changes"] = changes(driver)
    return facts


def compiled_as_usual(driver: Driver) -> dict[str, Any]:
    """Without a gate a miss is Triton's own launch; with one, what Triton has may be launched."""
    prepared = prepare()
    import triton_driver
    import triton_samples as samples

    theirs = triton_driver.install()
    B, f32 = Buffer, torch.float32
    x, y, z = B(1024, f32), B(2048, f32), B(4096, f32)
    expected = captured()

    def launch() -> Any:
        return samples.add[(3,)](x, y, z, 2000, BLOCK=64)

    facts: dict[str, Any] = {"compiled": type(launch()).__name__}
    with precomp.strict_no_compile():
        launch()
    facts["grids"] = [row["grid"] for row in theirs.launches]
    facts["another"] = violation(lambda: samples.add[(3,)](x, y, z, 2000, BLOCK=32))
    expect(driver, expected["tuned"])
    facts["tuned"] = [
        type(samples.tuned[samples.blocks](x, z, 77)).__name__,
        violation(lambda: samples.tuned[samples.blocks](x, z, 78)),
    ]
    before = len(theirs.launches)
    expect(driver, expected["default"])
    facts["served"] = samples.add[8, 2](x, y, z, 1000)
    facts["by Triton"] = len(theirs.launches) - before
    facts["warmup"] = type(samples.add.warmup(x, y, z, 1000, grid=(1,))).__name__
    facts["missing"] = prepared.coverage().missing
    return facts


def captures_the_rest(driver: Driver) -> dict[str, Any]:
    """A capture in a prepared process holds what the artifact lacks; merged, both are served."""
    prepared = prepare()
    import triton_driver
    import triton_samples as samples

    triton_driver.install()
    B, f32 = Buffer, torch.float32
    x, y, z = B(1024, f32), B(2048, f32), B(4096, f32)
    path = os.path.join(os.getcwd(), "rest.precomp")

    def both() -> None:
        expect(driver, captured()["default"])
        samples.add[8, 2](x, y, z, 1000)
        samples.add[8, 2](x, y, z, 1000, BLOCK=64)

    with precomp.capture(path):
        both()
    with precomp.Artifact.open(path) as rest:
        facts: dict[str, Any] = {"rest": [e.name for e in rest.entries if e.kind == "triton"]}
    prepared.uninstall()
    merged = precomp.Artifact.merge([path, prepared.artifact.path], "merged.precomp")
    for name, paths in (
        ("merged", ["merged.precomp"]),
        ("two", [prepared.artifact.path, path]),
    ):
        parts = [precomp.prepare(part) for part in paths]
        before = driver.launches
        with precomp.strict_no_compile():
            both()
        facts[name] = driver.launches - before
        for part in parts:
            part.uninstall()
    with precomp.Artifact.open(path) as small:
        facts["differ"] = [entry.name for entry in small.diff(merged).only_left]
        facts["fingerprints"] = len({small.fingerprint, merged.fingerprint})
    return facts


def changes(driver: Driver) -> dict[str, Any]:
    """What may change under a kernel that was served already."""
    import triton
    import triton.language as tl
    import triton_samples as samples

    x, z = Buffer(1024, torch.float32), Buffer(4096, torch.float32)
    expected = captured()["default"]

    def launch() -> Any:
        return samples.add[8, 2](x, x, z, 1000)

    def served() -> None:
        before = driver.launches
        with precomp.strict_no_compile():
            launch()
        assert driver.launches == before + 1

    facts = {}
    expect(driver, expected)
    served()
    runtime = triton.knobs.runtime
    hook = print
    for name, change, undo in (
        ("pre-run", lambda: samples.add.add_pre_run_hook(hook), samples.add.pre_run_hooks.clear),
        (
            "enter",
            lambda: runtime.launch_enter_hook.add(hook),
            lambda: runtime.launch_enter_hook.remove(hook),
        ),
        (
            "debug",
            lambda: setattr(runtime, "debug", True),
            lambda: setattr(runtime, "debug", False),
        ),
    ):
        change()
        facts[name] = violation(launch)[2]
        undo()
        served()
    samples.SCALE = tl.constexpr(3)  # an equal one
    served()
    samples.SCALE = tl.constexpr(4)
    facts["global"] = violation(launch)[2]
    return facts


def samples_now(driver: Driver) -> dict[str, Any]:
    """Whether launches of the samples are served, and why not: of each file samples/*/ in FOLDER,
    or of the samples themselves."""
    prepare()
    edited = os.path.join(FOLDER, "samples")
    names = sorted(os.listdir(edited)) if os.environ.get("EDITED") else [""]
    return {name: _served(driver, os.path.join(edited, name)) for name in names}


def _served(driver: Driver, folder: str) -> dict[str, str]:
    sys.path.insert(0, folder)
    sys.modules.pop("triton_samples", None)
    importlib.invalidate_caches()
    samples = importlib.import_module("triton_samples")
    sys.path.remove(folder)
    facts = {}
    for name in ("default", "function argument", "tuned", "heuristics"):
        expect(driver, captured()[name])
        try:
            with precomp.strict_no_compile():
                samples.CALLS[name](Buffer)
            facts[name] = "served"
        except precomp.CompileViolation as error:
            facts[name] = f"{error.kind}: {error.why}"
    return facts


if __name__ == "__main__":
    scene = globals()[sys.argv[1]]
    print(json.dumps(scene(Driver(sys.argv[2]))))
