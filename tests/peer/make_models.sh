#!/usr/bin/env bash
# make_models.sh FOLDER: the models of the tests in this folder. With a tokenizer, from `ats
# synth`; without one, from test-llama-archs, as upstream's tests use them.
# shellcheck source=tests/peer/lib.sh
. "$(dirname "$0")/lib.sh"

folder=$1
synth_archs='llama qwen3moe'
saved_archs='llama qwen3moe gemma3 gpt-oss deepseek2 deepseek4 mamba2 jamba lfm2 nemotron_h qwen35 kimi-k3'

unset GGML_BACKEND_PATH
use_accelerator emu
rm -rf "$folder"
mkdir -p "$folder"
for arch in $synth_archs; do
    "$build/bin/ats" synth --arch "$arch" --seed 1 --out "$folder/synth-$arch.gguf"
done
ATS_PEER_LOAD=1 peer test-llama-archs -s 1 -a "^(${saved_archs// /|})$" -o "$folder" \
    >"$work/output" 2>&1 || fail 'test-llama-archs -o failed' "$(tail "$work/output")"
ls -l "$folder"
