#!/usr/bin/env bash
# Described models: numbers of tensors and bytes worked out by hand, seeds, depths, little memory,
# and descriptions that make no sense.
# shellcheck disable=SC2017 # blocks are whole: divide first
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"
models=$root/models

sha() { sha256sum "$1" | cut -d ' ' -f 1; }

# header FILE: tensors, and bytes of all data, read from the GGUF file itself.
header() {
    python3 - "$1" <<'PY'
import struct, sys
block = {0: (1, 4), 1: (1, 2), 8: (32, 34), 12: (256, 144), 13: (256, 176), 14: (256, 210), 39: (32, 17)}
f = open(sys.argv[1], "rb")
take = lambda form: struct.unpack("<" + form, f.read(struct.calcsize("<" + form)))
text = lambda: f.read(take("Q")[0]).decode()
plain = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
def value(kind):
    if kind == 8:
        return text()
    if kind == 9:
        kind, n = take("IQ")
        return [value(kind) for _ in range(n)]
    return take(plain[kind])[0]
magic, version, tensors, keys = take("4sIQQ")
for _ in range(keys):
    text(), value(take("I")[0])
total = 0
for _ in range(tensors):
    text()
    ne = take("%dQ" % take("I")[0])
    kind, _ = take("IQ")
    elements, size = block[kind]
    count = 1
    for n in ne:
        count *= n
    total += count // elements * size
print(tensors, total)
PY
}

expect_header() { # MODEL TENSORS BYTES
    try "$ats" synth --model "$1" --meta-only --out "$work/meta.gguf"
    expect_rc 0
    local got
    got=$(header "$work/meta.gguf")
    [ "$got" = "$2 $3" ] || problem "$1" "has '$got' tensors and bytes, expected '$2 $3'"
    [ "$(stat -c %s "$work/meta.gguf")" -lt 1000000 ] || problem "$1" "metadata of over 1 MB"
}

# gpt-oss-20b: 19 tensors in each of 24 layers, and 3. Published files have 459 tensors too.
#   experts   24 * 3 * 32 * 2880 * 2880 weights in MXFP4, 17 bytes for 32
#   attention 24 * 2880 * (4096 + 512 + 512 + 4096) in Q8_0, 34 bytes for 32
#   outside   2 * 2880 * 201088 in Q8_0
#   F32       24 * (2 norms * 2880 + biases 5120 + 2880 + sinks 64 + router 2880 * 32 + 32 +
#             experts' biases 3 * 2880 * 32) + 2880
experts=$((24 * 3 * 32 * 2880 * 2880 / 32 * 17))
eights=$(((24 * 2880 * (4096 + 512 + 512 + 4096) + 2 * 2880 * 201088) / 32 * 34))
floats=$(((24 * (2 * 2880 + 5120 + 2880 + 64 + 2880 * 32 + 32 + 3 * 2880 * 32) + 2880) * 4))
expect_header gpt-oss-20b $((24 * 19 + 3)) $((experts + eights + floats))

# qwen3-30b-a3b: 12 tensors in each of 48 layers, and 3. 24 of the layers have more bits (the
# first 6, the last 6, and every third of the 36 between): values and down projections in Q6_K,
# 210 bytes for 256; all other matrices have 144 bytes for 256.
expert=$((128 * 768 * 2048))
q4=$((48 * 2 * expert + 24 * expert + 48 * 2048 * (4096 + 512 + 4096) + 24 * 2048 * 512))
q4=$((q4 + 2048 * 151936))
q6=$((24 * expert + 24 * 2048 * 512 + 2048 * 151936))
floats=$(((48 * (2 * 2048 + 2 * 128 + 128 * 2048) + 2048) * 4))
expect_header qwen3-30b-a3b $((48 * 12 + 3)) $((q4 / 256 * 144 + q6 / 256 * 210 + floats))

# glm-z1-9b: 13 tensors in each of 40 layers, and 3; matrices of 2 bytes a weight, biases F32.
halves=$((40 * 4096 * (4096 + 256 + 256 + 4096 + 3 * 13696) + 2 * 4096 * 151552))
floats=$(((40 * (4 * 4096 + 4096 + 256 + 256) + 4096) * 4))
expect_header glm-z1-9b $((40 * 13 + 3)) $((2 * halves + floats))

