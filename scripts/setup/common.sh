# shellcheck shell=bash
# What the setup scripts share: messages, the cache, locks, verified downloads.
# Messages go to stderr; stdout is for results that other programs read.

set -euo pipefail

setup_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=pins.sh
. "$setup_dir/pins.sh"

cache=${ATS_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or ATS_CACHE}/.cache}/ats}
case $cache in
    /*) ;;
    *) cache=$PWD/$cache ;;
esac

say() { printf 'setup: %s\n' "$*" >&2; }

# die WHAT [DETAIL...]: one error, each detail on its own indented line.
die() {
    printf 'setup: error: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '       %s\n' "$@" >&2
    exit 1
}

need_command() {
    command -v "$1" >/dev/null || die "the program '$1' is missing" \
        "run scripts/setup/packages.sh, which installs it or prints the command that does"
}

prepare_cache() {
    mkdir -p "$cache/downloads" "$cache/locks" 2>/dev/null && [ -w "$cache" ] ||
        die "the cache folder $cache cannot be written" \
            "make it writable, or choose another folder with ATS_CACHE=path"
}

# with_lock NAME: from here to the end of the script, only one process holds NAME. Programs
# started later inherit the descriptor, so the lock also outlives a killed script for as long
# as its compiler jobs still write.
with_lock() {
    prepare_cache
    exec 9>"$cache/locks/$1"
    if ! flock -n 9; then
        say "another run is preparing $1; waiting for it"
        flock 9
    fi
}

sha256_of() { sha256sum "$1" | cut -d' ' -f1; }

text_key() { sha256sum | cut -c1-12; }

# Errors only, and without a network give up after seconds instead of minutes.
npm_quietly=(--loglevel=error --fetch-retries=2 --fetch-retry-mintimeout=1000
    --fetch-retry-maxtimeout=4000)

# fetch_package SPEC FILE SHA256: the npm package SPEC as $cache/downloads/FILE. npm pack runs
# no scripts. A file that does not match its hash is never left under its final name.
fetch_package() {
    local spec=$1 file=$2 expected=$3 actual temporary
    local path=$cache/downloads/$file
    if [ ! -f "$path" ]; then
        need_command npm
        say "downloading $spec"
        temporary=$cache/downloads/part.$file
        rm -rf "$temporary"
        mkdir "$temporary"
        if ! npm pack "${npm_quietly[@]}" --pack-destination "$temporary" "$spec" >/dev/null; then
            rm -rf "$temporary"
            die "npm could not download $spec" \
                "check the network and npm's registry and proxy settings, then run this again"
        fi
        actual=$(sha256_of "$temporary/$file")
        if [ "$actual" != "$expected" ]; then
            rm -rf "$temporary"
            die "the download $spec is not the file we know" \
                "expected sha256 $expected" "found    sha256 $actual" \
                "nothing of it was used; the registry or a proxy altered it"
        fi
        mv "$temporary/$file" "$path"
        rm -rf "$temporary"
    fi
    actual=$(sha256_of "$path")
    [ "$actual" = "$expected" ] || die "$path is damaged" \
        "expected sha256 $expected" "found    sha256 $actual" "delete it and run this again"
}

# build_jobs: parallel compiler jobs, one per core, with 1.5 GiB each of what memory is
# available and never more than four: the whole build stays under 6 GiB.
build_jobs() {
    local cores memory_jobs jobs
    cores=$(nproc)
    memory_jobs=$(awk '/^MemAvailable:/ { print int($2 / 1024 / 1024 / 1.5) }' /proc/meminfo)
    jobs=$cores
    [ "$jobs" -le "${memory_jobs:-1}" ] || jobs=$memory_jobs
    [ "$jobs" -le 4 ] || jobs=4
    [ "$jobs" -ge 1 ] || jobs=1
    echo "$jobs"
}
