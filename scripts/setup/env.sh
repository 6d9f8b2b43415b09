#!/usr/bin/env bash
# Prints the variables that tell the rest of the project where everything is, as shell
# assignments: eval "$(scripts/setup/env.sh)". Prepares nothing; a variable of something that
# is not prepared is empty.
#
#   ATS_CACHE_DIR      the cache
#   ATS_LLAMA_SRC      llama.cpp's sources
#   ATS_LLAMA_BIN      its programs and libraries
#   ATS_VULKAN_BIN     the same plus ggml-vulkan, and nothing else different
#   ATS_GGML_ASAN_BIN  ggml with the address and undefined sanitizers
#   ATS_GGML_TSAN_BIN  ggml with the thread sanitizer
#   ATS_NODE           a new enough node
#   ATS_NODE_LLAMA     folder whose node_modules has node-llama-cpp
#   ATS_BROWSER        folder whose node_modules has playwright-core
#   ATS_CHROMIUM       the browser
#   ATS_JOBS           parallel jobs for this machine
. "$(dirname "$0")/paths.sh"

# show NAME VALUE [FILE]: VALUE, or nothing if FILE is given and does not exist.
show() {
    local value=$2
    [ $# -lt 3 ] || [ -e "$3" ] || value=
    printf 'export %s=%q\n' "$1" "$value"
}

node=$(command -v node || true)
if ! system_node_is_new; then
    node=$node_folder/bin/node
fi
asan=$(ggml_sanitized_build asan)
tsan=$(ggml_sanitized_build tsan)
node_llama=$(npm_folder node-llama-cpp)
browser=$(npm_folder browser)

show ATS_CACHE_DIR "$cache"
show ATS_LLAMA_SRC "$llama_src" "$llama_src/include/llama.h"
show ATS_LLAMA_BIN "$llama_bin" "$llama_bin/llama-completion"
show ATS_VULKAN_BIN "$vulkan_bin" "$vulkan_bin/.complete"
show ATS_GGML_ASAN_BIN "$asan/bin" "$asan/.complete"
show ATS_GGML_TSAN_BIN "$tsan/bin" "$tsan/.complete"
show ATS_NODE "$node" "$node"
show ATS_NODE_LLAMA "$node_llama" "$node_llama/.complete"
show ATS_BROWSER "$browser" "$browser/.complete"
show ATS_CHROMIUM "$(command -v chromium || command -v chromium-browser || true)"
show ATS_JOBS "$(build_jobs)"
