#!/usr/bin/env bash
# Bad input ends in one clear message, an exit code that tells, and never in a signal.
#
#   ATS_LIBRARY     libggml-ats.so
#   ATS_TEST_SEED   of the damage done to the model (default: a new one, printed)
# The other variables: see tests/cli/lib.sh.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"

library=${ATS_LIBRARY:?must name libggml-ats.so}
RANDOM=${ATS_TEST_SEED:=$RANDOM}
echo "bad_input: ATS_TEST_SEED=$ATS_TEST_SEED"
vocab=$ATS_LLAMA_SRC/models/ggml-vocab-llama-spm.gguf
"$ats" synth --arch qwen3moe --out "$work/model.gguf" --vocab "$vocab" >/dev/null || exit 1
"$ats" synth --arch llama --layers 2 --out "$work/other.gguf" --vocab "$vocab" >/dev/null || exit 1

# stock MODEL: the same on the plain CPU; leaves its exit code in $stock.
stock() {
    env -C "$ATS_LLAMA_BIN" LD_LIBRARY_PATH="$ATS_LLAMA_BIN" timeout 120 \
        "$ATS_LLAMA_BIN/llama-completion" -m "$1" --device none -no-cnv -p "Once upon a time" \
        -n 4 --temp 0 -c 256 --no-warmup >"$work/stock" 2>&1 </dev/null
    stock=$?
}

# generate MODEL [NAME=VALUE...]: four tokens on $device, with the library's environment. Without
# a device llama.cpp takes what there is.
device=ATS0
generate() {
    last=("$@")
    local model=$1
    shift
    try_llama env -C "$ATS_LLAMA_BIN" LD_LIBRARY_PATH="$ATS_LLAMA_BIN" OMP_WAIT_POLICY=passive \
        GGML_BACKEND_PATH="$library" ATS_EMULATE=emu-small ATS_PROFILES="$root/profiles" "$@" \
        timeout 120 "$ATS_LLAMA_BIN/llama-completion" -m "$model" \
        ${device:+--device "$device"} -no-cnv -p "Once upon a time" -n 4 --temp 0 -c 256 --no-warmup
    command_text="generate ${model##*/} $*"
    # 124: too long; above 128: killed by a signal, which is not ours if plain llama.cpp dies too
    [ "$rc" -lt 124 ] || { stock "$model"; [ "$stock" -eq "$rc" ]; } || problem "$command_text" "exit code $rc" "$(tail -n 5 "$work/err")"
}

# count TEXT: leaves in $n how many of our messages have the text.
# llama.cpp's logger writes on a thread of its own, and a program that exits at once, because
# there is no device, may lose what is still in its queue: then the run is repeated.
count() {
    local attempt
    for attempt in 1 2 3 4 5 6 7 8; do
        n=$(grep -E 'ats: ' "$work/err" | grep -cF -- "$1")
        [ "$n" -eq 0 ] && [ "$rc" -ne 0 ] && [ "$attempt" -lt 8 ] || break
        generate "${last[@]}"
    done
}

# once TEXT: exactly one of our messages has the text.
once() {
    count "$1"
    [ "$n" -eq 1 ] || problem "$command_text" "$n messages with '$1', expected one:" \
        "$(grep -E 'ats: ' "$work/err" | head -n 12)"
}

expect_failure() {
    [ "$rc" -ne 0 ] || problem "$command_text" "exit code 0, expected another" "$(tail -n 5 "$work/err")"
}

generate "$work/model.gguf"
expect_rc 0
text=$out

# ---- values that make no sense: said once, and no device is offered ----
generate "$work/model.gguf" ATS_VRAM=lots
once "ATS is off; models run without it: ATS_VRAM: 'lots' is not a size; write e.g. 6G, 512M"
expect_failure
generate "$work/model.gguf" ATS_PLACEMENT=everywhere
once "ATS_PLACEMENT=everywhere is neither a rule (auto, fill, host, vram, random:SEED) nor an existing plan"
expect_failure
generate "$work/model.gguf" ATS_PLACEMENT=random:x
once "ATS_PLACEMENT: 'x' is not a whole number"
expect_failure
generate "$work/model.gguf" ATS_ACCEL=CUDA7
once "ATS_ACCEL names CUDA7, which is not an accelerator here; there is: EMU0"
expect_failure
generate "$work/model.gguf" ATS_EMULATE=emu-nothing
once "emu-nothing"
expect_failure
generate "$work/model.gguf" ATS_EMU_FAIL=everything:1
once "ATS_EMU_FAIL"
expect_failure

