#!/usr/bin/env bash
# peer-ops.sh [--full] [--vulkan]: llama.cpp's test of all operators on ATS0, compared
# with the CPU's reference implementation.
#
# By default, rounds of cases drawn by a seed, each with every operator, until the time is up.
# Rounds take turns: operators on random sides, all on the accelerator, random sides and pauses.
# --full runs all cases, on random sides and on the accelerator (long). With --vulkan, cases
# that ggml-vulkan itself fails do not count.
#
#   SEED          of the sample and of the sides (default: $ATS_TEST_SEED, or a random one)
#   OPS           comma separated operators or cases instead of a sample
#   OPS_SECONDS   begin no round that would end later (default 150; two rounds always run)
# shellcheck source=tests/peer/lib.sh
. "$(dirname "$0")/../tests/peer/lib.sh"

full=
lane=emu
for option; do
    case $option in
        --full) full=1 ;;
        --vulkan) lane=vulkan ;;
        *) fail "unknown option $option" ;;
    esac
done
use_accelerator "$lane"
# Some cases are larger than the small device of the other tests; untouched memory is free.
export ATS_EMU_MEMORY=8G
seed=${SEED:-${ATS_TEST_SEED:-$(random_seed)}}
seconds=${OPS_SECONDS:-150}
printf '%s: SEED=%s\n' "$program_name" "$seed"

# Which operators to draw from.
operators='.*'
if [ "$lane" = vulkan ]; then
    # llvmpipe looks at the buffers of unused bindings too, and ggml-vulkan leaves those of
    # earlier operators in them: it crashes once they are freed. So none are.
    export ATS_PEER_LEAK=1
    # the others take llvmpipe's compiler a minute
    operators='(?!FLASH_ATTN_EXT|LIGHTNING_INDEXER|MUL_MAT|TOP_?K|ADD_RMS_NORM|SOFT_MAX$|RWKV'
    operators+='|RMS_NORM_MUL|ROPE_BACK|UPSCALE|IM2COL|GATED_LINEAR_ATTN).*'
fi
n_passed=0
n_failed=0
to_accel_bytes=0

# run DEVICE OPS: the output goes to $work/output, failed cases to $work/failed.DEVICE.
# False if the program crashed: without a last line of its own it did not come to its end.
run() {
    local device=$1 ops=$2
    local arguments=(test -b "$device" ${ops:+-o "$ops"})
    # llvmpipe crashes if two workers compile shaders
    [ "$lane" = vulkan ] || arguments+=(-j 2)
    rm -f "$stats"
    peer test-backend-ops "${arguments[@]}" >"$work/output" 2>&1 || true
    sed -i $'s/\x1b\\[[0-9;]*m//g' "$work/output"
    # a message of the failure may stand before the name of the case
    grep -oE '[A-Z0-9_]+\([^ ]*\): FAIL' "$work/output" | sed 's/: FAIL$//' |
        sort >"$work/failed.$device" || true
    grep -qE '^[0-9]+/[0-9]+ backends passed' "$work/output"
}

# try NAME OPS: one run on ATS0; ATS_PLACEMENT says on which sides.
try() {
    local name=$1 ops=$2 passed failed started=$SECONDS
    : >"$work/failed.$accelerator"
    if [ "$lane" = vulkan ] && ! run "$accelerator" "$ops"; then
        printf '%s: %s: not counted, %s itself crashed\n' "$program_name" "$name" "$accelerator"
        return
    fi
    if ! run ATS0 "$ops"; then
        tail -n 20 "$work/output" >&2
        fail "test-backend-ops test -b ATS0 crashed" "ATS_PLACEMENT=$ATS_PLACEMENT"
    fi
    passed=$(grep -c ': OK' "$work/output" || true)
    mapfile -t failed < <(comm -23 "$work/failed.ATS0" "$work/failed.$accelerator")
    printf '%s: %s, ATS_PLACEMENT=%s: %s passed, %s failed%s, %s not supported, %s s\n' \
        "$program_name" "$name" "$ATS_PLACEMENT" "$passed" "${#failed[@]}" \
        "$([ "$lane" = emu ] || echo " (and $(wc -l <"$work/failed.$accelerator") on $accelerator itself)")" \
        "$(grep -c ': not supported' "$work/output" || true)" $((SECONDS - started))
    if [ ${#failed[@]} -gt 0 ]; then
        grep -F "${failed[@]/#/-e}" "$work/output" | grep FAIL | head -n 20 || true
    fi
    n_passed=$((n_passed + passed))
    n_failed=$((n_failed + ${#failed[@]}))
    [ ! -s "$stats" ] || to_accel_bytes=$((to_accel_bytes + $(counter copied_to_accel_bytes)))
}

# The placement and the pauses of round N.
choose_sides() {
    export ATS_PLACEMENT=random:$((seed + $1)) ATS_EMU_DELAY_US=0 ATS_EMU_SEED=$seed
    case $(($1 % 3)) in
        1) ATS_PLACEMENT=vram ;;
        2) ATS_EMU_DELAY_US=100 ;;
    esac
}

sample() {
    local started=$SECONDS round_started longest=0 number=0 file
    mkdir "$work/rounds"
    choose_sides 0
    ATS_PEER_LIST=1 peer test-backend-ops test -b ATS0 2>/dev/null |
        "$root/tests/peer/ops_sample.py" "$seed" "$work/rounds" "$operators" ||
        fail 'the cases could not be listed'
    for file in "$work/rounds"/*; do
        [ "$number" -lt 2 ] || [ $((SECONDS - started + longest)) -le "$seconds" ] || break
        choose_sides "$number"
        round_started=$SECONDS
        try "round $number" "$(<"$file")"
        number=$((number + 1))
        [ $((SECONDS - round_started)) -le "$longest" ] || longest=$((SECONDS - round_started))
    done
}

if [ -n "${OPS:-}" ] || [ -n "$full" ]; then
    for round in 0 1; do
        choose_sides "$round"
        try "${OPS:-all cases}" "${OPS:-}"
    done
else
    sample
fi

[ "$n_passed" -gt 0 ] || fail 'no case ran'
[ "$to_accel_bytes" -gt 0 ] || fail "nothing was ever copied to $accelerator"
printf 'ops: %s passed, %s failed\n' "$n_passed" "$n_failed"
[ "$n_failed" -eq 0 ]
