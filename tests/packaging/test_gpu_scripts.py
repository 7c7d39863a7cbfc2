"""The scripts for machines with GPUs, on one without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("programs/run_gpu.py", ["--serve-on", "1", "--jobs", "2"]),
        ("distributed/run_gpu_ranks.py", ["--device", "cuda"]),
    ],
)
def test_names_may_follow_options_and_a_missing_gpu_is_told(script, options, tmp_path):
    done = subprocess.run(
        [sys.executable, TESTS / script, tmp_path / "out.json", *options, "mlp", "enc"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "usage:" not in done.stderr and " here" in done.stderr