# A small model of one's own: same seed same bytes, another seed others, and the file's size.
sed -e 's/"embedding": [0-9]*/"embedding": 256/' -e 's/"heads": 32/"heads": 4/' \
    -e 's/"head_dim": 128/"head_dim": 64/' -e 's/"rope_dim": 128/"rope_dim": 64/' \
    -e 's/"expert_feed_forward": 768/"expert_feed_forward": 256/' \
    -e 's/"experts": 128/"experts": 8/' -e 's/"experts_used": 8/"experts_used": 2/' \
    "$models/qwen3-30b-a3b.json" >"$work/own.json"
own=(synth --model "$work/own.json" --layers 2 --vocab-size 512)
try "$ats" "${own[@]}" --seed 5 --out "$work/a.gguf"
expect_rc 0
try "$ats" "${own[@]}" --seed 5 --out "$work/b.gguf"
[ "$(sha "$work/a.gguf")" = "$(sha "$work/b.gguf")" ] || problem "same seed" "different bytes"
try "$ats" "${own[@]}" --seed 6 --out "$work/b.gguf"
[ "$(sha "$work/a.gguf")" != "$(sha "$work/b.gguf")" ] || problem "another seed" "same bytes"
try "$ats" "${own[@]}" --topic-share 0.3 --seed 5 --out "$work/b.gguf"
[ "$(sha "$work/a.gguf")" != "$(sha "$work/b.gguf")" ] || problem "--topic-share" "same bytes"

# --size: as deep as fits. A layer of this model has 8 * 3 * 256 * 256 weights and some.
try "$ats" synth --model "$work/own.json" --vocab-size 512 --size 6M --out "$work/b.gguf"
expect_rc 0
size=$(stat -c %s "$work/b.gguf")
{ [ "$size" -le $((6 << 20)) ] && [ "$size" -gt $((4 << 20)) ]; } || problem "--size 6M" "$size bytes"

