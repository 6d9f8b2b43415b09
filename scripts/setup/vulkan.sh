#!/usr/bin/env bash
# ggml-vulkan, prebuilt, beside a second set of llama.cpp's programs. It lies in a folder of
# its own because every program loads the backends it finds beside itself: the plain build
# stays without Vulkan, and a test chooses.
. "$(dirname "$0")/paths.sh"

[ "$(uname -m)" = x86_64 ] || {
    say "no prebuilt ggml-vulkan for $(uname -m): tests over Vulkan will be skipped"
    exit 0
}
[ ! -f "$vulkan_bin/.complete" ] || exit 0
with_lock vulkan
[ ! -f "$vulkan_bin/.complete" ] || exit 0
[ -d "$llama_bin" ] || die "llama.cpp is not built yet" "run scripts/setup/llama.sh first"

fetch_package "$VULKAN_PACKAGE" "$VULKAN_TARBALL" "$VULKAN_TARBALL_SHA256"
partial=$vulkan_bin.part
rm -rf "$partial" "$vulkan_bin"
mkdir -p "$partial"
# Hard links, not symbolic ones: a program looks for backends where its own file really is,
# and the loader must see one libggml-base under both of its names.
cp -al "$llama_bin/." "$partial/" 2>/dev/null || cp -a "$llama_bin/." "$partial/"
tar -xzf "$cache/downloads/$VULKAN_TARBALL" -C "$partial" --strip-components=3 "$VULKAN_LIB"
touch "$partial/.complete"
mv "$partial" "$vulkan_bin"
say "ggml-vulkan is ready: $vulkan_bin"
