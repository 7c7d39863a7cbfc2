"""What thawn guard trees cost beside torch's own: prints one JSON object.

    python benchmarks/guards.py [--rounds 21] [--repeats 9] [--output FILE]

``check``: CPU time of one check of torch's own tree and of the tree thawn from its tape, in one
process, in turns. ``ratio`` is the median over the rounds of thawn to torch's in one round,
``noise`` half the quartile distance of torch's to the next torch's. Faster is a fault as well as
slower: a tree that checks less is unsound.

``thaw``: for a BERT of 12 layers, CPU time from the bytes of the tape to the tree, and of torch's
own way from the bytes of its serialised guards (``caching_precompile``) to the tree, in turns; the
first thaw of a fresh process; and the bytes of the tape, as stored in an artifact.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib
import json
import logging
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from processes import machine, run, summary
from tiny_models import GPT2, SMALL, hidden_states, tokens

from precomp import _core, data, torch_api
from precomp.freeze.guards import GuardRecorder
from precomp.serve import guards, standin

COMPRESSION = 9  # as Capture.finalize


Made = tuple[Callable[..., Any], dict[str, Any]]


class MLP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 10)
        )
        self.scale = 1.5

    def forward(self, x):
        return self.net(x) * self.scale


def encoder() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 4)


def bert(layers: int) -> Made:
    import transformers

    values = {**SMALL, "num_hidden_layers": layers}
    model = transformers.BertModel(transformers.BertConfig(**values)).eval()
    return hidden_states, {"model": model, "input_ids": tokens(12)}


def gpt2(layers: int) -> Made:
    import transformers

    values = {**GPT2, "n_layer": layers, "use_cache": False}
    model = transformers.GPT2Model(transformers.GPT2Config(**values)).eval()
    return hidden_states, {"model": model, "input_ids": tokens(12)}


PROGRAMS: dict[str, Callable[[], Made]] = {
    "mlp": lambda: (MLP(), {"x": torch.ones(8, 32)}),
    "transformer encoder, 4 layers": lambda: (encoder(), {"src": torch.ones(4, 16, 64)}),
    "gpt2, 2 layers": lambda: gpt2(2),
    "bert, 2 layers": lambda: bert(2),
}


class Frame:
    """What was compiled: torch's tree, the tape of it, and the frame it is for."""

    def __init__(self, recorder: GuardRecorder, frame: Any, guard_manager: Any) -> None:
        self.code = frame.f_code
        self.f_locals = dict(frame.f_locals)
        self.f_globals = frame.f_globals
        self.guard_manager = guard_manager
        self.tape = data.dumps(recorder.record_for(guard_manager, {}))


@contextlib.contextmanager
def recording() -> Iterator[list[Frame]]:
    """The frames that Dynamo compiles meanwhile."""
    frames: list[Frame] = []
    recorder, api = GuardRecorder(), torch_api.capture()
    convert = api.CatchErrorsWrapper.__call__

    def call(wrapper: Any, frame: Any, *rest: Any) -> Any:
        result = convert(wrapper, frame, *rest)
        if result.guarded_code is not None:
            frames.append(Frame(recorder, frame, result.guarded_code.guard_manager))
        return result

    with contextlib.ExitStack() as undo:

        def patch(owner: Any, name: str, new: Any) -> None:
            had, old = name in vars(owner), vars(owner).get(name)
            undo.callback(lambda: setattr(owner, name, old) if had else delattr(owner, name))
            setattr(owner, name, new)

        recorder.install(patch)
        patch(api.CatchErrorsWrapper, "__call__", call)
        yield frames


