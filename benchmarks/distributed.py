"""CPU seconds of all ranks and time to the first step, for every kind of start of an FSDP2 program.

    python benchmarks/distributed.py [--ranks 2 4 16] [--variants eager prepared] [--output FILE]

Trains examples/recsys. Variants: eager; torch.compile with a cold cache directory that the ranks
share; with a warm one; with a Mega-Cache (torch.compiler.save_cache_artifacts of one rank) loaded
into empty caches; prepared by precomp, with empty caches and no compiler on PATH; prepared and
forked from one parent that has imported already. Prints JSON: seconds from the launch until the
slowest rank has finished its first step and all its batches, and CPU seconds of all ranks, their
children and the forking parent until then. One run of each: the spread is that of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECSYS = ROOT / "examples" / "recsys"
VARIANTS = ("eager", "cold", "warm", "megacache", "prepared", "preloaded")
PRELOAD = "torch.distributed.fsdp,torch.distributed.device_mesh"


def worker(variant: str, file: str, words: list[str]) -> None:
    """One rank with a Mega-Cache: load it, or save it after the run."""
    import torch

    if variant == "load":
        torch.compiler.load_cache_artifacts(Path(file).read_bytes())
    sys.argv = [str(RECSYS / "train.py"), *words]
    sys.path.insert(0, str(RECSYS))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    if variant == "save" and os.environ["RANK"] == "0":
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None, "torch saved no cache artifacts"
        Path(file).write_bytes(saved[0])


def measure(counts: list[int], variants: list[str], batches: int, root: Path) -> dict[str, Any]:
    import clicks
    import launch

    log, artifact, mega = root / "clicks.tsv", root / "dlrm.precomp", root / "mega"
    clicks.generate(log, rows=20_000)
    train, this = RECSYS / "train.py", Path(__file__).resolve()
    options = (log, "--batches", batches)
    warm = root / "warm"
    # One pair of ranks fills the warm cache, captures, and saves the Mega-Cache.
    save = ("--worker", "save", mega, log, "--batches", 2, "--capture", artifact)
    launch.run(this, *save, ranks=2, root=root / "capture", cache=warm)

    def go(variant: str, count: int) -> launch.Run:
        place = root / f"{variant}-{count}"
        if variant == "eager":
            return launch.run(train, *options, "--eager", ranks=count, root=place)
        if variant in ("cold", "warm"):
            cache = warm if variant == "warm" else place / "cache"
            return launch.run(train, *options, ranks=count, root=place, cache=cache)
        if variant == "megacache":
            load = ("--worker", "load", mega, *options)
            return launch.run(this, *load, ranks=count, root=place)
        served = (*options, "--prepare", artifact, "--strict")
        preload = PRELOAD if variant == "preloaded" else None
        return launch.run(train, *served, ranks=count, root=place, compiler=False, preload=preload)

    rows: dict[str, Any] = {}
    for count in counts:
        for variant in variants:
            run = go(variant, count)
            row = {
                "step_1_s": run.until("step 1"),
                "step_1_cpu_s": run.cpu("step 1"),
                "done_s": run.until("done"),
                "done_cpu_s": run.cpu("done"),
                "compile_ids": max(run.facts("compile_ids")),
                "subprocesses": sum(map(len, run.facts("subprocesses"))),
            }
            rows[f"{variant} {count}"] = {name: round(value, 2) for name, value in row.items()}
            print(f"{variant} {count}: {rows[f'{variant} {count}']}", file=sys.stderr, flush=True)
    return {"artifact_bytes": artifact.stat().st_size, "runs": rows}


def ratios(rows: dict[str, Any], counts: list[int]) -> dict[str, float]:
    """CPU seconds until the first step, of one variant to another, where both were run."""
    found = {}
    for count in counts:
        for one, other in (
            ("prepared", "eager"), ("preloaded", "eager"), ("warm", "prepared")
        ):  # fmt: skip
            if {f"{one} {count}", f"{other} {count}"} <= rows.keys():
                a, b = (rows[f"{name} {count}"]["step_1_cpu_s"] for name in (one, other))
                found[f"{one} / {other} {count}"] = round(a / b, 3)
    return found


def main() -> int:
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], sys.argv[3], sys.argv[4:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 16])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--output", type=Path, help="also write the JSON to this file")
    options = parser.parse_args()
    sys.path.insert(0, str(RECSYS))

    from processes import machine

    with tempfile.TemporaryDirectory(prefix="precomp-distributed-") as temporary:
        found = measure(options.ranks, options.variants, options.batches, Path(temporary))
    result = {
        "benchmark": "distributed",
        "unit": "seconds since the launch, and CPU seconds of all ranks, until the first step",
        "machine": machine(),
        "batches": options.batches,
        **found,
        "step_1_cpu_ratios": ratios(found["runs"], options.ranks),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
