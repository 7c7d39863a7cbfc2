"""The stand-in for libcuda, built once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fakecuda.c")


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """fakecuda.so; beside it lie old.so and no_maps.so, which lack functions, and libtorch_cpu.so,
    a stand-in as well."""
    folder = tmp_path_factory.mktemp("driver")
    command = ["gcc", "-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-Werror"]
    lacking = {"fakecuda.so": (), "old.so": ("-DOLD",), "no_maps.so": ("-DNO_TENSOR_MAPS",)}
    for name, options in lacking.items():
        subprocess.run([*command, *options, SOURCE, "-o", folder / name], check=True)
    torch = "libtorch_cpu.so"
    command += [f"-Wl,-soname,{torch}", SOURCE.with_name("faketorch.c"), "-o", folder / torch]
    subprocess.run(command, check=True)
    return folder / "fakecuda.so"


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory):
    """The same under the name by which Triton's own driver module finds it."""
    path = tmp_path_factory.mktemp("libcuda") / "libcuda.so.1"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*command, SOURCE, "-o", path], check=True)
    return path
