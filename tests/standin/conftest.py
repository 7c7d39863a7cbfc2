from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

COLLECT = """
import sys
from precomp import data
from precomp.freeze import helpers
module = "torch._dynamo.polyfills"
names = [
    (module, "mutable_mapping_update"), (module, "Mapping"),
    ("torch._dynamo.variables.functions", "_create_nested_fn"),
]
open(sys.argv[1], "wb").write(data.dumps(helpers.collect(names)))
"""


class Torch:
    """Runs Python with torch in fresh processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "OMP_NUM_THREADS": "1", "HELPERS": str(folder / "helpers")}

    def python(self, *args: str, **env: str) -> str:
        """Standard output of a Python process; its failure is the test's."""
        done = subprocess.run(
            [sys.executable, *args],
            env={**self.env, **env},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def collect(self, out: str, **env: str) -> bytes:
        self.python("-c", COLLECT, str(self.folder / out), **env)
        return (self.folder / out).read_bytes()

    def drive(self, mode: str) -> dict[str, Any]:
        out = self.folder / f"{mode}.json"
        self.python(str(HERE / "driver.py"), mode, str(out))
        return dict(json.loads(out.read_text()))


@pytest.fixture(scope="session")
def torch_process(tmp_path_factory: pytest.TempPathFactory) -> Torch:
    """A runner whose helper records are collected."""
    runner = Torch(tmp_path_factory.mktemp("standin"))
    runner.collect("helpers")
    return runner


@pytest.fixture(scope="session")
def plain(torch_process: Torch) -> dict[str, Any]:
    """What the cases do with the real compiler loaded."""
    return torch_process.drive("plain")


@pytest.fixture(scope="session")
def stand_in(torch_process: Torch) -> dict[str, Any]:
    """What the cases do with the stand-in installed."""
    return torch_process.drive("standin")


@pytest.fixture(scope="session")
def scenarios(torch_process: Torch) -> dict[str, Any]:
    """Outcome of each scenario."""
    return torch_process.drive("scenario")
