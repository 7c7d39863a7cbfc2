"""Captures and serves the programs of ``gpu_programs`` and compares the bits.

The reference is the captured run. A second served and another compiled run tell whether torch
gives the same bits twice; the other compiled run may also have tuned other configurations.

``python run_gpu.py [--serve-on ORDINAL] OUT.json [NAME...]``. Captured on ``cuda:0``; with
``--serve-on`` served on another GPU, once as the current one and once not. Exit status 0: all the
same bits, 1: something is wrong, 2: no such GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

from processes import differences  # noqa: E402

KEPT = ("LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


# What a program's own imports load.
ALLOWED = {"user_kernel": {"triton"}, "descriptors": {"triton"}, "gpt2": {"sympy", "triton"}}


def run(
    side: str, place: Path, *arguments: str, compiler: bool = True, **variables: str
) -> dict[str, Any]:
    place.mkdir(parents=True)
    env = {name: os.environ[name] for name in KEPT if name in os.environ} | {
        "HOME": str(place),
        "TMPDIR": str(place),
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
        "TRITON_CACHE_DIR": str(place / "triton"),
        "PATH": os.environ["PATH"] if compiler else "/nonexistent",
        "OMP_NUM_THREADS": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        **variables,
    }
    command = [sys.executable, str(HERE / "runner.py"), side, "--programs", "gpu_programs"]
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=place, env=env, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return {"failed": str(error)}
    if done.returncode:
        return {"failed": (done.stdout + done.stderr)[-3000:]}
    return json.loads(done.stdout.splitlines()[-1])


def one(name: str, root: Path, ordinal: int) -> dict[str, Any]:
    """What happened to one program: a report with ``ok`` and what is wrong."""
    there = {"PROGRAMS_DEVICE": f"cuda:{ordinal}"} if ordinal else {}
    current = there | {"PROGRAMS_SET_DEVICE": "1"} if there else {}
    place = root / name
    captured = run("capture", place / "capture", str(place), name)
    report: dict[str, Any] = {"name": name, "ok": False}
    wrong = captured.get("failed") or captured["errors"].get(name)
    if wrong:
        return report | {"side": "capture", "wrong": wrong}
    report["artifact_bytes"] = (place / f"{name}.precomp").stat().st_size
    report["captured"] = captured["reports"][name]
    served = run("serve", place / "serve", str(place), name, compiler=False, **there)
    wrong = served.get("failed") or served["errors"].get(name)
    if wrong:
        return report | {"side": "serve", "wrong": wrong}
    again = run("serve", place / "again", str(place), name, compiler=False, **current)
    report["served_differs_from_itself"] = again.get("results") != served["results"]
    report["again_violations"] = again.get("failed") or again["violations"]
    compiled = run("compiled", place / "compiled", name)
    if wrong := compiled.get("failed"):
        return report | {"side": "compiled", "wrong": wrong}
    expected = captured["results"][name]
    report["differences"] = differences(expected, served["results"][name])[:5]
    report["compiled_again_differs"] = differences(expected, compiled["results"][name]) != []
    report["violations"] = served["violations"]
    report["compiler"] = served["compiler"]
    report["spawns"] = served["spawns"]
    report["coverage"] = served["coverage"]
    found = re.search(r"CUDA graphs: .*", served["reports"][name])
    report["graphs"] = found[0] if found else None
    report["graphs_wrong"] = found is not None
    if name in GRAPHS:
        replayed = re.search(r"(\d+) replayed", found[0]) if found else None
        report["graphs_wrong"] = replayed is None or int(replayed[1]) < GRAPHS[name]
        without = run(
            "serve", place / "without", str(place), name,
            compiler=False, PRECOMP_CUDA_GRAPHS="0", **there,
        )  # fmt: skip
        report["without_graphs"] = (
            without.get("failed")
            or differences(without["results"].get(name), served["results"][name])[:5]
        )
        report["graphs_wrong"] = report["graphs_wrong"] or bool(report["without_graphs"])
        if report["compiled_again_differs"]:  # torch's graphs themselves: no reference
            report["differences_to_torch"] = report["differences"]
            report["differences"] = []
            report["torch_differs"] = differences(expected, compiled["results"][name])[:5]
    allowed = ALLOWED.get(name, set())
    report["ok"] = not (
        report["differences"] or served["violations"] or set(served["compiler"]) - allowed
        or served["spawns"] or report["again_violations"] or report["graphs_wrong"]
    )  # fmt: skip
    return report


GRAPHS: dict[str, int] = {}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--serve-on", type=int, default=0, metavar="ORDINAL")
    parser.add_argument("--jobs", type=int, default=6, help="programs at a time")
    options = parser.parse_intermixed_args()  # names may follow options
    sys.path.insert(0, str(HERE))
    import torch

    if torch.cuda.device_count() <= options.serve_on:
        print(f"no cuda:{options.serve_on} here", file=sys.stderr)
        return 2
    from gpu_programs import GRAPHS as graphs
    from gpu_programs import PROGRAMS

    GRAPHS.update(graphs)
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0),
        "served_on": options.serve_on,
    }
    reports: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="precomp-gpu-") as temporary:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            names = options.names or PROGRAMS
            jobs = [pool.submit(one, name, Path(temporary), options.serve_on) for name in names]
            for job in concurrent.futures.as_completed(jobs):
                reports.append(job.result())
                print(json.dumps(reports[-1])[:1500], flush=True)
                found["programs"] = sorted(reports, key=lambda row: row["name"])
                options.out.write_text(json.dumps(found, indent=1) + "\n")  # what there is so far
    wrong = [row["name"] for row in reports if not row["ok"]]
    print(f"{len(reports)} programs, {len(wrong)} wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
