/* Failures on request: which operation of a device is to fail, by count.
 *
 * Rules are plain data; an injector holds one device's rules and counters.
 * Thread-safe: the counters count operations in the order they are executed. */
#ifndef ATS_EMU_INJECT_H
#define ATS_EMU_INJECT_H

#include "base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum ats_emu_op {
    ATS_EMU_OP_ALLOC,
    ATS_EMU_OP_PINNED,
    ATS_EMU_OP_COPY,
    ATS_EMU_OP_COMPUTE,
    ATS_EMU_OP_LOSS, /* counts copies and computes */
    ATS_EMU_OP_COUNT
};

/* The operations number `from`, or from there on, fail; 0: none does. */
struct ats_emu_inject_rule {
    uint64_t from;
    bool onwards;
};

struct ats_emu_inject_rules {
    struct ats_emu_inject_rule rule[ATS_EMU_OP_COUNT];
};

struct ats_emu_injector {
    pthread_mutex_t lock;
    struct ats_emu_inject_rules rules;
    uint64_t count[ATS_EMU_OP_COUNT];
};

const char *ats_emu_op_name(enum ats_emu_op op);

/* "alloc:3,copy:2+" or "off". */
bool ats_emu_inject_parse(const char *spec, struct ats_emu_inject_rules *rules,
                          struct ats_error *err);

/* "3" or "3+". */
bool ats_emu_inject_parse_rule(const char *text, struct ats_emu_inject_rule *rule,
                               struct ats_error *err);

void ats_emu_injector_init(struct ats_emu_injector *injector,
                           const struct ats_emu_inject_rules *rules);
void ats_emu_injector_destroy(struct ats_emu_injector *injector);

/* Replaces the rules and restarts the counters. */
void ats_emu_injector_set(struct ats_emu_injector *injector,
                          const struct ats_emu_inject_rules *rules);

/* Counts one operation; true if it is to fail. */
bool ats_emu_injector_hits(struct ats_emu_injector *injector, enum ats_emu_op op);

#endif
