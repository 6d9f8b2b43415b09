#!/usr/bin/env bash
# `ats-train` from a text to a GGUF file: a run that is interrupted ends with the same bytes as one
# that is not, on any number of threads; errors say what is wrong.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"
trainer=${ATS_TRAIN:?must name the program ats-train}

# Some text without any package: sentences from a few words, the same on every machine.
python3 - "$work" <<'PY'
import random, sys
draw = random.Random(7)
who = "the king|a sailor|my sister|the old whale|every citizen|Emma".split("|")
does = "saw|wanted|remembered|did not fear|has often praised".split("|")
what = "the sea|a letter|the people|her father's house|the law|nothing at all".split("|")
for name, pieces in (("train.txt", 60), ("held-out.txt", 12)):
    text = []
    for _ in range(pieces):
        lines = [" ".join((draw.choice(who), draw.choice(does), draw.choice(what))) + "."
                 for _ in range(draw.randint(8, 20))]
        text.append("\n\n".join(lines))
    open(f"{sys.argv[1]}/{name}", "w").write("\n\f\n".join(text) + "\n")
PY

train() { # DIR [OPTION...]
    local dir=$1
    shift
    try "$trainer" train --dir "$work/$dir" --text "$work/train.txt" \
        --held-out "$work/held-out.txt" --tokenizer "$work/tokenizer.txt" \
        --layers 2 --width 64 --ff 96 --context 64 --windows 4 --steps 60 "$@"
}

try "$trainer" tokenizer --text "$work/train.txt" --out "$work/tokenizer.txt" --tokens 320
expect_rc 0

# once through
train whole --threads 2
expect_rc 0
expect_in err "step 60 of 60"
grep -q '<svg' "$work/whole/loss.svg" || problem "loss.svg" "is no SVG file"
python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' \
    "$work/whole/loss.svg" || problem "loss.svg" "is no XML"

# stopped, gone on, on one thread
train parts --threads 1 --stop-at 15
expect_rc 0
expect_in err "step 20 of 60"
train parts --threads 1
expect_rc 0
cmp "$work/whole/run.bin" "$work/parts/run.bin" ||
    problem "a run in two parts" "ended with other bytes"

# stopped by a signal, at some step
rm -rf "$work/parts"
"$trainer" train --dir "$work/parts" --text "$work/train.txt" --held-out "$work/held-out.txt" \
    --tokenizer "$work/tokenizer.txt" --layers 2 --width 64 --ff 96 --context 64 --windows 4 \
    --steps 60 2>"$work/log" &
pid=$!
sleep 0.3
kill -TERM "$pid"
wait "$pid"
rc=$?
[ "$rc" -eq 0 ] || [ "$rc" -eq 143 ] || problem "SIGTERM" "exit code $rc" "$(cat "$work/log")"
train parts
expect_rc 0
cmp "$work/whole/run.bin" "$work/parts/run.bin" ||
    problem "a run that was interrupted" "ended with other bytes"

# It has learned: far better than at random (8 bits), and than the order of letters alone.
try "$trainer" export --run "$work/whole/run.bin" --tokenizer "$work/tokenizer.txt" \
    --out "$work/model.gguf" --name "Test model" --license mit
expect_rc 0
try "$trainer" quality --text "$work/train.txt" --held-out "$work/held-out.txt" --json \
    "$work/model.gguf"
expect_rc 0
python3 - "$work/out" <<'PY' || problem "quality" "$out"
import json, sys
bits = [m["bits_per_byte"] for m in json.load(open(sys.argv[1]))["models"]]
sys.exit(not (len(bits) == 3 and 0 < bits[1] < bits[0] < 4 and 0 < bits[2] < 4))
PY

# what cannot be done
train whole --seed 2
expect_rc 1
expect_in err "another seed"
train whole --steps 70
expect_rc 1
expect_in err "too late"
train whole --layers 0
expect_error 2 "--layers"
train new --width 40
expect_rc 1
expect_in err "multiples"
[ ! -e "$work/new/run.bin" ] || problem "a run with a bad shape" "left a checkpoint"
echo "no checkpoint" >"$work/whole/run.bin"
train whole
expect_rc 1
expect_in err "is no checkpoint"
try "$trainer" tokenizer --text "$work/none.txt" --out "$work/t"
expect_error 1 "none.txt"
try "$trainer" export --run "$work/parts/run.bin" --tokenizer "$work/train.txt" --out "$work/x"
expect_error 1 "no tokenizer"
try "$trainer" experts --in "$work/train.txt" --out "$work/x"
expect_rc 1
expect_in err "train.txt"
try "$trainer" experts --in "$work/model.gguf" --out "$work/x" --experts 7 --used 7
expect_error 1 "7 experts of equal size"
[ ! -e "$work/x" ] || problem "failed commands" "left a file"
try "$trainer" quality --held-out "$work/held-out.txt" "$work/train.txt"
expect_rc 1
expect_in err "cannot load"
try "$trainer" trian
expect_error 2 "unknown command 'trian'"
for command in "" tokenizer train export experts quality; do
    # shellcheck disable=SC2086 # no command is no word
    try "$trainer" $command --help
    expect_rc 0
    [ "$(wc -L <"$work/out")" -le 80 ] || problem "$command --help" "wider than 80 columns"
done

finish
