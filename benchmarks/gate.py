"""What the strict gate costs a warm program: prints one JSON object.

    python benchmarks/gate.py [--rounds 15] [--calls 300] [--device cpu|cuda] [--output FILE]

For three warm compiled programs, microseconds per call: before the first gate of the process, and
then outside and inside a gate in turns, round by round. ``ratio`` is the median over the rounds of
inside to outside in one round. ``noise`` is the spread of the same ratio where there is nothing to
see: outside to the next outside, half the distance of its quartiles. Then the audit events of a
warm call under the gate, and the cost of entering and leaving a gate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from processes import machine

from precomp import strict_no_compile


def programs(device: str) -> dict[str, Callable[[], object]]:
    torch.set_num_threads(1)
    backend = "inductor" if device == "cuda" else "aot_eager"
    x = torch.ones(64, device=device)
    inference = torch.compile(lambda x: x.sin() + 1, backend=backend)
    y = torch.ones(64, device=device, requires_grad=True)
    training = torch.compile(lambda x: (x.sin() * 2).sum(), backend=backend)
    model = torch.compile(torch.nn.Linear(64, 64, device=device), backend="eager")
    return {
        "inference": lambda: inference(x),
        "forward and backward": lambda: training(y).backward(),
        "module": lambda: model(x),
    }


def micros(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def measure(call: Callable[[], object], rounds: int, calls: int) -> dict:
    """Rounds of outside, inside and outside again, so that a drift of the machine cancels."""
    outside, inside, again = [], [], []
    for _ in range(rounds):
        outside.append(micros(call, calls))
        with strict_no_compile():
            inside.append(micros(call, calls))
        again.append(micros(call, calls))
    ratios = [on * 2 / (off + after) for off, on, after in zip(outside, inside, again, strict=True)]
    still = statistics.quantiles((after / off for off, after in zip(outside, again, strict=True)))
    ratio, noise = statistics.median(ratios), (still[2] - still[0]) / 2
    return {
        "off_us": statistics.median(outside + again),
        "on_us": statistics.median(inside),
        "ratio": ratio,
        "noise": noise,
        "within_noise": ratio <= 1 + noise,
    }


def audit_events(call: Callable[[], object]) -> list[str]:
    """Names of the audit events of one warm call under the gate."""
    events: list[str] = []
    counting = [False]
    sys.addaudithook(lambda event, args: counting[0] and events.append(event))
    with strict_no_compile():
        counting[0] = True
        call()
        counting[0] = False
    return events


def enter() -> None:
    with strict_no_compile():
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, help="write the JSON there instead")
    options = parser.parse_args()
    todo = programs(options.device)
    for call in todo.values():
        for _ in range(5):
            call()
    before = {
        name: statistics.median(micros(call, options.calls) for _ in range(options.rounds))
        for name, call in todo.items()
    }
    found: dict[str, dict] = {}
    for name, call in todo.items():
        found[name] = {"before_us": before[name], **measure(call, options.rounds, options.calls)}
    enter_us = micros(enter, 100)
    for name, call in todo.items():  # last: the hook that counts them costs time itself
        events = audit_events(call)
        found[name] |= {"audit_events": len(events), "audit_event_names": sorted(set(events))}
    result = {
        "benchmark": "gate",
        "unit": "microseconds per call, median over rounds",
        "machine": {
            **machine(),
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        },
        "rounds": options.rounds,
        "calls_per_round": options.calls,
        "enter_and_leave_us": enter_us,
        "programs": found,
    }
    text = json.dumps(result, indent=1) + "\n"
    if options.output:
        options.output.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
