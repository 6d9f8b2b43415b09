/* The session that a placement is chosen for: how much of its time is prefill and how much
 * decode. Pure. */
#ifndef ATS_PLAN_WORKLOAD_H
#define ATS_PLAN_WORKLOAD_H

#include <stdint.h>

struct ats_workload {
    uint32_t prompt_tokens;
    uint32_t decode_tokens; /* generated behind the prompt */
};

/* A prompt of 2048 tokens and 128 behind it: the published evaluation's decode setting. */
static inline struct ats_workload ats_workload_default(void)
{
    return (struct ats_workload){.prompt_tokens = 2048, .decode_tokens = 128};
}

#endif
