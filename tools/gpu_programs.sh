#!/usr/bin/env bash
# The programs of tests/programs/gpu_programs.py on a machine with an NVIDIA GPU and torch, without a
# package registry or pytest: captured, and served in a fresh process without a compiler on PATH and
# with empty caches; losses, gradients and parameters must be the same bits.
#
#   OUT=FOLDER tools/gpu_programs.sh [NAME...]
#
# Needs wheelhouse/precomp-*.whl for this Python, self-contained (auditwheel repair), and gcc.
# Writes FOLDER/gpu_programs.json; PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
ROOT=$PWD
OUT=${OUT:-$ROOT/out}
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
TAG=$("$PYTHON" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
WHEEL=$(compgen -G "$ROOT/wheelhouse/precomp-*-$TAG-*.whl" | sort | tail -1 || true)
if [ -z "$WHEEL" ]; then
    echo "tools/gpu_programs.sh: no wheelhouse/precomp-*-$TAG-*.whl" >&2
    exit 2
fi
"$PYTHON" -m zipfile -e "$WHEEL" "$WORK/site"
export PYTHONPATH=$WORK/site
cd "$WORK" # not the checkout, whose precomp has no extension module
exec "$PYTHON" "$ROOT/tests/programs/run_gpu.py" "$OUT/gpu_programs.json" "$@"
