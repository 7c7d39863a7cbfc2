"""Serves a captured program with a recording, on the CPU, around every graph of it.

``python recorded.py DIR NAME``. Prints one JSON line: the results as ``runner.py`` prints them, and
what was recorded and replayed.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from runner import COMPILER, plain

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from cpu_graphs import Gpu  # noqa: E402

import precomp  # noqa: E402
from precomp.serve import entries  # noqa: E402
from precomp.serve.cuda_graphs import Graphed, used  # noqa: E402

GRAPHS: list[Graphed] = []
LOAD = entries.modules.load


def load(record, kernels, numbers, _):
    graph = Graphed(LOAD(record, kernels, numbers), Gpu(), (), ())
    GRAPHS.append(graph)
    return graph


def main() -> None:
    directory, name = sys.argv[1:]
    entries.modules.load = load
    precomp.prepare(f"{directory}/{name}.precomp")
    from programs import PROGRAMS

    with precomp.strict_no_compile():
        results = plain(torch, PROGRAMS[name].build()(nullcontext))
    compiler = [m for m in COMPILER if m in sys.modules]
    print(json.dumps({"results": results, "counts": used(GRAPHS), "compiler": compiler}))


if __name__ == "__main__":
    main()
