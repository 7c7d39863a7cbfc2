"""Build of the extension module ``precomp._core``.

Only the extension and its switches live here; everything else is in pyproject.toml.

Switches (environment variables):
  PRECOMP_DEBUG=1     -O0 -g3, asserts on
  PRECOMP_SANITIZE=1  AddressSanitizer and UndefinedBehaviorSanitizer, asserts on
  PRECOMP_COVERAGE=1  gcov instrumentation
  PRECOMP_WERROR=1    warnings are errors (CI)
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.compat.py310 import tomllib

HERE = Path(__file__).resolve().parent
LIBRARIES = {"libzstd": "libzstd-dev", "libcjson": "libcjson-dev"}


def on(name):
    return os.environ.get(name, "") not in ("", "0")


def pkg_config(*args):
    tool = os.environ.get("PKG_CONFIG", "pkg-config")
    try:
        return shlex.split(
            subprocess.run([tool, *args], check=True, capture_output=True, text=True).stdout
        )
    except FileNotFoundError:
        sys.exit(
            f"precomp: building needs {tool}, which is not on PATH.\n"
            "On Debian or Ubuntu: apt-get install pkg-config libzstd-dev libcjson-dev"
        )
    except subprocess.CalledProcessError as error:
        missing = [
            f"{library} (Debian package {package})"
            for library, package in LIBRARIES.items()
            if subprocess.run([tool, "--exists", library]).returncode
        ]
        sys.exit(
            "precomp: pkg-config does not find " + (", ".join(missing) or error.stderr.strip()) + ".\n"
            "On Debian or Ubuntu: apt-get install pkg-config libzstd-dev libcjson-dev"
        )


def relative(pattern):
    return sorted(str(path.relative_to(HERE)) for path in HERE.glob(pattern))


def extension():
    cflags = pkg_config("--cflags", *LIBRARIES)
    libs = pkg_config("--libs", *LIBRARIES)
    version = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["version"]
    compile_args = [
        "-std=c11", "-D_GNU_SOURCE", "-fvisibility=hidden",
        "-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes",
        "-Wwrite-strings", "-Wpointer-arith", "-Wundef", "-Wvla", "-Wformat=2",
        *cflags,
    ]  # fmt: skip
    link_args = ["-Wl,--exclude-libs,ALL", "-pthread", *libs, "-ldl"]
    if on("PRECOMP_WERROR"):
        compile_args.append("-Werror")
    if on("PRECOMP_DEBUG"):
        compile_args += ["-O0", "-g3", "-UNDEBUG"]
    if on("PRECOMP_SANITIZE"):
        flags = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"]
        compile_args += [*flags, "-O1", "-g", "-UNDEBUG"]
        link_args += flags
    if on("PRECOMP_COVERAGE"):
        compile_args += ["--coverage", "-O0"]
        link_args += ["--coverage"]
    return Extension(
        "precomp._core",
        sources=relative("csrc/core/*.c") + relative("csrc/binding/*.c"),
        depends=relative("csrc/core/*.h") + relative("csrc/binding/*.h"),
        include_dirs=["csrc/core", "csrc/binding"],
        define_macros=[("PRECOMP_VERSION", f'"{version}"')],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )


setup(ext_modules=[extension()])
