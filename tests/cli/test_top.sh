#!/usr/bin/env bash
# `ats top` sees a model run on the emulated accelerator: as a table, as JSON, on a terminal, and by a
# scrape like Prometheus'; nothing is left of processes that have ended.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
export OMP_WAIT_POLICY=passive ATS_PROFILES=$root/profiles ATS_PROFILE=off
# a place of its own, as other processes may publish meanwhile
export ATS_LIVE=$work/live
live=$ATS_LIVE
children=()
trap 'kill -9 "${children[@]}" 2>/dev/null; rm -rf "$work"' EXIT

json() { # FILTER: jq says true of what was printed
    jq -e "$1" "$work/out" >"$work/jq" 2>&1 || problem "$command_text" "not so: $1" "$out"
}

# wait_for TEXT COMMAND...: until it succeeds, for half a minute at most
wait_for() {
    local what=$1
    shift
    for _ in {1..150}; do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.2
    done
    problem "waiting for $what" "it did not come"
    finish
}

# start_model [OPTION...]: decodes and prompts over and over, until it is killed; sets $model_pid.
start_model() {
    "$ats" bench --emulate emu-small --vram 16M -m "$work/model.gguf" -p 0 -n 0 -pg 24,24 -r 1000000 "$@" \
        >"$work/bench.log" 2>&1 </dev/null &
    model_pid=$!
    children+=("$model_pid")
}

try "$ats" synth --arch qwen3moe --out "$work/model.gguf"
expect_rc 0

# Nobody is there.
for options in "" --once "--once --json"; do
    # shellcheck disable=SC2086 # options
    try "$ats" top $options
    expect_error 1 "no process of this user computes with ATS"
done
try "$ats" top --pid 1
expect_error 1 "process 1 publishes no figures of ATS"
[ ! -e "$live" ] || problem "ats top" "made a folder"

# A run that ends leaves nothing.
try_llama timeout 120 "$ats" run --emulate emu-small -m "$work/model.gguf" -p Hello -n 4 -no-cnv
expect_rc 0
[ -d "$live" ] || problem "$command_text" "no folder for figures"
[ -z "$(ls -A "$live")" ] || problem "$command_text" "left: $(ls -A "$live")"

# ---- one process ----
start_model -ub 32
wait_for "figures" "$ats" top --once --interval 0.1 --pid "$model_pid"
sleep 0.5
[ "$(stat -c %a "$live")" = 700 ] || problem "folder" "mode $(stat -c %a "$live")"
try "$ats" top --once --json
expect_rc 0
expect_not_in out $'\033'
[ "$(wc -l <"$work/out")" -eq 1 ] || problem "$command_text" "not one line:" "$out"
json ".format == \"ats-top-1\" and (.processes | length) == 1 and .processes[0].pid == $model_pid"
json '.interval_s > 0.9 and .other_versions == 0 and .processes[0].program == "llama-bench"'
json '.processes[0].devices | length == 1 and .[0].name == "ATS0" and .[0].accelerator == "EMU0" and .[0].emulated'
json '.processes[0].devices[0] | .contexts == 1 and .idle_s < 30 and .last_splits > 1'
json '.processes[0].devices[0].memory | .budget_bytes == 16777216 and .used_bytes > 1e6 and
    .used_bytes <= .budget_bytes and .vram.weights_bytes > 1e6 and .host.weights_bytes > 1e6 and
    .vram.kv_bytes + .host.kv_bytes > 1e5'
json '.processes[0].devices[0].totals | .graphs > 10 and .busy_ns > 0 and .copied_to_accel_bytes > 0'
json '.processes[0].devices[0].totals | .answer.tokens > 0 and .answer.ns > 0 and .prompt.tokens > 0
    and .prompt.ns > 0 and .cpu_ns + .accel_ns > 0 and
    .cpu_ns + .stalled_ns <= .answer.ns + .prompt.ns'
