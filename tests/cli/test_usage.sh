#!/usr/bin/env bash
# Help teaches, and a wrong command line is one clear line and exit code 2.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

try "$ats" --help
expect_rc 0
for text in run serve bench top devices synth ATS_EMULATE ATS_ACCEL ATS_VRAM ATS_PLACEMENT \
    ATS_PLAN_OUT ATS_STATS ATS_LIVE ATS_PROFILES Examples; do
    expect_in out "$text"
done
[ -z "$err" ] || problem "$command_text" "wrote to stderr: $err"

for command in run serve bench trace top devices rig synth simulate plan profile; do
    for flag in --help -h; do
        try "$ats" "$command" "$flag"
        expect_rc 0
        expect_in out "Usage: ats $command"
        expect_in out "Examples"
        expect_narrow
    done
    expect_told_full "$ats" "$command" --help
done

# What cannot be printed is told, by every way out of the process.
expect_told_full "$ats" --help
expect_told_full "$ats" --version
fake=$(fake_llama_bin)
for json in '' --json; do
    # shellcheck disable=SC2086 # no word is no option
    {
        expect_told_full "$ats" devices --llama-bin "$fake" $json
        expect_told_full env ATS_RIG_SCALE=1 "$ats" rig laptop-3060 $json
        expect_told_full "$ats" simulate qwen3-14b --layers 2 --policy bound --prompt 0 --decode 1 $json
        expect_told_full "$ats" plan qwen3-14b --rig laptop-3060 --layers 2 $json
    }
done
expect_told_full "$ats" synth --list
expect_told_full "$ats" run --dry-run --llama-bin "$fake" --device none
# closed is as bad as full, but not for what prints nothing
"$ats" --help >&- 2>"$work/err"
[ $? -eq 1 ] || problem "ats --help >&-" "not an error"
"$ats" synth --arch llama --layers 1 --meta-only --out "$work/none/x.gguf" >&- 2>"$work/err"
[ "$(wc -l <"$work/err")" -eq 1 ] || problem "ats synth >&-" "not one line:" "$(<"$work/err")"

try "$ats" --version
expect_rc 0
expect_in out "ats "
expect_in out "ggml "

try "$ats"
expect_error 2 "a command is missing"
try "$ats" runn
expect_error 2 "did you mean 'run'"
try "$ats" device
expect_error 2 "did you mean 'devices'"
try "$ats" xyzzy
expect_error 2 "unknown command 'xyzzy'"
expect_not_in err "did you mean"
try "$ats" --versoin
expect_error 2 "did you mean --version"
try "$ats" devices --jsn
expect_error 2 "did you mean --json"
try "$ats" devices --js
expect_error 2 "unknown option --js"
try "$ats" devices -q
expect_error 2 "unknown option -q"
try "$ats" devices --json=yes
expect_error 2 "--json takes no value"
try "$ats" devices extra
expect_error 2 "unexpected argument 'extra'"
try "$ats" synth --out
expect_error 2 "--out needs a value"
try "$ats" run --vram 6Q -m x
expect_error 2 "--vram"
try "$ats" run --vram -1 -m x
expect_error 2 "--vram"
try "${ats%/*}/ats-ggml"
expect_error 2 "started by \`ats\`"
try "${ats%/*}/ats-ggml" probe
expect_error 2 "internal"

finish
