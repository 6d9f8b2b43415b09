#!/usr/bin/env bash
# Nothing overflows on the way through all layers of any of the eight, over 4096 tokens: the
# architecture with all its layers, but narrow.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"
routing=${ATS_ROUTING:-$root/build/${PRESET:-release}/bin/routing}

narrow() { # MODEL: its description with small widths and few experts
    python3 - "$root/models/$1.json" <<'PY'
import json, sys
model = json.load(open(sys.argv[1]))
small = {"embedding": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "feed_forward": 256,
         "rope_dim": 64 if model["rope_dim"] == model["head_dim"] else 32, "experts": 16, "experts_used": 4, "expert_feed_forward": 256,
         "shared_feed_forward": 256, "linear_key_heads": 2, "linear_value_heads": 4,
         "linear_head_dim": 64}
model.update({key: value for key, value in small.items() if key in model})
if "rope_sections" in model:
    model["rope_sections"] = [6, 5, 5, 0]
print(json.dumps(model))
PY
}

for description in "$root"/models/*.json; do
    name=$(basename "$description" .json)
    layers=$(sed -nE 's/.*"layers": ([0-9]+),/\1/p' "$description" | head -n 1)
    narrow "$name" >"$work/narrow.json"
    try "$ats" synth --model "$work/narrow.json" --layers "$layers" --vocab-size 512 \
        --out "$work/model.gguf"
    expect_rc 0
    try timeout 200 "$routing" "$work/model.gguf" --tokens 4096
    expect_rc 0
    expect_in out "all logits of 4096 tokens are finite"
done

finish