json '.processes[0].devices[0].rates | .busy > 0 and .busy <= 1 and .pass_s > 0 and
    .answer.tokens_per_s > 0 and .cpu > 0 and .cpu <= 1 and .splits_per_graph > 1'

# Samples add up: what a sample counts as new is what the totals have grown by.
try "$ats" top --json --count 3 --interval 0.3
expect_rc 0
[ "$(wc -l <"$work/out")" -eq 3 ] || problem "$command_text" "not three lines:" "$out"
jq -s -e '[range(1; 3) as $i | .[$i - 1].processes[0].devices[0] as $a |
    .[$i].processes[0].devices[0] as $b |
    $b.totals.graphs > $a.totals.graphs and $b.totals.busy_ns > $a.totals.busy_ns and
    $b.totals.answer.tokens - $a.totals.answer.tokens == $b.rates.answer.tokens and
    $b.totals.prompt.tokens - $a.totals.prompt.tokens == $b.rates.prompt.tokens] | all' \
    "$work/out" >/dev/null || problem "$command_text" "do not add up:" "$out"

# The table.
try "$ats" top --count 2 --interval 0.2
expect_rc 0
expect_narrow
expect_not_in out $'\033'
expect_in out "llama-bench, process $model_pid"
expect_in out "ATS0 = CPU + EMU0, EMULATED"
expect_in out "of 16.0 MiB"
[ "$(grep -c "^ats top" "$work/out")" -eq 2 ] || problem "$command_text" "not two tables:" "$out"
expect_told_full "$ats" top --once --interval 0.1
expect_told_full "$ats" top --once --interval 0.1 --json
try "$ats" top --once --pid $((model_pid + 1))
expect_error 1 "process $((model_pid + 1)) publishes no figures"

# On a terminal: drawn, and put back by q, by Ctrl-C, by a signal, and by Ctrl-Z for a while.
for how in q interrupt term suspend; do
    try python3 "$root/tests/cli/top_terminal.py" "$how" "$ats" top --interval 0.2
    expect_rc 0
done

# ---- Prometheus ----
"$ats" top --metrics 0 >"$work/url" &
server=$!
children+=("$server")
wait_for "the server" grep -q http "$work/url"
url=$(grep -o 'http://127.0.0.1:[0-9]*/metrics' "$work/url")
port=${url##*:}
port=${port%/metrics}
try curl -sS -D "$work/head" "$url"
expect_rc 0
grep -q '^HTTP/1.1 200' "$work/head" || problem "$url" "$(<"$work/head")"
grep -qi $'^Content-Type: text/plain; version=0.0.4; charset=utf-8\r$' "$work/head" ||
    problem "$url" "$(<"$work/head")"
cp "$work/out" "$work/first.prom"
sleep 0.3
try curl -sS "$url"
cp "$work/out" "$work/second.prom"
try python3 "$root/tests/cli/prometheus_text.py" "$work/first.prom" "$work/second.prom" "$model_pid"
expect_rc 0
try curl -sS -o /dev/null -w '%{http_code} %{size_download}' -I "$url"
expect_in out "200 0"
try curl -sS -w '%{http_code}' "${url%metrics}"
expect_in out "404"
expect_in out "/metrics"
try curl -sS -w '%{http_code}' -d much "$url"
expect_in out "405"
# this machine's other addresses do not have it
for address in $(hostname -I 2>/dev/null); do
    case $address in *:*) continue ;; esac
    try curl -sS --connect-timeout 2 "http://$address:$port/metrics"
    expect_rc 7
done
try "$ats" top --metrics "$port"
expect_error 1 "port $port of 127.0.0.1 is in use"

# ---- several processes, and their ends ----
start_model -ub 16
second=$model_pid
first=${children[0]}
wait_for "figures of the second" "$ats" top --once --interval 0.1 --pid "$second"
try "$ats" top --once --json --interval 0.2
json '.processes | length == 2'
try "$ats" top --once --json --interval 0.2 --pid "$second"
json ".processes | length == 1 and .[0].pid == $second"

