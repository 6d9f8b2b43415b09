#!/usr/bin/env bash
# What drives a real browser against llama-server's page: playwright-core from npm. The
# browser itself is Debian's chromium (packages.sh); none is downloaded.
. "$(dirname "$0")/paths.sh"
exec "$setup_dir/npm-packages.sh" browser
