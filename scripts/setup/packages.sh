#!/usr/bin/env bash
# packages.sh run|test|lint: installs the Debian packages that are missing for that. As root by
# apt-get; otherwise it prints the one command to run and fails. With nothing missing it does
# not touch the network.
. "$(dirname "$0")/common.sh"

# scope | package | what shows that it is there | why it is needed
# 'run' belongs to every scope; 'test' has everything.
packages='
run  | gcc                  | cmd:gcc              | compiles ATS and the C part of llama.cpp
run  | g++                  | cmd:g++              | compiles llama.cpp
run  | libc6-dev            | header:stdlib.h      | the C library for both
run  | make                 | cmd:make             | the front door
run  | cmake                | cmd:cmake            | configures both builds
run  | ninja-build          | cmd:ninja            | runs both builds
run  | git                  | cmd:git              | reads the bundle that carries llama.cpp
run  | pkg-config           | cmd:pkg-config       | finds the libraries below
run  | libjansson-dev       | header:jansson.h     | profiles, plans and reports are JSON
run  | libhwloc-dev         | header:hwloc.h       | cores and caches of the CPU
run  | libmicrohttpd-dev    | header:microhttpd.h  | the port of ats top --metrics
run  | uthash-dev           | header:uthash.h      | hash tables
run  | libcmocka-dev        | header:cmocka.h      | the framework of our unit tests
run  | nodejs               | cmd:node             | builds the page of llama-server
run  | npm                  | cmd:npm              | downloads llama.cpp and the packages of that page
run  | ca-certificates      | dpkg                 | lets npm verify where it downloads from
run  | util-linux           | cmd:flock            | keeps two set-ups from colliding
test | mesa-vulkan-drivers  | glob:lvp_icd         | a Vulkan device on any machine: llvmpipe
test | libvulkan1           | lib:libvulkan.so.1   | loads that driver
test | chromium             | cmd:chromium         | opens the page of llama-server
run  | python3              | cmd:python3          | reads the tables of the tests of llama.cpp
run  | jq                   | cmd:jq               | reads the JSON that ats prints
test | curl                 | cmd:curl             | asks llama-server for completions
test | clang                | cmd:clang            | second compiler; its sanitizers
test | libclang-rt-14-dev   | dpkg                 | the runtime of those sanitizers
lint | clang-format         | cmd:clang-format     | checks the format
lint | clang-tidy           | cmd:clang-tidy       | static analysis
lint | shellcheck           | cmd:shellcheck       | static analysis of shell scripts
'

is_there() {
    local package=$1 probe=$2
    case $probe in
        cmd:*) command -v "${probe#cmd:}" >/dev/null ;;
        header:*) [ -e "/usr/include/${probe#header:}" ] || is_installed "$package" ;;
        lib:*) { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep -q "${probe#lib:}" ;;
        glob:*) compgen -G "/usr/share/vulkan/icd.d/${probe#glob:}*" >/dev/null ;;
        dpkg) ! command -v dpkg-query >/dev/null || is_installed "$package" ;;
    esac
}

is_installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# missing SCOPE: the packages of SCOPE that are not there, one per line.
missing() {
    local scope package probe
    while IFS='|' read -r scope package probe _; do
        read -r scope <<<"$scope"
        read -r package <<<"$package"
        read -r probe <<<"$probe"
        [ -n "$scope" ] || continue
        [ "$scope" = run ] || [ "$1" = test ] || [ "$scope" = "$1" ] || continue
        is_there "$package" "$probe" || echo "$package"
    done <<<"$packages"
}

scope=${1:-run}
case $scope in
    run | test | lint) ;;
    *) die "packages.sh: unknown scope '$scope'" "use run, test or lint" ;;
esac
mapfile -t wanted < <(missing "$scope")
[ ${#wanted[@]} -gt 0 ] || exit 0

install=(apt-get install -y --no-install-recommends "${wanted[@]}")
command -v apt-get >/dev/null || die "these programs or libraries are missing" \
    "by their Debian names: ${wanted[*]}" "install them with your system's package manager"
[ "$(id -u)" -eq 0 ] || die "some system packages are missing; install them with" "" \
    "    sudo sh -c 'apt-get update && ${install[*]}'" "" "and run this again"

say "installing ${#wanted[@]} packages: ${wanted[*]}"
export DEBIAN_FRONTEND=noninteractive
# Another apt-get may be at work; wait for it up to ten minutes.
apt-get update -qq -o DPkg::Lock::Timeout=600 >&2 || die "apt-get update failed" \
    "check the network and /etc/apt/sources.list, then run this again"
"${install[@]}" -qq -o DPkg::Lock::Timeout=600 >&2 ||
    die "apt-get could not install: ${wanted[*]}"
mapfile -t wanted < <(missing "$scope")
[ ${#wanted[@]} -eq 0 ] || die "still missing after the installation: ${wanted[*]}"
