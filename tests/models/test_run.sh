#!/usr/bin/env bash
# Each of the eight models, at the least depth and with a small vocabulary, computes in stock
# llama-bench, on the CPU and on ATS0 over an emulated accelerator with a third of its weights.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"

bench() { # WORD...: llama-bench's JSON must hold both runs with a speed above 0
    try timeout 300 "$@" -m "$work/model.gguf" -p 16 -n 4 -r 1 -t 2 -o json
    expect_rc 0
    python3 - "$work/out" <<'PY' || problem "$command_text" "no two results with a speed: $err"
import json, sys
runs = json.load(open(sys.argv[1]))
sys.exit(not (len(runs) == 2 and all(run["avg_ts"] > 0 for run in runs)))
PY
}

for model in glm-z1-9b:1:120M qwen3-14b:1:60M qwen3-30b-a3b:1:120M gpt-oss-20b:1:130M \
    llama-3.1-70b:1:160M gpt-oss-120b:1:500M qwen3-next-80b-a3b:4:1200M \
    qwen3.5-122b-a10b:4:1800M; do
    IFS=: read -r name layers vram <<<"$model"
    if [ "$layers" -gt 1 ] && [ "$(df -Pm "$work" | awk 'NR == 2 { print $4 }')" -lt 12000 ]; then
        echo "$name: left out, it needs 12 GB of disk for a while"
        continue
    fi
    try "$ats" synth --model "$name" --layers "$layers" --vocab-size 512 --out "$work/model.gguf"
    expect_rc 0
    bench "$ATS_LLAMA_BIN/llama-bench" --device none
    bench "$ats" bench --emulate emu-6g --vram "$vram"
    rm -f "$work/model.gguf"
done

finish
