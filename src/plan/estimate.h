/* What an operator is taken to cost by decisions about a graph, until a measured profile replaces
 * it.
 *
 * Pure; no state, safe from any thread. Backend and simulator share it, so that they decide
 * alike. */
#ifndef ATS_PLAN_ESTIMATE_H
#define ATS_PLAN_ESTIMATE_H

#include "plan/side.h"

/* Microseconds of an operator that reads and writes `bytes` of memory and does `flops` operations
 * on `side`: fixed + max(bytes / bandwidth, flops / rate), with placeholder rates of a desktop CPU
 * and a mid-range GPU. */
float ats_estimate_us(enum ats_side side, float bytes, float flops);

#endif
