"""Time from the end of ``import torch`` to the end of the first step, each in a fresh process.

    python benchmarks/startup.py [--repeat 5] [--programs enc mlp] [--variants eager prepared]
        [--device cpu] [--no-bytecode] [--output FILE]

Variants: eager; torch.compile with cold caches; with a warm Inductor cache; with a Mega-Cache
(torch.compiler.save_cache_artifacts) loaded into empty caches; with caching_precompile, warm; and
prepared by precomp, with empty caches and no compiler on PATH. A training step is forward, backward
and optimizer; inference is one call. The runs of the variants alternate. Prints JSON; ratios are of
medians of the same run. ``phases_s`` says where the time goes: ``load`` (the artifact, or the
Mega-Cache), ``context`` (of the GPU), ``model`` (and its optimizer), ``step``. With
``--no-bytecode`` Python finds no .pyc file and writes none, as in images that are built with
PYTHONDONTWRITEBYTECODE: each import compiles its source, torch's and precomp's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TORCH_WARM = ("warm", "megacache", "precompile")
VARIANTS = ("eager", *TORCH_WARM, "prepared")


def worker(variant: str, program: str, kind: str, device: str, file: str) -> None:
    """One fresh process. Prints the seconds from ``import torch`` on."""
    import torch

    torch.set_num_threads(1)
    start = last = time.perf_counter()
    phases: dict[str, float] = {}

    def passed(phase: str) -> None:
        nonlocal last
        if device == "cuda" and phase != "load":  # loading needs no context
            torch.cuda.synchronize()
        now = time.perf_counter()
        phases[phase] = now - last
        last = now

    capture = None
    if variant == "prepared":
        import precomp

        precomp.prepare(file)
    elif variant == "megacache":
        torch.compiler.load_cache_artifacts(Path(file).read_bytes())
    elif variant == "capture":
        import precomp

        capture = precomp.capture(file)
        capture.__enter__()
    passed("load")
    if device == "cuda":
        passed("context")
    from bench_programs import Work

    work = Work(program, kind, variant != "eager", device)
    passed("model")
    if variant == "prepared":
        with precomp.strict_no_compile():
            work.step()
    else:
        work.step()
    passed("step")
    seconds = last - start
    if capture is not None:
        capture.__exit__(None, None, None)
    if variant == "save":
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None, "torch saved no cache artifacts"
        Path(file).write_bytes(saved[0])
    modules = [m for m in ("torch._dynamo.convert_frame", "sympy", "triton") if m in sys.modules]
    print(json.dumps({"seconds": seconds, "phases": phases, "compiler": modules}))


def import_worker() -> None:
    start = time.perf_counter()
    import precomp

    seconds = time.perf_counter() - start
    assert precomp.__version__
    print(json.dumps({"seconds": seconds}))


def measure(
    program: str, kind: str, options: argparse.Namespace, root: Path, python: dict[str, str]
) -> dict:
    from processes import run, summary

    script = Path(__file__).resolve()
    base = root / f"{program}-{kind}"
    fresh = iter(range(1_000_000))
    artifact, mega = base / "artifact.precomp", base / "mega"

    def go(variant: str, file: Path | str = "-", cache: Path | None = None, **settings) -> dict:
        place = cache or base / f"fresh-{next(fresh)}"
        found = run(
            script, "--worker", variant, program, kind, options.device, file,
            cache=place, **python, **settings,
        )  # fmt: skip
        if cache is None:
            shutil.rmtree(place)
        print(f"{program} {kind}: {variant}: {found}", file=sys.stderr, flush=True)
        return found

    cold = go("save", mega, cache=base / "warm")
    precompile = {"TORCH_CACHING_PRECOMPILE": "1"}
    if "precompile" in options.variants:
        go("save", base / "unused", cache=base / "precompile", **precompile)
    go("capture", artifact, cache=base / "warm")
    times: dict[str, list[float]] = {name: [] for name in options.variants}
    phases: dict[str, list[dict[str, float]]] = {name: [] for name in options.variants}
    for name in options.variants:  # once for the page cache, not counted
        one(go, name, artifact, mega, base, precompile)
    for i in range(options.repeat):
        for name in options.variants:
            if name == "megacache" and i >= 2:
                continue  # it compiles all C++ again: slow, and far from the others
            found = one(go, name, artifact, mega, base, precompile)
            times[name].append(found["seconds"])
            phases[name].append(found["phases"])
            if name == "prepared":
                assert found["compiler"] == [], found
    result = {name: summary(values) for name, values in times.items()}
    result["cold"] = {"median": round(cold["seconds"], 6), "count": 1}
    median = {name: values["median"] for name, values in result.items()}
    return {
        "seconds": result,
        "phases_s": {
            name: {phase: round(statistics.median(r[phase] for r in runs), 6) for phase in runs[0]}
            for name, runs in phases.items()
        },
        "artifact_bytes": artifact.stat().st_size,
        "mega_cache_bytes": mega.stat().st_size,
        **ratios(median),
    }


def ratios(median: dict[str, float]) -> dict:
    found: dict = {}
    if {"eager", "prepared"} <= median.keys():
        found["prepared_to_eager"] = round(median["prepared"] / median["eager"], 4)
        found["prepared_minus_eager_s"] = round(median["prepared"] - median["eager"], 6)
    warm = [name for name in TORCH_WARM if name in median]
    if warm and "prepared" in median:
        best = min(warm, key=lambda name: median[name])
        found["best_warm_start_of_torch"] = best
        found["best_warm_start_to_prepared"] = round(median[best] / median["prepared"], 2)
    return found


def one(go, name: str, artifact: Path, mega: Path, base: Path, precompile: dict) -> dict:
    if name == "warm":
        return go("warm", cache=base / "warm")
    if name == "precompile":
        return go("warm", cache=base / "precompile", **precompile)
    if name == "megacache":
        return go("megacache", mega)
    if name == "prepared":
        return go("prepared", artifact, compiler=False)
    return go(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--programs", nargs="+", default=["enc", "mlp"])
    parser.add_argument("--kinds", nargs="+", default=["train", "infer"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--output", type=Path, help="also write the JSON to this file")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--no-bytecode", action="store_true", help="without .pyc files")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--import-worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(*options.worker)
        return 0
    if options.import_worker:
        import_worker()
        return 0

    from processes import machine, run, summary

    with tempfile.TemporaryDirectory(prefix="precomp-startup-") as temporary:
        root = Path(temporary)
        python = {}
        if options.no_bytecode:
            python = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(root / "pyc")}
        this, imported = Path(__file__).resolve(), root / "import"
        imports = [
            run(this, "--import-worker", cache=imported, **python)["seconds"]
            for _ in range(max(10, options.repeat))
        ]
        result = {
            "benchmark": "startup",
            "unit": "seconds after import torch to the end of the first step",
            "machine": machine(),
            "bytecode": "none" if options.no_bytecode else "cached",
            "import_precomp_s": summary(imports),
            "programs": {
                f"{program} {kind}": measure(program, kind, options, root, python)
                for program in options.programs
                for kind in options.kinds
            },
        }
    text = json.dumps(result, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
