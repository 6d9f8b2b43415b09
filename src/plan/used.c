#include "plan/used.h"

#include "cost/routing.h"
#include "plan/experts.h"
#include "plan/share.h"

/* Layers of the routing's model that are averaged. */
enum { LAYERS = 4 };

/* Of what is expected. Layers and texts differ: of 32 experts, 32 tokens that use 4 each use 17 to
 * 24 in layers of the routing's model. */
static const double MORE_ROOM = 1.6;

/* Where lists begin, on any accelerator. */
enum { LIST_ALIGNMENT = 256 };

/* What the tokens use in one layer. 0: out of memory. */
static uint32_t used_in_layer(uint32_t n_experts, uint32_t n_used, uint32_t n_tokens,
                              uint64_t layer)
{
    const struct ats_routing_model model = ats_routing_model_default();
    struct ats_routing routing;
    int32_t experts[ATS_EXPERT_MOST_USED];
    if (!ats_routing_init(&routing, &model, 0, layer, (int32_t)n_experts, (int32_t)n_used)) {
        return 0;
    }
    uint32_t n = 0;
    for (uint32_t t = 0; t < n_tokens; t++) {
        ats_routing_next(&routing, experts);
    }
    for (uint32_t e = 0; e < n_experts; e++) {
        n += routing.last_used[e] != 0;
    }
    ats_routing_free(&routing);
    return n;
}

uint32_t ats_used_expected(uint32_t n_experts, uint32_t n_used, uint32_t n_tokens)
{
    if (n_used > ATS_EXPERT_MOST_USED ||
        (uint64_t)n_tokens * n_used >= (uint64_t)ATS_USED_SURELY_ALL * n_experts) {
        return n_experts;
    }
    uint32_t sum = 0;
    for (uint64_t layer = 0; layer < LAYERS; layer++) {
        const uint32_t n = used_in_layer(n_experts, n_used, n_tokens, layer);
        if (n == 0) {
            return n_experts;
        }
        sum += n;
    }
    return (sum + LAYERS - 1) / LAYERS;
}

static size_t align(size_t bytes)
{
    return (bytes + LIST_ALIGNMENT - 1) / LIST_ALIGNMENT * LIST_ALIGNMENT;
}

bool ats_used_shape_make(const struct ats_used_matrix *matrix, const struct ats_promotion *rule,
                         const struct ats_partition_costs *costs, uint32_t expected,
                         struct ats_used_shape *shape)
{
    const size_t numbers = (size_t)matrix->n_used * matrix->n_tokens + matrix->n_experts;
    const size_t beside = matrix->padding + LIST_ALIGNMENT + align(numbers * sizeof(int32_t));
    const size_t most = rule->most_used_bytes > beside
                            ? (rule->most_used_bytes - beside) / matrix->expert_bytes
                            : 0;
    const size_t wanted = (size_t)(MORE_ROOM * expected) + 1;
    size_t room = most / 2 > wanted ? most / 2 : wanted;
    room = rule->tight_used ? 2U * matrix->n_used : room;
    room = room < most ? room : most;
    room = room < matrix->n_experts ? room : matrix->n_experts;
    if (expected >= matrix->n_experts || (expected > most && !rule->tight_used) ||
        matrix->n_used > room) {
        return false;
    }
    const size_t widest = (size_t)ats_expert_widest_gap(matrix->expert_bytes, costs);
    const size_t between = room / matrix->n_used - 1; /* one token fits, whatever it uses */
    *shape = (struct ats_used_shape){.room = (uint32_t)room,
                                     .gap = (int32_t)(widest < between ? widest : between)};
    shape->lists = align(shape->room * matrix->expert_bytes + matrix->padding);
    shape->place_bytes = shape->lists + align(numbers * sizeof(int32_t));
    return true;
}

/* ---- the time of a pass ---- */

/* Whether the operator reads a root of the set. */
static bool reads(const struct ats_graph_desc *graph, const struct ats_op *op, const bool *set)
{
    for (uint32_t r = 0; r < op->n_reads; r++) {
        if (set[graph->reads[op->first_read + r]]) {
            return true;
        }
    }
    return false;
}

