#!/usr/bin/env bash
# Six of the eight models, at the least depth and with a small vocabulary, compute in stock
# llama-bench, on the CPU and on ATS0 over an emulated accelerator with a third of their weights.
# test_run_large.sh has the others.
# shellcheck source=tests/models/lib.sh
. "$(dirname "$0")/lib.sh"

runs glm-z1-9b 1 120M
runs qwen3-14b 1 60M
runs qwen3-30b-a3b 1 120M
runs gpt-oss-20b 1 130M
runs llama-3.1-70b 1 160M
runs gpt-oss-120b 1 500M

finish
