#!/usr/bin/env bash
# The examples of the help with an emulated accelerator, run word by word as they stand there: the
# model is spread over both sides.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

# example TRY TEXT COMMAND...: runs the only line of the command's help that has the text, by try or
# try_llama.
example() {
    local how=$1 text=$2 line
    try "$ats" "${@:3}" --help
    # what stands in brackets explains
    line=$(grep '^  ats ' "$work/out" | grep -F -- "$text" | sed 's/ (.*)$//')
    [ -n "$line" ] && [ "$(wc -l <<<"$line")" -eq 1 ] || {
        problem "ats ${*:3} --help" "not one example with '$text':" "$line"
        return
    }
    mkdir -p "$work/bin"
    ln -sf "$ats" "$work/bin/ats"
    "$how" env -C "$work" PATH="$work/bin:$PATH" ATS_STATS="$work/stats.json" OMP_WAIT_POLICY=passive \
        ATS_PROFILES="$root/profiles" timeout 120 sh -c "${line#  }"
    expect_rc 0
}

example try "ats synth"
[ -s "$work/model.gguf" ] || problem "$command_text" "no model was written"
for command in "" run; do
    rm -f "$work/stats.json"
    # shellcheck disable=SC2086 # no word is no command
    example try_llama "--emulate emu-small" $command
    expect_in out Hello
    jq -e '.devices[0].weights | .vram.tensors > 0 and .host.tensors > 0' "$work/stats.json" \
        >/dev/null || problem "$command_text" "not on both sides:" "$(<"$work/stats.json")"
done
finish
