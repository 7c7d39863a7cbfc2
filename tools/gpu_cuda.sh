#!/usr/bin/env bash
# Frozen CUDA kernels on a machine with an NVIDIA GPU, torch and Triton, without a package registry
# or pytest: launches against Triton's own, recorded CUDA graphs, kernels that a program launches itself
# captured and served, and what launches cost. About three minutes.
#
#   OUT=FOLDER tools/gpu_cuda.sh
#
# Needs wheelhouse/precomp-*.whl for this Python, self-contained (auditwheel repair), and gcc.
# Writes FOLDER/cuda_check.json, FOLDER/cuda_graphs.json, FOLDER/cuda_triton.json and FOLDER/cuda_launch.json; PYTHON names the interpreter.
# Exit status: 0 all right, 1 something wrong, 2 no GPU or no wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/gpu.sh
. tools/gpu.sh
export TMPDIR=$WORK TRITON_CACHE_DIR=$WORK/triton

status=0
timeout 240 "$PYTHON" "$ROOT/tests/cuda/gpu_check.py" "$OUT/cuda_check.json" || status=$?
if [ "$status" != 2 ]; then
    timeout 120 "$PYTHON" "$ROOT/tests/cuda/gpu_graphs.py" "$OUT/cuda_graphs.json" || status=1
    timeout 400 "$PYTHON" "$ROOT/tests/cuda/gpu_triton.py" "$OUT/cuda_triton.json" || status=1
    timeout 120 "$PYTHON" "$ROOT/benchmarks/cuda_launch.py" --output "$OUT/cuda_launch.json" ||
        status=1
fi
exit "$status"
