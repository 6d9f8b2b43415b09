#!/usr/bin/env bash
# `make train`: from nothing to models/demo.gguf, or on from where the last run ended.
#
#   train.sh [run|export|quality|samples]...   these steps only; all of them by default
#
#   STEPS          of the whole run (default: that of `ats-train train`)
#   ATS_TRAIN_DIR  folder of the run (default: train in the cache)
#   ATS_BUILD_DIR  our build (default: build/release)
#   ATS_CACHE      the cache
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
eval "$("$root/scripts/setup/env.sh")"
trainer=${ATS_BUILD_DIR:-$root/build/release}/bin/ats-train
folder=$ATS_CACHE_DIR/train
run=${ATS_TRAIN_DIR:-$folder}
model=$root/models/demo.gguf

fail() {
    printf 'train: %s\n' "$*" >&2
    exit 1
}

step_run() {
    [ -f "$folder/tokenizer.txt" ] ||
        "$trainer" tokenizer --text "$folder/text/train.txt" --out "$folder/tokenizer.txt"
    "$trainer" train --dir "$run" --text "$folder/text/train.txt" \
        --held-out "$folder/text/held-out.txt" --tokenizer "$folder/tokenizer.txt" \
        ${STEPS:+--steps "$STEPS"}
}

step_export() {
    "$trainer" export --run "$run/run.bin" --tokenizer "$folder/tokenizer.txt" --out "$model" \
        --type Q8_0 --name "ATS demo" --license mit \
        --description "A small model for tests and for a first run, trained by train/ of ATS on \
public-domain English: Jane Austen's novels, the World English Bible, Moby Dick, and State of the \
Union addresses from 1934 to 2021."
    cp "$run/loss.svg" "$root/docs/demo-loss.svg"
}

step_quality() {
    "$trainer" quality --text "$folder/text/train.txt" --held-out "$folder/text/held-out.txt" \
        "$model"
}

step_samples() {
    local seed prompt=("She opened the door and" "My fellow citizens," "In the morning the king")
    for seed in 0 1 2; do
        "$ATS_LLAMA_BIN/llama-completion" -m "$model" -p "${prompt[seed]}" -n 80 --temp 0.8 \
            --seed "$seed" -no-cnv --device none --no-warmup 2>/dev/null </dev/null
        printf '\n\n'
    done
}

[ -x "$trainer" ] || fail "$trainer is missing: run \`make build\`"
[ $# -gt 0 ] || set -- run export quality samples
for step; do
    case $step in
        run | export | quality | samples) ;;
        *) fail "unknown step '$step': use run, export, quality or samples" ;;
    esac
done
"$here/text.sh"
for step; do
    "step_$step"
done
