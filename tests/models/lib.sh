# Shared by the tests that run described models; each sources it.
# shellcheck shell=bash
# shellcheck source=tests/cli/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"

bench() { # WORD...: llama-bench's JSON must hold both runs with a speed above 0
    try timeout 300 "$@" -m "$work/model.gguf" -p 16 -n 4 -r 1 -t 2 -o json
    expect_rc 0
    python3 - "$work/out" <<'PY' || problem "$command_text" "no two results with a speed: $err"
import json, sys
runs = json.load(open(sys.argv[1]))
sys.exit(not (len(runs) == 2 and all(run["avg_ts"] > 0 for run in runs)))
PY
}

# runs NAME LAYERS VRAM: a model of a small vocabulary computes in llama-bench, on the CPU and on
# ATS0 over an emulated accelerator.
runs() {
    try "$ats" synth --model "$1" --layers "$2" --vocab-size 512 --out "$work/model.gguf"
    expect_rc 0
    bench "$ATS_LLAMA_BIN/llama-bench" --device none
    bench "$ats" bench --emulate emu-6g --vram "$3"
    rm -f "$work/model.gguf"
}
