"""Processes with caches of their own, for the benchmarks."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

VARIABLES = ("LANG", "LD_LIBRARY_PATH", "PYTHONPATH")


def run(script: Path, *args: object, cache: Path, compiler: bool = True, **variables: str) -> Any:
    """Run *script* in a fresh process; return the JSON object on its last line of output.

    The caches of torch and Triton are in *cache*. Those of NVIDIA's libraries are beside it, for
    all variants together: cuDNN compiles engines for attention at their first use and keeps them
    by where the process runs, too, so that a new folder costs all variants, eager as well, a
    second.
    """
    cache.mkdir(parents=True, exist_ok=True)
    shared = cache.parent / "shared"
    shared.mkdir(exist_ok=True)
    env = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    env |= {
        "HOME": str(shared),
        "CUDA_CACHE_PATH": str(shared / "driver"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "PATH": os.environ["PATH"] if compiler else str(cache),
        **variables,
    }
    done = subprocess.run(
        [sys.executable, str(script), *map(str, args)],
        cwd=shared,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{script.name} {' '.join(map(str, args))} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def machine() -> dict[str, Any]:
    """What the numbers belong to."""
    import torch

    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    gpu = {"gpu": torch.cuda.get_device_name(0)} if torch.cuda.is_available() else {}
    return {
        **gpu,
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": f"{platform.system()} {platform.release()}",
    }


def summary(times: list[float]) -> dict[str, Any]:
    return {
        "median": round(statistics.median(times), 6),
        "best": round(min(times), 6),
        "worst": round(max(times), 6),
        "count": len(times),
    }
