#!/usr/bin/env bash
# models/demo.gguf, the model that the project ships, and the one with experts made from it: they
# say the same on the CPU, over the emulated accelerator and over Vulkan, and what they say is made
# of English words.
#
#   ATS_TRAIN       the program ats-train
#   ATS_VULKAN_BIN  llama.cpp's programs with ggml-vulkan; empty: no Vulkan here
#   ATS_LIBRARY, ATS_PRELOAD  our backend, and the preload of tests/peer
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"
trainer=${ATS_TRAIN:?must name the program ats-train}
demo=$root/models/demo.gguf
here=$(dirname "$0")

try "$trainer" quality --held-out "$here/prose.txt" --json "$demo"
expect_rc 0
python3 - "$work/out" <<'PY' || problem "quality of $demo" "more than 2.2 bits per byte" "$out"
import json, sys
sys.exit(json.load(open(sys.argv[1]))["models"][0]["bits_per_byte"] > 2.2)
PY

# It is what it says it is, and small enough to ship.
[ "$(stat -c %s "$demo")" -le $((8 * 1024 * 1024)) ] || problem "$demo" "more than 8 MiB"
try_llama "$ATS_LLAMA_BIN/llama-completion" -m "$demo" -p "The" -n 1 -no-cnv --device none -v
expect_rc 0
for key in general.name general.license general.description llama.context_length; do
    expect_in err "$key"
done

# every word of a prompt comes back
try "$ATS_LLAMA_BIN/llama-tokenize" -m "$demo" --log-disable --ids \
    -p "Emma's 3 whales sailed -- didn't they? -- to Zanzibar."
expect_rc 0
expect_in out "[0, "

# Vulkan rounds otherwise than the CPU: this prompt is one where the two best tokens are never close
# (margins.py finds such).
text() { # NAME MODEL COMMAND...: what it writes, in $work/NAME
    local name=$1 model=$2
    shift 2
    try_llama "$@" -m "$model" -p "There was a man whose name was" -n 32 -c 512 --temp 0 \
        -no-cnv --perf -t 2 --no-repack
    expect_rc 0
    printf '%s\n' "$out" >"$work/$name"
}

same() { # NAME OTHER
    cmp -s "$work/$1" "$work/$2" || problem "$1 against $2" "$(cat "$work/$1")" "$(cat "$work/$2")"
}

"$trainer" experts --in "$demo" --out "$work/all.gguf" --experts 8 --used 8 || problem "experts" ""
"$trainer" experts --in "$demo" --out "$work/experts.gguf" --experts 8 --used 6 ||
    problem "experts" ""
for model in "$demo" "$work/experts.gguf"; do
    text cpu "$model" "$ATS_LLAMA_BIN/llama-completion" --device none
    for vram in 64M 5M 2M; do
        text emulated "$model" "$ats" run --emulate emu-small --vram "$vram" -ub 32
        same cpu emulated
    done
    text random "$model" env ATS_PLACEMENT=random:5 "$ats" run --emulate emu-small --vram 64M
    same cpu random
    if [ -n "${ATS_VULKAN_BIN:-}" ]; then
        # llvmpipe's fault with freed buffers is kept out by our preload (tests/peer/preload.c)
        text vulkan "$model" env GGML_VK_VISIBLE_DEVICES=0 LD_LIBRARY_PATH="$ATS_VULKAN_BIN" \
            LD_PRELOAD="$ATS_PRELOAD" ATS_PEER_LEAK=1 GGML_BACKEND_PATH="$ATS_LIBRARY" \
            ATS_VRAM=5M ATS_STATS="$work/stats" \
            "$ATS_VULKAN_BIN/llama-completion" --device ATS0 -ub 32
        same cpu vulkan
        python3 - "$work/stats" <<'PY' || problem "Vulkan" "had no weights, or all: $(cat "$work/stats")"
import json, sys
weights = json.load(open(sys.argv[1]))["devices"][0]["weights"]
sys.exit(not all(weights[side]["tensors"] > 0 for side in ("vram", "host")))
PY
    fi
    # most of it is words that everyone knows
    tr -cs "A-Za-z'" '\n' <"$work/cpu" | tr '[:upper:]' '[:lower:]' | grep . >"$work/words"
    known=$(grep -cxE "$(tr '\n' '|' <"$here/common_words.txt" | sed 's/|$//')" "$work/words")
    [ $((known * 2)) -ge "$(wc -l <"$work/words")" ] ||
        problem "$model" "$known common words in: $(cat "$work/cpu")"
done

# All experts used are the block they were cut from; six of eight are nearly that.
text cpu "$demo" "$ATS_LLAMA_BIN/llama-completion" --device none
text all "$work/all.gguf" "$ATS_LLAMA_BIN/llama-completion" --device none
same cpu all
try "$trainer" quality --held-out "$here/prose.txt" --json "$demo" "$work/all.gguf" \
    "$work/experts.gguf"
expect_rc 0
python3 - "$work/out" <<'PY' || problem "quality of experts" "$out"
import json, sys
dense, all_used, some = (m["bits_per_byte"] for m in json.load(open(sys.argv[1]))["models"])
sys.exit(not (abs(all_used - dense) < 0.001 and dense < some < dense + 0.15))
PY

finish
