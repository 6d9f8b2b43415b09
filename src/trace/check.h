/* The checker: proves of a recorded execution that each read follows its write, and that nothing
 * was overwritten while a command could still read or write it.
 *
 * Pure. It does not look at when things ran, which another run would do differently, but at what
 * orders them: commands of one stream run in order; a command runs after what the host had done
 * when it was given; an event wait puts what follows it behind what the event marks; a
 * synchronisation puts what the host does next behind all that it waited for. Two accesses to the
 * same bytes, one of them a write, must be ordered by such a chain, in the order in which they were
 * given. (The relation is Lamport's "happened before", kept in vector clocks: Fidge 1988, Mattern
 * 1989.)
 *
 * Staging memory and the slots of single experts hold one thing after the other. A read of them
 * must moreover find, in all its bytes, the tensor that it is to read: put there by the last write
 * under that name, and of the expert that it is to read if it reads single ones. They are given
 * back when the host has waited for all that uses them.
 *
 * Where the accelerator tells when commands ran, those times must agree with the order proven.
 *
 * Limits: only what was recorded. What a program writes into tensors between passes is not; bytes
 * that a strided view skips count as touched. Which slots an operator reads is decided by ids,
 * which are data: the recording has those that the backend sent, and what they should find there
 * by the router's choice as the host has read it. An event is known by its address: a new one at
 * the address of one that is gone counts as that until it is recorded. */
#ifndef ATS_TRACE_CHECK_H
#define ATS_TRACE_CHECK_H

#include "base/error.h"
#include "trace/record.h"

enum { ATS_TRACE_MAX_FAULTS = 16 };

struct ats_trace_fault {
    size_t record; /* of the later access */
    size_t other;  /* of the earlier one, or SIZE_MAX */
    char text[400];
};

struct ats_trace_check {
    uint64_t n_commands;
    uint64_t n_reads; /* accesses that were checked, by operand */
    uint64_t n_writes;
    uint64_t n_staged_reads; /* of these reads, of staging memory and slots */
    uint64_t n_expert_reads; /* of these, of a single expert in its slot */
    uint64_t n_ordered;      /* pairs of accesses by different agents, proven to be in order */
    uint64_t n_timed;        /* of these, confirmed by the accelerator's own times */
    uint64_t n_faults;
    struct ats_trace_fault faults[ATS_TRACE_MAX_FAULTS]; /* the first of them */
};

/* False: out of memory, or the recording cannot be checked (no operands, its beginning dropped, or
 * parts of it never recorded), which the error tells. Faults are no failure. */
bool ats_trace_check(const struct ats_trace *trace, struct ats_trace_check *result,
                     struct ats_error *err);

#endif
