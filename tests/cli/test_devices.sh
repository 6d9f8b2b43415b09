#!/usr/bin/env bash
# `ats devices` describes the CPU, accelerators and ATS devices.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
fake=$(fake_llama_bin)

try "$ats" devices --llama-bin "$fake" --json
expect_rc 0
jq -e '.format == "ats-devices-1" and .cpu.cores > 0 and .cpu.memory_total_bytes > 0
    and .backend.loaded and .accelerators == [] and .ats == []' "$work/out" >/dev/null ||
    problem "$command_text" "wrong JSON:" "$out"

try "$ats" devices --llama-bin "$fake" --emulate emu-small,emu-small --json
expect_rc 0
jq -e '(.ats | length) == 2 and .ats[1].name == "ATS1"
    and .ats[0].memory_total_bytes > .cpu.memory_total_bytes / 2
    and (.ats[0].capabilities | length) == 5' "$work/out" >/dev/null ||
    problem "$command_text" "wrong JSON:" "$out"
jq -e '.ats[0].accelerator == "EMU0" and .ats[1].accelerator == "EMU1"
    and [.accelerators[] | .emulated] == [true, true]' "$work/out" >/dev/null ||
    problem "$command_text" "does not say which accelerator is behind which ATS device:" "$out"

try "$ats" devices --llama-bin "$fake"
expect_rc 0
expect_in out "none: models run on the CPU only"
expect_in out "cores"

try "$ats" devices --llama-bin "$fake" --emulate emu-small
expect_rc 0
expect_in out "ATS0"
expect_not_in out $'\033'
expect_narrow

# A backend that crashes while it is loaded is an error message.
cat >"$work/crash.c" <<'CRASH'
#include <stdlib.h>
__attribute__((constructor)) static void crash(void) { abort(); }
CRASH
if "${CC:-cc}" -shared -fPIC -o "$work/crash.so" "$work/crash.c"; then
    try env ATS_BACKEND="$work/crash.so" "$ats" devices --llama-bin "$fake"
    expect_error 1 "crashed"
fi

finish
