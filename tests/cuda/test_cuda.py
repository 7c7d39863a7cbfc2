"""Cubins, the driver and launches, on a machine without a GPU."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from precomp import ArtifactCorruptError, _core

HERE = Path(__file__).parent
SCRIPT = HERE / "scenes.py"
HELPERS = {"record", "launcher", "unpack", "raised", "described", "encoded", "bind_tensors"}
BARE = {
    "missing_driver_is_explained",
    "old_driver_is_explained",
    "driver_without_tensor_maps_is_explained",
}
SCENES = [
    node.name
    for node in ast.parse(SCRIPT.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name not in HELPERS | BARE
]
ARCHS = (80, 86, 89, 90, 100, 120)


@pytest.fixture(scope="session")
def cubins(tmp_path_factory):
    """The folder of the cubins that kernels.py makes."""
    triton = pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("cubins")
    subprocess.run([sys.executable, str(HERE / "kernels.py"), str(folder)], check=True)
    assert triton
    return folder


def run(scene, library, cubin):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), scene, str(library), str(cubin)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("scene", SCENES)
def test_scene(driver, cubins, scene):
    run(scene, driver, cubins / "90.cubin")


def test_missing_driver_is_explained_each_time(driver, cubins):
    run("missing_driver_is_explained", driver.with_name("absent.so"), cubins / "90.cubin")


def test_old_driver_is_explained(driver, cubins):
    run("old_driver_is_explained", driver.with_name("old.so"), cubins / "90.cubin")


def test_driver_without_tensor_maps_is_explained(driver, cubins):
    scene = "driver_without_tensor_maps_is_explained"
    run(scene, driver.with_name("no_maps.so"), cubins / "90.cubin")


@pytest.mark.parametrize("arch", ARCHS)
def test_cubin_of_each_architecture_is_read(cubins, arch):
    library = _core.CudaLibrary((cubins / f"{arch}.cubin").read_bytes(), "test")
    assert (library.arch, library.symbols, library.loaded) == (arch, ("scaled",), False)


def tool(name, *arguments):
    """What a program that comes with Triton prints."""
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("arch", ARCHS)
def test_the_version_that_built_a_cubin_is_read(cubins, arch):
    said = tool("ptxas-blackwell" if arch >= 100 else "ptxas", "--version")
    major, minor = re.search(r"release (\d+)\.(\d+)", said).groups()
    image = (cubins / f"{arch}.cubin").read_bytes()
    for data in (image, _core.strip_cubin(image)):
        assert _core.CudaLibrary(data, "test").toolkit == 10 * int(major) + int(minor)


def disassembly(cubin):
    text = tool("nvdisasm", "-c", cubin)
    return [line for line in text.splitlines() if re.match(r"\s*/\*[0-9a-f]+\*/", line)]


@pytest.mark.parametrize("arch", ARCHS)
def test_stripping_keeps_the_code_and_drops_the_ptx(cubins, tmp_path, arch):
    image = (cubins / f"{arch}.cubin").read_bytes()
    stripped = _core.strip_cubin(image)
    assert b".version" in image and b".version" not in stripped
    assert len(stripped) < len(image)
    assert _core.strip_cubin(stripped) == stripped
    library = _core.CudaLibrary(stripped, "test")
    assert (library.arch, library.symbols) == (arch, ("scaled",))
    file = tmp_path / "stripped.cubin"
    file.write_bytes(stripped)
    code = disassembly(cubins / f"{arch}.cubin")
    assert len(code) > 20 and disassembly(file) == code


@pytest.mark.parametrize("arch", ARCHS)
def test_stripped_code_holds_no_path(cubins, arch):
    image = (cubins / f"{arch}.cubin").read_bytes()
    assert b"kernels.py" in image
    stripped = _core.strip_cubin(image)
    assert str(HERE).encode() not in stripped and b"kernels.py" not in stripped


def test_stripping_refuses_what_is_not_a_cubin(cubins):
    image = (cubins / "90.cubin").read_bytes()
    for data in (b"", b"\x7fELF", image[:-1], Path(sys.executable).read_bytes()[:4096]):
        with pytest.raises(ArtifactCorruptError, match="cubin"):
            _core.strip_cubin(data)


def test_tensor_on_the_cpu_is_refused(driver, cubins):
    """With torch itself: its DLPack functions tell where a tensor is."""
    code = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import torch, scenes
from precomp import _core, torch_api
torch_api.serve()
driver = scenes.Driver({str(driver)!r})
image = open({str(cubins / "90.cubin")!r}, "rb").read()
launch = scenes.launcher(driver, image, "P")
for tensor in (torch.ones(3), torch.nn.Parameter(torch.ones(3))):
    text = scenes.raised(ValueError, launch, tensor, stream=0)
    assert "expected a tensor on a GPU, found one on cpu" in text, text
launch(torch.empty(0), stream=0)
for tensor in (torch.empty(3, device="meta"), torch.eye(3).to_sparse()):
    scenes.raised(Exception, launch, tensor, stream=0)
assert driver.launches == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ.copy())