def thaw(stored: bytes, f_globals: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The tree, what must live as long, and the tape, which a server keeps."""
    tape = _core.GuardTape(data.loads(stored))
    root, keep = guards.build(tape, f_globals, None, standin.enum_type(), standin.building())
    return root, keep, tape


def compiled(make: Callable[[], Made]) -> Frame:
    """The largest frame of the model. The first call may change the model, so there are two."""
    torch._dynamo.reset()
    function, batch = make()
    with recording() as frames, torch.no_grad():
        optimized = torch.compile(function, backend="eager")
        for _ in range(2):
            optimized(**batch)
        fit = [frame for frame in frames if frame.guard_manager.root.check(frame.f_locals)]
    return max(fit, key=lambda frame: len(frame.tape))


# ------------------------------------------------------------------ checks


def micros(check: Callable[[Any], bool], f_locals: dict[str, Any], calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        check(f_locals)
    return (time.thread_time() - start) / calls * 1e6


def measure_checks(frame: Frame, rounds: int) -> dict[str, Any]:
    root, keep, _ = thaw(frame.tape, frame.f_globals)
    own, thawn = frame.guard_manager.root.check, root.check
    with torch.no_grad():
        if not thawn(frame.f_locals):
            sys.exit(f"{frame.code.co_name}: the thawn guards reject their own frame")
        calls = max(50, int(20_000 / micros(own, frame.f_locals, 50)))
        before, between, after = [], [], []
        for _ in range(rounds):
            before.append(micros(own, frame.f_locals, calls))
            between.append(micros(thawn, frame.f_locals, calls))
            after.append(micros(own, frame.f_locals, calls))
    ratios = [2 * b / (a + c) for a, b, c in zip(before, between, after, strict=True)]
    still = statistics.quantiles(c / a for a, c in zip(before, after, strict=True))
    del keep
    return {
        "torch_us": round(statistics.median(before + after), 3),
        "thawn_us": round(statistics.median(between), 3),
        "ratio": round(statistics.median(ratios), 4),
        "noise": round((still[2] - still[0]) / 2, 4),
        "calls_per_round": calls,
        "ops": len(data.loads(frame.tape)["ops"]),
    }


# ------------------------------------------------------------------ thawing


def serialised(make: Callable[[], Made]) -> bytes:
    """The guards of the largest frame of the model as torch serialises them, and what it needs to
    load them."""
    from torch._dynamo import package

    logging.getLogger("torch._dynamo.guards").setLevel(logging.ERROR)  # of guards that it drops
    torch._dynamo.reset()
    function, batch = make()
    whole = package.CompilePackage(function)
    with torch._dynamo.config.patch(caching_precompile=True), torch.no_grad():
        optimized = torch._dynamo.optimize("eager", package=whole)(function)
        for _ in range(2):
            optimized(**batch)
    rows = [(c, g.guards_state) for c in whole.cache_entry().codes for g in c.guarded_codes]
    entry, state = max(rows, key=lambda row: len(row[1]))
    return pickle.dumps((entry.python_code, entry.python_module, entry.import_sources, state))


def upstream(stored: bytes) -> Callable[[], Any]:
    """Loads serialised guards as torch does."""
    from torch._dynamo import output_graph, package

    python_code, home, imports, state = pickle.loads(stored)
    code = package.SerializedCode.to_code_object(python_code)
    scope = vars(importlib.import_module(home))
    for alias, module in imports.items():
        scope[alias] = importlib.import_module(module)

    def load() -> Any:
        guards_state = package.load_guards_state(state)
        name = guards_state.output_graph.name_of_builtins_dict_key_in_fglobals
        if name is not None:
            scope[name] = output_graph.get_builtins_dict(scope)
        return package.load_guard_manager(guards_state, code, scope)

    return load


def millis(work: Callable[[], Any]) -> float:
    gc.collect()  # what others left must not be collected at the cost of this
    start = time.thread_time()
    made = work()
    taken = time.thread_time() - start
    del made
    return taken * 1e3


def stored_size(tape: bytes, folder: Path) -> int:
    path = str(folder / "tape")
    _core.write_artifact(path, {}, [("frame", "tape", tape)], COMPRESSION)
    return next(row[4] for row in _core.Artifact(path).entries)


def measure_thaw(repeats: int) -> dict[str, Any]:
    make = functools.partial(bert, 12)
    frame = compiled(make)
    state = serialised(make)
    load = upstream(state)
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(millis(lambda: thaw(frame.tape, frame.f_globals)))
        theirs.append(millis(load))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tape").write_bytes(frame.tape)
        arguments = ("--first", folder / "tape", frame.f_globals["__name__"])
        first = [run(Path(__file__), *arguments, cache=folder)["ms"] for _ in range(3)]
        size = stored_size(frame.tape, folder)
    record = data.loads(frame.tape)
    return {
        "ops": len(record["ops"]),
        "nodes": record["nodes"],
        "tape_bytes": len(frame.tape),
        "tape_stored_bytes": size,
        "upstream_bytes": len(state),
        "first_in_a_process_ms": summary(first),
        "thaw_ms": summary(ours),
        "upstream_ms": summary(theirs),
        "upstream_to_thaw": round(
            statistics.median(b / a for a, b in zip(ours, theirs, strict=True)), 2
        ),
    }


def first(path: Path, home: str) -> None:
    """The first thaw of a process that has imported the model, without torch's compiler."""
    import transformers.models.bert.modeling_bert  # noqa: F401

    f_globals, stored = vars(importlib.import_module(home)), path.read_bytes()
    torch_api.serve()
    print(json.dumps({"ms": millis(lambda: thaw(stored, f_globals))}))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path, help="write the JSON there instead")
    parser.add_argument("--first", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.first:
        first(Path(options.first[0]), options.first[1])
        return 0
    checks = {
        name: measure_checks(compiled(make), options.rounds) for name, make in PROGRAMS.items()
    }
    result = {
        "benchmark": "guards",
        "machine": machine(),
        "check": checks,
        "thaw": measure_thaw(options.repeats),
    }
    text = json.dumps(result, indent=1) + "\n"
    if options.output:
        options.output.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
