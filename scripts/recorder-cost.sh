#!/usr/bin/env bash
# What recording (ATS_TRACE) adds to a graph of 2000 nodes: microseconds, per record, and as a share
# of a token. Called by `make bench-recorder`. See bench/bookkeeping.c.
#
# So few graphs that the recorder's memory is not used twice: memory that is new is dearer.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=5 graphs=300
# The shortest token in docs/benchmark.md: qwen3-30b-a3b, tg48@1024, slices: 72.99 tokens/s.
token_us=13700

program=$PWD/build/${PRESET:-release}/bin/bookkeeping
export ATS_EMULATE=emu-small ATS_PROFILES=$PWD/profiles LD_LIBRARY_PATH=$ATS_LLAMA_BIN ATS_VRAM=1M
unset GGML_BACKEND_PATH ATS_TRACE ATS_TRACE_CHECK ATS_TRACE_MEMORY
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Measures one placement with recording off or on; a line of bookkeeping's table.
measure() {
    local placement=$1 recording=$2
    if [ "$recording" = on ]; then
        export ATS_TRACE=$folder/recording
    else
        unset ATS_TRACE
    fi
    ATS_PLACEMENT=$placement "$program" "$graphs" 2>"$folder/log" || {
        cat "$folder/log" >&2
        echo "recorder-cost: $program failed with placement $placement, recording $recording" >&2
        exit 1
    }
}

# The median of a column of $folder/off or $folder/on.
median() {
    awk -v column="$2" '{ print $column }' "$folder/$1" | sort -n | sed -n "$((rounds / 2 + 1))p"
}

cat <<END
Microseconds per graph, apart from computing and copying; emulated accelerator.
Medians of $rounds rounds of $graphs graphs, recording off and on in turn.
of a token: of $token_us us, the shortest in docs/benchmark.md.

END
printf '%-10s %7s %8s %7s %7s %7s %11s %11s\n' \
    placement splits records off on more 'per record' 'of a token'
cd "$ATS_LLAMA_BIN" # ggml looks for its CPU backend here
for placement in host vram fill random:1; do
    : >"$folder/off"
    : >"$folder/on"
    for ((round = 0; round < rounds; round++)); do
        for recording in off on; do
            measure "$placement" "$recording" >>"$folder/$recording"
        done
    done
    awk -v name="$placement" -v splits="$(median on 3)" -v records="$(median on 4)" \
        -v off="$(median off 5)" -v on="$(median on 5)" -v token="$token_us" 'BEGIN {
        printf "%-10s %7d %8d %7.1f %7.1f %7.1f %8.0f ns %9.2f %%\n", name, splits, records,
            off, on, on - off, 1000 * (on - off) / records, 100 * (on - off) / token
    }'
done
