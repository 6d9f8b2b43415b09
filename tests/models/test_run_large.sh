#!/usr/bin/env bash
# As test_run.sh, for the two models whose least depth is four layers. Skipped without the disk
# that they need for a while.
# shellcheck source=tests/models/lib.sh
. "$(dirname "$0")/lib.sh"
readonly NEEDED_MB=12000 SKIPPED=77

if [ "$(df -Pm "$work" | awk 'NR == 2 { print $4 }')" -lt "$NEEDED_MB" ]; then
    echo "skipped: needs $NEEDED_MB MB of disk in $work for a while"
    exit "$SKIPPED"
fi

runs qwen3-next-80b-a3b 4 1200M
runs qwen3.5-122b-a10b 4 1800M

finish
