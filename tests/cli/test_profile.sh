#!/usr/bin/env bash
# `ats profile`: measuring on the emulated accelerator, keeping, showing, checking, mistakes.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

unset ATS_PROFILE ATS_EMU_FAIL
export XDG_CACHE_HOME=$work/cache
export ATS_EMULATE=emu-small

# figure EXPRESSION: what a Python expression makes of the JSON on stdout, as `r`.
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

kept() {
    find "$XDG_CACHE_HOME" -type f 2>/dev/null | wc -l
}

# Measured, kept, shown again without measuring: the very same.
try "$ats" profile --quick --json
expect_rc 0
expect_figure 'r["format"]' ats-profile-2
expect_figure 'r["identity"]["device"]' EMU0
expect_figure 'sorted({o["side"] for o in r["operators"]})' "['accelerator', 'host']"
expect_figure 'all(p[1] > 0 for o in r["operators"] for p in o["points"])' True
expect_figure 'len(r["copies"])' 4
[ "$(kept)" -eq 1 ] || problem "$command_text" "$(kept) files kept, expected 1"
cp "$work/out" "$work/first.json"
cmp "$work/first.json" "$XDG_CACHE_HOME"/ats/profile-*-auto.json ||
    problem "$command_text" "what is kept is not what is printed"
try "$ats" profile --show --json
expect_rc 0
[ -z "$err" ] || problem "$command_text" "unexpected: $err"
cmp "$work/first.json" "$work/out" || problem "$command_text" "not what was kept"
try "$ats" profile --show
expect_rc 0
for text in "CPU " "EMU0" "Threads" "Copies" "round trip" "matmul" "Kept in $XDG_CACHE_HOME"; do
    expect_in out "$text"
done
wide=$(grep -v '^Kept' "$work/out" | awk 'length > 80' | wc -l)
[ "$wide" -eq 0 ] || problem "$command_text" "$wide lines of more than 80 columns"

# The simulator takes it.
try "$ats" simulate qwen3-14b --layers 4 --vram 512M --profile "$work/first.json" --policy layers \
    --prompt 512 --decode 2 --json
expect_rc 0
expect_figure 'all(p["tokens_per_s"] > 0 for p in r["results"][0]["phases"])' True

# unchanged EXPECTED FILE: showing and checking must leave it alone
unchanged() {
    cmp "$1" "$2" || problem "$command_text" "$2 was touched"
}

# Of another driver, or damaged: nothing to show, and nothing is measured instead; a check measures
# again, and says so.
kept_file=$(echo "$XDG_CACHE_HOME"/ats/profile-*-auto.json)
sed -i 's/"driver": "emulated emu-small"/"driver": "emulated other"/' "$kept_file"
cp "$kept_file" "$work/stale.json"
try "$ats" profile --show
expect_error 1 "$kept_file is of another driver; \`ats profile\` measures anew"
unchanged "$work/stale.json" "$kept_file"
try "$ats" profile --check --quick --json
[ "$rc" -le 1 ] || expect_rc 1
expect_in err "the kept profile is of another driver, measuring again"
grep -q '"driver": "emulated emu-small"' "$kept_file" ||
    problem "$command_text" "what is kept was not replaced"
truncate -s 100 "$kept_file"
cp "$kept_file" "$work/damaged.json"
try "$ats" profile --show --json
expect_error 1 "$kept_file"
unchanged "$work/damaged.json" "$kept_file"

# A file that is named is shown, of whatever machine it is, or checked; and never written.
try env ATS_EMULATE= "$ats" profile --show --from "$work/stale.json" --json
expect_rc 0
expect_figure 'r["identity"]["driver"]' "emulated other"
try "$ats" profile --check --from "$work/stale.json"
expect_error 1 "$work/stale.json is of another driver"
echo "a letter" >"$work/letter"
cp "$work/letter" "$work/letter.before"
for words in "--show --from" "--check --from" "--show --out" "--check --out"; do
    # shellcheck disable=SC2086 # two words
    try "$ats" profile $words "$work/letter"
    [[ $words == *out ]] && expect_error 2 "${words% *}" || expect_error 1 "$work/letter"
    unchanged "$work/letter.before" "$work/letter"
    # shellcheck disable=SC2086
    try "$ats" profile $words "$work/none.json"
    [ "$rc" -gt 0 ] && [ ! -e "$work/none.json" ] || problem "$command_text" "measured"
