#!/usr/bin/env bash
# The programs of tests/programs/gpu_programs.py on a machine with an NVIDIA GPU and torch, without a
# package registry or pytest: captured, and served in a fresh process without a compiler on PATH and
# with empty caches; losses, gradients and parameters must be the same bits.
#
#   OUT=FOLDER tools/gpu_programs.sh [--serve-on ORDINAL] [--jobs N] [NAME...]
#
# All is captured on cuda:0; with --serve-on 1 it is served on cuda:1, which needs two GPUs.
#
# Needs wheelhouse/precomp-*.whl for this Python, self-contained (auditwheel repair), and gcc.
# Writes FOLDER/gpu_programs.json; PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/gpu.sh
. tools/gpu.sh
"$PYTHON" "$ROOT/tests/programs/run_gpu.py" "$OUT/gpu_programs.json" "$@"
