#!/usr/bin/env bash
# ggml-sanitized.sh asan|tsan: ggml and its CPU backend, instrumented, for the unit tests of
# the sanitizer presets. asan is the address and undefined sanitizers together.
. "$(dirname "$0")/paths.sh"

kind=${1:?usage: ggml-sanitized.sh asan|tsan}
flags=$(sanitizer_flags "$kind")
build=$(ggml_sanitized_build "$kind")
if [ -z "${LLAMA_DIR:-}" ]; then
    [ ! -f "$build/.complete" ] || exit 0
fi
with_lock "$(basename "$build")"
if [ -z "${LLAMA_DIR:-}" ]; then
    [ ! -f "$build/.complete" ] || exit 0
fi
[ -d "$llama_src/ggml" ] || die "llama.cpp is not there yet" "run scripts/setup/llama.sh first"
need_command cmake
need_command ninja
mkdir -p "$build"
jobs=$(build_jobs)
[ -f "$build/.complete" ] ||
    say "building ggml for $kind once, about $((3 / jobs + 1)) minutes; log: $build/build.log"
{
    # shellcheck disable=SC2086 # flags is a list
    { [ -f "$build/build.ninja" ] ||
        cmake -S "$llama_src" -B "$build" "${ggml_flags[@]}" $flags; } &&
        ninja -C "$build" -j "$jobs" ggml ggml-base ggml-cpu
} >"$build/build.log" 2>&1 || {
    tail -n 20 "$build/build.log" >&2
    die "building ggml for $kind failed" "the lines above end the log $build/build.log"
}
touch "$build/.complete"
