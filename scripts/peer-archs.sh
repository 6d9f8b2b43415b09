#!/usr/bin/env bash
# peer-archs.sh [--emu | --vulkan]: llama.cpp's test of all model architectures, with each
# weight on a random side of ATS0. It compares the logits with those of the plain CPU.
#
#   SEED   of the placement and of the models (default: $ATS_TEST_SEED, or a random one)
#   ARCH   regular expression: only these architectures
#   ATS_EXPERTS=slices   tokens one by one, experts by slice; both sides must have computed some
#   ATS_EMU_DELAY_US   longest random pause before a command of the emulated accelerator
#
# Over the emulated accelerator, which computes as the CPU does, the error must be exactly 0.
# shellcheck source=tests/peer/lib.sh
. "$(dirname "$0")/../tests/peer/lib.sh"

lane=${1:---emu}
use_accelerator "${lane#--}"
seed=${SEED:-${ATS_TEST_SEED:-$(random_seed)}}
export ATS_PLACEMENT=random:$seed
printf '%s: SEED=%s ARCH=%s\n' "$program_name" "$seed" "${ARCH:-.*}"

slices=
[ "${ATS_EXPERTS:-}" != slices ] || slices=1
status=0
ATS_PEER_LOAD=1 ATS_PEER_UBATCH=$slices peer test-llama-archs -s "$seed" ${ARCH:+-a "$ARCH"} 2>"$work/errors" |
    tee "$work/table" || status=$?
if [ "$status" -ne 0 ]; then
    printf '%s: test-llama-archs ended with %s\n' "$program_name" "$status" >&2
    tail -n 20 "$work/errors" >&2
fi
# On a real accelerator, the models on which it fails by itself are no failures of ours.
[ "$lane" = --emu ] || [ "$status" -ne 1 ] || status=0
(expect_both_sides) || status=1
if [ -n "$slices" ]; then
    printf '%s: experts: %s hits, %s misses\n' "$program_name" "$(counter experts.hits)" \
        "$(counter experts.misses)"
    [ "$(counter experts.hits)" -gt 0 ] && [ "$(counter experts.misses)" -gt 0 ] || status=1
fi
"$root/tests/peer/archs_verdict.py" "$lane" "$work/table" || status=1
exit "$status"
