#include "cost/routing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How much rarer each distance from 3 to 8 is than the one before. With it the
 * median reuse distance is 2, as measured. */
static const double NEAR_DECAY = 0.7;

struct ats_routing_model ats_routing_model_default(void)
{
    /* the exponent makes an LRU of 40 % of 128 experts hit 92 % */
    return (struct ats_routing_model){
        .repeat_next = 0.45, .repeat_near = 0.80, .far_exponent = 2.8};
}

static double uniform(struct ats_rng *rng)
{
    return (double)(ats_rng_next(rng) >> 11) * 0x1p-53;
}

/* A random permutation, so that equal histories do not mean equal experts. */
static void shuffle(struct ats_routing *r)
{
    for (int32_t i = 0; i < r->n_experts; i++) {
        r->stack[i] = i;
    }
    for (int32_t i = r->n_experts - 1; i > 0; i--) {
        const int32_t j = (int32_t)ats_rng_below(&r->rng, (uint64_t)i + 1);
        const int32_t moved = r->stack[i];
        r->stack[i] = r->stack[j];
        r->stack[j] = moved;
    }
}

bool ats_routing_init(struct ats_routing *routing, const struct ats_routing_model *model,
                      uint64_t seed, uint64_t layer, int32_t n_experts, int32_t n_used)
{
    if (n_used < 1 || n_used > n_experts || n_experts > ATS_ROUTING_MAX_EXPERTS) {
        return false;
    }
    struct ats_rng mix = {.state = seed ^ (layer + 1) * UINT64_C(0xD1342543DE82EF95)};
    *routing = (struct ats_routing){
        .model = *model,
        .rng = {.state = ats_rng_next(&mix)},
        .n_experts = n_experts,
        .n_used = n_used,
        .token = ATS_ROUTING_NEAR_TOKENS + 1,
        .stack = calloc((size_t)n_experts, sizeof(int32_t)),
        .scratch = calloc((size_t)n_experts, sizeof(int32_t)),
        .last_used = calloc((size_t)n_experts, sizeof(uint64_t)),
    };
    if (routing->stack == NULL || routing->scratch == NULL || routing->last_used == NULL) {
        ats_routing_free(routing);
        return false;
    }
    shuffle(routing);
    return true;
}

void ats_routing_free(struct ats_routing *routing)
{
    free(routing->stack);
    free(routing->scratch);
    free(routing->last_used);
    *routing = (struct ats_routing){0};
}

/* A reuse distance in tokens; ATS_ROUTING_NEAR_TOKENS + 1 stands for all longer ones. */
static int draw_distance(struct ats_routing *r)
{
    double u = uniform(&r->rng) - r->model.repeat_next;
    if (u < 0) {
        return 1;
    }
    const double near = r->model.repeat_near - r->model.repeat_next;
    double share = near * (1 - NEAR_DECAY) / (1 - pow(NEAR_DECAY, ATS_ROUTING_NEAR_TOKENS - 1));
    for (int distance = 2; distance <= ATS_ROUTING_NEAR_TOKENS; distance++) {
        u -= share;
        if (u < 0) {
            return distance;
        }
        share *= NEAR_DECAY;
    }
    return ATS_ROUTING_NEAR_TOKENS + 1;
}

/* What the stack holds by distance: the experts of distance d are at
 * [begin[d], begin[d + 1]), because the stack is ordered by last use. */
struct segments {
    int32_t begin[ATS_ROUTING_NEAR_TOKENS + 3];
};

static struct segments find_segments(const struct ats_routing *r)
{
    struct segments s = {{0}};
    int32_t at = 0;
    for (int d = 1; d <= ATS_ROUTING_NEAR_TOKENS; d++) {
        s.begin[d] = at;
        while (at < r->n_experts && r->last_used[r->stack[at]] == r->token - (uint64_t)d) {
            at++;
        }
    }
    s.begin[ATS_ROUTING_NEAR_TOKENS + 1] = at;
    s.begin[ATS_ROUTING_NEAR_TOKENS + 2] = r->n_experts;
    return s;
}

/* A taken expert's last use is the token at hand. */
static bool taken(const struct ats_routing *r, int32_t at)
{
    return r->last_used[r->stack[at]] == r->token;
}

/* A free place in [begin, end), from `first` on and around; -1 if there is none. */
static int32_t find_free(const struct ats_routing *r, int32_t begin, int32_t end, int32_t first)
{
    for (int32_t i = 0; i < end - begin; i++) {
        const int32_t at = begin + (first - begin + i) % (end - begin);
        if (!taken(r, at)) {
            return at;
        }
    }
    return -1;
}

static int32_t pick(struct ats_routing *r, const struct segments *s, int distance)
{
    const int32_t begin = s->begin[distance];
    const int32_t n = s->begin[distance + 1] - begin;
    if (n <= 0) {
        return -1;
    }
    const double u = uniform(&r->rng);
    const double exponent = distance > ATS_ROUTING_NEAR_TOKENS ? r->model.far_exponent : 1;
    int32_t rank = (int32_t)(n * pow(u, exponent));
    rank = rank < n ? rank : n - 1;
    return find_free(r, begin, begin + n, begin + rank);
}

/* The distance drawn, or the nearest one to it that has experts left. */
static int32_t select_place(struct ats_routing *r, const struct segments *s)
{
    const int drawn = draw_distance(r);
    for (int off = 0; off <= ATS_ROUTING_NEAR_TOKENS; off++) {
        const int candidates[2] = {drawn + off, drawn - off};
        for (int i = 0; i < 2; i++) {
            if (candidates[i] >= 1 && candidates[i] <= ATS_ROUTING_NEAR_TOKENS + 1) {
                const int32_t at = pick(r, s, candidates[i]);
                if (at >= 0) {
                    return at;
                }
            }
        }
    }
    return find_free(r, 0, r->n_experts, 0);
}

void ats_routing_next(struct ats_routing *routing, int32_t *experts)
{
    struct ats_routing *r = routing;
    const struct segments segments = find_segments(r);
    for (int32_t i = 0; i < r->n_used; i++) {
        const int32_t expert = r->stack[select_place(r, &segments)];
        r->last_used[expert] = r->token;
        experts[i] = expert;
    }
    /* the selected ones move to the top, the others keep their order */
    memcpy(r->scratch, experts, (size_t)r->n_used * sizeof(r->scratch[0]));
    int32_t n = r->n_used;
    for (int32_t i = 0; i < r->n_experts; i++) {
        if (!taken(r, i)) {
            r->scratch[n++] = r->stack[i];
        }
    }
    int32_t *stack = r->stack;
    r->stack = r->scratch;
    r->scratch = stack;
    r->token++;
}
