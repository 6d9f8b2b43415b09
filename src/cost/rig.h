/* Rigs: machines that the emulated accelerator stands in for, as JSON files
 * (format "ats-rig-1", rigs/NAME.json, keys in docs/rigs.md).
 *
 * A rig is a CPU, a device and a link, every figure with the source that it is
 * from. A file may name a base, whose figures it replaces in part. The same
 * figures without sources are the "rates" of a device profile.
 *
 * Reading touches files and nothing else; safe from any thread. */
#ifndef ATS_COST_RIG_H
#define ATS_COST_RIG_H

#include "base/error.h"
#include "cost/cost.h"
#include "cost/routing.h"

#include <stddef.h>
#include <stdio.h>

struct json_t;

enum { ATS_RIG_FIGURES = 26, ATS_RIG_MAX_SOURCE = 200 };

struct ats_rig {
    char name[64];
    char description[160];
    char cpu[64]; /* model names, for people */
    char device[64];
    size_t memory;                 /* bytes of device memory */
    double cpu_gflops;             /* of a quantised matmul at batch 512 on the CPU */
    struct ats_device_rates rates; /* the real machine's */
    struct ats_routing_model routing;
    char sources[ATS_RIG_FIGURES][ATS_RIG_MAX_SOURCE]; /* by figure; empty: none given */
};

/* A figure of a rig: where it is in the file and in the struct. */
struct ats_rig_figure {
    const char *section; /* "cpu", "device", "link" */
    const char *key;
    const char *unit;
    double min;
    double max;
    size_t offset;   /* of a double in struct ats_rig */
    bool whole;      /* a whole number */
    int scale_power; /* of the scale by which it is emulated: 1 rates, -1 times, 0 neither */
};

extern const struct ats_rig_figure ats_rig_figures[ATS_RIG_FIGURES];

double ats_rig_value(const struct ats_rig *rig, int figure);

/* The path of a rig by name or path: a name with a slash or ending in ".json"
 * is a path; otherwise NAME.json in $ATS_RIGS, beside this program or library
 * (../share/ats/rigs, the same from libexec/ats, ../rigs) and in the folder set at compile time. */
bool ats_rig_find(const char *name, char *path, size_t size, struct ats_error *err);

/* Reads a file. Anything unknown, missing, mistyped or out of range is an error
 * that names file, key and what is allowed. */
bool ats_rig_read(const char *path, struct ats_rig *rig, struct ats_error *err);

/* Reads the sections of figures from `object`, as in a rig; sources are optional, and
 * the rig's routing is set before. `context` begins error messages. */
bool ats_rig_read_rates(const char *context, const struct json_t *object, struct ats_rig *rig,
                        struct ats_error *err);

#endif
