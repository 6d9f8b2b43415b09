#!/usr/bin/env bash
# `ats plan`: the eight models, what must hold of their plans, plan files and arguments as
# llama.cpp and the backend take them, mistakes.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

# figure EXPRESSION: what a Python expression makes of the JSON on stdout, as `r`; `d` is its device.
figure() {
    python3 -c 'import json, sys
r = json.load(open(sys.argv[1]))
d = r["devices"][0]
print(eval(sys.argv[2]))' "$work/out" "$1"
}

expect_figure() { # EXPRESSION VALUE
    local value
    value=$(figure "$1")
    [ "$value" = "$2" ] || problem "$command_text" "$1 is $value, expected $2"
}

expect_sound() {
    local faults
    expect_rc 0
    faults=$("$root/tests/cli/plan_sound.py" "$work/out")
    [ -z "$faults" ] || problem "$command_text" "$faults"
}

# No profile of this machine is kept, until one is.
export XDG_CACHE_HOME=$work/cache

faults=$("$root/tests/cli/plan_sound.py" --models "$ats" "$root" "$work")
[ -z "$faults" ] || problem "the eight models" "$faults"

# What-if: a cache of half the size leaves room for weights; a longer context takes it; a session of
# much prompt is not slower in prefill than one of none.
try "$ats" plan qwen3-14b --rig laptop-3060 --ctx 16384 --json
expect_sound
state=$(figure 'd["memory"]["state_bytes"] + d["memory"]["host_state_bytes"]')
weights=$(figure 'd["memory"]["weight_bytes"]')
[ "$state" -eq $((40 * 2 * 8 * 128 * 2 * 16384)) ] || problem "$command_text" "state of $state bytes"
try "$ats" plan qwen3-14b --rig laptop-3060 --ctx 16384 --kv-type q8_0 --json
expect_figure 'd["memory"]["state_bytes"] + d["memory"]["host_state_bytes"]' $((state * 34 / 64))
expect_figure "d['memory']['weight_bytes'] > $weights" True
try "$ats" plan qwen3-30b-a3b --rig laptop-3060 --prompt 0 --json
expect_sound
us=$(figure 'r["predicted"]["prefill"]["us"] / r["predicted"]["prefill"]["tokens"]')
try "$ats" plan qwen3-30b-a3b --rig laptop-3060 --prompt 3900 --decode 1 --json
expect_sound
expect_figure "r['predicted']['prefill']['us'] / r['predicted']['prefill']['tokens'] <= $us" True

# Two devices share the layers, each within its budget.
try "$ats" plan gpt-oss-120b --devices 2 --json --out "$work/two.txt"
expect_rc 0
expect_figure 'len(r["devices"])' 2
expect_figure 'all(x["memory"]["free_bytes"] >= 0 for x in r["devices"])' True
expect_figure 'sorted({u["layer"] for x in r["devices"] for u in x["units"]})' "$(python3 -c 'print(list(range(-1, 36)))')"
expect_figure 'len({u["layer"] for u in r["devices"][0]["units"]} & {u["layer"] for u in r["devices"][1]["units"]})' 0
for file in two.txt two.txt.ATS1; do
    [ -s "$work/$file" ] || problem "$command_text" "no plan file $file"
done

# A plan for fewer devices leaves no part behind that would be read along; what is no plan it leaves.
plan=(qwen3-14b --rig laptop-3060 --layers 4 --out "$work/parts.txt")
try "$ats" plan "${plan[@]}" --devices 4
expect_rc 0
cp "$work/parts.txt" "$work/parts-of-4.txt"
try "$ats" plan "${plan[@]}" --devices 2
expect_rc 0
for i in 2 3; do
    expect_in err "removed $work/parts.txt.ATS$i"
done
[ "$(cd "$work" && echo parts.txt*)" = "parts.txt parts.txt.ATS1" ] ||
    problem "$command_text" "left:" "$(ls "$work")"
echo "a letter" >"$work/parts.txt.ATS2"
cp "$work/parts.txt" "$work/before.txt"
try "$ats" plan "${plan[@]}"
expect_error 1 "$work/parts.txt.ATS2"
[ "$(<"$work/parts.txt.ATS2")" = "a letter" ] && [ -s "$work/parts.txt.ATS1" ] &&
    cmp "$work/parts.txt" "$work/before.txt" || problem "$command_text" "files were touched"

