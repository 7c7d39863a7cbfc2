#!/usr/bin/env bash
# Frozen CUDA kernels on a machine with an NVIDIA GPU, torch and Triton, without a package registry
# or pytest: launches against Triton's own, and what they cost. About a minute.
#
#   OUT=FOLDER tools/gpu_cuda.sh
#
# Needs wheelhouse/precomp-*.whl for this Python, self-contained (auditwheel repair), and gcc.
# Writes FOLDER/cuda_check.json and FOLDER/cuda_launch.json; PYTHON names the interpreter.
# Exit status: 0 all right, 1 something wrong, 2 no GPU or no wheel.
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
    echo "tools/gpu_cuda.sh: no wheelhouse/precomp-*-$TAG-*.whl" >&2
    exit 2
fi
"$PYTHON" -m zipfile -e "$WHEEL" "$WORK/site"
export PYTHONPATH=$WORK/site${PYTHONPATH:+:$PYTHONPATH}
export TMPDIR=$WORK TRITON_CACHE_DIR=$WORK/triton
cd "$WORK" # not the checkout, whose precomp has no extension module

status=0
timeout 240 "$PYTHON" "$ROOT/tests/cuda/gpu_check.py" "$OUT/cuda_check.json" || status=$?
if [ "$status" != 2 ]; then
    timeout 120 "$PYTHON" "$ROOT/benchmarks/cuda_launch.py" --output "$OUT/cuda_launch.json" ||
        status=1
fi
exit "$status"
