#!/usr/bin/env bash
# Node and npm, new enough for llama.cpp's web page and for node-llama-cpp. Debian 12's own
# Node 18 is too old; it then fetches a pinned one, which npm carries too, into the cache.
. "$(dirname "$0")/paths.sh"

system_node_is_new && exit 0
[ -f "$node_folder/.complete" ] && exit 0

case $(uname -m) in
    x86_64) arch=x64 sha256=$NODE_X64_SHA256 ;;
    aarch64) arch=arm64 sha256=$NODE_ARM64_SHA256 ;;
    *) die "Node $NODE_MIN_MAJOR.$NODE_MIN_MINOR or newer is needed, found $(node --version 2>&1)" \
        "no ready-made one is known for $(uname -m): install a newer nodejs and npm" ;;
esac
with_lock node
[ -f "$node_folder/.complete" ] && exit 0

say "the system's Node is missing or older than $NODE_MIN_MAJOR.$NODE_MIN_MINOR:" \
    "getting Node $NODE_VERSION into the cache (55 MB)"
fetch_package "node-linux-$arch@$NODE_VERSION" "node-linux-$arch-$NODE_VERSION.tgz" "$sha256"
fetch_package "npm@$NPM_VERSION" "npm-$NPM_VERSION.tgz" "$NPM_SHA256"
rm -rf "$node_folder"
mkdir -p "$node_folder/bin" "$node_folder/npm"
tar -xzf "$cache/downloads/node-linux-$arch-$NODE_VERSION.tgz" -C "$node_folder/bin" \
    --strip-components=2 package/bin/node
tar -xzf "$cache/downloads/npm-$NPM_VERSION.tgz" -C "$node_folder/npm" --strip-components=1
ln -s ../npm/bin/npm-cli.js "$node_folder/bin/npm"
chmod +x "$node_folder/npm/bin/npm-cli.js"
found=$(PATH=$node_folder/bin:$PATH npm --version) || die "Node $NODE_VERSION does not start here"
[ "$found" = "$NPM_VERSION" ] || die "npm $NPM_VERSION expected, found $found"
touch "$node_folder/.complete"
