#!/usr/bin/env bash
# DDP and FSDP2 on a machine with two NVIDIA GPUs and torch, without a package registry or pytest: two
# ranks are captured over NCCL, and served in fresh processes from the artifact of both and from that of
# rank 0, on their own GPUs and with the GPUs swapped; the results must be the same bits.
#
#   OUT=FOLDER tools/gpu_ranks.sh [NAME...]
#
# Needs wheelhouse/precomp-*.whl for this Python, self-contained (auditwheel repair), and gcc.
# Writes FOLDER/gpu_ranks.json; PYTHON names the interpreter. Exit status: 0 all right, 1 something
# wrong, 2 no second GPU or no wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/gpu.sh
. tools/gpu.sh
"$PYTHON" "$ROOT/tests/distributed/run_gpu_ranks.py" "$OUT/gpu_ranks.json" "$@"