static bool reads_used(const struct ats_graph_desc *graph, const struct ats_op *op)
{
    for (uint32_t r = 0; r < op->n_reads; r++) {
        if (graph->roots[graph->reads[op->first_read + r]].by_use) {
            return true;
        }
    }
    return false;
}

double ats_used_pass_us(const struct ats_graph_desc *graph, const struct ats_promotion *rule,
                        const struct ats_partition_costs *costs, const bool *candidates,
                        const bool *promoted)
{
    double ahead_us = 0; /* copies that need not wait */
    double used_us = 0;
    double beside_us = 0; /* the accelerator's, beside them */
    double behind_us = 0;
    double host_us = 0;
    for (size_t r = 0; r < graph->n_roots; r++) {
        if (promoted[r]) {
            const bool by_use = graph->roots[r].by_use;
            *(by_use ? &used_us : &ahead_us) +=
                (double)ats_promotion_copy_us(rule, &graph->roots[r]);
            used_us += by_use ? (double)costs->split_us : 0;
        }
    }
    for (size_t i = 0; i < graph->n_ops; i++) {
        const struct ats_op *op = &graph->ops[i];
        if (reads(graph, op, candidates) && !reads(graph, op, promoted)) {
            host_us += (double)op->cost_us[ATS_HOST];
        } else {
            *(reads_used(graph, op) ? &behind_us : &beside_us) += (double)op->cost_us[ATS_ACCEL];
        }
    }
    if (rule->serial) {
        return ahead_us + used_us + beside_us + behind_us + host_us;
    }
    return (ahead_us > beside_us ? ahead_us : beside_us) + used_us + behind_us + host_us;
}

/* ---- the choice ---- */

/* Stretches of neighbours among `n` of `n_experts` that are drawn at random: each of the n begins
 * one unless its neighbour is drawn too. */
static uint32_t runs_of(uint32_t n_experts, uint32_t n)
{
    return (uint32_t)((uint64_t)n * (n_experts - n + 1) / n_experts) + (n > 0);
}

/* How many of those that are expected the CPU computes with, and the time that the others take to
 * cross meanwhile. Clears *may_share if it should not even look which have few columns. */
static uint32_t left_to_cpu(const struct ats_promotion *rule, const struct ats_used_matrix *m,
                            uint32_t expected, double *us, bool *may_share)
{
    const uint32_t n_copies = runs_of(m->n_experts, expected);
    *us = (double)rule->copy_latency_us * n_copies +
          (double)(expected * m->expert_bytes) / (double)rule->link_bytes_per_us;
    if (rule->share_rates == NULL || m->flops <= 0 || expected <= m->n_used) {
        return 0;
    }
    const struct ats_share_costs costs =
        ats_share_costs_of(rule->share_rates, m->family, (double)m->expert_bytes,
                           (double)n_copies / expected, m->flops);
    *may_share = *may_share && (rule->kind != ATS_PROMOTE_FASTER || ats_share_may_pay(&costs));
    const double n_left = ats_share_expected(&costs, expected, (uint64_t)m->n_tokens * m->n_used,
                                             m->most_columns, us);
    const uint32_t most = expected - m->n_used; /* those of the first token come in any case */
    return n_left < most ? (uint32_t)n_left : most;
}

/* Sets what passes by use; returns how many. */
static size_t take(const struct ats_promotion *rule, const struct ats_partition_costs *costs,
                   const bool *candidates, const struct ats_used_matrix *matrices,
                   struct ats_root *roots, size_t n_roots, struct ats_used_shape *shapes)
{
    const struct ats_used_matrix *asked = NULL; /* what is expected takes time to find */
    const uint32_t least =
        rule->kind == ATS_PROMOTE_FASTER ? ATS_USED_LEAST_IF_FASTER : ATS_USED_LEAST_TOKENS;
    uint32_t expected = 0;
    size_t n = 0;
    for (size_t r = 0; r < n_roots; r++) {
        const struct ats_used_matrix *m = &matrices[r];
        if (!candidates[r] || m->n_experts == 0 || m->n_tokens < least) {
            continue;
        }
        if (asked == NULL || asked->n_experts != m->n_experts || asked->n_used != m->n_used ||
            asked->n_tokens != m->n_tokens) {
            expected = ats_used_expected(m->n_experts, m->n_used, m->n_tokens);
            asked = m;
        }
        double us = 0;
        const uint32_t n_come = expected - left_to_cpu(rule, m, expected, &us, &roots[r].may_share);
        roots[r].by_use = ats_used_shape_make(m, rule, costs, n_come, &shapes[r]);
        if (roots[r].by_use) {
            roots[r].used_us = (float)us;
            roots[r].used_place_bytes = shapes[r].place_bytes;
            n++;
        }
    }
    return n;
}

