"""Time of a step after the first: prepared, torch.compile'd and eager.

    python benchmarks/steady.py [--rounds 7] [--steps 100] [--programs enc mlp] [--output FILE]

One process a variant; the processes take turns, round by round, so that a change of the machine's
speed meets all of them. Prints JSON with the median over the rounds of the mean step, and ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
VARIANTS = ("eager", "compiled", "prepared")


def worker(variant: str, program: str, kind: str, file: str) -> None:
    """Answers each line "N" on standard input with the mean seconds of N steps."""
    import torch

    torch.set_num_threads(1)
    if variant == "prepared":
        import precomp

        precomp.prepare(file)
    from bench_programs import Work

    if variant == "capture":
        import precomp

        with precomp.capture(file):
            Work(program, kind, compile=True).step()
        return
    work = Work(program, kind, compile=variant != "eager")
    for _ in range(20):
        work.step()
    print("ready", flush=True)
    for line in sys.stdin:
        count = int(line)
        start = time.perf_counter()
        for _ in range(count):
            work.step()
        print((time.perf_counter() - start) / count, flush=True)


def measure(program: str, kind: str, rounds: int, steps: int, root: Path) -> dict:
    artifact = root / f"{program}-{kind}.precomp"
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(root / "inductor")}
    command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
    capture = [*command, "capture", program, kind, str(artifact)]
    subprocess.run(capture, env=env, check=True, cwd=root)
    workers = {
        name: subprocess.Popen(
            [*command, name, program, kind, str(artifact)],
            env=env,
            cwd=root,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in VARIANTS
    }

    def ask(name: str, line: str | None = None) -> str:
        process = workers[name]
        if line is not None:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            sys.exit(f"steady: the {name} process ended with status {process.wait()}")
        return answer

    for name in VARIANTS:
        ask(name)
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for i in range(rounds):
        for name in VARIANTS[i % 3 :] + VARIANTS[: i % 3]:
            times[name].append(float(ask(name, str(steps))))
    for process in workers.values():
        process.stdin.close()
        process.wait()
    median = {name: statistics.median(values) for name, values in times.items()}
    ratios = [p / c for p, c in zip(times["prepared"], times["compiled"], strict=True)]
    return {
        "step_s": {name: round(value, 9) for name, value in median.items()},
        "prepared_to_compiled": round(statistics.median(ratios), 4),
        "prepared_to_eager": round(median["prepared"] / median["eager"], 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--programs", nargs="+", default=["enc", "mlp"])
    parser.add_argument("--kinds", nargs="+", default=["train", "infer"])
    parser.add_argument("--output", type=Path, help="also write the JSON to this file")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(*options.worker)
        return 0

    from processes import machine

    with tempfile.TemporaryDirectory(prefix="precomp-steady-") as temporary:
        result = {
            "benchmark": "steady",
            "unit": "seconds a step",
            "machine": machine(),
            "programs": {
                f"{program} {kind}": measure(
                    program, kind, options.rounds, options.steps, Path(temporary)
                )
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
