#!/usr/bin/env bash
# `ats run`, `serve` and `bench` start the right program with the right words.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
fake=$(fake_llama_bin)

# Words reach the program unchanged and in order; ours do not; its exit code is ours.
try "$ats" run --llama-bin "$fake" -m 'a b.gguf' --vram 16M -p "it's" -- --vram 3 -h ''
expect_rc 7
expect_in out "program llama-completion"
[ "$(grep '^word' "$work/out" | tr '\n' ' ')" = \
    "word [-m] word [a b.gguf] word [-p] word [it's] word [--vram] word [3] word [-h] word [] " ] ||
    problem "$command_text" "wrong words:" "$out"
expect_in out "ATS_VRAM=16M"
expect_in out "GGML_BACKEND_PATH=/"

# No accelerator: one line says so, and no --device is added.
expect_in err "runs on the CPU only"
expect_in err "--emulate emu-small"
[ "$(wc -l <"$work/err")" -eq 1 ] || problem "$command_text" "not one line:" "$err"
expect_not_in out "--device"

# With one: --device in front of the user's words.
try "$ats" run --llama-bin "$fake" --emulate emu-small -m x
expect_rc 7
[ "$(grep '^word' "$work/out" | head -2 | tr '\n' ' ')" = "word [--device] word [ATS0] " ] ||
    problem "$command_text" "wrong words:" "$out" "$err"
expect_in out "ATS_EMULATE=emu-small"

# Two of them; llama-bench separates devices otherwise.
try "$ats" serve --llama-bin "$fake" --emulate emu-small,emu-small
expect_in out "program llama-server"
expect_in out "word [ATS0,ATS1]"
try "$ats" bench --llama-bin "$fake" --emulate emu-small,emu-small
expect_in out "program llama-bench"
expect_in out "word [ATS0/ATS1]"

# The user's own choice of devices stands.
for choice in --device -dev; do
    try "$ats" run --llama-bin "$fake" --emulate emu-small "$choice" none
    [ "$(grep -c '^word' "$work/out")" -eq 2 ] || problem "$command_text" "words added:" "$out"
done
try env LLAMA_ARG_DEVICE=none "$ats" run --llama-bin "$fake" --emulate emu-small -m x
expect_not_in out "--device"

try "$ats" run --llama-bin "$fake" --program llama-cli -m x
expect_in out "program llama-cli"
try "$ats" run --llama-bin "$fake" --program="$fake/llama-bench" -m x
expect_in out "program llama-bench"

# Every option of ours becomes a variable.
try "$ats" run --llama-bin "$fake" --device none --accel CUDA0 --placement random:3 \
    --promote random:7 --transfer serial --plan-out "$work/plan" --stats="$work/stats"
for text in ATS_ACCEL=CUDA0 ATS_PLACEMENT=random:3 ATS_PROMOTE=random:7 \
    ATS_TRANSFER=serial GGML_CUDA_REGISTER_HOST=1 "ATS_PLAN_OUT=$work/plan" \
    "ATS_STATS=$work/stats"; do
    expect_in out "$text"
done

# What the user set for CUDA stands.
try env GGML_CUDA_REGISTER_HOST=0 "$ats" run --llama-bin "$fake" --device none
expect_in out "GGML_CUDA_REGISTER_HOST=0"

# What the library would refuse is refused here, on a machine without an accelerator too, and before
# any program: by its option, or by its variable.
try "$ats" run --llama-bin "$fake" --promote most -m x
expect_error 2 "ats run: --promote most is none of auto, none, all, pieces, used, random:SEED"
for rule in random: random:x random:SEED; do
    try "$ats" run --llama-bin "$fake" --promote "$rule" -m x
    expect_error 2 "--promote $rule is none of"
done
try "$ats" run --llama-bin "$fake" --transfer later -m x
expect_error 2 "--transfer later is neither async nor serial"
try "$ats" serve --llama-bin "$fake" --vram 6Q -m x
expect_error 2 "ats serve: --vram: '6Q' is not a size"
try "$ats" bench --llama-bin "$fake" --placement nosuch -m x
expect_error 2 "ats bench: --placement nosuch is neither a rule"
echo "no plan" >"$work/no-plan"
try "$ats" run --llama-bin "$fake" --device none --placement "$work/no-plan"
expect_error 2 "--placement: $work/no-plan: not a placement plan"
for value in PLACEMENT=nosuch PROMOTE=most TRANSFER=later EXPERTS=some VRAM=6Q TRACE_MEMORY=much \
    TRACE_CHECK=2; do
    for command in run serve bench; do
        try env "ATS_$value" "$ats" "$command" --llama-bin "$fake" -m x
        expect_error 2 "ats $command: ATS_${value%=*}"
    done
