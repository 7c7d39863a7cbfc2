# Sourced by tools/gpu_*.sh, from the root of the checkout: what a machine with an NVIDIA GPU and torch,
# but without a package registry or pytest, needs.
#
# Needs wheelhouse/precomp-*.whl for the Python that PYTHON names (default python3), self-contained
# (auditwheel repair); exits with status 2 when there is none. Sets ROOT, OUT (absolute, made), PYTHON
# and WORK, a temporary folder that goes at exit; puts the wheel on PYTHONPATH and changes to WORK, away
# from the checkout, whose precomp has no extension module.

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
    echo "$0: no wheelhouse/precomp-*-$TAG-*.whl" >&2
    exit 2
fi
"$PYTHON" -m zipfile -e "$WHEEL" "$WORK/site"
export PYTHONPATH=$WORK/site${PYTHONPATH:+:$PYTHONPATH}
cd "$WORK"
