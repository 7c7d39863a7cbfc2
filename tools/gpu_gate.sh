#!/usr/bin/env bash
# The strict gate on a machine with an NVIDIA GPU and torch, without a package registry or pytest:
# every program of tests/gate that needs a GPU, and what the gate costs there. About five minutes.
#
#   OUT=FOLDER tools/gpu_gate.sh [NAME...]
#
# Needs wheelhouse/precomp-*.whl for this Python, self-contained (auditwheel repair), and gcc.
# Writes FOLDER/gate_gpu.json and FOLDER/gate_bench.json; PYTHON names the interpreter.
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
    echo "tools/gpu_gate.sh: no wheelhouse/precomp-*-$TAG-*.whl" >&2
    exit 2
fi
"$PYTHON" -m zipfile -e "$WHEEL" "$WORK/site"
export PYTHONPATH=$WORK/site${PYTHONPATH:+:$PYTHONPATH}
export TMPDIR=$WORK
cd "$WORK" # not the checkout, whose precomp has no extension module

status=0
timeout 420 "$PYTHON" "$ROOT/tests/gate/run_gpu.py" "$OUT/gate_gpu.json" --jobs 8 --total 380 "$@" ||
    status=$?
if [ "$status" != 2 ]; then
    TORCHINDUCTOR_CACHE_DIR=$WORK/inductor TRITON_CACHE_DIR=$WORK/triton \
        timeout 60 "$PYTHON" "$ROOT/benchmarks/gate.py" --device cuda --rounds 9 \
        --output "$OUT/gate_bench.json" || echo "the benchmark failed: status $?" >&2
fi
exit "$status"
