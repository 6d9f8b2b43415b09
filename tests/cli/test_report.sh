#!/usr/bin/env bash
# The table at the end of `make run`.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

cat >"$work/stats.json" <<'JSON'
{"format":"ats-stats-1","devices":[{"name":"ATS0","accelerator":"EMU0","budget_bytes":16777216,
 "weights":{"vram":{"tensors":40,"bytes":15728640},"host":{"tensors":35,"bytes":24117248}},
 "kv":{"vram_bytes":1048576,"host_bytes":0},"graphs":33,"plans_built":3,"last_splits":7,
 "tokens_graphs":32}]}
JSON
cat >"$work/log" <<'LOG'
0.03 I common_perf_print: prompt eval time =     719.64 ms /     5 tokens (  143.93 ms per token,     6.95 tokens per second)
0.03 I common_perf_print:        eval time =    2118.10 ms /    23 runs   (   92.09 ms per token,    10.86 tokens per second)
LOG
try "$ats" report "$work/stats.json" --timings "$work/log"
expect_rc 0
for text in "ATS0 = CPU + EMU0, budget 16.0 MiB" "40 tensors" "15.0 MiB" "35 tensors" "23.0 MiB" \
    "1.0 MiB" "10.9" "7.0"; do
    expect_in out "$text"
done

try "$ats" report
expect_error 2 "summary file is missing"
try "$ats" report "$work/none.json"
expect_error 1 "none.json"
echo '{"format":"ats-stats-1","devices":[' >"$work/cut.json"
try "$ats" report "$work/cut.json"
expect_error 1 "cut.json"
echo '{"format":"other"}' >"$work/other.json"
try "$ats" report "$work/other.json"
expect_error 1 "ats-stats-1"
echo '[]' >"$work/list.json"
try "$ats" report "$work/list.json"
expect_error 1 "ats-stats-1"

finish
