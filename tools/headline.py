"""One artifact, many ranks: a recommendation model with FSDP2, without compiling anything.

Called by ``tools/headline``. Captures examples/recsys with two processes, then trains it with many,
prepared and strict, each with a HOME, TMPDIR and caches of its own that are empty, and no compiler
on PATH. Compares with a compiled and with an eager run of the same world size.

Compiled kernels add in another order than eager ones, and training makes such a difference grow:
a ReLU whose input is zero but for rounding passes a gradient or none, and Adam gives a small
gradient full weight. How far that goes is printed, beside how far an eager run of the same batches
on one rank is apart. In float64, where no input is that close to zero, one rank shows that served
losses are the eager ones.

``--preload`` forks the ranks of each run from one parent that imported torch (they share its empty
caches then): for a quick check on few cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples" / "recsys")]

import clicks  # noqa: E402
import launch  # noqa: E402

TRAIN = ROOT / "examples" / "recsys" / "train.py"
# How far from eager mean losses may be (absolute): in the first batch, in later ones, in float64.
FIRST, LATER, DOUBLE = 1e-6, 0.1, 1e-12
# What forked ranks share: to be served, and to compile.
SERVED = "torch.distributed.fsdp,torch.distributed.device_mesh"
COMPILED = f"{SERVED},torch._dynamo,torch._inductor.compile_fx"


def differences(one: launch.Run, other: launch.Run) -> list[float]:
    """How far apart the mean losses of two runs are, batch by batch."""
    both = one.facts("mean_losses")[0], other.facts("mean_losses")[0]
    return [abs(a - b) for a, b in zip(*both, strict=True)]


def prepare(artifact: Path) -> tuple[object, ...]:
    """Options of a strict run that is served from *artifact*."""
    return "--prepare", artifact, "--strict"


def checks(runs: dict[str, launch.Run]) -> dict[str, bool]:
    """What the headline claims, and whether it held on every rank."""
    prepared, compiled, eager = runs["prepared"], runs["compiled"], runs["eager"]
    apart = differences(prepared, eager)
    return {
        "0 compile ids on every rank": not any(prepared.facts("compile_ids")),
        "0 cache lookups on every rank": not any(prepared.facts("cache_lookups")),
        # Importing torch itself starts some, in builds for CUDA.
        "0 subprocesses on every rank, but those of an eager run": all(
            set(started) <= set(others)
            for started, others in zip(
                prepared.facts("subprocesses"), eager.facts("subprocesses"), strict=True
            )
        ),
        "0 violations and 0 misses on every rank": not any(
            prepared.facts("violations") + prepared.facts("missing")
        ),
        "losses bit-equal to the compiled run on every rank": (
            prepared.facts("losses") == compiled.facts("losses")
        ),
        "parameters bit-equal to the compiled run on every rank": (
            prepared.facts("parameters") == compiled.facts("parameters")
        ),
        f"mean losses within {FIRST} of the eager run in the first batch, then {LATER}": (
            apart[0] <= FIRST and max(apart) <= LATER
        ),
        f"in float64, mean losses within {DOUBLE} of the eager run in every batch": (
            max(differences(runs["prepared64"], runs["eager64"])) <= DOUBLE
        ),
        "the compiled run did compile on every rank": all(compiled.facts("compile_ids")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--columns", type=int, default=clicks.CATEGORIES, help="embedding tables")
    parser.add_argument("--cache", type=Path, help="compile caches to use and fill; default: empty")
    parser.add_argument("--preload", action="store_true", help="fork the ranks from one parent")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="precomp-headline-") as temporary:
        root = Path(temporary)
        log = root / "clicks.tsv"
        clicks.generate(log, rows=20_000)
        cache = (options.cache or root / "cache").absolute()
        words = (log, "--columns", options.columns, "--batch-size")
        own = (*words, options.batch_size)
        # The batches of all ranks, on one.
        whole = (*words, options.batch_size * options.ranks)
        first, all_ = ("--batches", 3), ("--batches", options.batches)
        single, double = root / "single.precomp", root / "double.precomp"

        def go(name: str, *arguments: object, ranks: int = options.ranks, **how: Any) -> launch.Run:
            if options.preload:
                how["preload"] = COMPILED if "cache" in how else SERVED
            found = launch.run(TRAIN, *arguments, ranks=ranks, root=root / name, **how)
            print(
                f"{name:<10} {ranks:>2} ranks: first step after {found.until('step 1'):6.1f} s and "
                f"{found.cpu('step 1'):6.1f} CPU s, done after {found.until('done'):6.1f} s and "
                f"{found.cpu('done'):6.1f} CPU s",
                flush=True,
            )
            return found

        go("capture", *own, *first, "--capture", single, ranks=2, cache=cache)
        runs = {
            "prepared": go("prepared", *own, *all_, *prepare(single), compiler=False),
            "compiled": go("compiled", *own, *all_, cache=cache),
            "eager": go("eager", *own, *all_, "--eager"),
            "alone": go("alone", *whole, *all_, "--eager", ranks=1),
        }
        whole = (*whole, "--double")
        go("capture64", *whole, *first, "--capture", double, ranks=1, cache=cache)
        runs |= {
            "prepared64": go(
                "prepared64", *whole, *all_, *prepare(double), ranks=1, compiler=False
            ),
            "eager64": go("eager64", *whole, *all_, "--eager", ranks=1),
        }
        bytes_ = single.stat().st_size

    outcome = checks(runs)
    print(runs["prepared"].output, end="")
    print(f"artifact of 2 ranks: {bytes_:,} bytes, read by {options.ranks} ranks")
    apart = {
        "prepared and eager": differences(runs["prepared"], runs["eager"]),
        f"eager on {options.ranks} ranks and on 1": differences(runs["eager"], runs["alone"]),
        "prepared and eager in float64": differences(runs["prepared64"], runs["eager64"]),
    }
    for pair, by in apart.items():
        print(
            f"mean losses, {pair}: differ by {by[0]:.1e} in the first batch, "
            f"up to {max(by[:20]):.1e} in the first 20, {max(by):.1e} in all"
        )
    for claim, held in outcome.items():
        print(f"{'yes' if held else 'NO ':<4}{claim}")
    if options.json:
        facts = {
            "ranks": options.ranks,
            "batches": options.batches,
            "artifact_bytes": bytes_,
            "checks": outcome,
            "loss_differences": apart,
            "seconds": {
                name: {mark: round(run.until(mark), 2) for mark in run.reports[0]["marks"]}
                for name, run in runs.items()
            },
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    return 0 if all(outcome.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
