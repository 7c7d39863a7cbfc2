"""Run examples/train_text.py in every way, each in a fresh process, and print a table.

Called by ``tools/demo``. The prepared run has empty caches, another HOME and working directory, and
no compiler on PATH; it runs under ``strict_no_compile``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "train_text.py"


class Runs:
    """Runs of the example below one temporary directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = 0

    def go(self, *options: object, cache: str, compiler: bool = True) -> dict[str, Any]:
        """One fresh process with the caches in *cache*, and its report."""
        self.count += 1
        place = self.root / f"run-{self.count}"
        report = place / "report.json"
        for directory in (place / "home", place / "tmp", place / "bin", self.root / cache):
            directory.mkdir(parents=True, exist_ok=True)
        env = {
            "HOME": str(place / "home"),
            "TMPDIR": str(place / "tmp"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.root / cache),
            "TRITON_CACHE_DIR": str(self.root / cache / "triton"),
            "PATH": os.environ["PATH"] if compiler else str(place / "bin"),
        }
        if not compiler:
            env |= {"CC": "/bin/false", "CXX": "/bin/false"}
        command = [sys.executable, EXAMPLE, *options, "--report", report]
        done = subprocess.run(
            [str(part) for part in command],
            cwd=place,
            env=env,
            check=False,
            text=True,
            capture_output=True,
        )
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
        facts = json.loads(report.read_text())
        facts["output"] = done.stdout
        facts["cache_files"] = sum(p.is_file() for p in (self.root / cache).rglob("*"))
        return facts


def first_steps(facts: list[dict[str, Any]]) -> float:
    return statistics.median(f["first_step_s"] for f in facts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="training steps of the long runs")
    parser.add_argument("--repeat", type=int, default=3, help="processes to take medians of")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="precomp-demo-") as temporary:
        runs = Runs(Path(temporary))
        artifact = Path(temporary) / "text.precomp"
        short, long = ("--steps", 2), ("--steps", options.steps)
        again = range(max(0, options.repeat - 1))

        cold = runs.go(*short, cache="cold")
        compiled = runs.go(*long, cache="cold")
        captured = runs.go(*short, "--capture", artifact, cache="cold")
        serve = ("--prepare", artifact, "--strict")
        prepared = runs.go(*long, *serve, cache="empty", compiler=False)
        eager = runs.go(*short, "--eager", cache="eager")
        eagers, warms, serves = [eager], [compiled], [prepared]
        for _ in again:
            eagers.append(runs.go(*short, "--eager", cache="eager"))
            warms.append(runs.go(*short, cache="cold"))
            serves.append(runs.go(*short, *serve, cache="empty", compiler=False))

        identical = {
            name: prepared[name] == compiled[name]
            for name in ("losses", "evaluations", "parameters")
        }
        rows = [
            ("eager", first_steps(eagers), eager),
            ("torch.compile, cold", cold["first_step_s"], cold),
            ("torch.compile, warm Inductor cache", first_steps(warms), compiled),
            ("prepared, empty cache, no compiler", first_steps(serves), prepared),
        ]
        size = artifact.stat().st_size

    print(prepared["output"], end="")
    print(
        f"\n{prepared['parameter_count']:,} parameters, {len(prepared['losses'])} steps prepared "
        f"and strict: loss {prepared['first_loss']:.3f} -> {prepared['last_loss']:.3f}, "
        f"evaluation {prepared['last_evaluation']:.3f}\n"
    )
    head = f"{'from process start to the end of step 1':<40}{'seconds':>9}"
    print(f"{head}{'compiled frames':>17}{'subprocesses':>14}")
    for name, seconds, facts in rows:
        events, spawned = facts["compile_events"], len(facts["subprocesses"])
        print(f"{name:<40}{seconds:>9.2f}{events:>17}{spawned:>14}")
    print(f"\nartifact            {size:,} bytes")
    print(f"  digest            {prepared['prepare']['digest']}")
    print(f"  fingerprint       {prepared['prepare']['fingerprint']}")
    print(f"captured, warm cache: {captured['first_step_s']:.2f} s to the end of step 1")
    print(f"modules of torch's compiler in the prepared process: {prepared['compiler_modules']}")
    print(f"files written to its empty caches: {prepared['cache_files']}")
    for name, same in identical.items():
        print(f"{name} of {options.steps} steps bit-identical to torch.compile's run: {same}")

    if options.json:
        numbers = {
            "seconds": {name: seconds for name, seconds, _ in rows},
            "compile_events": {name: facts["compile_events"] for name, _, facts in rows},
            "subprocesses": {name: len(facts["subprocesses"]) for name, _, facts in rows},
            "artifact_bytes": size,
            "digest": prepared["prepare"]["digest"],
            "identical": identical,
        }
        options.json.write_text(json.dumps(numbers, indent=1) + "\n")
    good = (
        all(identical.values())
        and prepared["compile_events"] == 0
        # Importing torch itself starts some, in builds for CUDA.
        and set(prepared["subprocesses"]) <= set(eager["subprocesses"])
        and prepared["compiler_modules"] == []
        and prepared["cache_files"] == 0
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
