"""What the strict gate costs a warm program: ``python benchmarks/gate.py [ROUNDS]``.

Microseconds per call of three warm compiled programs: before the first gate, and then outside and
inside a gate in turns. The noise is the quartile range of the rounds outside. Then the audit events
of a warm call inside, and the cost of entering and leaving a gate.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

from precomp import strict_no_compile

CALLS = 300


def programs():
    torch.set_num_threads(1)
    x = torch.ones(64)
    inference = torch.compile(lambda x: x.sin() + 1, backend="aot_eager")
    y = torch.ones(64, requires_grad=True)
    training = torch.compile(lambda x: (x.sin() * 2).sum(), backend="aot_eager")
    model = torch.compile(torch.nn.Linear(64, 64), backend="eager")
    return {
        "inference": lambda: inference(x),
        "forward and backward": lambda: training(y).backward(),
        "module": lambda: model(x),
    }


def micros(call):
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS * 1e6


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    calls = programs()
    for call in calls.values():
        for _ in range(3):
            call()
    before = {name: [micros(call) for _ in range(rounds)] for name, call in calls.items()}
    print(f"torch {torch.__version__}, {rounds} rounds of {CALLS} calls, us per call, median")
    print(f"{'program':22}{'before':>9}{'off':>9}{'on':>9}{'on/off':>8}{'noise':>8}")
    for name, call in calls.items():
        off, on = [], []
        for _ in range(rounds):
            off.append(micros(call))
            with strict_no_compile():
                on.append(micros(call))
        a, b = statistics.median(off), statistics.median(on)
        quartiles = statistics.quantiles(off, n=4)
        noise = (quartiles[2] - quartiles[0]) / a
        first = statistics.median(before[name])
        print(f"{name:22}{first:9.1f}{a:9.1f}{b:9.1f}{b / a:8.3f}{noise:8.1%}")

    events = []
    counting = [False]
    sys.addaudithook(lambda event, args: counting[0] and events.append(event))
    with strict_no_compile():
        counting[0] = True
        for call in calls.values():
            call()
        counting[0] = False
    print(f"audit events in a warm call of each: {len(events)}")

    def enter():
        with strict_no_compile():
            pass

    print(f"enter and leave a gate: {micros(enter):.1f} us")


if __name__ == "__main__":
    main()
