"""One artifact, many ranks: a recommendation model with FSDP2, without compiling anything.

Called by ``tools/headline``. Captures examples/recsys with two processes, then trains it with many,
prepared and strict, each with a HOME, TMPDIR and caches of its own that are empty, and no compiler
on PATH. Compares with a compiled and with an eager run of the same world size.

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
# An eager run adds in another order, and training makes such differences grow. Its mean losses must
# be this close (absolute) in the first batches, and later.
EARLY = 20
CLOSE, LATER = 1e-4, 0.1
# What forked ranks share: to be served, and to compile.
SERVED = "torch.distributed.fsdp,torch.distributed.device_mesh"
COMPILED = f"{SERVED},torch._dynamo,torch._inductor.compile_fx"


def differences(prepared: launch.Run, eager: launch.Run) -> list[float]:
    """How far apart the mean losses of two runs are, batch by batch."""
    both = prepared.facts("mean_losses")[0], eager.facts("mean_losses")[0]
    return [abs(a - b) for a, b in zip(*both, strict=True)]


def checks(prepared: launch.Run, compiled: launch.Run, eager: launch.Run) -> dict[str, bool]:
    """What the headline claims, and whether it held on every rank."""
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
        f"mean losses within {CLOSE} of the eager run for {EARLY} batches, then {LATER}": (
            max(apart[:EARLY]) <= CLOSE and max(apart) <= LATER
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
        log, artifact = root / "clicks.tsv", root / "dlrm.precomp"
        clicks.generate(log, rows=20_000)
        cache = (options.cache or root / "cache").absolute()
        size = ("--batch-size", options.batch_size, "--columns", options.columns)
        train = (log, *size, "--batches", options.batches)

        def go(name: str, *arguments: object, ranks: int = options.ranks, **how: Any) -> launch.Run:
            if options.preload:
                how["preload"] = COMPILED if "cache" in how else SERVED
            found = launch.run(TRAIN, *arguments, ranks=ranks, root=root / name, **how)
            print(
                f"{name:<9} {ranks:>2} ranks: first step after {found.until('step 1'):6.1f} s and "
                f"{found.cpu('step 1'):6.1f} CPU s, done after {found.until('done'):6.1f} s and "
                f"{found.cpu('done'):6.1f} CPU s",
                flush=True,
            )
            return found

        capture = (log, *size, "--batches", 3, "--capture", artifact)
        go("capture", *capture, ranks=2, cache=cache)
        served = (*train, "--prepare", artifact, "--strict")
        prepared = go("prepared", *served, compiler=False)
        compiled = go("compiled", *train, cache=cache)
        eager = go("eager", *train, "--eager")
        bytes_ = artifact.stat().st_size

    outcome = checks(prepared, compiled, eager)
    print(prepared.output, end="")
    print(f"artifact of 2 ranks: {bytes_:,} bytes, read by {options.ranks} ranks")
    apart = differences(prepared, eager)
    print(
        f"mean losses and eager ones differ by up to {max(apart[:EARLY]):.1e} in the first {EARLY} "
        f"batches, {max(apart):.1e} in all"
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
                for name, run in (("prepared", prepared), ("compiled", compiled), ("eager", eager))
            },
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    return 0 if all(outcome.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
