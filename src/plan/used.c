#include "plan/used.h"

#include "cost/routing.h"
#include "plan/experts.h"
#include "plan/share.h"

#include <stdlib.h>

/* Layers of the routing's model that are averaged; with many tokens they differ less, and take
 * longer to count. */
enum { LAYERS = 4, LAYERS_OF_MANY = 1, MANY_TIMES_ALL = 16 };

/* Of what is expected. Layers and texts differ: of 32 experts, 32 tokens that use 4 each use 17 to
 * 24 in layers of the routing's model. */
static const double MORE_ROOM = 1.6;

/* Where lists begin, on any accelerator. */
enum { LIST_ALIGNMENT = 256 };

enum { LISTS = ATS_USED_LISTS };

/* A parcel is at most one part of so many of the staging memory that it may have: one is read, one
 * is there, and two are on their way. */
enum { PARCELS_AT_ONCE = 4 };

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
    const bool are_many = (uint64_t)n_tokens * n_used >= (uint64_t)MANY_TIMES_ALL * n_experts;
    const uint32_t n_layers = are_many ? LAYERS_OF_MANY : LAYERS;
    uint32_t sum = 0;
    for (uint64_t layer = 0; layer < n_layers; layer++) {
        const uint32_t n = used_in_layer(n_experts, n_used, n_tokens, layer);
        if (n == 0) {
            return n_experts;
        }
        sum += n;
    }
    return (sum + n_layers - 1) / n_layers;
}

static size_t align(size_t bytes)
{
    return (bytes + LIST_ALIGNMENT - 1) / LIST_ALIGNMENT * LIST_ALIGNMENT;
}

/* Numbers in the lists of so many columns that are in at most `n_groups` places. */
static size_t most_numbers(uint64_t n_columns, uint64_t n_groups)
{
    return LISTS * (ats_used_list((size_t)n_columns) + (size_t)n_groups * ATS_USED_LIST_STEP);
}

/* Experts for which a place of so many bytes has room. */
static size_t room_of(size_t bytes, size_t beside, size_t expert_bytes)
{
    return bytes > beside ? (bytes - beside) / expert_bytes : 0;
}

