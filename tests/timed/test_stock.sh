#!/usr/bin/env bash
# Stock llama.cpp with the emulated accelerator as its GPU: every way of placing a model runs, moves
# the bytes that it has to move, and leaves a valid report.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"
export XDG_CACHE_HOME=$work/cache OMP_WAIT_POLICY=passive
export ATS_EMULATE=laptop-3060 ATS_RIG_SCALE=4 ATS_EMU_REPORT=$work/report.json
export GGML_BACKEND_PATH=${ATS_LIBRARY:-$root/build/release/lib/libggml-ats.so}

model=$work/moe.gguf
try "$ats" synth --arch qwen3moe --layers 4 --embd 512 --experts 16 --experts-used 4 --ff 512 \
    --heads 8 --kv-heads 2 --type q4_0 --out "$model"
expect_rc 0

# What all runs have in common; leaves the report's figures in $report.
bench() { # OPTION...
    rm -f "$ATS_EMU_REPORT"
    try timeout 120 "$ATS_LLAMA_BIN/llama-bench" -m "$model" -t 1 -p 64 -n 8 -r 1 -o json "$@"
    expect_rc 0
    python3 - "$work/out" "$ATS_EMU_REPORT" <<'PYTHON' || problem "$command_text" "no valid result or report" "$err"
import json, math, sys
rates = [run["avg_ts"] for run in json.load(open(sys.argv[1]))]
report = json.load(open(sys.argv[2]))
clock, device = report["clock"], report["devices"][0]
assert report["format"] == "ats-emu-report-1"
assert len(rates) == 2 and all(rate > 0 and math.isfinite(rate) for rate in rates)
assert device["name"] == "EMU0" and device["rig"] == "laptop-3060" and device["scale"] == 4
assert clock["ok"] == (clock["lag_ratio"] <= 0.05)
assert 0 < clock["in_use_us"] and 0 <= clock["lag_us"] <= clock["wall_us"]
assert clock["waits"] <= clock["synchronizations"]
PYTHON
}

value() { # KEY: of the device in the report
    python3 -c 'import json, sys
print(int(json.load(open(sys.argv[1]))["devices"][0][sys.argv[2]]))' "$ATS_EMU_REPORT" "$1"
}

expect_that() { # WHAT EXPRESSION...
    (("$2")) || problem "$1" "not so: $2"
}

weights=$(stat -c %s "$model")

bench -dev EMU0 -ngl 99
all=$(value bytes_h2d)
all_launches=$(value launches)
# the token embeddings stay on the CPU: a tenth of this model
expect_that "-ngl 99 uploads the model" "$all * 10 > $weights * 7"
expect_that "-ngl 99 uploads it once" "$all < $weights * 11 / 10"

bench -dev EMU0 -ngl 2 -nopo 1
half=$(value bytes_h2d)
expect_that "-ngl 2 uploads less" "$half < $all"

# Experts on the CPU: for the prompt they are sent to the device, unless that is switched off.
bench -dev EMU0 -ngl 99 -ncmoe 4
offloaded=$(value bytes_h2d)
expect_that "launches without experts" "$(value launches) < $all_launches"
bench -dev EMU0 -ngl 99 -ncmoe 4 -nopo 1
expect_that "operator offload moves experts" "$offloaded > $(value bytes_h2d) + $weights / 4"

bench -dev EMU0 -ngl 99 -ot 'blk\.[01]\.ffn_.*_exps=CPU'
expect_that "-ot keeps tensors on the CPU" "$(value launches) < $all_launches"

# Without mmap the CPU's weights are in pinned memory.
bench -dev EMU0 -ngl 99 -ncmoe 4 -lm none
expect_that "pinned weights move as well" "$(value bytes_h2d) > $weights / 2"
bench -dev EMU0 -ngl 2 -lm none

# --fit: less device memory than the model takes.
export ATS_EMU_MEMORY=24M
bench -dev EMU0 -fitt 4
expect_that "--fit fits" "$(value bytes_h2d) < $all * 2 && $(value launches) < $all_launches"
unset ATS_EMU_MEMORY

# ATS over the same device.
bench -dev ATS0 -ngl 99
expect_that "ATS0 computes on the device" "$(value launches) > 100"

# A model with attention in its plain form, and generated text, ends well too.
bench -dev EMU0 -ngl 99 -fa 0
try timeout 120 "$ATS_LLAMA_BIN/llama-completion" -m "$model" -dev EMU0 -ngl 99 -no-cnv -p 'Hello' -n 8 \
    -c 256 -t 1
expect_rc 0

# A run that must not be late says so with its exit code.
export ATS_EMU_STRICT=1
try timeout 120 "$ATS_LLAMA_BIN/llama-bench" -m "$model" -t 1 -p 8 -n 2 -r 1 -dev EMU0 -ngl 99
python3 -c '
import json, sys
sys.exit(json.load(open(sys.argv[1]))["clock"]["ok"] != (sys.argv[2] == "0"))' \
    "$ATS_EMU_REPORT" "$rc" || problem "ATS_EMU_STRICT" "exit code $rc does not fit the report"

finish