kill -9 "$second"
wait "$second" 2>/dev/null
[ "$(find "$live" -name "$second-*.live" | wc -l)" -eq 1 ] || problem "kill" "no file was left"
try "$ats" top --once --json --interval 0.1
json ".processes | length == 1 and .[0].pid == $first"
[ "$(find "$live" -name "$second-*" | wc -l)" -eq 0 ] || problem "$command_text" "a dead process' file"

# What else may lie there is survived, and cleared away if it is of a dead process.
head -c 3000 /dev/urandom >"$live/1-garbage.live"
: >"$live/2-empty.live"
mkdir "$live/3-folder.live"
ln -s /etc/passwd "$live/4-link.live"
mkfifo "$live/5-pipe.live"
echo mine >"$live/notes.txt"
try "$ats" top --once --json --interval 0.1
expect_rc 0
json '.processes | length == 1'
[ "$(find "$live" -mindepth 1 ! -name "$first-*" -printf '%f ' | tr ' ' '\n' | sort | xargs)" = \
    "3-folder.live 4-link.live 5-pipe.live notes.txt" ] || problem "folder" "$(ls "$live")"
[ "$(<"$live/notes.txt")" = mine ] || problem "folder" "notes are gone"
rm -r "$live"/[345]-* "$live/notes.txt"

# The last one ends: the table that runs beside ends, the server goes on without.
"$ats" top --interval 0.2 >"$work/table" &
table=$!
children+=("$table")
wait_for "a table" grep -q "process $first" "$work/table"
kill -9 "$first"
wait "$first" 2>/dev/null
wait "$table"
rc=$?
[ $rc -eq 0 ] || problem "ats top" "exit code $rc at the end of the last process"
try curl -sS "$url"
expect_in out "ats_processes 0"
kill -INT "$server"
wait "$server"
rc=$?
[ $rc -eq 0 ] || problem "ats top --metrics" "exit code $rc after Ctrl-C"
[ -z "$(ls -A "$live")" ] || problem "folder" "left: $(ls -A "$live")"

# ATS_LIVE=off publishes nothing.
rmdir "$live"
try_llama env ATS_LIVE=off timeout 120 "$ats" run --emulate emu-small -m "$work/model.gguf" -p Hello \
    -n 4 -no-cnv
expect_rc 0
[ ! -e "$live" ] || problem "$command_text" "made a folder"
try env ATS_LIVE=maybe "$ats" run -m x
expect_error 2 "ATS_LIVE=maybe is neither auto, nor off, nor the path of a folder"

# Without the variable it is in $XDG_RUNTIME_DIR, or else in $TMPDIR.
unset ATS_LIVE
mkdir -m 700 "$work/run" "$work/tmp"
for place in "$work/run/ats" "$work/tmp/ats-$(id -u)"; do
    try_llama env XDG_RUNTIME_DIR="$work/run" TMPDIR="$work/tmp" timeout 120 "$ats" run \
        --emulate emu-small -m "$work/model.gguf" -p Hello -n 4 -no-cnv
    expect_rc 0
    [ -d "$place" ] || problem "$command_text" "no $place"
    rm -rf "$place" "$work/run"
done

# Wrong usage.
for wrong in 0 0.05 1e3 -1 nan "" 1,5 9999 1.2.3; do
    try "$ats" top --interval "$wrong"
    expect_error 2 "--interval: '$wrong' is no number of seconds"
done
try "$ats" top --count 0
expect_error 2 "--count"
try "$ats" top --pid me
expect_error 2 "--pid"
try "$ats" top --metrics 65536
expect_error 2 "--metrics"
try "$ats" top --metrics 0 --json
expect_error 2 "--metrics serves until it is stopped: no --json"
try "$ats" top extra
expect_error 2 "unexpected argument"
finish
