#!/usr/bin/env bash
# setup.sh run|test: all that `make run` or `make test` needs, from nothing. A second run finds
# everything done and takes no network and no time.
. "$(dirname "$0")/common.sh"

scope=${1:-run}
case $scope in
    run | test) ;;
    *) die "setup.sh: unknown scope '$scope'" "use run or test" ;;
esac

# A wrong LLAMA_DIR should be told before anything is installed.
"$setup_dir/env.sh" >/dev/null
"$setup_dir/packages.sh" "$scope"
prepare_cache
"$setup_dir/nodejs.sh"
"$setup_dir/llama.sh"
if [ "$scope" = test ]; then
    "$setup_dir/vulkan.sh"
    "$setup_dir/node.sh"
    "$setup_dir/browser.sh"
    "$setup_dir/ggml-sanitized.sh" asan
    "$setup_dir/ggml-sanitized.sh" tsan
fi
