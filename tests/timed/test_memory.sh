#!/usr/bin/env bash
# A model that is larger than the memory a process may have, but not than that and VRAM together, loads
# and runs; so does one that is larger than both, more slowly: its file is mapped. Needs a memory
# control group of its own (root); skipped where there is none. The emulated device stores nothing of
# large weights, so its VRAM takes no host memory.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"
export XDG_CACHE_HOME=$work/cache OMP_WAIT_POLICY=passive
export ATS_EMULATE=laptop-3060 ATS_RIG_SCALE=4 ATS_PROFILE=off
export GGML_BACKEND_PATH=${ATS_LIBRARY:-$root/build/release/lib/libggml-ats.so}
unset ATS_PLACEMENT ATS_VRAM

limit=$((256 << 20))
group=
no_group() {
    rmdir "$group" 2>/dev/null || true
    group=
}
if [ -w /sys/fs/cgroup/memory/cgroup.procs ]; then # version 1
    group=/sys/fs/cgroup/memory/ats-test-$$
    { mkdir "$group" && echo "$limit" >"$group/memory.limit_in_bytes"; } || no_group
elif grep -qw memory /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null; then
    group=/sys/fs/cgroup/ats-test-$$
    { mkdir "$group" && echo "$limit" >"$group/memory.max" &&
        echo 0 >"$group/memory.swap.max"; } || no_group
fi
if [ -z "$group" ]; then
    echo "no memory control group can be made here: skipped"
    exit 77
fi
# shellcheck disable=SC2317 # called by the trap
leave() { rmdir "$group" 2>/dev/null || true; }
trap 'leave; rm -rf "$work"' EXIT

model=$work/large.gguf
try "$ats" synth --arch llama --layers 4 --embd 2048 --ff 5632 --heads 16 --kv-heads 4 --type f16 \
    --out "$model"
expect_rc 0
size=$(stat -c %s "$model")
[ "$size" -gt $((limit + (64 << 20))) ] || problem "$model" "only $size bytes"

bench() { # VRAM: how it went is in $out
    # pages that others have read would not count
    sync "$model"
    dd of="$model" oflag=nocache conv=notrunc,fdatasync count=0 status=none
    # shellcheck disable=SC2016 # for the inner shell
    try timeout 200 sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" \
        env ATS_VRAM="$1" "$ATS_LLAMA_BIN/llama-bench" -m "$model" -dev ATS0 -t 1 -p 64 -n 4 -r 1 \
        -o json -v
    expect_rc 0
    python3 - "$work/out" <<'PYTHON' || problem "$command_text" "no valid result" "$err"
import json, sys
rates = [run["avg_ts"] for run in json.load(open(sys.argv[1]))]
assert len(rates) == 2 and all(rate > 0 for rate in rates)
PYTHON
}

bench $((size - (128 << 20)))
expect_in err "ATS0 on EMU0: weights"
bench 96M # and more is left in host memory than there is
expect_in err "ATS0 on EMU0: weights"
used=$(cat "$group"/memory.max_usage_in_bytes "$group"/memory.peak 2>/dev/null | head -1)
[ "${used:-0}" -gt $((limit / 2)) ] || problem "the group" "used only ${used:-0} bytes: no test"

finish
