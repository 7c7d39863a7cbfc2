"""The stand-in for libcuda, built once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fakecuda.c")


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """fakecuda.so; beside it lies old.so, which lacks functions."""
    folder = tmp_path_factory.mktemp("driver")
    command = ["gcc", "-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-Werror"]
    for name, options in (("fakecuda.so", ()), ("old.so", ("-DOLD",))):
        subprocess.run([*command, *options, SOURCE, "-o", folder / name], check=True)
    return folder / "fakecuda.so"
