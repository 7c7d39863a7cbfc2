"""Guards beside torch's own on many programs: prints one JSON object.

    python benchmarks/shadow.py [--only TEXT ...] [--output FILE]

Runs under ``precomp.testing.shadow_guards`` (docs/testing.md), with the backend eager since only
guards matter: the programs of tests/programs; those of tests/guards, under each of their
changes of state; and models of transformers, tiny and with random weights, inference and training.
For each it gives what was compiled, compared and refused, and the disagreements; then the sums.
Exits with 1 when there is a disagreement or a program that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from processes import machine
from tiny_models import CASES

from precomp.testing import ShadowGuards, shadow_guards

BACKEND = "eager"
TESTS = Path(__file__).resolve().parent.parent / "tests"


def programs_of(folder: str) -> dict[str, Any]:
    """PROGRAMS of the module ``programs`` of a folder of tests."""
    for name in [name for name in sys.modules if name.startswith("programs")]:
        del sys.modules[name]
    sys.path.insert(0, str(TESTS / folder))
    try:
        found: dict[str, Any] = importlib.import_module("programs").PROGRAMS
        return found
    finally:
        del sys.path[0]


def user_programs() -> Iterator[tuple[str, Callable[[], Any]]]:
    for name, program in programs_of("programs").items():
        yield f"programs/{name}", lambda program=program: program.build()(contextlib.nullcontext)


def guard_programs() -> Iterator[tuple[str, Callable[[], Any]]]:
    for name, make in programs_of("guards").items():
        yield f"guards/{name}", lambda make=make: vary(make())


def vary(program: Any) -> None:
    """A program as it is, under each change of state, and as it is again."""
    compiled = torch.compile(program.function, backend=program.backend, dynamic=program.dynamic)

    def call(arguments: Any = program.arguments) -> None:
        # What is called in a changed state may fail in eager mode, too.
        with contextlib.suppress(Exception):
            compiled(*(arguments() if callable(arguments) else arguments))

    with program.around():
        call()
        for change in program.variations.values():
            made = change()
            if isinstance(made, tuple):
                call(made)
            else:
                with made:
                    call()
            call()


def models() -> Iterator[tuple[str, Callable[[], Any]]]:
    for name, case in CASES.items():
        for train in (False, True):
            kind = "train" if train else "infer"
            yield f"models/{name}:{kind}", lambda case=case, train=train: step(case, train)


def step(case: Any, train: bool) -> None:
    """Two batches of one shape, one of another, and a change of mode."""
    model = case.make().train(train)
    compiled = torch.compile(model)
    for length in (case.length, case.length, case.length + 4):
        batch = case.batch(length)
        if train:
            compiled(**batch).loss.backward()
        else:
            with torch.no_grad():
                compiled(**batch)
    with torch.no_grad():
        model.train(not train)
        compiled(**case.batch(case.length))


def run(work: Callable[[], Any]) -> tuple[ShadowGuards, str | None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    error = None
    with shadow_guards() as shadow:
        try:
            work()
        except Exception:  # noqa: BLE001 - goes into the report
            error = traceback.format_exc()
    return shadow, error


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[""], help="programs with these in their name")
    parser.add_argument("--output", type=Path, help="write the JSON there instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.compiler.set_default_backend(BACKEND)
    torch._dynamo.config.recompile_limit = 64
    found = {}
    for part in (user_programs, guard_programs, models):
        for name, work in part():
            if not any(text in name for text in options.only):
                continue
            shadow, error = run(work)
            found[name] = shadow.as_data() | ({} if error is None else {"error": error})
            print(f"{name}: {shadow.report()}{error or ''}", file=sys.stderr, flush=True)
            if options.output:  # after each: it takes long
                options.output.write_text(text_of(found))
    if not options.output:
        sys.stdout.write(text_of(found))
    return int(any("error" in row or row["disagreements"] for row in found.values()))


def text_of(found: dict[str, dict[str, Any]]) -> str:
    total = ShadowGuards()
    for row in found.values():
        total.add(row)
    result = {
        "benchmark": "shadow",
        "machine": machine(),
        "backend": BACKEND,
        "total": total.as_data(),
        "failed": [name for name, row in found.items() if "error" in row],
        "programs": found,
    }
    return json.dumps(result, indent=1) + "\n"


if __name__ == "__main__":
    sys.exit(main())
