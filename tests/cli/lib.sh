# Shared by the tests of the command `ats`; each test_*.sh sources this file.
#
#   ATS            the executable (default: build/release/bin/ats)
#   ATS_LLAMA_BIN  llama.cpp's programs and libraries
#   ATS_LLAMA_SRC  its sources (for the vocabularies)
# shellcheck shell=bash
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
ats=${ATS:-$root/build/${PRESET:-release}/bin/ats}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# What a user may have set must not decide a test.
unset ATS_EMULATE ATS_ACCEL ATS_VRAM ATS_PLACEMENT ATS_PROMOTE ATS_TRANSFER ATS_PLAN_OUT ATS_STATS ATS_LIVE
unset ATS_PROFILE ATS_TRACE ATS_TRACE_MEMORY ATS_TRACE_CHECK GGML_BACKEND_PATH GGML_CUDA_REGISTER_HOST
unset LLAMA_ARG_DEVICE

for need in "$ats" "${ATS_LLAMA_BIN:?must name the folder of llama-completion}" \
    "${ATS_LLAMA_SRC:?must name the llama.cpp sources}"; do
    [ -e "$need" ] || {
        echo "missing: $need" >&2
        exit 1
    }
done

problem() {
    printf 'FAIL %s\n' "$1" >&2
    printf '     %s\n' "${@:2}" >&2
    failures=$((failures + 1))
}

# try COMMAND...: runs it; leaves exit code, output and errors in $rc, $out, $err.
try() {
    command_text=$*
    "$@" >"$work/out" 2>"$work/err" </dev/null
    rc=$?
    out=$(<"$work/out")
    err=$(<"$work/err")
}

# try_llama COMMAND...: the same for a program of llama.cpp that generates text. Its logger writes
# both streams on a thread of its own, and loses what is queued when the program exits, now and then
# on a busy machine, with the plain CPU too. A run that succeeded without its last lines is repeated.
try_llama() {
    local attempt
    for attempt in 1 2 3 4 5; do
        try "$@"
        [ "$rc" -eq 0 ] && ! grep -q 'total time' "$work/err" || break
    done
}

expect_rc() {
    [ "$rc" -eq "$1" ] || problem "$command_text" "exit code $rc, expected $1" "stderr: $err"
}

# expect_in out|err TEXT: the text occurs there.
expect_in() {
    [[ "${!1}" == *"$2"* ]] || problem "$command_text" "no '$2' in $1:" "${!1}"
}

expect_not_in() {
    [[ "${!1}" != *"$2"* ]] || problem "$command_text" "'$2' in $1:" "${!1}"
}

# An error is one line on stderr, and nothing on stdout.
expect_error() { # RC TEXT
    expect_rc "$1"
    expect_in err "$2"
    [ "$(wc -l <"$work/err")" -eq 1 ] || problem "$command_text" "not one line on stderr:" "$err"
    [ ! -s "$work/out" ] || problem "$command_text" "unexpected output:" "$out"
}

# A folder like llama.cpp's, but with the CPU backend only, whatever this machine has, and with
# programs that print how they were started and exit with 7.
fake_llama_bin() {
    local folder=$work/llama-bin program
    mkdir -p "$folder"
    ln -sf "$ATS_LLAMA_BIN"/libggml.so* "$ATS_LLAMA_BIN"/libggml-base.so* \
        "$ATS_LLAMA_BIN"/libggml-cpu*.so "$folder/"
    for program in llama-completion llama-server llama-bench llama-cli; do
        cat >"$folder/$program" <<'PROGRAM'
#!/bin/sh
echo "program ${0##*/}"
for word; do echo "word [$word]"; done
env | grep -E '^(ATS_|GGML_)' | sort
exit 7
PROGRAM
        chmod +x "$folder/$program"
    done
    printf '%s\n' "$folder"
}

# expect_told_full COMMAND...: with nowhere to print to, one line says so and the exit code is 1.
expect_told_full() {
    command_text="$* >/dev/full"
    "$@" >/dev/full 2>"$work/err" </dev/null
    rc=$?
    err=$(<"$work/err")
    expect_rc 1
    expect_in err "ats: cannot write to standard output"
    [ "$(wc -l <"$work/err")" -eq 1 ] || problem "$command_text" "not one line on stderr:" "$err"
}

# expect_narrow: what was printed fits 80 columns.
expect_narrow() {
    local longest
    longest=$(awk '{ if (length > max) max = length } END { print max + 0 }' "$work/out")
    [ "$longest" -le 80 ] || problem "$command_text" "a line of $longest columns:" "$out"
}

finish() {
    [ "$failures" -eq 0 ] || echo "${0##*/}: $failures failed" >&2
    exit $((failures > 0))
}