# Little memory, whatever the size: 200 MiB are written within 64 MiB.
python3 - "$ats" "$work/c.gguf" >"$work/rss" <<'PY'
import resource, subprocess, sys
subprocess.run([sys.argv[1], "synth", "--model", "qwen3-14b", "--layers", "1", "--vocab-size",
                "512", "--out", sys.argv[2]], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
PY
[ "$(stat -c %s "$work/c.gguf")" -gt 200000000 ] || problem "qwen3-14b" "file too small"
[ "$(<"$work/rss")" -lt 65536 ] || problem "memory" "$(<"$work/rss") KiB"

# The list has all eight with their sizes.
try "$ats" synth --list
expect_rc 0
expect_narrow
for text in "glm-z1-9b " "qwen3-14b " "qwen3-30b-a3b " "gpt-oss-20b " "llama-3.1-70b " \
    "qwen3-next-80b-a3b " "qwen3.5-122b-a10b " "gpt-oss-120b " "512/10+1" "17.3 GiB"; do
    expect_in out "$text"
done
try "$ats" synth --list --model qwen3-30b-a3b
expect_rc 0
expect_in out "579 tensors"

# Wrong options.
x=$work/x.gguf
try "$ats" synth --model qwen3-30b-a3 --out "$x"
expect_error 1 "did you mean qwen3-30b-a3b"
try "$ats" synth --model zzz --out "$x"
expect_error 1 "unknown model 'zzz'"
try "$ats" synth --model "$work/none.json" --out "$x"
expect_error 1 "cannot read $work/none.json"
try "$ats" synth --model qwen3-14b --arch llama --out "$x"
expect_error 2 "give one of"
try "$ats" synth --model qwen3-14b --embd 64 --out "$x"
expect_error 2 "--model decides"
try "$ats" synth --model qwen3-14b --layers 2 --size 2G --out "$x"
expect_error 2 "give one of --layers, --size and --meta-only"
try "$ats" synth --model qwen3-14b --layers 41 --out "$x"
expect_error 1 "has 1 to 40 layers"
try "$ats" synth --model qwen3-next-80b-a3b --layers 6 --out "$x"
expect_error 1 "in multiples of 4"
try "$ats" synth --model qwen3-14b --size 100M --out "$x"
expect_error 1 "--size is too small"
try "$ats" synth --model qwen3-14b --size 0 --out "$x"
expect_error 2 "--size must be more than 0"
try "$ats" synth --model qwen3-14b --vocab-size 5 --out "$x"
expect_error 2 "--vocab-size must be at least 256"
try "$ats" synth --model qwen3-30b-a3b --topic-share 1.5 --out "$x"
expect_error 2 "no number from 0 to 0.99"
try "$ats" synth --model qwen3-14b --topic-share 0.5 --out "$x"
expect_error 1 "no \"topics\""
try "$ats" synth --arch llama --meta-only --out "$x"
expect_error 2 "are for --model"
try "$ats" synth --model qwen3-14b
expect_error 2 "--out FILE is missing"
ATS_MODELS=$work/nowhere try "$ats" synth --list
expect_error 1 "$work/nowhere"

# Wrong descriptions: one change each to a good one.
wrong() { # SED-SCRIPT TEXT
    sed -e "$1" "$work/own.json" >"$work/wrong.json"
    cmp -s "$work/own.json" "$work/wrong.json" && problem "$1" "changes nothing"
    try "$ats" synth --model "$work/wrong.json" --vocab-size 512 --layers 1 --out "$x"
    expect_error 1 "$2"
}
wrong 's/"layers"/"layer"/' 'unknown key "layer"; did you mean layers'
wrong 's/"kv_heads": 4,//' '"kv_heads" is missing'
wrong 's/"heads": 4,/"heads": 3,/' 'no multiple of "kv_heads"'
wrong 's/"layers": 48/"layers": -1/' '"layers" must be a whole number from 1 to 512'
wrong 's/"layers": 48/"layers": 4.5/' '"layers" must be a whole number'
wrong 's/"layers": 48/"layers": "many"/' '"layers" must be a whole number'
wrong 's/"embedding": 256/"embedding": 99999999999999999999/' 'not JSON'
wrong 's/"embedding": 256/"embedding": 9999999/' '"embedding" must be'
wrong 's/"embedding": 256/"embedding": 288/' 'no multiple of the block'
wrong 's/"experts_used": 2/"experts_used": 9/' '"experts_used" 9 is more than "experts" 8'
wrong 's/"experts_used": 2/"experts_used": 2, "experts_used": 2/' 'duplicate'
wrong 's/"rope_dim": 64/"rope_dim": 65/' '"rope_dim" 65'
wrong 's/"rope_dim": 64/"rope_dim": 32/' '"rope_dim" 32 must be "head_dim" 64 for qwen3moe'
wrong 's/"rope_dim": 64/"rope_dim": 64, "sliding_window": 128/' '"sliding_window" has no meaning'
wrong 's/"rope_dim": 64/"rope_dim": 64, "rope_sections": [1,2,3,4]/' 'has no meaning'
wrong 's/"rope_dim": 64/"rope_dim": 64, "yarn_factor": 2/' 'go together'
wrong 's/"qwen3moe"/"qwen9"/' "unknown architecture 'qwen9'"
wrong 's/"qwen3moe"/7/' '"architecture" must be a text'
wrong 's/"Q4_K_M"/"Q9"/' "is none of"
wrong 's/"topic_share": 0.77/"topic_share": 1.5/' '"topic_share" must be'
wrong 's/}$/,/' 'not JSON'
wrong 's/^{/[/' 'not JSON'
echo '[]' >"$work/list.json"
try "$ats" synth --model "$work/list.json" --out "$x"
expect_error 1 "not a JSON object"
[ ! -e "$x" ] || problem "failed runs" "left an output file"

# A disk that fills up: the old file stays, nothing is left over.
mkdir "$work/full"
echo old >"$work/full/x.gguf"
try bash -c 'ulimit -f 1000; exec "$@"' - "$ats" "${own[@]}" --out "$work/full/x.gguf"
expect_error 1 "cannot write"
[ "$(<"$work/full/x.gguf")" = old ] || problem "full disk" "the old file is gone"
[ "$(find "$work/full" -type f | wc -l)" -eq 1 ] || problem "full disk" "left a temporary file"

finish
