#!/usr/bin/env bash
# `make load-adapt` from end to end, with a small model and short phases: that each experiment runs, that
# loads come and go, and what is written. Not how fast anything was: other tests run beside it.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"
export XDG_CACHE_HOME=$work/cache OMP_WAIT_POLICY=passive ATS_RIG_SCALE=4
build=$(cd "$(dirname "$ats")/.." && pwd)
cd "$root" || exit 1

model=$work/dense.gguf
try "$ats" synth --arch llama --layers 4 --embd 512 --ff 1536 --heads 8 --kv-heads 2 --type q4_0 \
    --out "$model"
expect_rc 0

adapt() { # OPTION...
    try timeout 300 python3 bench/load/load.py --build "$build" --file "$model" --vram 100 \
        --out "$work/out-files" --repeats 1 --allow-late "$@"
}

adapt --load --long --seconds 1,1,1,1,1 --tokens 64
expect_rc 0
expect_in out "Load that comes and goes (emulated accelerator)"
expect_in out "o adaptive"
awk 'length > 80 && !/^Written/' "$work/out" | grep . &&
    problem "$command_text" "wider than 80 columns" "$out"
python3 - "$work/out-files" <<'PYTHON' || problem "$command_text" "no valid result" "$err"
import json, math, sys, xml.etree.ElementTree
folder = sys.argv[1]
load, long = (json.load(open(f"{folder}/{n}-qwen3-14b.json")) for n in ("load", "long"))
for result in (load, long):
    assert result["format"] == "ats-load-1" and result["emulated"] and result["repeats"] == 1
    for phase in result["figures"]["phases"]:
        for policy in ("static", "adaptive"):
            ms = phase["ms"][policy]["median"]
            assert ms > 0 and math.isfinite(ms), phase
    assert all({"what", "value", "bound", "ok"} == set(c) for c in result["checks"])
kinds = [p["kind"] for p in load["figures"]["phases"]]
assert kinds == ["quiet", "cpu", "quiet", "accel", "quiet"], kinds
assert len(load["series_ms"]["static"]) == 240
taken = load["figures"]["phases"][1]["cpu_taken_percent"]["static"]["median"]
assert 5 < taken < 80, taken  # what it gets is up to its priority
assert load["figures"]["phases"][3]["rise"]["static"]["median"] is not None
assert [p["kind"] for p in long["figures"]["phases"]] == ["quiet"]
for name in ("load", "long"):
    xml.etree.ElementTree.parse(f"{folder}/{name}-qwen3-14b.svg")
    text = open(f"{folder}/{name}-qwen3-14b.md").read()
    assert "Emulated accelerator" in text
PYTHON

# the loads were there, and in their phases only
python3 - "$work"/out-files/load-qwen3-14b.json <<'PYTHON' || problem "$command_text" "the loads are not right"
import json, sys
pair, = json.load(open(sys.argv[1]))["runs"]
for run in pair.values():
    assert [p["cpu_taken"] is not None for p in run] == [False, True, False, False, False]
    assert [p["compute"] for p in run] == [p["link"] for p in run] == [1, 1, 1, 2.5, 1]
    for before, phase in zip(run, run[1:]):
        assert phase["begin_s"] >= before["end_s"]
    # busy for longer with the same work: 2.5 times, per token
    busy = [p["counters"]["EMU0"]["compute_us"] / p["n_tokens"] for p in run]
    assert 2.3 < busy[3] / busy[2] < 2.7, busy
    assert 0.9 < busy[4] / busy[2] < 1.1, busy
PYTHON

# what cannot be is refused; bounds that cannot be met are an error if asked for
adapt --help
expect_rc 0
adapt --seconds 1,1,1
expect_rc 2
adapt --load --seconds 0.2,0.2,0.2,0.2,0.2 --cpu 2 --check
expect_rc 1
expect_in err "load: missed: " # which bounds is chance: phases are short, and the model is tiny

finish
