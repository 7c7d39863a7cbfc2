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
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
LIBRARIES = {"libzstd": "libzstd-dev", "libcjson": "libcjson-dev"}
INSTALL = f"On Debian or Ubuntu: apt-get install pkg-config {' '.join(LIBRARIES.values())}"


def on(name):
    return os.environ.get(name, "") not in ("", "0")


def pkg_config(*args):
    tool = os.environ.get("PKG_CONFIG", "pkg-config")
    try:
        return shlex.split(
            subprocess.run([tool, *args], check=True, capture_output=True, text=True).stdout
        )
    except FileNotFoundError:
        sys.exit(f"precomp: building needs {tool}, which is not on PATH.\n{INSTALL}")
    except subprocess.CalledProcessError as error:
        missing = [
            f"{library} (Debian package {package})"
            for library, package in LIBRARIES.items()
            if subprocess.run([tool, "--exists", library]).returncode
        ]
        reason = ", ".join(missing) or error.stderr.strip()
        sys.exit(f"precomp: pkg-config does not find {reason}.\n{INSTALL}")


def relative(pattern):
    return sorted(str(path.relative_to(HERE)) for path in HERE.glob(pattern))


class BuildCore(build_ext):
    """Adds flags only when something is compiled: a source distribution needs no library."""

    def build_extension(self, ext):
        cflags = pkg_config("--cflags", *LIBRARIES)
        libs = pkg_config("--libs", *LIBRARIES)
        version = self.distribution.get_version()
        ext.define_macros.append(("PRECOMP_VERSION", f'"{version}"'))
        ext.extra_compile_args += [
            "-std=c11", "-D_GNU_SOURCE", "-fvisibility=hidden",
            "-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes",
            "-Wwrite-strings", "-Wpointer-arith", "-Wundef", "-Wvla", "-Wformat=2",
            *cflags,
        ]  # fmt: skip
        ext.extra_link_args += ["-Wl,--exclude-libs,ALL", "-pthread", *libs, "-ldl"]
        if on("PRECOMP_WERROR"):
            ext.extra_compile_args.append("-Werror")
        if on("PRECOMP_DEBUG"):
            ext.extra_compile_args += ["-O0", "-g3", "-UNDEBUG"]
        if on("PRECOMP_SANITIZE"):
            flags = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"]
            ext.extra_compile_args += [*flags, "-O1", "-g", "-UNDEBUG"]
            ext.extra_link_args += flags
        if on("PRECOMP_COVERAGE"):
            ext.extra_compile_args += ["--coverage", "-O0"]
            ext.extra_link_args += ["--coverage"]
        super().build_extension(ext)


CORE = Extension(
    "precomp._core",
    sources=relative("csrc/core/*.c") + relative("csrc/binding/*.c"),
    # setup.py too: other flags need other objects.
    depends=["setup.py", *relative("csrc/core/*.h"), *relative("csrc/binding/*.h")],
    include_dirs=["csrc/core", "csrc/binding"],
)

setup(ext_modules=[CORE], cmdclass={"build_ext": BuildCore})
