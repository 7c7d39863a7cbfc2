"""The programs of ``triggers.py`` that need a GPU, each in a process of its own, without pytest.

``python run_gpu.py OUT.json [NAME...]`` runs the named programs, by default all that need a GPU,
in each of their modes, several at a time, and writes what the gate said and whether that is right.
Exit status: 0 all right, 1 something wrong, 2 no GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("triggers.py")
sys.path.insert(0, str(SCRIPT.parent))

import triggers  # noqa: E402 - beside this file

PROBE = """
import json, sys
import precomp, torch
try:
    import triton
except ImportError:
    triton = None
found = {
    "precomp": precomp.__version__,
    "torch": torch.__version__,
    "triton": getattr(triton, "__version__", None),
    "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
}
print(json.dumps(found))
"""
ONE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import triggers
request = json.loads(sys.argv[2])
if request["name"] not in triggers.TRIGGERS or triggers.TRIGGERS[request["name"]].torch:
    triggers.load()
print("ANSWER " + json.dumps(triggers.child(request)))
"""


def environment() -> dict[str, str]:
    return os.environ | triggers.ENVIRONMENT | {"PYTHONUNBUFFERED": "1"}


def ask(name: str, mode: str, folder: Path, limit: float) -> dict[str, Any]:
    """The answer of the program *name*, or its error; at most *limit* seconds."""
    if limit < 5:
        return {"error": "not run: no time left"}
    request = {"name": name, "mode": mode, "tmp": str(folder / f"{name}-{mode}")}
    with open(folder / f"{name}-{mode}.log", "w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", ONE, str(SCRIPT.parent), json.dumps(request)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment(),
            cwd=folder,
            start_new_session=True,
        )
        try:
            text = process.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text = process.communicate()[0]
            return {"error": f"not done after {limit:.0f} s"}
        for line in text.splitlines():
            if line.startswith("ANSWER "):
                answer: dict[str, Any] = json.loads(line[7:])
                return answer
        log.seek(0)
        return {"error": f"status {process.returncode}", "traceback": log.read()[-2000:]}


def report(name: str, mode: str, folder: Path, deadline: float, limit: float) -> dict[str, Any]:
    start = time.monotonic()
    answer = ask(name, mode, folder, min(limit, deadline - start))
    violation = answer.get("violation") or {}
    problems = triggers.faults(name, mode, answer)
    row = {
        "name": name,
        "mode": mode,
        "ok": not problems,
        "raised": bool(violation),
        **{field: violation.get(field) for field in ("kind", "what", "why", "where")},
        "problems": problems,
        "seconds": round(time.monotonic() - start, 1),
    }
    if mode == "bare":
        row["evidence"] = answer.get("evidence")
    if answer.get("traceback"):
        row["traceback"] = answer["traceback"][-3000:]
    said = f"raised [{row['kind']}] {row['what']}" if violation else "quiet"
    print(f"{'ok  ' if row['ok'] else 'FAIL'} {name} {mode} {row['seconds']} s: {said}", flush=True)
    for problem in problems:
        print(f"     {problem}", flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="default: all that need a GPU")
    parser.add_argument("--jobs", type=int, default=6, help="programs at a time")
    parser.add_argument("--limit", type=float, default=150, help="seconds for one program")
    parser.add_argument("--total", type=float, default=360, help="seconds for all of them")
    options = parser.parse_intermixed_args()
    deadline = time.monotonic() + options.total
    unknown = set(options.names) - set(triggers.TRIGGERS)
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    probe = subprocess.run(
        [sys.executable, "-c", PROBE],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=tempfile.gettempdir(),
    )
    result: dict[str, Any] = json.loads(probe.stdout) | {"python": platform.python_version()}
    names = options.names or [n for n, item in triggers.TRIGGERS.items() if item.gpu]
    missing_gpu = result["gpu"] is None and any(triggers.TRIGGERS[n].gpu for n in names)
    rows: list[dict[str, Any]] = []
    if missing_gpu:
        result["error"] = "no GPU: nothing was run"
    else:
        with tempfile.TemporaryDirectory(prefix="precomp-gate-") as scratch:
            folder = Path(scratch)
            absent = ask("all", "lacking", folder, options.limit)
            result["doors_absent"] = sorted(absent)
            with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
                jobs = [
                    pool.submit(report, name, mode, folder, deadline, options.limit)
                    for name in names
                    for mode in triggers.TRIGGERS[name].modes
                ]
                rows = [job.result() for job in jobs]
    result["ok"] = bool(rows) and all(row["ok"] for row in rows)
    result["programs"] = rows
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    wrong = sum(not row["ok"] for row in rows)
    print(result.get("error") or f"{len(rows)} runs, {wrong} wrong: {options.out}")
    return 2 if missing_gpu else 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