# Where stock llama.cpp is predicted to be faster in a phase, a line says so; else none does.
try "$ats" plan qwen3-30b-a3b --rig laptop-3060 --prompt 3900 --decode 10 --json
expect_rc 0
slower=$(figure 'sum(max(a["predicted"][p]["tokens_per_s"] for a in r["alternatives"]) >
    1.001 * r["predicted"][p]["tokens_per_s"] for p in ("prefill", "decode"))')
[ "$slower" -ge 1 ] || problem "$command_text" "a case that tests nothing"
try "$ats" plan qwen3-30b-a3b --rig laptop-3060 --prompt 3900 --decode 10
expect_rc 0
expect_in out "This plan is slower in decode than llama.cpp --n-cpu-moe"
[ "$(grep -c 'is slower in' "$work/out")" -eq "$slower" ] || problem "$command_text" "not $slower lines"
expect_narrow
try "$ats" plan qwen3-14b --rig laptop-3060
expect_not_in out "is slower in"

# Without a machine: this one, if a profile of it is kept that fits what would be used.
machine() { # [VARIABLE=VALUE...]: the profile that is planned with, or the rig
    try env "$@" "$ats" plan qwen3-14b --layers 4 --json
    expect_rc 0
    figure 'r["profile"] or r["rig"]'
}
expect_machine() { # WANTED [VARIABLE=VALUE...]
    local got
    got=$(machine "${@:2}")
    [ "$got" = "$1" ] || problem "ats plan with ${*:2}" "plans for $got, expected $1"
}
kept=$XDG_CACHE_HOME/ats
expect_machine desktop-4090
try env ATS_EMULATE=emu-small "$ats" profile --quick --out "$work/emu.json"
expect_rc 0
mkdir -p "$kept"
cp "$work/emu.json" "$kept/profile-1-auto.json"
expect_machine desktop-4090
expect_machine "$kept/profile-1-auto.json" ATS_EMULATE=emu-small
expect_machine "$kept/profile-1-auto.json" ATS_EMULATE=profiles/emu-small.json,emu-timed
expect_machine desktop-4090 ATS_EMULATE=emu-timed
expect_machine desktop-4090 ATS_EMULATE=emu-small ATS_ACCEL=EMU1
try env ATS_EMULATE=emu-small "$ats" plan qwen3-14b --layers 4
expect_in out "EMU0 as measured"
expect_in out "Kept profile: $kept/profile-1-auto.json"
try env ATS_EMULATE=emu-small "$ats" plan qwen3-14b --layers 4 --rig desktop-4090
expect_not_in out "profile"
expect_in out "desktop-4090; context"
# of a real device: a profile as this machine's kernel has it; the newest counts, and one of another
# driver, ggml or CPU does not
python3 - "$work/emu.json" "$kept" <<'PYTHON'
import json, os, sys
p = json.load(open(sys.argv[1]))
driver = "Linux " + os.uname().release
for module in ("i915", "xe", "amdgpu", "nvidia"):
    try:
        driver = module + " " + open(f"/sys/module/{module}/version").readline().strip()
    except OSError:
        pass
p["identity"].update(device="CUDA0", driver="CUDA, " + driver)
cases = {"2-t2": ("2031-01-01T00:00:00Z", {}), "3-auto": ("2030-01-01T00:00:00Z", {}),
         "4-auto": ("2032-01-01T00:00:00Z", {"driver": "CUDA, nvidia 0.1"}),
         "5-auto": ("2033-01-01T00:00:00Z", {"ggml": "0.0.1"}),
         "6-auto": ("2034-01-01T00:00:00Z", {"cpu": "another"})}
for name, (created, other) in cases.items():
    q = dict(p, created=created, identity=dict(p["identity"], **other))
    json.dump(q, open(f"{sys.argv[2]}/profile-{name}.json", "w"))
open(f"{sys.argv[2]}/profile-7-auto.json", "w").write("damaged")
PYTHON
expect_machine "$kept/profile-2-t2.json"
expect_machine "$kept/profile-2-t2.json" ATS_ACCEL=Vulkan0,CUDA0
expect_machine desktop-4090 ATS_ACCEL=CUDA1
expect_machine "$kept/profile-1-auto.json" ATS_EMULATE=emu-small
[ -z "$err" ] || problem "$command_text" "said: $err"
try "$ats" plan qwen3-14b --layers 4 --scale 1 --json
expect_figure 'r["profile"] or r["rig"]' desktop-4090
rm "$kept"/profile-[2-46]-*
expect_machine desktop-4090
try "$ats" plan qwen3-14b --layers 4 --json
expect_in err "$kept/profile-5-auto.json is of another version of ggml"
rm -r "$kept"

