#!/usr/bin/env bash
# scripts/run.sh, with a program in llama-completion's place that writes what the real one would.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
fake=$(fake_llama_bin)
build=$(dirname "$(dirname "$ats")")

cat >"$fake/llama-completion" <<'PROGRAM'
#!/bin/sh
echo "said: $*"
echo "budget: ${ATS_VRAM:-none}"
[ "${FAKE_FAILS:-}" = "" ] || { echo "no luck" >&2; exit 3; }
echo 'I perf: eval time = 100.0 ms / 10 runs ( 10.0 ms per token, 98.7 tokens per second)' >&2
echo '{"format":"ats-stats-1","devices":[{"name":"ATS0","accelerator":"EMU0","budget_bytes":1,
 "weights":{"vram":{"tensors":4,"bytes":5}},"last_splits":3}]}' >"$ATS_STATS"
PROGRAM

run() { # [NAME=VALUE...]
    try env ATS_BUILD_DIR="$build" ATS_CACHE_DIR="$work/cache dir" ATS_LLAMA_BIN="$fake" "$@" \
        "$root/scripts/run.sh"
}

run
expect_rc 0
expect_in out "emulated (emu-small)"
expect_in out "models/demo.gguf"
expect_in out "trained for this project"
expect_in out "-p She opened the door"
expect_in out "--device ATS0"
expect_in out "4 tensors"
expect_in out "98.7"
expect_not_in out "budget: none"

# The user's words and choices stand.
run PROMPT="two  words" ATS_VRAM=7M
expect_rc 0
expect_in out "-p two  words"
expect_in out "budget: 7M"

model=$work/own.gguf
cp "$root/models/demo.gguf" "$model"
run MODEL="$model"
expect_rc 0
expect_in out "own.gguf"
expect_not_in out "trained for this project"

run MODEL="$work/none.gguf"
expect_error 1 "MODEL=$work/none.gguf: no such file"
run FAKE_FAILS=1
expect_rc 1
expect_in err "no luck"
expect_in err "exit code 3"
[ -f "$work/cache dir/run.log" ] || problem "a failed run" "keeps no log"

finish
