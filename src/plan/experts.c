#include "plan/experts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Copies take bandwidth of host memory from the CPU, and pay it back by hits: of half, three
 * quarters and all of its time the latter was predicted to be best for five models on links of 12,
 * 24 and 50 GB/s, but for one model on the slower links by 2 %. */
static const float COPYING_TIME_SHARE = 1.0F;

/* How much more an expert must promise than the one it replaces: a copy that wins nothing costs. */
static const double MARGIN = 1.1;

/* Of the experts of layers with slots: what an LRU cache needs to hit about 80 to 90 % on the
 * routing of cost/routing.h. Of 0.3, 0.4 and 0.5 it was predicted to be the best compromise between
 * prefill, which likes whole layers, and decode, for three models at 30 to 98 % of their size in
 * VRAM. */
static const double ENOUGH = 0.4;

/* Of all experts in VRAM: up to here slices were predicted to be faster than whole layers in
 * prefill and in decode. With more, prefill of a device that computes slowly loses up to 8 %,
 * because it is no longer the link that it waits for. */
static const double MOST_FOR_SLICES = 0.5;

/* Scores are brought back before they are too large for a double. */
static const double LARGEST_UNIT = 1e100;

float ats_expert_copy_share(const struct ats_plan_rates *rates)
{
    /* GB/s are thousands of bytes per microsecond; experts are quantised */
    const float cpu_bytes_per_us = 1e3F * (float)rates->side[ATS_HOST].vram_gbps[ATS_FAMILY_Q4];
    return COPYING_TIME_SHARE * rates->costs.link_bytes_per_us / cpu_bytes_per_us;
}

bool ats_expert_slots_init(struct ats_expert_slots *slots, int32_t n_experts, int32_t n_slots,
                           const size_t *part_bytes, uint32_t n_parts, float copy_share)
{
    *slots = (struct ats_expert_slots){
        .n_experts = n_experts,
        .n_slots = n_slots,
        .n_parts = n_parts,
        .copy_share = copy_share,
        .slot_of = calloc((size_t)n_experts, sizeof(*slots->slot_of)),
        .expert_of = calloc((size_t)n_slots, sizeof(*slots->expert_of)),
        .score = calloc((size_t)n_experts, sizeof(*slots->score)),
        .used_at = calloc((size_t)n_slots, sizeof(*slots->used_at)),
        .unit = 1.0,
    };
    for (uint32_t p = 0; p < n_parts; p++) {
        slots->part_bytes[p] = part_bytes[p];
        slots->expert_bytes += part_bytes[p];
    }
    if (slots->slot_of == NULL || slots->expert_of == NULL || slots->score == NULL ||
        slots->used_at == NULL) {
        ats_expert_slots_free(slots);
        return false;
    }
    ats_expert_slots_empty(slots);
    return true;
}

void ats_expert_slots_free(struct ats_expert_slots *slots)
{
    free(slots->slot_of);
    free(slots->expert_of);
    free(slots->score);
    free(slots->used_at);
    *slots = (struct ats_expert_slots){0};
}

void ats_expert_slots_empty(struct ats_expert_slots *slots)
{
    for (int32_t e = 0; e < slots->n_experts; e++) {
        slots->slot_of[e] = ATS_EXPERT_NONE;
    }
    for (int32_t s = 0; s < slots->n_slots; s++) {
        slots->expert_of[s] = ATS_EXPERT_NONE;
    }
    slots->coming = ATS_EXPERT_NONE;
    slots->n_missed = 0;
}

void ats_expert_slots_fill(struct ats_expert_slots *slots)
{
    ats_expert_slots_empty(slots);
    for (int32_t s = 0; s < slots->n_slots; s++) {
        slots->slot_of[s] = s;
        slots->expert_of[s] = s;
    }
}

/* ---- a token ---- */

static void age(struct ats_expert_slots *slots)
{
    slots->token++;
    slots->unit *= exp2(1.0 / ATS_EXPERT_HALF_LIFE);
    if (slots->unit > LARGEST_UNIT) {
        for (int32_t e = 0; e < slots->n_experts; e++) {
            slots->score[e] /= slots->unit;
        }
        slots->unit = 1.0;
    }
}

