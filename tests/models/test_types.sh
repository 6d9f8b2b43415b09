#!/usr/bin/env bash
# The types of a described model's tensors are those that llama.cpp's own quantiser gives them.
#
# llama-quantize --dry-run says what it would make of a file. It gets each model with all layers
# in F16: metadata only, in a file that is extended to the size that the metadata announces.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"
quantize=$ATS_LLAMA_BIN/llama-quantize
models=$root/models

# list FILE TYPE: "tensor type" lines, as they would be after quantisation to TYPE.
# Two forms of line: "type = f32, size = ..." and "type = f16, size = ... -> ... (q4_K)".
list() {
    truncate -s 400G "$1"
    timeout 60 "$quantize" --dry-run "$1" "$2" 2>&1 | grep -E '^\[ *[0-9]+/' | awk '{
        type = $0; sub(/.*type = +/, "", type); sub(/,.*/, "", type)
        if ($NF ~ /^\(.*\)$/) { type = substr($NF, 2, length($NF) - 2) }
        name = $0; sub(/^\[ *[0-9]+\/ *[0-9]+\] */, "", name); sub(/ .*/, "", name)
        print name, tolower(type) }' | sort
}

check() { # MODEL TYPE
    sed 's/"types": "[^"]*"/"types": "F16"/' "$models/$1.json" >"$work/f16.json"
    try "$ats" synth --model "$work/f16.json" --meta-only --out "$work/f16.gguf"
    expect_rc 0
    try "$ats" synth --model "$1" --meta-only --out "$work/own.gguf"
    expect_rc 0
    list "$work/f16.gguf" "$2" >"$work/expected"
    list "$work/own.gguf" COPY >"$work/got"
    [ "$(wc -l <"$work/expected")" -gt 100 ] || problem "$1" "llama-quantize lists no tensors"
    diff "$work/expected" "$work/got" >"$work/diff" ||
        problem "$1: types differ from llama-quantize's" "$(head -n 20 "$work/diff")"
    rm -f "$work"/*.gguf
}

for model in qwen3-14b qwen3-30b-a3b llama-3.1-70b qwen3-next-80b-a3b qwen3.5-122b-a10b; do
    check "$model" Q4_K_M
done
for model in gpt-oss-20b gpt-oss-120b; do
    check "$model" MXFP4_MOE
done
check glm-z1-9b F16

finish