# A picture is XML.
try "$ats" plan qwen3-30b-a3b --rig laptop-3060 --svg "$work/plan.svg"
expect_rc 0
cells=$(python3 -c 'import sys, xml.etree.ElementTree as e
print(sum(1 for x in e.parse(sys.argv[1]).iter() if x.tag.endswith("rect") and len(x) > 0))' "$work/plan.svg")
[ "$cells" -eq $((48 * 6 + 1)) ] || problem "$command_text" "$cells cells in the picture"

# ---- carried out, on a small model and a machine on which VRAM pays for it ----
cp "$root/rigs/laptop-3060.json" "$work/laptop-3060.json"
cat >"$work/slow-cpu.json" <<'RIG'
{
    "format": "ats-rig-1",
    "name": "slow-cpu",
    "description": "for tests: a CPU so slow that a tiny model gains by VRAM",
    "base": "laptop-3060",
    "cpu": {
        "matvec_gbps": {"value": 0.5, "source": "made up"},
        "matmul_gflops": {"value": 5, "source": "made up"}
    }
}
RIG
vocab=$ATS_LLAMA_SRC/models/ggml-vocab-llama-spm.gguf
session=(--ctx 256 --ubatch 32 --prompt 64 --decode 64 --accel EMU0)
library=$(dirname "$ats")/../lib/libggml-ats.so

# completion DEVICE MODEL [WORD...]: what llama.cpp prints, in $work/log; ATS_ variables are the
# caller's
completion() {
    local device=$1 model=$2
    shift 2
    env -C "$ATS_LLAMA_BIN" LD_LIBRARY_PATH="$ATS_LLAMA_BIN" OMP_WAIT_POLICY=passive \
        GGML_BACKEND_PATH="$(realpath "$library")" ATS_EMULATE=emu-small ATS_EMU_MEMORY=64M \
        ATS_PROFILES="$root/profiles" timeout 120 "$ATS_LLAMA_BIN/llama-completion" -m "$model" \
        --device "$device" -no-cnv -p "Once upon a time" -n 2 --temp 0 -c 256 -ub 32 --no-warmup \
        -lv 6 "$@" >"$work/log" 2>&1 </dev/null || problem "llama-completion $*" "failed:" "$(tail -n 3 "$work/log")"
}

# Where llama.cpp says that the tensors of a file landed: each with its layer, unless it says that it
# is elsewhere; a matrix per line.
landed() { # PLAN
    python3 - "$work/log" "$1" <<'PYTHON'
import re, sys
log, plan = open(sys.argv[1]).read(), open(sys.argv[2]).read()
layers = dict(re.findall(r"layer +(\d+) assigned to device (\w+)", log))
moved = dict(re.findall(r"tensor (\S+) \(.*\) buffer type overridden to (\w+)", log))
last = max(map(int, layers))
wrong = 0
for where, _, name in re.findall(r"^(vram|host|both) (\d+) (\S+)$", plan, re.M):
    if name.startswith("cache") or where == "both":
        continue
    layer = re.match(r"blk\.(\d+)\.", name)
    device = moved.get(name, layers[layer.group(1) if layer else str(last)])
    if (device == "EMU0") != (where == "vram") and not name.endswith("norm.weight"):
        print(name, where, "landed on", device)
        wrong += 1
print("wrong", wrong)
PYTHON
}

for arch in qwen3moe llama; do
    "$ats" synth --arch "$arch" --layers 6 --out "$work/$arch.gguf" --vocab "$vocab" >/dev/null
    for vram in 12M 18M; do
        try "$ats" plan "$work/$arch.gguf" --rig "$work/slow-cpu.json" --vram "$vram" "${session[@]}" \
            --out "$work/plan.txt" --json
        expect_sound
        expect_figure "any(t['where'] == 'vram' for u in d['units'] for t in u['tensors'])" True
        try "$ats" plan "$work/$arch.gguf" --rig "$work/slow-cpu.json" --vram "$vram" "${session[@]}" \
            --llama-args
        expect_rc 0
        [ "$(wc -l <"$work/out")" -eq 1 ] || problem "$command_text" "not one line"
        # shellcheck disable=SC2046 # words, as a user's shell splits them
        completion EMU0 "$work/$arch.gguf" $(cat "$work/out")
        result=$(landed "$work/plan.txt")
        [ "$result" = "wrong 0" ] || problem "$command_text" "$result"
        # and the backend puts all of it, state included, where the plan says
        ATS_VRAM=$vram ATS_PLACEMENT=$work/plan.txt ATS_PLAN_OUT=$work/again.txt \
            completion ATS0 "$work/$arch.gguf"
        difference=$(diff <(awk '{ print $1, $3 }' "$work/plan.txt" | sort) \
            <(awk '{ print $1, $3 }' "$work/again.txt" | sort))
        [ -z "$difference" ] || problem "plan file for $vram" "$difference"
        # the simulator reads the same file, and predicts the same bytes in use
        try "$ats" simulate "$work/$arch.gguf" --rig "$work/slow-cpu.json" --vram "$vram" --ctx 256 \
            --ubatch 32 --prompt 64 --decode 2 --depth 64 --policy "plan=$work/plan.txt" --json
        expect_rc 0
    done
done

# ---- mistakes ----
try "$ats" plan
expect_error 2 "model is missing"
try "$ats" plan "$work/none.gguf"
expect_error 1 "none.gguf"
echo "GGUF and nothing more" >"$work/bad.gguf"
try "$ats" plan "$work/bad.gguf"
expect_error 1 "bad.gguf"
# A file whose sizes are absurd: the number of rows of its first matrix, which is in the header.
python3 - "$work/qwen3-14b.gguf" "$work/absurd.gguf" <<'PYTHON'
import struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
name = b"blk.0.attn_q.weight"
at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
assert struct.unpack_from("<I", data, at)[0] == 2
struct.pack_into("<Q", data, at + 4 + 8, 1 << 40)
open(sys.argv[2], "wb").write(data)
PYTHON
try "$ats" plan "$work/absurd.gguf"
expect_error 1 "absurd"
# A file without layers, as one whose key is missing is taken to be.
python3 - "$work/qwen3-14b.gguf" "$work/flat.gguf" <<'PYTHON'
import struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
key = b"qwen3.block_count"
at = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key)
assert struct.unpack_from("<II", data, at) == (4, 40)  # a uint32
struct.pack_into("<I", data, at + 4, 0)
open(sys.argv[2], "wb").write(data)
PYTHON
for command in plan simulate; do
    try "$ats" "$command" "$work/flat.gguf"
    expect_error 1 "flat.gguf has no layers"
