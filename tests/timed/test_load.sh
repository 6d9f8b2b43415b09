#!/usr/bin/env bash
# What a load does by itself: the first model that does not fit has the machine measured, once, and is
# placed by that; one that fits has not; what cannot be measured is told and costs nothing else.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"
export XDG_CACHE_HOME=$work/cache OMP_WAIT_POLICY=passive
export ATS_EMULATE=laptop-3060 ATS_RIG_SCALE=4
export GGML_BACKEND_PATH=${ATS_LIBRARY:-$root/build/release/lib/libggml-ats.so}
unset ATS_PROFILE ATS_PLACEMENT ATS_VRAM

model=$work/moe.gguf
try "$ats" synth --arch qwen3moe --layers 4 --embd 512 --experts 16 --experts-used 4 --ff 512 \
    --heads 8 --kv-heads 2 --type q4_0 --out "$model"
expect_rc 0

load() { # VARIABLE...: what is said ends up in $err
    try timeout 120 env "$@" "$ATS_LLAMA_BIN/llama-bench" -m "$model" -dev ATS0 -t 1 -p 64 -n 4 -r 1 -v
    expect_rc 0
    if grep -q 'EMU0: measuring' "$work/err"; then measured=1; else measured=0; fi
}
profiles() { find "$XDG_CACHE_HOME" -name 'profile-*.json' | wc -l; }
expect_measured() { # YES? NUMBER
    [ "$measured" -eq "$1" ] || problem "$command_text" "measured: $measured, expected $1" "$err"
    [ "$(profiles)" -eq "$2" ] || problem "$command_text" "$(profiles) profiles, expected $2"
}

load A=1 # it fits
expect_measured 0 0
load ATS_VRAM=24M ATS_PROFILE=off
expect_measured 0 0
! grep -q 'placed for this machine' "$work/err" || problem "$command_text" "by which profile?"
load ATS_VRAM=24M
expect_measured 1 1
expect_in err "ATS0: placed for this machine: "
expect_in err "predicted "
load ATS_VRAM=24M
expect_measured 0 1
expect_in err "ATS0: placed for this machine: "
load ATS_VRAM=24M ATS_PLACEMENT=fill # asked for: measured all the same, for the rates
expect_measured 0 1
! grep -q 'placed for this machine' "$work/err" || problem "$command_text" "the rule was given"

# a damaged profile is measured again, a cache that cannot be written costs the placement
echo '{' >"$(find "$XDG_CACHE_HOME" -name 'profile-*.json')"
load ATS_VRAM=24M
expect_measured 1 1
touch "$work/file"
load ATS_VRAM=24M XDG_CACHE_HOME="$work/file"
expect_in err "no profile of this machine, built-in rates are used"

finish
