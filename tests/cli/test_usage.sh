#!/usr/bin/env bash
# Help teaches, and a wrong command line is one clear line and exit code 2.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

try "$ats" --help
expect_rc 0
for text in run serve bench devices synth ATS_EMULATE ATS_ACCEL ATS_VRAM ATS_PLACEMENT \
    ATS_PLAN_OUT ATS_STATS ATS_PROFILES Examples; do
    expect_in out "$text"
done
[ -z "$err" ] || problem "$command_text" "wrote to stderr: $err"

for command in run serve bench trace devices synth profile; do
    for flag in --help -h; do
        try "$ats" "$command" "$flag"
        expect_rc 0
        expect_in out "Usage: ats $command"
        expect_in out "Examples"
        longest=$(awk '{ if (length > max) max = length } END { print max + 0 }' "$work/out")
        [ "$longest" -le 80 ] || problem "$command_text" "a line of $longest columns"
    done
done

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
