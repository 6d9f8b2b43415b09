/* Synthetic expert routing with the temporal locality of real models: which
 * experts each token of a layer uses.
 *
 * An LRU-stack model. Experts are kept in the order of their last use; each
 * selection of a token draws the reuse distance (in tokens) and takes one of
 * the experts that were last used that long ago. Distances 1 and 2 to 8 have
 * given probabilities, decreasing within the latter; what is older is drawn by
 * its rank in the stack, nearer ranks more often. All experts are alike, so
 * there is no static skew.
 *
 * Default figures: Qwen3-30B-A3B as measured in a public pull request (imp PR
 * 1359): 45 % of a token's selections repeat at the next token, 80 % within
 * eight, median reuse distance 2 tokens, an LRU cache of 40 % of the experts
 * hits 90 to 95 %.
 *
 * Pure and deterministic: a layer's sequence depends on seed, layer, numbers
 * of experts and nothing else. A struct is used by one thread at a time. */
#ifndef ATS_COST_ROUTING_H
#define ATS_COST_ROUTING_H

#include "base/rng.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    ATS_ROUTING_MAX_EXPERTS = 4096,
    ATS_ROUTING_NEAR_TOKENS = 8, /* the distances that are drawn one by one */
};

struct ats_routing_model {
    double repeat_next;  /* fraction of selections that the token before made too */
    double repeat_near;  /* that one of the eight tokens before made; >= repeat_next */
    double far_exponent; /* of the rank among older experts: n * u^exponent; >= 1 */
};

struct ats_routing_model ats_routing_model_default(void);

struct ats_routing {
    struct ats_routing_model model;
    struct ats_rng rng;
    int32_t n_experts;
    int32_t n_used;
    uint64_t token;      /* number of the next one, from ATS_ROUTING_NEAR_TOKENS + 1 on */
    int32_t *stack;      /* experts, the last used first */
    int32_t *scratch;    /* n_experts, while a token is made */
    uint64_t *last_used; /* token by expert; 0: never */
};

/* False if the numbers are out of range (1 <= n_used <= n_experts <=
 * ATS_ROUTING_MAX_EXPERTS) or memory is out; then there is nothing to free. */
bool ats_routing_init(struct ats_routing *routing, const struct ats_routing_model *model,
                      uint64_t seed, uint64_t layer, int32_t n_experts, int32_t n_used);
void ats_routing_free(struct ats_routing *routing);

/* The next token's experts: n_used distinct numbers in [0, n_experts). */
void ats_routing_next(struct ats_routing *routing, int32_t *experts);

#endif
