#!/usr/bin/env bash
# `ats simulate`: the eight models by name and by file, policies, sweeps, mistakes.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

# figure FILTER: what a Python expression makes of the JSON on stdout, as `r`.
figure() {
    python3 -c 'import json, sys
r = json.load(open(sys.argv[1]))
print(eval(sys.argv[2]))' "$work/out" "$1"
}

expect_figure() { # EXPRESSION VALUE
    local value
    value=$(figure "$1")
    [ "$value" = "$2" ] || problem "$command_text" "$1 is $value, expected $2"
}

# What the description adds up to is what a reader of its own finds in the file; sizes in billions
# of weights are the published ones.
while read -r model layers kind; do
    try "$ats" synth --model "$model" --meta-only --out "$work/$model.gguf"
    expect_rc 0
    read -r _ bytes < <("$root/tests/cli/gguf_sizes.py" "$work/$model.gguf")
    try "$ats" simulate "$work/$model.gguf" --policy bound --prompt 512 --decode 8 --json
    expect_rc 0
    expect_figure 'r["model"]["bytes"]' "$bytes"
    expect_figure 'r["model"]["layers"]' "$layers"
    expect_figure 'all(p["tokens_per_s"] > 0 for p in r["results"][0]["phases"])' True
    by_file=$(figure '[p["us"] for p in r["results"][0]["phases"]]')
    try "$ats" simulate "$model" --policy bound --prompt 512 --decode 8 --json
    expect_rc 0
    expect_figure '[p["us"] for p in r["results"][0]["phases"]]' "$by_file"
    # copying ahead is no slower than copying in order, and moves the same, but for experts: whether
    # those that are used pass alone is decided for each way
    try "$ats" simulate "$model" --rig laptop-3060 --policy ats-placement,ats-async --prompt 512 \
        --decode 2 --json
    expect_rc 0
    expect_figure '(lambda a, b: b["us"] <= a["us"])(*[x["phases"][0] for x in r["results"]])' True
    if [ "$kind" = dense ]; then
        expect_figure 'len({round(x["phases"][0]["to_device_bytes"]) for x in r["results"]})' 1
    fi
    expect_figure 'r["results"][1]["used_bytes"] <= 6 * 2**30' True
done <<'MODELS'
glm-z1-9b 40 dense
qwen3-14b 40 dense
qwen3-30b-a3b 48 experts
gpt-oss-20b 24 experts
llama-3.1-70b 80 dense
qwen3-next-80b-a3b 48 experts
qwen3.5-122b-a10b 48 experts
gpt-oss-120b 36 experts
MODELS

try "$ats" synth --arch qwen3moe --layers 3 --out "$work/whole.gguf"
expect_rc 0

# One command shows what a faster link is worth to two policies.
try "$ats" simulate qwen3-30b-a3b --layers 8 --rig laptop-3060 --vram 2G --policy layers,bound \
    --sweep link=12,24,50 --prompt 512 --decode 4 --no-mmap --json
expect_rc 0
expect_figure 'len(r["results"])' 6
expect_figure '[x["link_gbps"] for x in r["results"]]' '[12.0, 12.0, 24.0, 24.0, 50.0, 50.0]'
expect_figure '(lambda s: s[0] < s[1] < s[2])([x["phases"][0]["tokens_per_s"] for x in r["results"][::2]])' True
expect_figure 'all(p["of_bound"] <= 1 for x in r["results"] for p in x["phases"])' True
try "$ats" simulate qwen3-30b-a3b --layers 8 --rig laptop-3060,desktop-4090 --prompt 512 --decode 2
expect_rc 0
for text in "Predicted, not measured" "laptop-3060" "desktop-4090" "pp512" "tg2@2048" "of it"; do
    expect_in out "$text"
