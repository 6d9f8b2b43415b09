#!/usr/bin/env bash
# `make run`, once everything is built: generates text with a model whose weights are spread
# over an accelerator and the CPU, and says what went where.
#
#   MODEL          a GGUF model; default: models/demo.gguf, the small one that ships with this
#   PROMPT         what to continue
#   ATS_BUILD_DIR  our build (default: build/release)
#   ATS_CACHE_DIR  where the log of a failed run is kept (default: $ATS_CACHE, else ~/.cache/ats)
#   ATS_LLAMA_SRC, ATS_LLAMA_BIN  llama.cpp's sources and programs
#   ATS_EMULATE, ATS_VRAM, ...    as in `ats --help`; what is set is respected
set -euo pipefail

cd "$(dirname "$0")/.."
build=${ATS_BUILD_DIR:-build/${PRESET:-release}}
cache=${ATS_CACHE_DIR:-${ATS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ats}}
ats=$build/bin/ats
tokens=32
context_tokens=1024 # the default, a model's whole training context, may be huge

fail() {
    printf 'run: %s\n' "$*" >&2
    exit 1
}

[ -x "$ats" ] || fail "$ats is missing: run \`make build\`"

if [ -n "${MODEL:-}" ]; then
    [ -f "$MODEL" ] || fail "MODEL=$MODEL: no such file"
    model=$MODEL
    batch=()
else
    model=models/demo.gguf
    batch=(-ub 32) # or its working memory, 8 MB of logits, is larger than the model
    tokens=80
    context_tokens=512 # what it was trained with
fi

# Half of the model, so that both sides have something to do.
half=$(($(stat -L -c %s "$model") / 2))

devices=$("$ats" devices --json)
accelerator=$(jq -r '.ats[0].accelerator // .ats[0].description // empty' <<<"$devices")
if [ -z "$accelerator" ] && [ -z "${ATS_EMULATE:-}" ]; then
    export ATS_EMULATE=emu-small
fi
if [ -n "${ATS_EMULATE:-}" ]; then
    : "${ATS_VRAM:=$half}"
    echo "Accelerator: emulated ($ATS_EMULATE): it behaves like a GPU and computes on the CPU"
else
    [ -n "${MODEL:-}" ] || : "${ATS_VRAM:=$half}"
    echo "Accelerator: $accelerator"
fi
[ -z "${ATS_VRAM:-}" ] || export ATS_VRAM

echo "Model:       $model"
if [ -z "${MODEL:-}" ]; then
    echo '             trained for this project on old books: small, and no source of facts'
    echo '             (MODEL=file.gguf PROMPT="..." make run takes another)'
fi
echo

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/llama.log
stats=$work/stats.json

status=0
"$ats" run --stats "$stats" -m "$model" -p "${PROMPT:-She opened the door and}" \
    -n "$tokens" -c "$context_tokens" "${batch[@]}" -no-cnv --perf --seed 1 </dev/null 2>"$log" || status=$?
if [ "$status" -ne 0 ]; then
    kept=$cache/run.log
    mkdir -p "$cache" && cp "$log" "$kept"
    tail -n 15 "$log" >&2
    fail "llama-completion ended with exit code $status; its whole log is in $kept"
fi

echo
"$ats" report "$stats" --timings "$log"
