"""Fixtures: ``reader``, ``forge``, ``damage``, ``golden``, ``run``, ``shim`` and ``core``."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import precomp

HERE = Path(__file__).parent


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"container_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def reader() -> ModuleType:
    return _load("reader")


@pytest.fixture(scope="session")
def forge() -> ModuleType:
    return _load("forge")


@pytest.fixture(scope="session")
def damage() -> ModuleType:
    """test_damage.py, for its tables of faults."""
    return _load("test_damage")


@pytest.fixture(scope="session")
def golden() -> Path:
    return HERE / "golden"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script in a fresh interpreter in *tmp_path*."""

    def run_script(
        script: str, *args: str, env: dict[str, str] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        home = str(Path(precomp.__file__).parent.parent)
        done = subprocess.run(
            [sys.executable, "-c", script, *args],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": home, **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run_script


@pytest.fixture(scope="session")
def compiler() -> str:
    """A C compiler; building precomp needs one, using it does not."""
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler")
    return found


@pytest.fixture(scope="session")
def shim(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which shim.c is preloaded (after what is preloaded already)."""
    out = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(out), str(HERE / "shim.c"), "-ldl"],
        check=True,
    )
    preloaded = os.environ.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{preloaded} {out}".strip(), "SHIM": str(out)}


@dataclass(frozen=True)
class Core:
    """How to compile the container part of csrc/core, which needs no Python."""

    compiler: str
    flags: list[str]
    libraries: list[str]
    sources: list[str]

    def sanitizer(self, name: str, directory: Path) -> list[str]:
        """The flags of a sanitizer, or nothing when programs with it do not run here."""
        flags = [f"-fsanitize={name}", "-fno-sanitize-recover=all"]
        (directory / "probe.c").write_text("int main(void) { return 0; }\n")
        command = [self.compiler, *flags, "probe.c", "-o", "probe"]
        built = subprocess.run(command, cwd=directory, capture_output=True, check=False)
        if built.returncode:
            return []
        probed = subprocess.run(
            [str(directory / "probe")], env={**os.environ, "LD_PRELOAD": ""}, check=False
        )
        return [] if probed.returncode else flags

    def build(self, out: Path, *sources: Path | str, flags: Sequence[str] = ()) -> None:
        command = [self.compiler, *self.flags, *flags, "-o", str(out), *map(str, sources)]
        subprocess.run([*command, *self.libraries], check=True)


@pytest.fixture(scope="session")
def core(compiler: str) -> Core:
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config")
    found = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "libzstd", "libcjson"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        pytest.skip("no development files of libzstd and libcjson")
    words = found.stdout.split()
    directory = HERE.parents[1] / "csrc" / "core"
    names = "error mem bytes sha256 json manifest manifest_print blob pool artifact writer"
    names += " elf cubin"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-pthread", "-O1", "-g", f"-I{directory}"]
    return Core(
        compiler=compiler,
        flags=flags + [word for word in words if not word.startswith("-l")],
        libraries=[word for word in words if word.startswith("-l")],
        sources=[str(directory / f"pc_{name}.c") for name in names.split()],
    )