void ats_prefer_used(const struct ats_graph_desc *graph, const struct ats_promotion *rule,
                     const struct ats_partition_costs *costs, const bool *candidates,
                     const struct ats_used_matrix *matrices, struct ats_root *roots,
                     struct ats_used_shape *shapes, bool *promoted)
{
    if (rule->used == ATS_USED_NEVER) {
        return;
    }
    const double whole_us = ats_used_pass_us(graph, rule, costs, candidates, promoted);
    if (take(rule, costs, candidates, matrices, roots, graph->n_roots, shapes) == 0) {
        return;
    }
    ats_promote(graph, rule, candidates, promoted);
    if (rule->kind == ATS_PROMOTE_FASTER &&
        ats_used_pass_us(graph, rule, costs, candidates, promoted) >= whole_us) {
        for (size_t r = 0; r < graph->n_roots; r++) {
            roots[r].by_use = false;
        }
        ats_promote(graph, rule, candidates, promoted);
    }
}

/* ---- what a pass uses ---- */

static bool is_hit(const struct ats_used_query *query, int32_t expert)
{
    return query->slot_of != NULL && query->slot_of[expert] != ATS_EXPERT_NONE;
}

/* Places for what the first `n_tokens` use. */
static void place(const struct ats_used_query *query, uint32_t n_tokens, struct ats_used *used)
{
    const int32_t n_experts = query->n_experts;
    *used = (struct ats_used){
        .n_tokens = n_tokens, .place_of = used->place_of, .hits = used->hits, .runs = used->runs};
    for (int32_t e = 0; e < n_experts; e++) {
        used->place_of[e] = ATS_USED_NONE;
    }
    for (size_t i = 0; i < (size_t)n_tokens * query->n_used; i++) {
        const int32_t expert = query->ids[i];
        if (query->left == NULL || !query->left[expert] || i < query->n_used) {
            used->place_of[expert] = 0;
        }
    }
    for (int32_t e = 0; e < n_experts; e++) {
        if (used->place_of[e] != ATS_USED_NONE && is_hit(query, e)) {
            used->place_of[e] = (int32_t)used->n_hits;
            used->hits[used->n_hits++] = e;
        }
    }
    used->n_places = used->n_hits;
    for (int32_t e = 0; e < n_experts; e++) {
        if (used->place_of[e] == ATS_USED_NONE || is_hit(query, e)) {
            continue;
        }
        struct ats_used_run *last = &used->runs[used->n_runs > 0 ? used->n_runs - 1 : 0];
        if (used->n_runs > 0 && e - (last->first + last->n) <= query->gap) {
            used->n_places += (uint32_t)(e + 1 - (last->first + last->n));
            last->n = e + 1 - last->first;
        } else {
            used->runs[used->n_runs++] = (struct ats_used_run){e, 1};
            used->n_places++;
        }
        used->place_of[e] = (int32_t)used->n_places - 1;
    }
}

void ats_used_find(const struct ats_used_query *query, struct ats_used *used)
{
    place(query, query->n_tokens, used);
    if (used->n_places <= query->room) {
        return;
    }
    /* the most tokens that are served: more of them never need fewer places */
    uint32_t fit = 1;
    uint32_t too_many = query->n_tokens;
    while (too_many - fit > 1) {
        const uint32_t middle = fit + (too_many - fit) / 2;
        place(query, middle, used);
        *(used->n_places <= query->room ? &fit : &too_many) = middle;
    }
    place(query, fit, used);
}
