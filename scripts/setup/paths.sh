# shellcheck shell=bash disable=SC2034
# Where everything lies in the cache. The scripts that build and env.sh, which tells the rest
# of the project, agree because both read it here.
#
#   downloads/                      verified npm packages
#   llama.cpp-VERSION/src           the checkout
#   llama.cpp-VERSION/build-KEY     its build; bin/ has programs and libraries
#   llama.cpp-VERSION/vulkan-KEY    bin/ again (hard links) plus ggml-vulkan
#   llama.cpp-VERSION/ggml-asan-KEY, ggml-tsan-KEY   ggml alone, instrumented
#   llama.cpp-user-KEY/...          the same for a checkout named by LLAMA_DIR
#   node-VERSION/bin                Node, where the system's is too old
#   npm-NAME-KEY/node_modules       packages that only tests use

# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=recipe.sh
. "$setup_dir/recipe.sh"

ggml_version_of() {
    sed -nE 's/^set\(GGML_VERSION_(MAJOR|MINOR|PATCH) +([0-9]+)\).*/\2/p' \
        "$1/ggml/CMakeLists.txt" | paste -sd.
}

ggml_api_version_of() {
    sed -nE 's/^ *# *define +GGML_BACKEND_API_VERSION +([0-9]+).*/\1/p' \
        "$1/ggml/src/ggml-backend-impl.h"
}

# check_llama_dir DIR: ends with one clear error unless DIR is a llama.cpp we support.
check_llama_dir() {
    local dir=$1 version api
    [ -d "$dir" ] || die "LLAMA_DIR=$dir does not exist" \
        "give the folder of a llama.cpp checkout, or leave LLAMA_DIR away to use $LLAMA_VERSION"
    [ -f "$dir/ggml/CMakeLists.txt" ] && [ -f "$dir/ggml/src/ggml-backend-impl.h" ] &&
        [ -f "$dir/include/llama.h" ] || die "LLAMA_DIR=$dir is not a llama.cpp checkout" \
        "expected ggml/CMakeLists.txt, ggml/src/ggml-backend-impl.h and include/llama.h in it"
    version=$(ggml_version_of "$dir")
    api=$(ggml_api_version_of "$dir")
    [ "$version" = "$GGML_VERSION" ] && [ "$api" = "$GGML_API_VERSION" ] ||
        die "the llama.cpp in LLAMA_DIR=$dir does not fit this version of ATS" \
            "found    ggml ${version:-unknown}, backend API version ${api:-unknown}" \
            "expected ggml $GGML_VERSION, backend API version $GGML_API_VERSION" \
            "check out llama.cpp $LLAMA_VERSION there, or leave LLAMA_DIR away"
}

# user_bin_fault BIN: why the programs in BIN cannot be used; nothing if they can.
user_bin_fault() {
    local bin=$1 target base
    [ -d "$bin" ] || { echo "there is no $bin"; return; }
    [ -e "$bin/libggml-base.so" ] || { echo "it has no shared libggml-base.so"; return; }
    base=$(basename "$(readlink -f "$bin/libggml-base.so")")
    [ "$base" = "libggml-base.so.$GGML_VERSION" ] ||
        { echo "it was built from another version ($base)"; return; }
    # A CPU backend that libggml.so links to, or that is missing, is not a loadable module.
    compgen -G "$bin/libggml-cpu*.so" >/dev/null &&
        ! readelf -d "$bin/libggml.so" | grep -q 'NEEDED.*libggml-cpu' ||
        { echo "it was built without GGML_BACKEND_DL=ON"; return; }
    for target in "${llama_targets[@]}"; do
        [ -x "$bin/$target" ] || { echo "it has no $target"; return; }
    done
}

if [ -n "${LLAMA_DIR:-}" ]; then
    check_llama_dir "$LLAMA_DIR"
    llama_src=$(cd "$LLAMA_DIR" && pwd -P)
    llama_root=$cache/llama.cpp-user-$(printf %s "$llama_src" | text_key)
else
    llama_root=$cache/llama.cpp-$LLAMA_VERSION
    llama_src=$llama_root/src
fi
llama_build=$llama_root/build-$(recipe_key "${llama_flags[@]}" "${llama_targets[@]}")
llama_bin=$llama_build/bin
llama_uses_own_build=yes
if [ -n "${LLAMA_DIR:-}" ] && [ -z "$(user_bin_fault "$llama_src/build/bin")" ]; then
    llama_bin=$llama_src/build/bin
    llama_uses_own_build=
fi
vulkan_bin=$llama_root/vulkan-$(recipe_key "$llama_bin" "$VULKAN_TARBALL_SHA256")

# ggml_sanitized_build asan|tsan
ggml_sanitized_build() {
    local flags
    flags=$(sanitizer_flags "$1")
    echo "$llama_root/ggml-$1-$(recipe_key "${ggml_flags[@]}" "$flags")"
}

# npm_folder NAME: where the packages of scripts/setup/npm/NAME are installed.
npm_folder() { echo "$cache/npm-$1-$(text_key <"$setup_dir/npm/$1/package-lock.json")"; }

# system_node_is_new: whether node and npm on the PATH are new enough.
system_node_is_new() {
    local version major minor
    command -v node >/dev/null && command -v npm >/dev/null || return 1
    version=$(node --version 2>/dev/null) || return 1
    IFS=. read -r major minor _ <<<"${version#v}"
    [ "$major" -gt "$NODE_MIN_MAJOR" ] ||
        { [ "$major" -eq "$NODE_MIN_MAJOR" ] && [ "$minor" -ge "$NODE_MIN_MINOR" ]; }
}

# use_node: puts a new enough node and npm first on the PATH; nodejs.sh has prepared them.
node_folder=$cache/node-$NODE_VERSION
use_node() {
    system_node_is_new && return
    [ -f "$node_folder/.complete" ] || "$setup_dir/nodejs.sh"
    PATH=$node_folder/bin:$PATH
}
