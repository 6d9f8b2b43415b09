#!/usr/bin/env bash
# What being there costs; see overhead.py. Called by `make overhead` with the folders of
# llama.cpp in the environment. Models are made here, with random weights: speed does not
# depend on their values.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/${PRESET:-release}
out=build/overhead
mkdir -p "$out"

# synth NAME LAYERS: a llama-like model whose tokens take some milliseconds
synth() {
    [ -f "$out/$1.gguf" ] ||
        "$build/bin/ats" synth --arch llama --out "$out/$1.gguf" --type q8_0 --layers "$2" \
            --embd 1024 --ff 2816 --heads 16 --kv-heads 4 \
            --vocab "$ATS_LLAMA_SRC/models/ggml-vocab-llama-spm.gguf"
}
synth cpu 12
synth vulkan 3

vulkan=()
if [ -n "${ATS_VULKAN_BIN:-}" ]; then
    vulkan=(--vulkan-bin "$ATS_VULKAN_BIN" --vulkan-model "$out/vulkan.gguf")
fi
exec python3 scripts/overhead.py --llama-bin "$ATS_LLAMA_BIN" --backend "$build/lib/libggml-ats.so" \
    --model "$out/cpu.gguf" --rounds "${ROUNDS:-9}" --json "$out/overhead.json" "${vulkan[@]}"
