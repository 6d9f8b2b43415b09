#!/usr/bin/env bash
# run.sh TEST.mjs [ARGUMENT...]: one of these tests, with the Node and the folders that the
# set-up prepared. Values already in the environment win.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
test=${1:?usage: run.sh TEST.mjs [ARGUMENT...]}
shift

given_bin=${ATS_LLAMA_BIN:-} given_src=${ATS_LLAMA_SRC:-}
eval "$("$root/scripts/setup/env.sh")"
export ATS_LLAMA_BIN=${given_bin:-$ATS_LLAMA_BIN} ATS_LLAMA_SRC=${given_src:-$ATS_LLAMA_SRC}
[ -n "$ATS_NODE" ] || {
    echo "there is no Node yet: run scripts/setup/setup.sh test" >&2
    exit 1
}
exec "$ATS_NODE" "$test" "$@"