done

# A model's own matrices are measured too.
try "$ats" synth --arch qwen3moe --layers 2 --out "$work/model.gguf"
expect_rc 0
try "$ats" profile --quick --model "$work/model.gguf" --json
expect_rc 0
expect_figure 'r["format"]' ats-profile-2
python3 - "$work/out" "$work/first.json" <<'PYTHON' || problem "--model" "no shape of the model was measured"
import json, sys
shapes = [{(o["kind"], o["type"], o.get("m"), o.get("k")) for o in json.load(open(f))["operators"]}
          for f in sys.argv[1:]]
sys.exit(not shapes[0] - shapes[1])
PYTHON

# A check prints every case and both sides; whether it passes is the machine's business.
try "$ats" profile --check --quick --from "$work/first.json" --json
[ "$rc" -le 1 ] || expect_rc 1
expect_figure 'r["format"]' ats-profile-check-1
expect_figure 'all(s["cases"] > 0 for s in r["sides"].values())' True
expect_figure 'all(c["measured_us"] > 0 and c["predicted_us"] > 0 for c in r["cases"])' True
[ "$rc" -eq 0 ] || expect_in err "off by"

# What fails leaves nothing behind.
rm -rf "$XDG_CACHE_HOME"
try "$ats" profile --show
expect_error 1 "there is no profile $kept_file"
[ "$(kept)" -eq 0 ] || problem "$command_text" "measured"
for failure in alloc:1 loss:30; do
    try env ATS_EMU_FAIL=$failure "$ats" profile --quick
    expect_rc 1
    expect_in err "EMU0"
    [ ! -s "$work/out" ] || problem "$command_text" "unexpected output: $out"
    [ "$(kept)" -eq 0 ] || problem "$command_text" "a file was left"
done
cp "$work/first.json" "$work/old.json"
try env ATS_EMU_FAIL=compute:9 "$ats" profile --quick --out "$work/old.json"
expect_rc 1
cmp "$work/first.json" "$work/old.json" || problem "$command_text" "the old profile was touched"

try "$ats" profile --device CUDA7
expect_error 1 "no accelerator 'CUDA7'"
try "$ats" profile --device CPU
expect_error 1 "no accelerator 'CPU'"
try "$ats" profile --threads 0
expect_error 2 "--threads"
try "$ats" profile --threads many
expect_error 2 "--threads"
try "$ats" profile --show --check
expect_error 2 "--show and --check"
for words in --quick "--model $work/model.gguf"; do
    # shellcheck disable=SC2086 # words
    try "$ats" profile --show $words
    expect_error 2 "--show measures nothing, so it does not go with ${words% *}"
done
try "$ats" profile --from "$work/first.json"
expect_error 2 "--from is for --show and --check"
for words in "--check --threads 1" "--show --device EMU0" "--check --model $work/model.gguf"; do
    # shellcheck disable=SC2086 # words
    try "$ats" profile --from "$work/first.json" $words
    expect_error 2 "--from names a profile"
done
try "$ats" profile extra
expect_error 2 "unexpected argument"
try "$ats" profile --model "$work/none.gguf"
expect_error 1 "none.gguf"
try "$ats" profile --quick --out /proc/none/profile.json
expect_error 1 "/proc/none"
try "$ats" simulate qwen3-14b --profile "$work/none.json"
expect_error 1 "none.json"
try "$ats" simulate qwen3-14b --profile "$work/first.json" --scale host
expect_error 2 "--scale"
folder=$(fake_llama_bin)
try env -u ATS_EMULATE ATS_LLAMA_BIN="$folder" "$ats" profile
expect_error 1 "no accelerator to measure"

finish
