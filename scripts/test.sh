#!/usr/bin/env bash
# What `make test` runs once everything is set up: builds the release tree and those of the
# sanitizers, then runs all tests with one ctest. Its environment is that of scripts/setup/env.sh.
#
#   ATS_TEST_SEED   of all random tests (default: a fixed one; "random" draws and prints one)
#   CTEST_ARGS      more options for ctest, such as: -L unit
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'test: %s\n' "$*" >&2
    exit 1
}

# build PRESET BIN [OPTION...]: with the ggml in BIN; OPTIONs go to CMake
build() {
    local preset=$1 bin=$2
    shift 2
    [ -n "$bin" ] || fail "the ggml for the preset $preset is missing: run \`make test-setup\`"
    echo "test: building $preset"
    cmake --preset "$preset" --log-level=WARNING \
        -DATS_LLAMA_SRC="$ATS_LLAMA_SRC" -DATS_LLAMA_BIN="$bin" "$@"
    cmake --build --preset "$preset" -j "${ATS_JOBS:-2}" -- --quiet
}

: "${ATS_LLAMA_SRC:?run this through \`make test\`}"
# The release tree last: it registers the tests of the others.
# The address sanitizer works beside code that is not instrumented, so that tree can also test
# through a plain libllama; the thread sanitizer would report what it cannot see.
build asan "${ATS_GGML_ASAN_BIN:-}" -DATS_LIBLLAMA_BIN="${ATS_LLAMA_BIN:-}"
build tsan "${ATS_GGML_TSAN_BIN:-}"
build release "${ATS_LLAMA_BIN:-}"

# A run that fails must be one that can be repeated, so chance comes only when asked for.
export ATS_TEST_SEED=${ATS_TEST_SEED:-20261129}
[ "$ATS_TEST_SEED" != random ] || ATS_TEST_SEED=$((RANDOM * 32768 + RANDOM))
echo "test: ATS_TEST_SEED=$ATS_TEST_SEED repeats the random tests of this run"
# shellcheck disable=SC2086 # a list of options
exec ctest --preset release -j2 ${CTEST_ARGS:-}
