#!/usr/bin/env bash
# `ats trace`: what it writes of runs over the emulated accelerator, what --check proves of them, and
# how it fails.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"
export OMP_WAIT_POLICY=passive ATS_PROFILES=$root/profiles
cd "$work" || exit 1

try "$ats" synth --arch llama --out model.gguf
expect_rc 0
try "$ats" synth --arch qwen3moe --out moe.gguf
expect_rc 0

json() { # FILTER FILE: jq says true
    jq -e "$1" "$2" >"$work/jq" 2>&1 || problem "$command_text" "not so: $1" "$(<"$work/jq")"
}

# A prompt of several passes and tokens: both phases, all lanes, names, bytes.
prompt=$(printf 'word %.0s' {1..80})
try_llama timeout 120 "$ats" trace --out one run --emulate emu-small --vram 12M --promote all \
    -ub 32 -m model.gguf -p "$prompt" -n 4 -no-cnv
expect_rc 0
expect_in err "Accelerator: EMULATED"
expect_in err "Look at one.html; one.json"
[ "$(ls -- one*)" = "one.html
one.json" ] || problem "$command_text" "left:" "$(ls)"
# warm-up, three passes of the prompt, and three tokens: the fourth is sampled from the third
json '.otherData | .format == "ats-trace-1" and .emulated and .dropped == 0' one.json
json '.otherData.phases | .prefill.tokens >= 81 and .decode.tokens == 3' one.json
json '.otherData.phases.prefill | .to_device_bytes > 1e6 and .overlap > 0 and .exact' one.json
json '[.traceEvents[] | select(.ph == "M" and .name == "thread_name").args.name] ==
    ["passes", "CPU", "EMU0 compute stream", "EMU0 transfer stream"]' one.json
json '[.traceEvents[] | select(.cat == "to device" and .tid == 3).name] |
    length > 0 and all(startswith("blk."))' one.json
json '[.traceEvents[] | select(.cat == "pass" and .ph == "b").name] | index("token 3") > 0' one.json
# times in lanes are those of one clock: nothing ends before it begins, nothing is before zero
json '[.traceEvents[] | select(.ph == "X") | .ts >= 0 and .dur >= 0] | all' one.json
# busy time in the summary is what the events of the lane add up to
json '(.otherData.phases.all.to_device_us + .otherData.phases.all.to_host_us) as $sum |
    ([.traceEvents[] | select(.ph == "X" and (.cat == "to device" or .cat == "to host")).dur] | add)
    as $events | ($events - $sum) / $sum | fabs < 0.35' one.json

# An emulation with a clock counts by itself what its engines do: the trace has the same. (Operators
# outside of passes, such as clearing a KV cache, are not in it.)
try_llama env ATS_EMU_REPORT=emu.json timeout 120 "$ats" trace --out timed run --emulate emu-timed \
    --vram 14M --promote all -ub 32 -m moe.gguf -p "$prompt" -n 4 -no-cnv
expect_rc 0
jq -s '{emu: .[0].devices[0], all: .[1].otherData.phases.all}' emu.json timed.json >both.json
json '.emu.copies_h2d > 100 and .all.to_device_bytes > 1e6' both.json
for pair in bytes_h2d:to_device_bytes bytes_d2h:to_host_bytes copy_h2d_us:to_device_us \
    copy_d2h_us:to_host_us; do
    json ".emu.${pair%:*} as \$emu | (.all.${pair#*:} / \$emu - 1) | fabs < 1e-4" both.json
done
json '(.all.accel_us / .emu.compute_us) as $share | $share > 0.95 and $share < 1.0001' both.json

# --check, over schedules that random pauses shift.
for seed in 1 2 3; do
    try_llama env ATS_EMU_SEED=$seed ATS_EMU_DELAY_US=200 timeout 120 "$ats" trace --check \
        --recording "$seed.rec" --out "$seed" run --emulate emu-small --vram 16M -ub 32 \
        --placement random:$seed --promote all -m moe.gguf -p "$prompt" -n 3 -no-cnv
    expect_rc 0
    expect_in err "No fault: every read follows its write"
    json '.otherData.check | .n_faults == 0 and .staged_reads > 10 and .ordered > 100 and
        .confirmed == .ordered' $seed.json
done

# Experts by slice: which expert is in which slot is proven too, while they come and go.
for seed in 4 5; do
    try_llama env ATS_EMU_SEED=$seed ATS_EMU_DELAY_US=200 ATS_EXPERTS=slices ATS_STATS=stats.json \
        timeout 120 "$ats" trace --check --out slices run --emulate emu-small \
        --placement random:$seed -ub 32 -m moe.gguf -p "$prompt" -n 16 -no-cnv
    expect_rc 0
    expect_in err "of single experts in slots"
    json '.devices[0].experts | .hits > 0 and .admitted_bytes > 0' stats.json
    json '.otherData.check | .n_faults == 0 and .expert_reads > 10 and .confirmed == .ordered' \
        slices.json
done

# The same recording once more, without running anything: the same totals.
try "$ats" trace --from 1.rec --out again --json
expect_rc 0
cp out again-totals.json
json '.format == "ats-trace-1" and .phases.all.passes > 3' again-totals.json
[ "$(jq -S '.otherData.phases' 1.json)" = "$(jq -S .phases again-totals.json)" ] ||
    problem "$command_text" "totals differ"

# JSON of a run has stdout to itself, whatever the program prints.
try_llama timeout 120 "$ats" trace --json --out alone run --emulate emu-small -m model.gguf -p Hello \
    -n 2 -no-cnv
expect_rc 0
cp out alone-totals.json
json '.format == "ats-trace-1" and .phases.all.passes > 0' alone-totals.json
expect_in err "Hello"
try "$ats" trace --json -- sh -c 'echo printed'
expect_rc 1
expect_in err printed
[ -z "$out" ] || problem "$command_text" "on stdout:" "$out"

# What ATS_TRACE alone writes, from a program that `ats` did not start.
try_llama env ATS_TRACE=plain.rec GGML_BACKEND_PATH="${ATS_LIBRARY:?}" ATS_EMULATE=emu-small \
    "$ATS_LLAMA_BIN/llama-completion" --device ATS0 -m model.gguf -p Hi -n 2 -no-cnv
expect_rc 0
try "$ats" trace --from plain.rec --out plain
expect_rc 0
expect_in out "Look at plain.html"
try "$ats" trace --check --from plain.rec --out plain
expect_error 1 "ATS_TRACE_CHECK=1"

# Little memory: the oldest go, and it is said.
try_llama timeout 120 "$ats" trace --memory 1M --out small run --emulate emu-small --vram 12M \
    --placement random:1 -ub 32 -m model.gguf -p "$prompt" -n 40 -no-cnv
expect_rc 0
json '.otherData.dropped > 0 and .otherData.records > 1000' small.json
expect_in err "records are missing"
expect_in err "ATS_TRACE_MEMORY"

# The command's exit code and its words are its own.
try "$ats" trace -- sh -c 'exit 9'
expect_rc 9
expect_in err "left no recording (exit code 9)"
# an old recording is not this run's
echo old >"$work/old.rec"
try "$ats" trace --recording "$work/old.rec" --out "$work/none" sh -c true
expect_rc 1
expect_in err "left no recording"
[ "$(<"$work/old.rec")" = old ] || problem "$command_text" "lost the recording of an earlier run"
try "$ats" trace -- sh -c 'kill -TERM $$'
expect_rc 143
try "$ats" trace no-such-program-anywhere
expect_rc 127
expect_in err "cannot start no-such-program-anywhere"
try "$ats" trace run --vram 6Q -m x
expect_rc 2
expect_in err "ats run: --vram"

# A signal that comes to ats alone reaches the command.
"$ats" trace -- sh -c 'sleep 30 & trap "kill $!; exit 5" TERM; touch up; wait' 2>err &
pid=$!
for _ in {1..100}; do
    [ ! -e up ] || break
    sleep 0.1
done
kill -TERM "$pid"
wait "$pid"
rc=$?
[ "$rc" -eq 5 ] || problem "SIGTERM" "exit code $rc, expected 5" "$(<err)"

# Wrong usage, and what can be missing.
try "$ats" trace
expect_error 2 "a command is missing"
try "$ats" trace --chekc run
expect_error 2 "did you mean --check"
try "$ats" trace --memory much run
expect_error 2 "--memory"
try "$ats" trace --from 1.rec run
expect_error 2 "--from runs nothing"
try "$ats" trace --from nowhere.rec
expect_error 1 "nowhere.rec"
try "$ats" trace --from model.gguf
expect_error 1 "not a recording"
head -c 100000 1.rec >short.rec
try "$ats" trace --from short.rec
expect_error 1 "its length is wrong"
try "$ats" trace --out no/such/folder run
expect_error 1 "--out: cannot write"
try env ATS_TRACE=x ATS_TRACE_MEMORY=lots "$ats" devices --emulate emu-small
expect_in err "ATS_TRACE_MEMORY"
finish
