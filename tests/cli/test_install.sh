#!/usr/bin/env bash
# What `cmake --install` lays down is complete and works from where it lies.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
fake=$(fake_llama_bin)
prefix=$work/prefix
vocab=$ATS_LLAMA_SRC/models/ggml-vocab-llama-spm.gguf
# What a user's shell does not have.
unset ATS_PROFILES ATS_LLAMA_SRC ATS_BACKEND LD_LIBRARY_PATH
llama_bin=$ATS_LLAMA_BIN
unset ATS_LLAMA_BIN

try cmake --install "$(dirname "$(dirname "$ats")")" --prefix "$prefix"
expect_rc 0
for file in bin/ats libexec/ats/ats-ggml lib/libggml-ats.so share/ats/profiles/emu-small.json \
    share/doc/ats/README.md share/doc/ats/LICENSE share/doc/ats/docs/architecture.md \
    share/doc/ats/docs/architecture.svg share/doc/ats/docs/configuration.md; do
    [ -f "$prefix/$file" ] || problem "installation" "$file is missing"
done

# Links between the documents lead somewhere; CONTRIBUTING.md is for those with a checkout.
for document in README.md docs/architecture.md docs/configuration.md; do
    while read -r link; do
        case $link in http* | CONTRIBUTING.md) continue ;; esac
        [ -e "$prefix/share/doc/ats/$(dirname "$document")/$link" ] ||
            problem "$document" "its link to $link leads nowhere"
    done < <(grep -oE '\]\([^)#]+' "$prefix/share/doc/ats/$document" | cut -c 3-)
done

# No program has the path of a library in it.
for file in bin/ats libexec/ats/ats-ggml lib/libggml-ats.so; do
    try readelf -d "$prefix/$file"
    expect_rc 0
    expect_not_in out RPATH
    expect_not_in out RUNPATH
done
try readelf -d "$prefix/bin/ats"
expect_not_in out libggml

installed=$prefix/bin/ats
try "$installed" --version
expect_rc 0
expect_in out "for ggml "

# A profile that is nowhere else.
sed 's/"emu-small"/"only-here"/' "$prefix/share/ats/profiles/emu-small.json" \
    >"$prefix/share/ats/profiles/only-here.json"
try "$installed" devices --llama-bin "$fake" --emulate only-here --json
expect_rc 0
jq -e --arg library "$(realpath "$prefix/lib/libggml-ats.so")" \
    '.ats[0].accelerator == "EMU0" and .backend.path == $library' "$work/out" >/dev/null ||
    problem "$command_text" "wrong JSON:" "$out"

try env ATS_LLAMA_BIN="$llama_bin" "$installed" synth --arch llama --layers 1 --out "$work/m.gguf"
expect_error 1 "give --vocab FILE, any GGUF model"
expect_in err "ATS_LLAMA_SRC"
try env ATS_LLAMA_BIN="$llama_bin" "$installed" synth --arch llama --layers 1 --vocab "$vocab" \
    --out "$work/m.gguf"
expect_rc 0
# a model is a vocabulary, too
try env ATS_LLAMA_BIN="$llama_bin" "$installed" synth --arch llama --layers 1 \
    --vocab "$work/m.gguf" --out "$work/n.gguf"
expect_rc 0
try_llama timeout 120 "$installed" run --llama-bin "$llama_bin" --emulate emu-small -m "$work/m.gguf" \
    -p Hello -n 4 -c 256 -ub 32 -no-cnv
expect_rc 0
expect_in out Hello

# A folder without ggml, and a part that is gone.
mkdir "$work/empty"
try env ATS_LLAMA_BIN="$work/empty" "$installed" synth --arch llama --out "$work/x.gguf"
expect_error 1 "libggml-base.so.0) are not in $work/empty"
expect_in err ATS_LLAMA_BIN
try "$installed" devices --llama-bin "$work/empty"
expect_error 1 "are not in $work/empty"
rm "$prefix/libexec/ats/ats-ggml"
try "$installed" devices --llama-bin "$fake"
expect_error 1 "ats-ggml, a part of this command, is missing"

finish