bool ats_used_shape_make(const struct ats_used_matrix *matrix, const struct ats_promotion *rule,
                         const struct ats_partition_costs *costs, uint32_t expected,
                         struct ats_used_shape *shape)
{
    const size_t lists = align(most_numbers((uint64_t)matrix->n_used * matrix->n_tokens, 2) *
                               sizeof(int32_t)); /* the hits', and a parcel's */
    const size_t beside = matrix->padding + LIST_ALIGNMENT + lists;
    const size_t most = room_of(rule->most_used_bytes / 2, beside, matrix->expert_bytes);
    if (expected >= matrix->n_experts || most == 0) {
        return false;
    }
    const size_t wanted = (size_t)(MORE_ROOM * expected) + 1;
    const size_t n = wanted < matrix->n_experts ? wanted : matrix->n_experts;
    const size_t usual =
        room_of(rule->most_used_bytes / PARCELS_AT_ONCE, beside, matrix->expert_bytes);
    const size_t room = usual > 0 ? usual : most;
    const size_t n_parcels = (n + room - 1) / room;
    *shape = (struct ats_used_shape){
        .n_parcels = (uint32_t)n_parcels,
        .room = (uint32_t)((n + n_parcels - 1) / n_parcels),
        .gap = ats_expert_widest_gap(matrix->expert_bytes, costs),
    };
    if (rule->tight_used) {
        shape->n_parcels = 2;
        shape->room = (uint32_t)(matrix->n_used < most ? matrix->n_used : most);
    }
    shape->lists = align(shape->room * matrix->expert_bytes + matrix->padding);
    shape->place_bytes = shape->lists + lists;
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
            used_us += by_use ? (double)costs->split_us * graph->roots[r].n_parcels : 0;
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
    if (rule->share_rates == NULL || m->flops <= 0 || expected == 0) {
        return 0;
    }
    const struct ats_share_costs costs =
        ats_share_costs_of(rule->share_rates, m->family, (double)m->expert_bytes,
                           (double)n_copies / expected, m->flops);
    *may_share = *may_share && (rule->kind != ATS_PROMOTE_FASTER || ats_share_may_pay(&costs));
    const double n_left = ats_share_expected(&costs, expected, (uint64_t)m->n_tokens * m->n_used,
                                             m->most_columns, us);
    return n_left < expected ? (uint32_t)n_left : expected;
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
            roots[r].n_parcels = shapes[r].n_parcels;
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

bool ats_used_init(uint32_t n_experts, uint64_t n_columns, uint32_t n_parcels,
                   struct ats_used *used)
{
    *used = (struct ats_used){
        .hit_experts = calloc(n_experts, sizeof(*used->hit_experts)),
        .hit_slots = calloc(n_experts, sizeof(*used->hit_slots)),
        .parcels = calloc((size_t)n_experts + n_parcels, sizeof(*used->parcels)),
        .runs = calloc(n_experts, sizeof(*used->runs)),
        .numbers = calloc(most_numbers(n_columns, (uint64_t)n_experts + n_parcels + 1),
                          sizeof(*used->numbers)),
        .of_expert = calloc(4 * (size_t)n_experts, sizeof(*used->of_expert)),
    };
    return used->hit_experts != NULL && used->hit_slots != NULL && used->parcels != NULL &&
           used->runs != NULL && used->numbers != NULL && used->of_expert != NULL;
}

void ats_used_free(struct ats_used *used)
{
    free(used->hit_experts);
    free(used->hit_slots);
    free(used->parcels);
    free(used->runs);
    free(used->numbers);
    free(used->of_expert);
    *used = (struct ats_used){0};
}

enum { IN_SLOT = -1 };

/* By expert. */
struct columns_of {
    int32_t *n;      /* columns that want it, and that the CPU does not have */
    int32_t *parcel; /* or IN_SLOT */
    int32_t *place;  /* its slot, or place in the parcel */
    int32_t *next;   /* of its columns, in the place's lists */
};

static bool is_hit(const struct ats_used_query *query, int32_t expert)
{
    return query->slot_of != NULL && query->slot_of[expert] != ATS_EXPERT_NONE;
}

static void count(const struct ats_used_query *query, const struct columns_of *of)
{
    for (int32_t e = 0; e < query->n_experts; e++) {
        of->n[e] = 0;
    }
    for (uint32_t t = 0; t < query->n_tokens; t++) {
        for (uint32_t i = 0; i < query->n_used; i++) {
            const int32_t expert = query->ids[t * query->stride + i];
            of->n[expert] += query->left == NULL || !query->left[expert];
        }
    }
}

static void add_columns(const struct columns_of *of, int32_t expert,
                        struct ats_used_columns *columns)
{
    of->next[expert] = (int32_t)columns->n;
    columns->n += (uint32_t)of->n[expert];
}

static void find_hits(const struct ats_used_query *query, const struct columns_of *of,
                      struct ats_used *used)
{
    used->hits = (struct ats_used_columns){0};
    used->n_hits = 0;
    for (int32_t e = 0; e < query->n_experts; e++) {
        if (of->n[e] > 0 && is_hit(query, e)) {
            of->parcel[e] = IN_SLOT;
            of->place[e] = query->slot_of[e];
            used->hit_experts[used->n_hits] = e;
            used->hit_slots[used->n_hits++] = query->slot_of[e];
            add_columns(of, e, &used->hits);
        }
    }
}

static struct ats_used_parcel *begin_parcel(struct ats_used *used)
{
    const struct ats_used_parcel *last =
        used->n_parcels > 0 ? &used->parcels[used->n_parcels - 1] : NULL;
    const struct ats_used_columns *before = last != NULL ? &last->columns : &used->hits;
    struct ats_used_parcel *parcel = &used->parcels[used->n_parcels++];
    *parcel = (struct ats_used_parcel){
        .first_run = last != NULL ? last->first_run + last->n_runs : 0,
        .columns = {.first = before->first + LISTS * (uint32_t)ats_used_list(before->n)}};
    return parcel;
}

/* A place for the expert behind those of the parcel, of which there are `n_before`, and with which
 * there will be `n`. */
static void add_place(const struct ats_used_query *query, struct ats_used *used,
                      struct ats_used_parcel *parcel, int32_t expert, uint32_t n_before, uint32_t n)
{
    struct ats_used_run *last = &used->runs[parcel->first_run + parcel->n_runs];
    if (parcel->n_runs > 0) {
        last--;
        const int32_t between = expert - (last->first + last->n);
        const uint32_t places = parcel->n_places + (uint32_t)between + 1;
        if (between <= query->gap && places + (n - n_before - 1) <= query->room) {
            last->n += between + 1;
            parcel->n_places = places;
            return;
        }
        last++;
    }
    *last = (struct ats_used_run){expert, 1};
    parcel->n_runs++;
    parcel->n_places++;
}

static void find_parcels(const struct ats_used_query *query, const struct columns_of *of,
                         struct ats_used *used)
{
    uint32_t n = 0;
    for (int32_t e = 0; e < query->n_experts; e++) {
        n += of->n[e] > 0 && !is_hit(query, e);
    }
    const uint32_t equal = (n + query->n_parcels - 1) / query->n_parcels;
    const uint32_t each = equal < query->room ? equal : query->room;
    used->n_parcels = 0;
    struct ats_used_parcel *parcel = begin_parcel(used);
    uint32_t n_in = 0;
    for (int32_t e = 0; e < query->n_experts; e++) {
        if (of->n[e] == 0 || is_hit(query, e)) {
            continue;
        }
        if (n_in == each) {
            parcel = begin_parcel(used);
            n_in = 0;
        }
        add_place(query, used, parcel, e, n_in++, each);
        of->parcel[e] = (int32_t)used->n_parcels - 1;
        of->place[e] = (int32_t)parcel->n_places - 1;
        add_columns(of, e, &parcel->columns);
    }
    while (used->n_parcels < query->n_parcels) {
        begin_parcel(used);
    }
}

static void fill_lists(const struct ats_used_query *query, const struct columns_of *of,
                       struct ats_used *used)
{
    const uint32_t n_used = query->n_used;
    for (uint32_t i = 0; i < query->n_tokens * n_used; i++) {
        const uint32_t token = i / n_used;
        const int32_t expert = query->ids[token * query->stride + i % n_used];
        if (query->left != NULL && query->left[expert]) {
            continue;
        }
        const int32_t parcel = of->parcel[expert];
        const struct ats_used_columns *columns =
            parcel == IN_SLOT ? &used->hits : &used->parcels[parcel].columns;
        int32_t *list = used->numbers + columns->first + of->next[expert]++;
        list[0] = (int32_t)(query->own_inputs ? i : token);
        list[ats_used_list(columns->n)] = of->place[expert];
        list[2 * ats_used_list(columns->n)] = (int32_t)i;
    }
}

void ats_used_find(const struct ats_used_query *query, struct ats_used *used)
{
    const size_t n = (size_t)query->n_experts;
    const struct columns_of of = {used->of_expert, used->of_expert + n, used->of_expert + 2 * n,
                                  used->of_expert + 3 * n};
    count(query, &of);
    find_hits(query, &of, used);
    find_parcels(query, &of, used);
    fill_lists(query, &of, used);
}
