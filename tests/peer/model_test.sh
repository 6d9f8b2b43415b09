#!/usr/bin/env bash
# model_test.sh PROGRAM MODEL...: one of llama.cpp's test programs on ATS0, for each model twice:
# with every weight on a random side, and by the simple rule with VRAM for half of the weights.
# Either way, both sides must have been used. ATS_TEST_SEED repeats a placement.
# shellcheck source=tests/peer/lib.sh
. "$(dirname "$0")/lib.sh"

program=$1
shift
use_accelerator emu
seed=${ATS_TEST_SEED:-$(random_seed)}
on_device=(-dev ATS0 -ngl 99)

# What the program is started with, for the model $1.
arguments_of() {
    case $program in
        test-save-load-state | test-state-restore-fragmented | test-recurrent-state-rollback)
            arguments=(-m "$1" "${on_device[@]}")
            ;;
        test-thread-safety) # as upstream, with fewer tokens; it takes all devices one by one
            arguments=(-m "$1" "${on_device[@]}" -p 'The meaning of life is'
                -n 16 -c 256 -ub 32 -np 4 -t 1)
            ;;
        test-backend-sampler | test-model-load-cancel) # no such options
            export ATS_PEER_DEVICE=ATS0
            arguments=("$1" "${sampler_test[@]}")
            ;;
        *) fail "unknown program $program" ;;
    esac
}

# Weights of ATS0 on either side when the last context ended.
expect_weights_on_both_sides() {
    local vram host
    vram=$(counter weights.vram.tensors)
    host=$(counter weights.host.tensors)
    printf '%s: weights: %s in VRAM, %s in host memory\n' "$program_name" "$vram" "$host"
    [ "$vram" -gt 0 ] && [ "$host" -gt 0 ] || fail 'the weights were all on one side'
}

run_one() {
    local model=$1 status=0
    arguments_of "$model"
    printf '%s: %s %s%s, ATS_PLACEMENT=%s%s\n' "$program_name" "$program" "$(basename "$model")" \
        "${sampler_test[*]:+ ${sampler_test[*]}}" "$ATS_PLACEMENT" "${ATS_VRAM:+ ATS_VRAM=$ATS_VRAM}"
    rm -f "$stats"
    (cd "$work" && peer "$program" "${arguments[@]}") >"$work/output" 2>&1 || status=$?
    if [ "$status" -ne 0 ] || grep -q ': skipping' "$work/output"; then
        tail -n 40 "$work/output"
        fail "$program ended with $status" "model $model"
    fi
}

# shellcheck disable=SC2030,SC2031 # each placement is for its own subshell
on_random_sides() (
    export ATS_PLACEMENT=random:$seed
    run_one "$1"
    expect_weights_on_both_sides
    expect_both_sides
)

# The budget is what a run with enough VRAM used, less half of the weights. Where a program has
# several contexts at a time, compute memory of a later one may move all weights out of VRAM, or
# find no room, and leave the rest to the CPU: so both sides need not have worked.
# shellcheck disable=SC2030,SC2031
with_half_the_vram() (
    export ATS_PLACEMENT=fill
    run_one "$1"
    ATS_VRAM=$(($(counter used_bytes) - $(counter weights.vram.bytes) / 2))
    export ATS_VRAM
    run_one "$1"
    [ "$(counter weights.host.tensors)" -gt 0 ] ||
        fail "the budget left no weight in host memory: the run tests nothing"
)

# A list of tests. The first one also runs with half the VRAM.
backend_sampler() {
    local name names
    names=$(peer "$program" --test=none "$1" 2>&1 | sed '1,/^Unknown test/d' || true)
    [ -n "$names" ] || fail "$program lists no tests"
    for name in $names; do
        # it wants the bias to outweigh all other tokens together: no random model gives that
        if [ "$name" = logit_bias ]; then
            printf '%s: SKIP: %s: it needs a trained model\n' "$program_name" "$name"
            continue
        fi
        sampler_test=(--test="$name")
        case $name in
            multi_output_limit) ATS_PLACEMENT=random:$seed run_one "$1" ;; # computes nothing
            greedy)
                on_random_sides "$1"
                with_half_the_vram "$1"
                ;;
            *) on_random_sides "$1" ;;
        esac
    done
}

sampler_test=()
for model; do
    [ -f "$model" ] || fail "$model is missing"
    case $program in
        test-backend-sampler) backend_sampler "$model" ;;
        test-model-load-cancel) ATS_PLACEMENT=random:$seed run_one "$model" ;; # has no context
        *)
            on_random_sides "$model"
            with_half_the_vram "$model"
            ;;
    esac
done