# A program that asks for no device goes on without ATS, and is told.
device=
generate "$work/model.gguf" ATS_VRAM=banana
expect_rc 0
once "ATS is off; models run without it: ATS_VRAM: 'banana' is not a size"
[ "$out" = "$text" ] || problem "$command_text" "other text:" "$out"
generate "$work/model.gguf" ATS_PLACEMENT=everywhere
expect_rc 0
once "ATS is off; models run without it: ATS_PLACEMENT=everywhere"
device=ATS0

# ---- budgets of nothing and of more than exists: served as far as possible, same text ----
generate "$work/model.gguf" ATS_VRAM=0
expect_rc 0
[ "$out" = "$text" ] || problem "$command_text" "other text:" "$out"
generate "$work/model.gguf" ATS_VRAM=999T
expect_rc 0
once "ATS_VRAM asks for 999 TiB, EMU0 has less free"
[ "$out" = "$text" ] || problem "$command_text" "other text:" "$out"

# ---- plan files ----
generate "$work/model.gguf" ATS_PLACEMENT=random:3 ATS_PLAN_OUT="$work/plan.txt"
expect_rc 0
[ -s "$work/plan.txt" ] || problem "$command_text" "no plan was written"
generate "$work/model.gguf" ATS_PLACEMENT="$work/plan.txt" ATS_PLAN_OUT="$work/again.txt"
expect_rc 0
[ "$out" = "$text" ] || problem "$command_text" "other text:" "$out"
cmp -s "$work/plan.txt" "$work/again.txt" || problem "$command_text" "the plan did not come back as it was"
generate "$work/other.gguf" ATS_PLACEMENT="$work/plan.txt"
count "is of another model"
[ "$n" -gt 0 ] || problem "$command_text" "not said that the plan is of another model"
expect_failure
printf 'ats-plan 1\nvram many blk.0.attn_q.weight\n' >"$work/bad.txt"
generate "$work/model.gguf" ATS_PLACEMENT="$work/bad.txt"
once "$work/bad.txt, line 2: 'many' is not a whole number"
expect_failure
generate "$work/model.gguf" ATS_PLACEMENT="$work/model.gguf"
once "not a placement plan"
expect_failure
generate "$work/model.gguf" ATS_PLACEMENT="$work"
once "$work"
expect_failure

# ---- places that cannot be written: said, and the generation goes on ----
generate "$work/model.gguf" ATS_PLAN_OUT=/proc/plan.txt ATS_STATS=/proc/stats.json
expect_rc 0
once "cannot write the placement plan to /proc/plan.txt (ATS_PLAN_OUT)"
once "cannot write the summary to /proc/stats.json (ATS_STATS)"
[ "$out" = "$text" ] || problem "$command_text" "other text:" "$out"

# ---- profiles ----
profile() { # JSON, expected text
    printf '%s' "$1" >"$work/profile.json"
    generate "$work/model.gguf" ATS_EMULATE="$work/profile.json"
    once "$2"
    expect_failure
}
profile '{"format": "ats-device-1", "name": ' 'profile.json'
profile '{"format": "ats-device-9", "name": "x", "memory": "1G"}' 'format'
profile '{"format": "ats-device-1", "name": "x", "memory": "-1"}' 'memory'
profile '{"format": "ats-device-1", "name": "x", "memory": "1G", "speed": 3}' 'speed'
profile '{"format": "ats-device-1", "name": "x", "memory": "1G", "mode": "timed"}' 'timed'

# ---- models: cut short, and damaged in a few places ----
size=$(stat -c %s "$work/model.gguf")
for part in 3 40 50000 $((size / 2)) $((size - 100)); do
    head -c "$part" "$work/model.gguf" >"$work/cut.gguf"
    generate "$work/cut.gguf"
    expect_failure
done
for _ in 1 2 3 4 5 6 7 8; do
    cp "$work/model.gguf" "$work/damaged.gguf"
    # the first 2000 bytes and the part before the weights describe the model
    for _ in 1 2 3; do
        printf %b "\\x$(printf %02x $((RANDOM % 256)))" |
            dd of="$work/damaged.gguf" bs=1 seek=$((RANDOM % 2000)) conv=notrunc status=none
    done
    generate "$work/damaged.gguf" # may be accepted, where the damage has no meaning
done