done
expect_narrow
# long numbers and names fit too
try "$ats" simulate llama-3.1-70b --layers 4 --rig desktop-4090-pcie5,laptop-3060 --prompt 16384 \
    --decode 2 --depth 1000000 --ctx 1048576 --policy bound,cpu --scale 1000
expect_rc 0
expect_narrow

# A rig scaled by a factor keeps its ratios: times are the inverse of it, but for the host's own.
try "$ats" simulate llama-3.1-70b --layers 4 --policy bound --vram 1G --prompt 512 --decode 2 --json
expect_rc 0
real=$(figure '["%.6g" % p["us"] for p in r["results"][0]["phases"]]')
try "$ats" simulate llama-3.1-70b --layers 4 --policy bound --vram 1G --scale 0.25 --prompt 512 \
    --decode 2 --json
expect_figure '["%.6g" % (p["us"] / 4) for p in r["results"][0]["phases"]]' "$real"

# A trace is JSON, its times lie within the run and add up to what the summary says.
try "$ats" simulate "$work/whole.gguf" --policy ngl=2 --prompt 64 --decode 0 --trace "$work/trace.json" --json
expect_rc 0
busy=$(figure '"%.3f" % r["results"][0]["phases"][0]["gpu_us"]')
traced=$(python3 -c 'import json, sys
events = json.load(open(sys.argv[1]))
print("%.3f" % sum(e["dur"] for e in events if e["ph"] == "X" and e["tid"] == 2))' "$work/trace.json")
python3 -c 'import sys; sys.exit(abs(float(sys.argv[1]) - float(sys.argv[2])) > 0.5)' "$busy" "$traced" ||
    problem "trace" "the GPU is busy for $traced us in the trace, $busy in the summary"

try "$ats" simulate
expect_error 2 "model is missing"
try "$ats" simulate "$work/none.gguf"
expect_error 1 "none.gguf"
echo "GGUF and nothing more" >"$work/bad.gguf"
try "$ats" simulate "$work/bad.gguf"
expect_error 1 "bad.gguf"
try "$ats" simulate no-such-model
expect_error 1 "no-such-model"
try "$ats" simulate qwen3-14b --policy best
expect_error 1 "unknown policy 'best'"
try "$ats" simulate qwen3-14b --policy ngl
expect_error 1 "ngl"
try "$ats" simulate qwen3-14b --policy ngl=99 --vram 1G
expect_error 1 "budget is 1.0 GiB"
try "$ats" simulate qwen3-14b --policy moe
expect_error 1 "no experts"
try "$ats" simulate qwen3-14b --rig no-such-rig
expect_error 1 "no-such-rig"
try "$ats" simulate qwen3-14b --layers 99
expect_error 1 "--layers"
try "$ats" simulate qwen3-14b --ctx 100
expect_error 1 "context"
try "$ats" simulate qwen3-14b --sweep cpu=1
expect_error 2 "--sweep"
try "$ats" simulate qwen3-14b --sweep link=0
expect_error 2 "link"
try "$ats" simulate qwen3-14b --rig laptop-3060 --profile here.json
expect_error 2 "--rig laptop-3060 and --profile here.json"
try "$ats" simulate qwen3-14b --compute 0
expect_error 2 "--compute"
try "$ats" simulate qwen3-14b --vram 0
expect_error 2 "--vram"
try "$ats" simulate qwen3-14b --cpu-gbps 0
expect_error 2 "--cpu-gbps"
try "$ats" simulate qwen3-14b --batch 0
expect_error 2 "--batch"
try "$ats" simulate qwen3-14b --scale fast
expect_error 1 "--scale"
try "$ats" simulate qwen3-14b --prompt 0 --decode 0
expect_error 2 "nothing to simulate"
try "$ats" simulate qwen3-14b --trace "$work/none/trace.json" --prompt 0 --decode 1
expect_error 1 "none/trace.json"
try "$ats" simulate qwen3-14b --policy fit,layers --trace "$work/trace.json"
expect_error 2 "--trace"

finish
