#!/bin/sh
# Fuzz one target with libFuzzer: fuzz/run.sh TARGET [SECONDS]
# TARGET: reader, manifest, blob, strip or cubin. Needs clang with its sanitizer runtime (CLANG
# names another one). New inputs and crashes go to build/fuzz/; a crash worth keeping
# belongs in fuzz/corpus/TARGET, which the tests replay.
set -eu
target=$1
seconds=${2:-60}
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../build/fuzz/$target
core=$here/../csrc/core
mkdir -p "$out/corpus"
sources=
for name in error mem bytes sha256 json manifest manifest_print blob pool artifact writer elf cubin; do
    sources="$sources $core/pc_$name.c"
done
# shellcheck disable=SC2046,SC2086 # word splitting is meant
${CLANG:-clang} -g -O1 -std=c11 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined \
    -fno-sanitize-recover=all -I"$core" "$here/fuzz_$target.c" $sources \
    $(pkg-config --cflags --libs libzstd libcjson) -pthread -o "$out/fuzzer"
cd "$out"
exec ./fuzzer -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=32768 \
    corpus "$here/corpus/$target"
