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
# shellcheck source=tools/gpu.sh
. tools/gpu.sh
export TMPDIR=$WORK

status=0
timeout 420 "$PYTHON" "$ROOT/tests/gate/run_gpu.py" "$OUT/gate_gpu.json" --jobs 8 --total 380 "$@" ||
    status=$?
if [ "$status" != 2 ]; then
    TORCHINDUCTOR_CACHE_DIR=$WORK/inductor TRITON_CACHE_DIR=$WORK/triton \
        timeout 60 "$PYTHON" "$ROOT/benchmarks/gate.py" --device cuda --rounds 9 \
        --output "$OUT/gate_bench.json" || echo "the benchmark failed: status $?" >&2
fi
exit "$status"
