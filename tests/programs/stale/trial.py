"""Captures all RUNS of goods.py, or serves them from edited copies of it.

    trial.py capture DIR               writes DIR/goods.precomp, and DIR/PATCH.precomp while patched
    trial.py serve DIR EDITS           a JSON file {name: text of goods.py}

Serving prints ``{name of the edit or patch: {run: reason of the refusal}}``; runs that are served
are left out. "captured PATCH" serves without the patch what was captured with it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import linecache
import sys
import types
from pathlib import Path

import torch

import precomp

torch.set_num_threads(1)
FUNCTIONAL, MODULE, LINEAR = torch.nn.functional, torch.nn.Module, torch.nn.Linear
COPIES = Path("copies")

# name: (owner, attribute, what to put there), given the module goods
PATCHES = {
    "static method": lambda goods: (goods.Model, "static", staticmethod(goods.wrapped)),
    "method": lambda goods: (goods.Base, "replaced", lambda self, t: goods.wrapped(t)),
    "forward of torch": lambda goods: (
        torch.nn.Linear,
        "forward",
        lambda self, t: goods.wrapped(t),
    ),
    "call of modules": lambda goods: (MODULE, "_call_impl", lambda self, t: goods.wrapped(t)),
    "function of torch": lambda goods: (FUNCTIONAL, "linear", lambda t, *rest: goods.wrapped(t)),
}


@contextlib.contextmanager
def patched(goods: types.ModuleType, name: str):
    owner, attribute, value = PATCHES[name](goods)
    before = vars(owner)[attribute]
    setattr(owner, attribute, value)
    try:
        yield
    finally:
        setattr(owner, attribute, before)


def load(text: str) -> types.ModuleType:
    """The module goods anew, with that source."""
    from torch._library import custom_ops

    COPIES.mkdir(exist_ok=True)
    (COPIES / "goods.py").write_text(text)
    sys.modules.pop("goods", None)
    custom_ops.OPDEFS.pop("goods::op", None)
    importlib.invalidate_caches()
    linecache.clearcache()
    return importlib.import_module("goods")


def refused(artifact: Path, goods: types.ModuleType, runs=None) -> dict[str, str]:
    reasons = {}
    with precomp.prepare(artifact):
        for name in runs or goods.RUNS:
            try:
                with precomp.strict_no_compile():
                    goods.RUNS[name]()
            except precomp.CompileViolation as violation:
                reasons[name] = f"{violation.what}: {violation.why}"
    return reasons


PATCHED_RUNS = ("model", "library")


def main() -> None:
    side, directory = sys.argv[1], Path(sys.argv[2])
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(COPIES.absolute()))
    goods = load(Path(__file__).with_name("goods.py").read_text())
    if side == "capture":
        with precomp.capture(directory / "goods.precomp") as capture:
            for run in goods.RUNS.values():
                run()
        for name in PATCHES:
            with precomp.capture(directory / f"{name}.precomp", reset=True), patched(goods, name):
                for run in PATCHED_RUNS:
                    goods.RUNS[run]()
        print(json.dumps(capture.report().frames))
        return
    results = {}
    for name in PATCHES:
        results[f"captured {name}"] = refused(directory / f"{name}.precomp", goods, PATCHED_RUNS)
        with patched(goods, name):
            results[name] = refused(directory / "goods.precomp", goods)
    for name, text in json.loads(Path(sys.argv[3]).read_text()).items():
        results[name] = refused(directory / "goods.precomp", load(text))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
