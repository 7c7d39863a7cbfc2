"""One process, one side: runs programs compiled, eager, captured or served; prints one JSON line.

    runner.py eager|compiled NAME...
    runner.py capture DIR NAME...            writes DIR/NAME.precomp
    runner.py serve DIR NAME [--threads] [--noise]

Results are trees in which each tensor is its dtype, shape, strides and sha256: what two processes
have to agree on, bit for bit.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import importlib
import json
import logging
import os
import sys
import threading
import traceback
from contextlib import contextmanager, nullcontext

STARTS = {
    "subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system"
}  # fmt: skip
CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
SPAWNS: list[str] = []
WRITES: list[str] = []
COMPILER = ("torch._dynamo.convert_frame", "torch._inductor.compile_fx", "sympy", "triton")


def audit(event, args):
    if event in STARTS:
        SPAWNS.append(f"{event} {args[0]!r}")
    elif event == "os.mkdir" or (event == "open" and (args[2] or 0) & CHANGES):
        WRITES.append(str(args[0]))


class Turns:
    """Lets threads take turns, step by step, each with its own stream of random numbers."""

    def __init__(self, torch, count):
        self.torch = torch
        self.alive = list(range(count))
        self.turn = 0
        self.condition = threading.Condition()
        self.random = {}

    @contextmanager
    def step(self, me):
        with self.condition:
            self.condition.wait_for(lambda: self.alive[self.turn % len(self.alive)] == me)
        self.torch.set_rng_state(self.random[me])
        try:
            yield
        finally:
            self.random[me] = self.torch.get_rng_state()
            with self.condition:
                self.turn = (self.turn + 1) % len(self.alive)
                self.condition.notify_all()

    def leave(self, me):
        with self.condition:
            at = self.alive.index(me)
            self.alive.remove(me)
            if at < self.turn:
                self.turn -= 1
            if self.alive:
                self.turn %= len(self.alive)
            self.condition.notify_all()


class Stdout:
    """A standard output that is a Python object."""

    def __init__(self, real, noise):
        self.real, self.noise = real, noise

    def write(self, text):
        self.noise.count("stdout")
        return self.real.write(text)

    def flush(self):
        self.real.flush()


class Handler(logging.Handler):
    def __init__(self, noise):
        super().__init__()
        self.noise = noise
        self.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))

    def emit(self, record):
        self.format(record)
        self.noise.count("logging")


class Noise:
    """Python that runs inside compiled regions: collections, finalizers, logging, output."""

    def __init__(self):
        self.inside = False
        self.seen = {"gc": 0, "del": 0, "logging": 0, "stdout": 0}

    def count(self, kind):
        if self.inside:
            self.seen[kind] += 1

    def callback(self, phase, info):
        self.count("gc")

    def start(self):
        self.logger = logging.getLogger("noise")
        self.logger.setLevel(logging.DEBUG)
        self.logger.addHandler(Handler(self))
        self.logger.propagate = False
        sys.stdout = Stdout(sys.stdout, self)
        gc.callbacks.append(self.callback)
        gc.set_threshold(1, 2, 2)

    def stop(self):
        gc.set_threshold(700, 10, 10)
        gc.callbacks.remove(self.callback)
        sys.stdout = sys.stdout.real

    @contextmanager
    def step(self):
        for _ in range(5):
            one, other = Litter(self), Litter(self)
            one.other, other.other = other, one
        del one, other
        self.inside = True
        try:
            yield
        finally:
            self.inside = False


class Litter:
    """Garbage in a cycle whose finalizer logs and prints."""

    def __init__(self, noise):
        self.noise = noise

    def __del__(self):
        self.noise.count("del")
        self.noise.logger.info("collected %s", type(self).__name__)
        print(end="")


def plain(torch, value):
    """*value* as JSON: tensors become what two processes have to agree on."""
    if isinstance(value, torch.Tensor):
        t = value.detach()
        raw = t.contiguous().cpu()
        data = ctypes.string_at(raw.data_ptr(), raw.numel() * raw.element_size())
        digest = hashlib.sha256(data).hexdigest()
        first = "" if not t.numel() else repr(t.flatten()[0].item())
        return f"{t.dtype} {tuple(t.shape)} {t.stride()} {digest[:32]} first {first}"
    if isinstance(value, dict):
        return {str(k): plain(torch, v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(torch, v) for v in value]
    if isinstance(value, float):
        return value.hex()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return f"{type(value).__name__} {value}"


def run_once(torch, program, noise=None):
    run = program.build()
    return plain(torch, run(noise.step if noise else nullcontext))


def run_threads(torch, program, count=2, noise=None):
    turns = Turns(torch, count)
    runs = []
    for i in range(count):
        runs.append(program.build())
        turns.random[i] = torch.get_rng_state()
    barrier = threading.Barrier(count)
    results = [None] * count
    errors = []

    def work(me):
        try:
            barrier.wait()
            step = (lambda: turns.step(me)) if program.turns else nullcontext
            results[me] = runs[me](step)
        except BaseException:  # noqa: BLE001 (reported by the main thread)
            errors.append(traceback.format_exc())
        finally:
            turns.leave(me)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise RuntimeError("a thread failed:\n" + "\n".join(errors))
    return [plain(torch, r) for r in results]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=("eager", "compiled", "capture", "serve"))
    parser.add_argument("names", nargs="+", help="for capture and serve the first is the directory")
    parser.add_argument("--programs", default="programs", help="the module that holds PROGRAMS")
    parser.add_argument("--threads", action="store_true")
    parser.add_argument("--noise", action="store_true")
    options = parser.parse_args()
    sys.addaudithook(audit)

    import torch

    # Importing torch itself may start ldconfig (2.14 built for CUDA).
    SPAWNS.clear()
    WRITES.clear()
    torch.set_num_threads(1)
    names = list(options.names)
    directory = names.pop(0) if options.side in ("capture", "serve") else ""
    facts: dict = {"results": {}, "errors": {}, "reports": {}}
    prepared = None
    gate = nullcontext()
    if options.side == "serve":
        import precomp

        prepared = precomp.prepare(os.path.join(directory, f"{names[0]}.precomp"))
        gate = precomp.strict_no_compile()
    elif options.side == "capture":
        import precomp

    programs = importlib.import_module(options.programs).PROGRAMS
    noise = Noise() if options.noise else None
    with gate as entered:
        if noise:
            noise.start()
        for name in names:
            program = programs[name]
            try:
                if options.side == "capture":
                    with precomp.capture(reset=True) as capture:
                        facts["results"][name] = run_once(torch, program)
                    capture.finalize(os.path.join(directory, f"{name}.precomp"))
                    facts["reports"][name] = str(capture.report())
                else:
                    if options.side == "compiled":
                        torch._dynamo.reset()
                    facts["results"][name] = (
                        run_threads(torch, program) if options.threads
                        else run_once(torch, program, noise)
                    )  # fmt: skip
            except Exception:  # noqa: BLE001 (a test reports it)
                facts["errors"][name] = traceback.format_exc()
        if noise:
            noise.stop()
            facts["noise"] = noise.seen
    if prepared is not None:
        facts["violations"] = [str(v) for v in entered.violations] if entered else []
        facts["coverage"] = str(prepared.coverage())
        facts["reports"][names[0]] = str(prepared.report())
    facts["compiler"] = [m for m in COMPILER if m in sys.modules]
    facts["spawns"] = SPAWNS
    facts["writes"] = WRITES
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