static void note_miss(struct ats_expert_slots *slots, int32_t expert)
{
    for (uint32_t i = 0; i < slots->n_missed; i++) {
        if (slots->missed[i] == expert) {
            return;
        }
    }
    if (expert != slots->coming) {
        slots->missed[slots->n_missed++] = expert;
    }
}

void ats_expert_slots_use(struct ats_expert_slots *slots, const int32_t *experts, uint32_t n,
                          struct ats_expert_columns *columns)
{
    columns->n_hits = 0;
    columns->n_misses = 0;
    slots->n_missed = 0;
    age(slots);
    for (uint32_t i = 0; i < n; i++) {
        const int32_t expert = experts[i];
        const int32_t slot = slots->slot_of[expert];
        slots->score[expert] += slots->unit;
        if (slot != ATS_EXPERT_NONE) {
            slots->used_at[slot] = slots->token;
            columns->hit[columns->n_hits] = (int32_t)i;
            columns->slot[columns->n_hits++] = slot;
        } else {
            note_miss(slots, expert);
            columns->miss[columns->n_misses++] = (int32_t)i;
        }
    }
    const double most = (double)ATS_EXPERT_MOST_CREDIT * (double)slots->expert_bytes;
    slots->credit_bytes +=
        (double)slots->copy_share * (double)columns->n_misses * (double)slots->expert_bytes;
    slots->credit_bytes = slots->credit_bytes < most ? slots->credit_bytes : most;
}

/* ---- admission ---- */

/* The slot that promises least, of those that the latest token did not use; or NONE. */
static int32_t find_victim(const struct ats_expert_slots *slots, double *promise)
{
    int32_t victim = ATS_EXPERT_NONE;
    *promise = INFINITY;
    for (int32_t s = 0; s < slots->n_slots; s++) {
        const int32_t expert = slots->expert_of[s];
        if (expert == ATS_EXPERT_NONE) {
            *promise = 0.0;
            return s;
        }
        if (slots->used_at[s] != slots->token && slots->score[expert] < *promise) {
            *promise = slots->score[expert];
            victim = s;
        }
    }
    return victim;
}

/* Takes the miss with the highest score off the list. */
static int32_t take_best_miss(struct ats_expert_slots *slots)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < slots->n_missed; i++) {
        if (slots->score[slots->missed[i]] > slots->score[slots->missed[best]]) {
            best = i;
        }
    }
    const int32_t expert = slots->missed[best];
    slots->missed[best] = slots->missed[--slots->n_missed];
    return expert;
}

/* Chooses the next expert to come and empties a slot for it. */
static bool admit(struct ats_expert_slots *slots)
{
    if (slots->n_missed == 0) {
        return false;
    }
    double promise;
    const int32_t slot = find_victim(slots, &promise);
    const int32_t expert = take_best_miss(slots);
    if (slot == ATS_EXPERT_NONE || slots->score[expert] <= MARGIN * promise) {
        slots->n_missed = 0; /* the others promise less */
        return false;
    }
    const int32_t before = slots->expert_of[slot];
    if (before != ATS_EXPERT_NONE) {
        slots->slot_of[before] = ATS_EXPERT_NONE;
        slots->expert_of[slot] = ATS_EXPERT_NONE;
    }
    slots->coming = expert;
    slots->coming_slot = slot;
    slots->next_part = 0;
    return true;
}

/* The next part of the expert on its way. */
static void take_part(struct ats_expert_slots *slots, struct ats_expert_copy *copy)
{
    const uint32_t part = slots->next_part++;
    slots->credit_bytes -= (double)slots->part_bytes[part];
    *copy = (struct ats_expert_copy){.expert = slots->coming,
                                     .slot = slots->coming_slot,
                                     .part = part,
                                     .last = part + 1 == slots->n_parts};
    if (copy->last) {
        slots->slot_of[copy->expert] = copy->slot;
        slots->expert_of[copy->slot] = copy->expert;
        slots->used_at[copy->slot] = slots->token; /* not to be the next victim at once */
        slots->coming = ATS_EXPERT_NONE;
    }
}

bool ats_expert_slots_next(struct ats_expert_slots *slots, struct ats_expert_copy *copy)
{
    const uint32_t part = slots->coming == ATS_EXPERT_NONE ? 0 : slots->next_part;
    if (slots->credit_bytes < (double)slots->part_bytes[part] ||
        (slots->coming == ATS_EXPERT_NONE && !admit(slots))) {
        return false;
    }
    take_part(slots, copy);
    return true;
}