# The server ends too, and says once which model it could not load.
for part in 40 50000 $((size / 2)) $((size - 100)); do
    head -c "$part" "$work/model.gguf" >"$work/cut.gguf"
    for attempt in 1 2 3 4 5 6 7 8; do
        rm -f "$work/server.sock"
        try env -C "$ATS_LLAMA_BIN" LD_LIBRARY_PATH="$ATS_LLAMA_BIN" GGML_BACKEND_PATH="$library" \
            ATS_EMULATE=emu-small ATS_PROFILES="$root/profiles" OMP_WAIT_POLICY=passive \
            timeout 60 "$ATS_LLAMA_BIN/llama-server" -m "$work/cut.gguf" --device ATS0 -c 256 \
            --host "$work/server.sock"
        command_text="llama-server, model cut to $part bytes"
        expect_failure
        [ "$rc" -lt 124 ] || problem "$command_text" "exit code $rc"
        n=$(cat "$work/out" "$work/err" | grep -cF "failed to load model, '$work/cut.gguf'")
        [ "$n" -eq 0 ] || break
        echo "no message in run $attempt"
    done
    [ "$n" -eq 1 ] || problem "$command_text" "$n messages name the model, expected one:" "$(tail -n 5 "$work/err")"
done

# ---- outputs that cannot be written: one line, before any work ----
for place in "$work/model.gguf/x" /proc/x; do # under a file; where even root cannot write
    try "$ats" synth --arch llama --layers 1 --vocab "$vocab" --out "$place"
    expect_error 1 "cannot write $place"
    for option in --stats --plan-out; do
        try "$ats" run --llama-bin "$ATS_LLAMA_BIN" "$option" "$place" -m "$work/model.gguf" -p x -n 1
        expect_error 1 "$option: cannot write $place"
    done
done

# ---- libraries ----
try env -C "$ATS_LLAMA_BIN" LD_LIBRARY_PATH="$ATS_LLAMA_BIN" GGML_BACKEND_PATH="$work/no.so" \
    timeout 60 "$ATS_LLAMA_BIN/llama-completion" -m "$work/model.gguf" --device ATS0 -no-cnv -p x -n 1
expect_failure
expect_in err "ATS0"
try env ATS_BACKEND="$work/no.so" "$ats" run -m "$work/model.gguf" -p x
expect_error 1 "$work/no.so"
try "$ats" run --llama-bin "$work" -m "$work/model.gguf" -p x
expect_error 1 "$work"

# A ggml without its CPU backend.
mkdir "$work/no-cpu"
cp -P "$ATS_LLAMA_BIN"/lib*.so* "$work/no-cpu/"
cp "$ATS_LLAMA_BIN/llama-completion" "$work/no-cpu/"
rm "$work"/no-cpu/libggml-cpu*.so
# llama.cpp logs by a thread, which on a busy machine misses the last lines of a program that ends.
for attempt in 1 2 3 4 5 6 7 8; do
    try env -C "$work/no-cpu" LD_LIBRARY_PATH="$work/no-cpu" GGML_BACKEND_PATH="$library" \
        ATS_EMULATE=emu-small ATS_PROFILES="$root/profiles" \
        timeout 60 "$work/no-cpu/llama-completion" -m "$work/model.gguf" --device ATS0 -no-cnv \
        -p x -n 1
    expect_failure
    [ "$rc" -lt 124 ] || problem "$command_text" "exit code $rc"
    ! grep -q 'no CPU backend' "$work/err" || break
    echo "no message in run $attempt"
done
expect_in err "ggml has no CPU backend loaded"

# ---- set-up ----
try env ATS_CACHE=/proc/cache "$root/scripts/setup/setup.sh" run
expect_failure
expect_in err /proc/cache
try env LLAMA_DIR="$work" "$root/scripts/setup/setup.sh" run
expect_failure
expect_in err "$work"
mkdir -p "$work/llama/ggml/src" "$work/llama/ggml/include" "$work/llama/src" "$work/llama/include"
cp "$ATS_LLAMA_SRC/CMakeLists.txt" "$work/llama/"
cp "$ATS_LLAMA_SRC"/ggml/src/ggml-backend-impl.h "$work/llama/ggml/src/"
cp "$ATS_LLAMA_SRC"/include/llama.h "$work/llama/include/"
sed 's/GGML_VERSION_MINOR 25/GGML_VERSION_MINOR 99/' "$ATS_LLAMA_SRC/ggml/CMakeLists.txt" \
    >"$work/llama/ggml/CMakeLists.txt"
try env LLAMA_DIR="$work/llama" "$root/scripts/setup/setup.sh" run
expect_failure
expect_in err 0.99
finish
