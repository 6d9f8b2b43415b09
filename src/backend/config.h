/* What the user asked for, read once from the environment when the library is
 * loaded. See docs/configuration.md for each variable. */
#ifndef ATS_BACKEND_CONFIG_H
#define ATS_BACKEND_CONFIG_H

#include "base/error.h"
#include "plan/pieces.h"
#include "plan/placement.h"
#include "plan/promote.h"
#include "plan/workload.h"

#include <stdbool.h>
#include <stddef.h>

/* How promoted weights travel. */
enum ats_transfer_kind {
    ATS_TRANSFER_ASYNC,  /* on a stream of their own, ahead of their use */
    ATS_TRANSFER_SERIAL, /* on the compute stream, in order */
};

/* How experts that do not all fit are kept in VRAM. */
enum ats_experts_kind {
    ATS_EXPERTS_AUTO,   /* what is faster, where host memory can be page-locked */
    ATS_EXPERTS_WHOLE,  /* all experts of some layers */
    ATS_EXPERTS_SLICES, /* some experts of layers that do not fit, which follow the text */
};

/* Whether graphs are planned anew for how fast the machine is now. */
enum ats_adapt_kind {
    ATS_ADAPT_AUTO,
    ATS_ADAPT_OFF,
    ATS_ADAPT_RANDOM, /* by drifts drawn at random: for tests */
};

struct ats_config {
    const char *accel;    /* ATS_ACCEL: comma-separated device names; NULL: all */
    bool has_budget;      /* ATS_VRAM was given */
    size_t budget;        /* bytes per accelerator */
    struct ats_rule rule; /* ATS_PLACEMENT */
    struct ats_placement_table table;
    struct ats_promotion promotion;  /* ATS_PROMOTE; link and sizes are filled in per graph */
    struct ats_piece_rule pieces;    /* how matrices are cut on their way */
    enum ats_transfer_kind transfer; /* ATS_TRANSFER */
    enum ats_experts_kind experts;   /* ATS_EXPERTS */
    enum ats_adapt_kind adapt;       /* ATS_ADAPT */
    uint64_t adapt_seed;
    struct ats_workload session; /* ATS_SESSION: what a placement is chosen for */
    bool use_profile;            /* ATS_PROFILE is not "off" */
    const char *profile;         /* its file; NULL: the machine's own */
    const char *plan_out; /* ATS_PLAN_OUT: file that the placement is written to; NULL: none */
    const char *trace;    /* ATS_TRACE: file for a recording; NULL: none */
    size_t trace_memory;  /* ATS_TRACE_MEMORY: bytes for it */
    bool trace_operands;  /* ATS_TRACE_CHECK: what operators read and write is recorded too */
    const char *stats;    /* ATS_STATS: file for the summary; NULL: none */
    bool live; /* ATS_LIVE is not "off": figures for `ats top` are published (top/folder.h) */
};

/* Reads the environment. Fails on the first value that makes no sense, naming
 * the variable. Strings are borrowed from the environment; the rule refers to the table, so
 * the struct must stay where it is. */
bool ats_config_read(struct ats_config *config, struct ats_error *err);

#endif
