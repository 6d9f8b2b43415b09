#!/usr/bin/env bash
# `ats rig`: figures real and emulated, one factor, measured once and kept; errors in one line.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"
export XDG_CACHE_HOME=$work/cache
unset ATS_RIG_SCALE ATS_RIG_TYPE ATS_RIG_MEASURE ATS_RIGS

figure() { # KEY FIELD: of the table in $out
    python3 -c '
import json, sys
table = json.load(sys.stdin)
print([f[sys.argv[2]] for f in table["figures"] if f["key"] == sys.argv[1]][0])' "$1" "$2" <<<"$out"
}
expect_figure() { # KEY FIELD VALUE
    local value
    value=$(figure "$1" "$2")
    python3 -c "import sys; sys.exit(abs($value - $3) > 1e-6 * abs($3))" ||
        problem "$command_text" "$2 $1 is $value, expected $3"
}

export ATS_RIG_SCALE=0.25
try "$ats" rig --json laptop-3060
expect_rc 0
expect_figure h2d_gbps real 24
expect_figure h2d_gbps emulated 6
expect_figure vram_q4_gbps emulated 63
expect_figure launch_us emulated 20
expect_figure copy_engines emulated 1
expect_figure dram_limit_gbps emulated 11.25
try "$ats" rig laptop-3060-pcie5
expect_rc 0
expect_in out "PCIe 5.0"
expect_in out "Scale 0.25, as given"
expect_in out "(PCIe 5.0 x16"
! grep -qE '.{81}' <<<"$out" || problem "$command_text" "a line is wider than 80 columns"
unset ATS_RIG_SCALE

# Measured: the factor is this CPU's bandwidth over the rig's, kept for the next time.
try "$ats" rig --json laptop-3060
expect_rc 0
first=$out
expect_in out '"measured_before": false'
read -r factor host real < <(python3 -c '
import json, sys
table = json.load(sys.stdin)
real = [f["real"] for f in table["figures"] if f["key"] == "matvec_gbps"][0]
print(table["scale"]["factor"], table["scale"]["host"]["matvec_q4_gbps"], real)' <<<"$out")
python3 -c "import sys; sys.exit(not (abs($factor * $real / $host - 1) < 1e-9 and $host > 0.1))" ||
    problem "the factor" "$factor is not $host / $real"
kept=("$XDG_CACHE_HOME"/ats/host-speed-*.json)
[ "${#kept[@]}" -eq 1 ] && [ -s "${kept[0]}" ] || problem "kept figures" "${kept[*]}"
try "$ats" rig --json laptop-3060
expect_in out '"measured_before": true'
[ "$out" = "${first/'"measured_before": false'/'"measured_before": true'}" ] ||
    problem "$command_text" "differs from the first time:" "$(diff <(echo "$first") <(echo "$out"))"
echo nonsense >"${kept[0]}"
try "$ats" rig --json laptop-3060
expect_rc 0
expect_in out '"measured_before": false'

try "$ats" rig
expect_error 2 "the name of a rig is missing"
try "$ats" rig laptop-3060 desktop-4090
expect_error 2 "one rig at a time"
try "$ats" rig nowhere
expect_error 1 "no rig 'nowhere'"
echo '{"format": "ats-rig-1", "name": "x", "base": "laptop-3060", "wings": 2}' >"$work/x.json"
cp "$root/rigs/laptop-3060.json" "$work/"
try "$ats" rig "$work/x.json"
expect_error 1 'x.json: unknown key "wings"'
export ATS_RIG_SCALE=fast
try "$ats" rig laptop-3060
expect_error 1 "ATS_RIG_SCALE: 'fast' is not a number"
export ATS_RIG_SCALE=1 ATS_RIG_TYPE=q5
try "$ats" rig laptop-3060
expect_error 1 "ATS_RIG_TYPE: 'q5'"

finish
