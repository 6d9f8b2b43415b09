#!/usr/bin/env bash
# Time per graph of 2000 nodes that the backend takes for itself; see bench/bookkeeping.c.
# Called by `make bench-bookkeeping`.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$PWD/build/${PRESET:-release}/bin/bookkeeping
export ATS_EMULATE=emu-small ATS_PROFILES=$PWD/profiles LD_LIBRARY_PATH=$ATS_LLAMA_BIN
unset GGML_BACKEND_PATH

echo 'Microseconds per graph, apart from computing and copying; emulated accelerator.'
printf '%-14s %6s %7s %8s %9s %9s %9s\n' placement nodes splits records median 'best 10%' 'worst 1%'
cd "$ATS_LLAMA_BIN" # ggml looks for its CPU backend here
for placement in host vram fill random:1; do
    ATS_VRAM=1M ATS_PLACEMENT=$placement "$program" 2>/dev/null || {
        echo "bookkeeping: $program failed with placement $placement" >&2
        exit 1
    }
done
