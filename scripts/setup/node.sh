#!/usr/bin/env bash
# node-llama-cpp with its prebuilt binaries, as its users have it. Used by a test only.
# Its lock file leaves out the optional packages of other platforms and of CUDA (500 MB): the
# only binaries are those of the dependency @node-llama-cpp/linux-x64.
. "$(dirname "$0")/paths.sh"

[ "$(uname -m)" = x86_64 ] || {
    say "node-llama-cpp's pinned binaries are for x86-64: its test will be skipped"
    exit 0
}
exec "$setup_dir/npm-packages.sh" node-llama-cpp
