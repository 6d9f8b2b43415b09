#!/usr/bin/env bash
# Runs the tests of the command `ats`; see lib.sh for the variables.
set -uo pipefail

cd "$(dirname "$0")" || exit 1
failed=0
for test in test_*.sh; do
    if "./$test"; then
        echo "ok   $test"
    else
        echo "FAIL $test"
        failed=$((failed + 1))
    fi
done
exit $((failed > 0))
