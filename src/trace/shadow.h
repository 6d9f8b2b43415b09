/* Shadow memory of the checker: for each byte of a memory, who wrote it last and who has read it
 * since.
 *
 * Pure. A memory is a sorted list of disjoint stretches; bytes that nobody touched are in none. An
 * access is named by the agent that makes it, the agent's clock at that time, and the record that
 * tells of it. Not thread-safe. */
#ifndef ATS_TRACE_SHADOW_H
#define ATS_TRACE_SHADOW_H

#include "trace/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Who does something in a context: the host with its CPU side, and each stream. */
enum { ATS_TRACE_AGENTS = ATS_TRACE_ROLES };

struct ats_trace_access {
    uint64_t clock; /* of the agent; 0: no access */
    size_t record;
    const char *tensor; /* whose bytes they are; borrowed */
    uint32_t expert;    /* of it, from 1; 0: of no single one */
};

struct ats_trace_stretch {
    uint64_t begin;
    uint64_t end;
    int writer; /* agent */
    struct ats_trace_access write;
    struct ats_trace_access reads[ATS_TRACE_AGENTS]; /* since then, the latest of each */
};

struct ats_trace_shadow {
    struct ats_trace_stretch *stretches;
    size_t n;
    size_t capacity;
};

/* Makes stretches that cover [begin, end) exactly and returns the index of the first; *n gets their
 * number. SIZE_MAX: out of memory. */
size_t ats_trace_shadow_cover(struct ats_trace_shadow *shadow, uint64_t begin, uint64_t end,
                              size_t *n);

/* Makes one stretch, of that write and no reads, of `n` that follow each other. */
void ats_trace_shadow_write(struct ats_trace_shadow *shadow, size_t first, size_t n, int agent,
                            struct ats_trace_access write);

/* Forgets all. */
void ats_trace_shadow_clear(struct ats_trace_shadow *shadow);

#endif