done
try "$ats" plan qwen3-14b qwen3-30b-a3b
expect_error 2 "one model at a time"
try "$ats" plan no-such-model
expect_error 1 "no-such-model"
try "$ats" plan qwen3-14b --rig no-such-rig
expect_error 1 "no-such-rig"
try "$ats" plan qwen3-14b --profile "$work/bad.gguf"
expect_error 1 "bad.gguf"
try "$ats" plan qwen3-14b --profile "$work/none.json"
expect_error 1 "none.json"
try "$ats" plan qwen3-14b --profile "$work/none.json" --scale 2
expect_error 2 "--scale"
try "$ats" plan qwen3-14b --rig laptop-3060 --profile here.json
expect_error 2 "--rig laptop-3060 and --profile here.json"
try "$ats" plan qwen3-14b --compute 0
expect_error 2 "--compute"
try "$ats" plan qwen3-14b --vram lots
expect_error 2 "--vram"
try "$ats" plan qwen3-14b --kv-type q9_9
expect_error 1 "--kv-type"
try "$ats" plan qwen3-14b --ctx 64
expect_error 2 "--ctx"
try "$ats" plan qwen3-14b --ubatch 0
expect_error 2 "--ubatch"
try "$ats" plan qwen3-14b --devices 0
expect_error 2 "--devices"
try "$ats" plan qwen3-14b --prompt 0 --decode 0
expect_error 2 "nothing to plan for"
try "$ats" plan qwen3-14b --json --llama-args
expect_error 2 "either"
try "$ats" plan qwen3-14b --devices 2 --llama-args
expect_error 2 "one device"
try "$ats" plan qwen3-14b --out "$work/none/plan.txt"
expect_error 1 "none/plan.txt"
try "$ats" plan qwen3-14b --svg "$work/none/plan.svg"
expect_error 1 "none/plan.svg"
try "$ats" plan qwen3-14b --layer 3
expect_error 2 "--layers"
try "$ats" plan --help
expect_rc 0
expect_in out "--llama-args"

finish
