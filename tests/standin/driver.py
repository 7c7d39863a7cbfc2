"""Runs cases, each in a forked child of one process, and writes what they did as JSON.

    driver.py plain|standin|scenario OUT [CASE...]

``HELPERS`` in the environment names the file of helper records.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import traceback
from typing import Any

import torch

sys.path.insert(0, os.path.dirname(__file__))
import cases
import scenarios

HEAVY = ("torch._dynamo.convert_frame", "torch._inductor.compile_fx", "triton", "sympy")


def plain_data(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.detach().tolist()]
    if isinstance(value, dict):
        return [[str(k), plain_data(v)] for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return [plain_data(v) for v in value]
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    return repr(value)


def run(name: str, mode: str) -> dict[str, Any]:
    from precomp.serve import standin

    if mode != "plain" and not name.startswith("bare_"):
        standin.install(scenarios.helpers())
    try:
        result = plain_data(getattr(scenarios if mode == "scenario" else cases, name)())
        error = ""
    except Exception:  # noqa: BLE001 - reported
        result, error = None, traceback.format_exc()
    return {
        "result": result,
        "error": error,
        "real": standin.is_real(),
        "why": standin.materialized_by(),
        "heavy": [module for module in HEAVY if module in sys.modules],
    }


def main() -> None:
    mode, out, *chosen = sys.argv[1:]
    if mode == "plain":
        importlib.import_module("torch._dynamo")
    results = {}
    for name in chosen or (scenarios.SCENARIOS if mode == "scenario" else cases.names()):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            faulthandler.dump_traceback_later(60, exit=True)
            with os.fdopen(write, "w") as file:
                json.dump(run(name, mode), file)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            text = file.read()
        _, status = os.waitpid(child, 0)
        results[name] = json.loads(text) if text else {"error": f"child died: {status}"}
    with open(out, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