done
for rule in auto none all; do
    try "$ats" run --llama-bin "$fake" --device none --promote "$rule" --transfer async
    expect_in out "ATS_PROMOTE=$rule"
    expect_in out "ATS_TRANSFER=async"
done

# --dry-run prints what a shell can run, and does not run it.
try "$ats" run --dry-run --llama-bin "$fake" --emulate emu-small -m 'a b' -p "it's"
expect_rc 0
expect_not_in out "program"
dry=$out
try sh -c "$dry"
expect_rc 7
expect_in out "word [a b]"
expect_in out "word [it's]"
expect_in out "word [ATS0]"

# What can be missing.
try "$ats" run --llama-bin "$work/nowhere" -m x
expect_error 1 "$work/nowhere"
try env ATS_LLAMA_BIN="$work/nowhere" "$ats" run -m x
expect_error 1 "ATS_LLAMA_BIN"
try "$ats" run --llama-bin "$fake" --program llama-nothing
expect_error 1 "$fake/llama-nothing"
chmod -x "$fake/llama-cli"
try "$ats" run --llama-bin "$fake" --program llama-cli
expect_error 1 "not an executable file"
try env ATS_BACKEND="$work/none.so" "$ats" run --llama-bin "$fake" -m x
expect_error 1 "$work/none.so"
echo 'not a library' >"$work/text.so"
try env ATS_BACKEND="$work/text.so" "$ats" run --llama-bin "$fake" -m x
expect_error 1 "could not be loaded"
mkdir -p "$work/alone/bin"
cp "$ats" "$work/alone/bin/"
try env LD_LIBRARY_PATH="$ATS_LLAMA_BIN" "$work/alone/bin/ats" run --llama-bin "$fake" -m x
expect_error 1 "libggml-ats.so is missing"

# What was asked for by name and is not there is an error, not a fallback.
try "$ats" run --llama-bin "$fake" --emulate no-such-profile -m x
expect_rc 1
expect_in err "no-such-profile"
try env ATS_PROFILE="$work/no-such.json" "$ats" run --llama-bin "$fake" -m x
expect_error 2 "ATS_PROFILE=$work/no-such.json is neither auto, nor off, nor a file"
for session in 2048 :128 2048: 0:128 2048:x 2048:128:1 99999999:1; do
    try env ATS_SESSION="$session" "$ats" run --llama-bin "$fake" -m x
    expect_error 2 "ATS_SESSION=$session is not PROMPT:ANSWER"
done
try "$ats" run --llama-bin "$fake" --accel NOPE0 -m x
expect_rc 1
expect_in err "NOPE0"
try "$ats" run --llama-bin "$fake" --emulate no-such-profile --device none
expect_error 1 "no-such-profile"

# Nor does a program run whose results could not be written.
try "$ats" run --llama-bin "$fake" --stats "$work/no/such/folder/s.json" -m x
expect_error 1 "--stats: cannot write"
try "$ats" run --llama-bin "$fake" --plan-out "$work" -m x
expect_error 1 "is a folder"
for variable in ATS_TRACE ATS_STATS ATS_PLAN_OUT; do
    for file in "$work/no/such/folder/x" /proc/x; do
        try env "$variable=$file" "$ats" run --llama-bin "$fake" --device none
        expect_error 1 "ats run: $variable: cannot write $file"
    done
    # what can be written is left as it is
    echo old >"$work/old"
    try env "$variable=$work/old" "$ats" run --llama-bin "$fake" --device none
    expect_rc 7
    [ "$(<"$work/old")" = old ] || problem "$command_text" "the file was touched"
    try env "$variable=/dev/null" "$ats" run --llama-bin "$fake" --device none
    expect_rc 7
done
left=$(find "$work" -name '*.tmp')
[ -z "$left" ] || problem "trying to write" "left behind:" "$left"

finish
