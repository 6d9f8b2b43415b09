#!/usr/bin/env bash
# `ats synth` writes models that stock llama.cpp loads, the same bytes for the same seed, and
# never half a file.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
vocab=$ATS_LLAMA_SRC/models/ggml-vocab-llama-spm.gguf
small=(--layers 2 --embd 64 --ff 64 --heads 2 --kv-heads 1)

sha() { sha256sum "$1" | cut -d ' ' -f 1; }

try "$ats" synth --arch llama "${small[@]}" --vocab "$vocab" --seed 5 --out "$work/a.gguf"
expect_rc 0
expect_in out "seed 5"
try "$ats" synth --arch llama "${small[@]}" --vocab "$vocab" --seed 5 --out "$work/b.gguf"
[ "$(sha "$work/a.gguf")" = "$(sha "$work/b.gguf")" ] || problem "same seed" "different bytes"
try "$ats" synth --arch llama "${small[@]}" --vocab "$vocab" --seed 6 --out "$work/b.gguf"
[ "$(sha "$work/a.gguf")" != "$(sha "$work/b.gguf")" ] || problem "another seed" "same bytes"

# Every architecture that generates text, stock, on the CPU; every type.
generate() { # FILE WORD...
    try_llama timeout 120 "$ATS_LLAMA_BIN/llama-completion" --device none -m "$1" -no-cnv -p 'Hello there' \
        -n 8 -c 256 -t 2 --temp 0 "${@:2}"
    expect_rc 0
    [ "${#out}" -gt 16 ] || problem "$command_text" "generated nothing:" "$out"
}
for arch in llama qwen3moe mamba qwen3next lfm2; do
    try "$ats" synth --arch "$arch" --out "$work/$arch.gguf"
    expect_rc 0
    generate "$work/$arch.gguf"
done
for type in f32 f16 q8_0 q4_0; do
    try "$ats" synth --arch llama "${small[@]}" --type "$type" --out "$work/type.gguf"
    expect_rc 0
    generate "$work/type.gguf"
done
generate "$work/llama.gguf"
plain=$out
try "$ats" synth --lora-for "$work/llama.gguf" --rank 4 --out "$work/lora.gguf"
expect_rc 0
generate "$work/llama.gguf" --lora "$work/lora.gguf"
[ "$out" != "$plain" ] || problem "LoRA adapter" "changes nothing"
try "$ats" synth --arch bert --out "$work/bert.gguf"
expect_rc 0

# What is no file is left alone; a link stays one.
mkfifo "$work/pipe"
try "$ats" synth --arch llama "${small[@]}" --out "$work/pipe"
expect_error 1 "no regular file"
[ -p "$work/pipe" ] || problem "$command_text" "replaced a pipe"
ln -s a.gguf "$work/link.gguf"
try "$ats" synth --arch llama "${small[@]}" --vocab "$vocab" --seed 6 --out "$work/link.gguf"
expect_rc 0
[ -L "$work/link.gguf" ] && [ "$(sha "$work/a.gguf")" = "$(sha "$work/b.gguf")" ] ||
    problem "$command_text" "did not write what the link names"

# Wrong options.
try "$ats" synth --out "$work/x.gguf"
expect_error 2 "--arch"
try "$ats" synth --arch llama
expect_error 2 "--out FILE is missing"
try "$ats" synth --arch lama --out "$work/x.gguf"
expect_error 2 "did you mean llama"
try "$ats" synth --arch llama --layers 0 --out "$work/x.gguf"
expect_error 2 "--layers must be at least 1"
try "$ats" synth --arch llama --layers ten --out "$work/x.gguf"
expect_error 2 "--layers"
try "$ats" synth --arch llama --type q9 --out "$work/x.gguf"
expect_error 2 "--type"
try "$ats" synth --arch llama --heads 3 --out "$work/x.gguf"
expect_error 1 "--embd 256"
try "$ats" synth --arch llama --heads 4 --kv-heads 3 --out "$work/x.gguf"
expect_error 1 "--kv-heads 3"
try "$ats" synth --arch qwen3moe --experts 2 --experts-used 3 --out "$work/x.gguf"
expect_error 1 "--experts-used 3"
try "$ats" synth --arch mamba --heads 4 --out "$work/x.gguf"
expect_error 1 "no meaning for mamba"

# Wrong inputs.
try "$ats" synth --arch llama --vocab "$work/none.gguf" --out "$work/x.gguf"
expect_error 1 "$work/none.gguf"
for size in 0 3 100 20000 700000; do
    head -c "$size" "$vocab" >"$work/cut.gguf"
    try "$ats" synth --arch llama --vocab "$work/cut.gguf" --out "$work/x.gguf"
    expect_error 1 "cut.gguf"
done
try "$ats" synth --arch llama --vocab "$ATS_LLAMA_SRC/models/ggml-vocab-bert-bge.gguf" \
    --out "$work/x.gguf"
expect_error 1 "does not suit llama"
try "$ats" synth --arch bert --vocab "$vocab" --out "$work/x.gguf"
expect_error 1 "does not suit bert"
try "$ats" synth --arch llama --vocab "$work/lora.gguf" --out "$work/x.gguf"
expect_error 1 "no tokenizer"
try "$ats" synth --lora-for "$vocab" --out "$work/x.gguf"
expect_error 1 "no attn_q"
try env -u ATS_LLAMA_SRC "$ats" synth --arch llama --out "$work/x.gguf"
expect_error 1 "--vocab"

# A place that cannot be written; a disk that fills up: the old file stays, nothing is left over.
try "$ats" synth --arch llama --out "$work/no/such/folder/x.gguf"
expect_error 1 "cannot write"
mkdir "$work/full"
echo old >"$work/full/x.gguf"
try bash -c 'ulimit -f 1000; exec "$@"' - "$ats" synth --arch llama --out "$work/full/x.gguf"
expect_error 1 "cannot write"
[ "$(<"$work/full/x.gguf")" = old ] || problem "full disk" "the old file is gone"
[ "$(find "$work/full" -type f | wc -l)" -eq 1 ] || problem "full disk" "left a temporary file"
[ ! -e "$work/x.gguf" ] || problem "failed runs" "left an output file"

finish
