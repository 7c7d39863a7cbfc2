"""What importing parts of the package loads."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import precomp

SCRIPT = """\
import importlib, json, sys
before = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded_by(tmp_path: Path, *names: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(precomp.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_precomp_loads_nothing_but_itself(tmp_path):
    assert loaded_by(tmp_path, "importlib", "precomp") <= {"precomp", "__future__", "typing"} | (
        loaded_by(tmp_path, "typing", "warnings")
    )


def test_the_pytest_plugin_and_the_errors_load_neither_torch_nor_c(tmp_path):
    loaded = loaded_by(tmp_path, "pytest", "precomp.pytest_plugin", "precomp.errors")
    assert {"torch", "numpy", "precomp._core"} & loaded == set()


def test_all_of_serve_is_imported_without_the_compiler(tmp_path):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch")
    room = Path(precomp.__file__).parent / "serve"
    names = [f"precomp.serve.{path.stem}" for path in room.glob("*.py")]
    assert len(names) > 5
    loaded = loaded_by(tmp_path, *names)
    compiler = ("torch._dynamo", "torch._inductor", "sympy", "triton")
    found = {name for name in loaded for top in compiler if (name + ".").startswith(top + ".")}
    assert found == set()
    assert "torch._functorch.aot_autograd" not in loaded
    assert {name for name in loaded if name.startswith("precomp.freeze")} == set()


def test_the_version_of_the_extension_is_that_of_the_package():
    from precomp import _core

    assert _core.__version__ == precomp.__version__
