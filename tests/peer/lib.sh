# shellcheck shell=bash
# Shared by the scripts that run llama.cpp's own test programs on ATS0.
#
#   ATS_LLAMA_BIN   llama.cpp's programs and libraries
#   ATS_VULKAN_BIN  the same with ggml-vulkan, for `use_accelerator vulkan`
#   ATS_BUILD_DIR   our build (default: build/$PRESET, build/release)
#   ATS_TEST_SEED   the seed, where a test would draw one
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${ATS_BUILD_DIR:-$root/build/${PRESET:-release}}
preload=$build/lib/libpeer-preload.so
program_name=${0##*/}
skip_code=77 # what ctest takes for "skipped"

fail() {
    printf '%s: FAIL: %s\n' "$program_name" "$1" >&2
    [ $# -eq 1 ] || printf '    %s\n' "${@:2}" >&2
    exit 1
}

skip() {
    printf '%s: SKIP: %s\n' "$program_name" "$*"
    exit "$skip_code"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stats=$work/stats.json

# What a user may have set must not decide a test.
unset ATS_EMULATE ATS_EMU_MEMORY ATS_EMU_FAIL ATS_ACCEL ATS_VRAM ATS_PLACEMENT ATS_PLAN_OUT
unset LLAMA_ARG_DEVICE LLAMA_ARG_N_GPU_LAYERS GGML_VK_VISIBLE_DEVICES

export GGML_BACKEND_PATH=$build/lib/libggml-ats.so
export ATS_STATS=$stats
# the emulated accelerator computes on the same cores: idle OpenMP threads must not spin there
export OMP_WAIT_POLICY=passive

for need in "$GGML_BACKEND_PATH" "$preload"; do
    [ -e "$need" ] || fail "$need is missing" "run 'make build' first"
done
command -v python3 >/dev/null || fail 'python3 is missing'

# use_accelerator emu|vulkan: what is behind ATS0, and which of the programs to use. Sets
# $accelerator, the name of its device.
use_accelerator() {
    case $1 in
        emu)
            bin=${ATS_LLAMA_BIN:?must name the folder of test-llama-archs}
            accelerator=EMU0
            export ATS_EMULATE=emu-small ATS_PROFILES=$root/profiles
            ;;
        vulkan)
            bin=${ATS_VULKAN_BIN:-}
            [ -n "$bin" ] || skip 'there is no ggml-vulkan here (scripts/setup/vulkan.sh)'
            accelerator=Vulkan0
            # ggml-vulkan takes a software device such as llvmpipe only if it is named
            export GGML_VK_VISIBLE_DEVICES=0 ATS_ACCEL=Vulkan0
            ;;
    esac
    export LD_LIBRARY_PATH=$bin
}

# peer PROGRAM ARGUMENT...: one of llama.cpp's programs, with our preload (see preload.c).
peer() {
    local program=$1
    shift
    [ -x "$bin/$program" ] || fail "$bin/$program is missing" "run 'make test-setup' first"
    env LD_PRELOAD="$preload" "$bin/$program" "$@"
}

random_seed() { echo $((RANDOM * 32768 + RANDOM)); }

# counter NAME: of device ATS0, from the summary of the last run; path as in "weights.vram.bytes".
counter() {
    [ -s "$stats" ] || fail 'ATS0 wrote no summary, so nothing ran on it'
    python3 - "$stats" "$1" <<'PYTHON'
import functools, json, sys
device = json.load(open(sys.argv[1]))["devices"][0]
print(functools.reduce(lambda value, key: value[key], sys.argv[2].split("."), device))
PYTHON
}

# A run in which one side did everything proves nothing about the splits between them.
expect_both_sides() {
    local graphs splits there back
    graphs=$(counter graphs)
    splits=$(counter splits)
    there=$(counter copied_to_accel_bytes)
    back=$(counter copied_to_host_bytes)
    printf '%s: %s graphs in %s splits, %s bytes copied to %s, %s back\n' \
        "$program_name" "$graphs" "$splits" "$there" "$accelerator" "$back"
    [ "$splits" -gt "$graphs" ] && [ "$there" -gt 0 ] ||
        fail 'not both sides were used' "$(<"$stats")"
}
