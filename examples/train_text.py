"""Train a small GPT on the text that every Python has: the sources of its standard library.

    python train_text.py --steps 200                                    # torch.compile, as usual
    python train_text.py --steps 2 --capture text.precomp               # record the first steps
    python train_text.py --steps 200 --prepare text.precomp --strict    # run without compiling
    python train_text.py --steps 200 --eager                            # no torch.compile at all

The model predicts the next byte. It is evaluated after the first step and then every 50 steps, with
another batch size. ``--report FILE`` writes what happened as JSON: losses, a digest of the
parameters, the time from the start of the process to the end of the first step, how often torch
compiled, which processes were started.

One thread by default: with more, Inductor adds the gradient of the embedding in an order that
changes from run to run, and two runs of torch.compile itself differ in their last bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import sysconfig
import time
from contextlib import ExitStack
from pathlib import Path

SPAWN_EVENTS = {
    "subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system"
}  # fmt: skip
COMPILER = ("torch._dynamo.convert_frame", "torch._inductor.compile_fx", "sympy", "triton")

spawned: list[str] = []


def watch_processes(event: str, args: tuple) -> None:
    if event in SPAWN_EVENTS:
        spawned.append(f"{event} {args[0]!r}")


def seconds_since_start() -> float:
    """Seconds since the kernel started this process (to 0.01 s)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="training steps")
    parser.add_argument("--eager", action="store_true", help="do not use torch.compile")
    parser.add_argument("--capture", metavar="FILE", help="record the run and write an artifact")
    parser.add_argument("--prepare", metavar="FILE", help="serve the run from an artifact")
    parser.add_argument("--strict", action="store_true", help="raise if anything would compile")
    parser.add_argument("--report", metavar="FILE", help="write what happened as JSON")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    return parser.parse_args()


def standard_library_text(limit: int = 1_000_000) -> bytes:
    """Sources, with their documentation strings, of modules of the standard library."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return bytes(text[:limit])


def main() -> int:
    options = arguments()
    sys.addaudithook(watch_processes)

    import torch

    torch.set_num_threads(options.threads)
    prepared = None
    if options.prepare:
        import precomp

        # Before the model's file is imported: libraries may import torch's compiler on their own.
        prepared = precomp.prepare(options.prepare)
    elif options.capture or options.strict:
        import precomp

    from tiny_gpt import GPT

    data = torch.frombuffer(bytearray(standard_library_text()), dtype=torch.uint8)
    split = len(data) * 9 // 10
    sampler = torch.Generator().manual_seed(0)

    def batch(part: torch.Tensor, size: int, length: int = 64):
        starts = torch.randint(len(part) - length - 1, (size,), generator=sampler).tolist()
        rows = torch.stack([part[s : s + length + 1] for s in starts]).long()
        return rows[:, :-1], rows[:, 1:]

    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = model if options.eager else torch.compile(model)

    def train_step() -> float:
        x, y = batch(data[:split], 8)
        loss = compiled(x, y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate() -> float:
        compiled.eval()
        loss = sum(compiled(*batch(data[split:], 24)).item() for _ in range(4)) / 4
        compiled.train()
        return loss

    losses: list[float] = []
    evaluations: list[tuple[int, float]] = []
    first_step = 0.0
    with ExitStack() as stack:
        if options.capture:
            stack.enter_context(precomp.capture(options.capture))
        if options.strict:
            stack.enter_context(precomp.strict_no_compile())
        for step in range(1, options.steps + 1):
            losses.append(train_step())
            if step == 1:
                first_step = seconds_since_start()
                started = time.perf_counter()
            if step == 1 or step % 50 == 0:
                evaluations.append((step, evaluate()))
                print(f"step {step:4d}  loss {losses[-1]:.4f}  evaluation {evaluations[-1][1]:.4f}")
        rest = time.perf_counter() - started

    if options.report:
        digest = hashlib.sha256()
        for name, tensor in model.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.detach().contiguous().numpy().tobytes())
        facts = {
            "losses": [x.hex() for x in losses],
            "evaluations": [[step, loss.hex()] for step, loss in evaluations],
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "last_evaluation": evaluations[-1][1],
            "parameters": digest.hexdigest(),
            "parameter_count": sum(p.numel() for p in model.parameters()),
            "first_step_s": round(first_step, 3),
            "step_s": rest / max(1, options.steps - 1),
            "compile_events": compile_events(),
            "subprocesses": spawned,
            "compiler_modules": [name for name in COMPILER if name in sys.modules],
            "prepare": None,
        }
        if prepared is not None:
            report = prepared.report()
            facts["prepare"] = {
                "digest": report.digest,
                "fingerprint": report.fingerprint,
                "text": str(report),
            }
        Path(options.report).write_text(json.dumps(facts, indent=1) + "\n")
    return 0


def compile_events() -> int:
    """How many frames torch's compiler traced in this process."""
    if "torch._dynamo.convert_frame" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return int(counters["frames"]["total"])


if __name__ == "__main__":
    sys.exit(main())
