"""Compilers that libtorch calls from C++: hooks in its table, on a stand-in and on the real one."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = HERE / "nvrtc_scenes.py"
HELPERS = {"only", "raised", "unknown_layout_is_told_once_and_left_alone"}
SCENES = [
    node.name
    for node in ast.parse(SCRIPT.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name not in HELPERS
]
LAYOUTS = {
    "MISSING": "no field for cuLinkAddData",
    "SWAPPED": "no field for nvrtcCreateProgram",
    "TWICE": "two fields for nvrtcCreateProgram",
    "APART": "apart",
}


def compile_standin(folder, output, *options):
    command = ["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-Werror"]
    command += [str(HERE / "standin_cuda.c"), "-o", str(output), f"-Wl,-soname,{output.name}"]
    subprocess.run([*command, *options, "-ldl", "-pthread"], check=True, cwd=folder)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Makes a stand-in with the given layout; returns its path."""
    folder = tmp_path_factory.mktemp("standin")
    compile_standin(folder, folder / "libnvrtc_standin.so", "-DSTANDIN_NVRTC")

    def build(layout):
        library = folder / layout / "libtorch_cuda.so"
        if not library.exists():
            library.parent.mkdir()
            links = ["-Wl,-z,lazy", "-L.", "-lnvrtc_standin", f"-Wl,-rpath,{folder}"]
            compile_standin(folder, library, f"-D{layout}", *links)
        return library

    return build


def run(program, *arguments):
    return subprocess.run(
        [sys.executable, str(HERE / program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("scene", SCENES)
def test_scene(build, scene):
    done = run(SCRIPT, scene, build("LAZY"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unknown_layout_is_refused(build, layout):
    done = run(SCRIPT, "unknown_layout_is_told_once_and_left_alone", build(layout))
    assert done.returncode == 0, done.stderr
    assert LAYOUTS[layout] in done.stdout


def libtorch_cuda():
    import torch

    return Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"


def test_real_table_is_found_and_restored():
    """Each hooked field is the one that libtorch's own symbols call by that name."""
    if not libtorch_cuda().exists():
        pytest.skip("torch is built without CUDA")
    done = run("nvrtc_real.py")
    assert done.returncode == 0, done.stderr
    assert "all right" in done.stdout, done.stdout


def test_torch_without_cuda_has_nothing_to_watch():
    if libtorch_cuda().exists():
        pytest.skip("torch is built with CUDA")
    code = "import torch; from precomp import _core; assert _core.gate_watch_nvrtc() is None"
    environment = os.environ | {"PYTHONWARNINGS": "error::RuntimeWarning"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