bool ats_expert_slots_finish(struct ats_expert_slots *slots, struct ats_expert_copy *copy)
{
    if (slots->coming == ATS_EXPERT_NONE) {
        return false;
    }
    take_part(slots, copy);
    return true;
}

/* ---- using a whole weight ---- */

bool ats_expert_slots_full(const struct ats_expert_slots *slots)
{
    for (int32_t s = 0; s < slots->n_slots; s++) {
        if (slots->expert_of[s] == ATS_EXPERT_NONE) {
            return false;
        }
    }
    return true;
}

bool ats_expert_slots_run(const struct ats_expert_slots *slots, int32_t gap, int32_t *first,
                          int32_t *n)
{
    int32_t begin = *first;
    while (begin < slots->n_experts && slots->slot_of[begin] != ATS_EXPERT_NONE) {
        begin++;
    }
    int32_t end = begin; /* behind the last expert of the run */
    for (int32_t e = begin; e < slots->n_experts && e - end <= gap; e++) {
        end = slots->slot_of[e] == ATS_EXPERT_NONE ? e + 1 : end;
    }
    *first = begin;
    *n = end - begin;
    return *n > 0;
}

int32_t ats_expert_widest_gap(size_t part_bytes, const struct ats_partition_costs *costs)
{
    const float bytes = costs->copy_latency_us * costs->link_bytes_per_us;
    return (int32_t)(bytes / (float)part_bytes);
}

/* ---- division of VRAM ---- */

static size_t size_of(const struct ats_expert_layer *layer)
{
    return (size_t)layer->n_experts * layer->expert_bytes;
}

/* The k-th of n layers in an order that lies evenly over the depth however many are taken:
 * multiples of the golden ratio, modulo one. */
static size_t spread(size_t k, size_t n)
{
    const uint32_t golden = UINT32_C(2654435769);
    size_t at = n;
    uint32_t before = 0;
    for (size_t found = 0; found <= k; found++) {
        at = n;
        for (size_t i = 0; i < n; i++) {
            const uint32_t rank = (uint32_t)i * golden;
            if ((found == 0 || rank > before) && (at == n || rank < (uint32_t)at * golden)) {
                at = i;
            }
        }
        before = (uint32_t)at * golden;
    }
    return n - 1 - at;
}

size_t ats_expert_choose_whole(struct ats_expert_layer *layers, size_t n, size_t bytes)
{
    size_t total = 0;
    size_t n_whole = 0;
    for (size_t i = 0; i < n; i++) {
        total += size_of(&layers[i]);
        layers[i].whole = false;
    }
    for (size_t k = 0; k < n; k++) {
        struct ats_expert_layer *layer = &layers[spread(k, n)];
        const size_t size = size_of(layer);
        if (size <= bytes && (double)(bytes - size) >= ENOUGH * (double)(total - size)) {
            layer->whole = true;
            n_whole++;
            bytes -= size;
            total -= size;
        }
    }
    return n_whole;
}

bool ats_expert_slices_win(const struct ats_expert_layer *layers, size_t n, size_t bytes)
{
    double total = 0;
    for (size_t i = 0; i < n; i++) {
        total += (double)size_of(&layers[i]);
    }
    return (double)bytes <= MOST_FOR_SLICES * total;
}

void ats_expert_divide(struct ats_expert_layer *layers, size_t n, size_t bytes)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        total += size_of(&layers[i]);
    }
    size_t left = bytes;
    for (size_t i = 0; i < n; i++) {
        const double share = total <= bytes ? 1.0 : (double)bytes / (double)total;
        layers[i].n_slots = (int32_t)(share * layers[i].n_experts);
        if ((size_t)layers[i].n_slots * layers[i].expert_bytes > left) {
            layers[i].n_slots--; /* the share was rounded up */
        }
        left -= (size_t)layers[i].n_slots * layers[i].expert_bytes;
    }
    /* what rounding has left, one by one from the last layer on, where whole weights go first too
     */
    for (size_t i = n; i-- > 0;) {
        if (layers[i].n_slots < layers[i].n_experts && layers[i].expert_bytes <= left) {
            layers[i].n_slots++;
            left -= layers[i].expert_bytes;
        }
    }
}
