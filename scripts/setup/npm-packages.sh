#!/usr/bin/env bash
# npm-packages.sh NAME: the packages of scripts/setup/npm/NAME, exactly as its lock file has
# them (npm checks every hash), in the cache. None of their scripts runs.
. "$(dirname "$0")/paths.sh"

name=${1:?usage: npm-packages.sh NAME}
[ -f "$setup_dir/npm/$name/package-lock.json" ] || die "there is no scripts/setup/npm/$name"
folder=$(npm_folder "$name")
[ ! -f "$folder/.complete" ] || exit 0
with_lock "npm-$name"
[ ! -f "$folder/.complete" ] || exit 0
use_node
say "installing the npm packages of $name"
rm -rf "$folder"
mkdir -p "$folder"
cp "$setup_dir/npm/$name/package.json" "$setup_dir/npm/$name/package-lock.json" "$folder/"
(cd "$folder" && npm ci --ignore-scripts --omit=optional --no-audit --no-fund "${npm_quietly[@]}" \
    >/dev/null) ||
    die "npm could not install the packages of $name" \
        "check the network and npm's registry and proxy settings, then run this again"
touch "$folder/.complete"
