#include "backend/promotion.h"

#include "backend/pieces.h"
#include "backend/residency.h"
#include "backend/unplaced.h"
#include "backend/used.h"
#include "base/rng.h"
#include "plan/beside.h"
#include "plan/hold.h"
#include "plan/placement.h"
#include "plan/promote.h"

#include <stdlib.h>

/* Of copies of a random rule: less than the weights of test models. */
enum { RANDOM_CHUNK = 1000 };

/* Whether a location is a weight of a layer that could pass through staging memory. What
 * belongs to no layer (the output matrix) is large and placed before all else. */
static bool can_pass(const struct ats_location *location)
{
    const struct ats_record *record = location->record;
    return record != NULL && atomic_load(&record->buffer->is_weights) && !location->written &&
           location->accel_can && location->first_use != SIZE_MAX &&
           ats_layer_of(record->as_made.name) >= 0;
}

static bool take_places(struct ats_stream *stream, const struct ats_staging_need *need,
                        unsigned places)
{
    const struct ats_device *device = stream->device;
    const size_t alignment = ggml_backend_buft_get_alignment(device->accel_buffer_type);
    const size_t limit = ggml_backend_buft_get_max_size(device->accel_buffer_type);
    const size_t most = need->scratch < limit ? (limit - need->scratch) / alignment * alignment : 0;
    const size_t size = ats_staging_size(need, device->vram_budget, places);
    const size_t ring =
        size > SIZE_MAX - alignment ? size : (size + alignment - 1) / alignment * alignment;
    return most > 0 && ats_staging_take(stream, ring < most ? ring : most, need->scratch);
}

/* How many tokens the largest pass will have: what a context has made room for. 0: not known. */
static uint64_t most_tokens(const struct ats_description *d)
{
    long long most = 0;
    for (size_t r = 0; r < d->graph.n_roots; r++) {
        const struct ats_record *record = d->locations[r].record;
        const long long noted = record != NULL ? atomic_load(&record->buffer->pass_tokens) : 0;
        most = noted > most ? noted : most;
    }
    return (uint64_t)most;
}

/* Adds what a root needs. */
static void add_need(const struct ats_device *device, const struct ats_description *d, size_t root,
                     uint64_t tokens, struct ats_staging_need *need)
{
    const struct ggml_tensor *made = &d->locations[root].record->as_made;
    const struct ats_pieces pieces = ats_pieces_of_root(device, &device->staging_way, d, root);
    const size_t used = ats_used_scratch_of(device, d, root, tokens);
    need->scratch = used > need->scratch ? used : need->scratch;
    if (pieces.n <= 1) {
        const size_t bytes = ats_vram_bytes(device, made);
        need->whole = bytes > need->whole ? bytes : need->whole;
        return;
    }
    const struct ggml_tensor piece = ats_piece_tensor(made, pieces.rows);
    const size_t bytes = ats_vram_bytes(device, &piece);
    const size_t scratch = ats_piece_scratch(&pieces, ats_piece_columns(d, root, tokens));
    need->piece = bytes > need->piece ? bytes : need->piece;
    need->scratch = scratch > need->scratch ? scratch : need->scratch;
}

void ats_promotion_reserve(struct ats_stream *stream, const struct ats_description *description)
{
    struct ats_device *device = stream->device;
    const enum ats_promotion_kind kind = device->config->promotion.kind;
    if (kind == ATS_PROMOTE_NONE || stream->staging.buffer != NULL) {
        return;
    }
    /* copies from pageable memory gain little, and Vulkan, which has no other, is not proven:
     * only on request */
    if (kind != ATS_PROMOTE_ALL && !ats_device_can_pin(device)) {
        return;
    }
    struct ats_staging_need need = {0};
    const uint64_t tokens = most_tokens(description);
    for (size_t r = 0; r < description->graph.n_roots; r++) {
        const struct ats_location *location = &description->locations[r];
        if (location->record != NULL && location->record->block == NULL && can_pass(location)) {
            add_need(device, description, r, tokens, &need);
        }
    }
    const bool fits = ats_unplaced_bytes(device, description) <= ats_device_vram_left(device);
    if (need.whole + need.piece == 0 || (fits && kind == ATS_PROMOTE_FASTER)) {
        return;
    }
    if (!take_places(stream, &need, device->staging_way.places) &&
        !take_places(stream, &need, ATS_STAGING_FEW_PLACES) && !device->told_no_staging) {
        device->told_no_staging = true;
        ats_log_info(
            "%s: no room in VRAM for weights to pass through: all that is not placed there "
            "computes on the CPU, long prompts too\n",
            device->name);
    }
}

/* A weight that lives in host memory, and nowhere else. */
static bool is_candidate(const struct ats_location *location)
{
    return can_pass(location) && location->record->home == ATS_ON(ATS_HOST) &&
           location->record->valid == ATS_ON(ATS_HOST) && location->record->block == NULL;
}

/* Cuts the candidates that do not fit in a piece; their products must fit in scratch. */
static void cut(const struct ats_stream *stream, struct ats_description *description,
                const bool *candidates)
{
    const size_t scratch = stream->staging.size - stream->staging.ring;
    for (size_t r = 0; r < description->graph.n_roots; r++) {
        if (!candidates[r]) {
            continue;
        }
        const struct ats_pieces pieces =
            ats_pieces_of_root(stream->device, &stream->staging.way, description, r);
        const uint64_t columns = ats_piece_columns(description, r, 0);
        if (pieces.n > 1 && ats_piece_scratch(&pieces, columns) <= scratch) {
            const struct ggml_tensor piece =
                ats_piece_tensor(&description->locations[r].record->as_made, pieces.rows);
            description->roots[r].pieces = pieces;
            description->roots[r].piece_bytes = ats_vram_bytes(stream->device, &piece);
        }
    }
}

/* What stays is whole. */
static void join(struct ats_description *description)
{
    for (size_t r = 0; r < description->graph.n_roots; r++) {
        description->roots[r].pieces.n = 0;
    }
}

/* What crosses beside the CPU may come in pieces, but not stacked experts: it comes in chunks,
 * which they do not. */
static void join_experts(struct ats_description *description)
{
    for (size_t r = 0; r < description->graph.n_roots; r++) {
        description->roots[r].by_use = false;
        if (description->locations[r].tensor->ne[2] > 1) {
            description->roots[r].pieces.n = 0;
        }
    }
}

/* Without memory for it, nothing passes by use. */
static void prefer_used(const struct ats_stream *stream, struct ats_description *description,
                        const struct ats_promotion *rule, const bool *candidates, bool *chosen)
{
    const size_t n_roots = description->graph.n_roots;
    struct ats_used_matrix *matrices = calloc(n_roots + 1, sizeof(*matrices));
    description->used = calloc(n_roots + 1, sizeof(*description->used));
    if (matrices != NULL && description->used != NULL) {
        for (size_t r = 0; r < n_roots; r++) {
            if (candidates[r] && (rule->kind != ATS_PROMOTE_RANDOM ||
                                  ats_toss(~rule->seed - stream->n_built,
                                           description->locations[r].record->as_made.name))) {
                matrices[r] = ats_used_matrix_of(stream, description, r);
            }
        }
        ats_prefer_used(&description->graph, rule, &description->rates->costs, candidates, matrices,
                        description->roots, description->used, chosen);
    }
    free(matrices);
}

/* Sets what is promoted; returns how many are. */
static size_t promote(const struct ats_stream *stream, struct ats_description *description,
                      bool may_use, const bool *candidates, bool *chosen)
{
    struct ats_promotion rule = stream->device->config->promotion;
    cut(stream, description, candidates);
    rule.copy_latency_us = description->rates->costs.copy_latency_us;
    rule.link_bytes_per_us = description->rates->costs.link_bytes_per_us;
    rule.serial = stream->staging.transfer == NULL;
    rule.most_bytes = stream->staging.ring / 2;
    rule.most_used_bytes = stream->staging.ring - stream->staging.ring / ATS_USED_REST;
    rule.share_rates = stream->staging.size > stream->staging.ring ? description->rates : NULL;
    rule.has_cpu_load = ats_drift_has_cpu_load(&stream->meter.watch.planned);
    ats_promote(&description->graph, &rule, candidates, chosen);
    if (may_use) {
        prefer_used(stream, description, &rule, candidates, chosen);
    }
    description->graph.promoted_at_once = rule.most_bytes;
    size_t n = 0;
    for (size_t r = 0; r < description->graph.n_roots; r++) {
        description->roots[r].promoted = chosen[r];
        n += chosen[r];
    }
    return n;
}

/* Sets what is held: nothing comes in pieces then, so that scratch is free for it. */
static bool hold(const struct ats_stream *stream, struct ats_description *description,
                 const bool *candidates, bool *chosen)
{
    const size_t n_roots = description->graph.n_roots;
    struct ats_holdable *weights = calloc(n_roots + 1, sizeof(*weights));
    size_t n = 0;
    for (uint32_t r = 0; weights != NULL && r < n_roots; r++) {
        if (candidates[r]) {
            const struct ggml_tensor *tensor = &description->locations[r].record->as_made;
            weights[n++] = (struct ats_holdable){
                .name = tensor->name, .bytes = ats_vram_bytes(stream->device, tensor), .root = r};
        }
    }
    const bool ok =
        weights != NULL && ats_hold_best(&description->graph, &description->rates->costs, weights,
                                         n, stream->staging.size, candidates, chosen);
    for (size_t r = 0; ok && r < n_roots; r++) {
        description->roots[r].held = chosen[r];
    }
    free(weights);
    return ok;
}

/* In order, without a transfer stream, nothing is beside anything. */
static bool prefer_beside(const struct ats_stream *stream, struct ats_description *description,
                          const bool *candidates, bool *chosen)
{
    bool preferred = false;
    const bool ok =
        ats_prefer_beside(&description->graph, &description->rates->costs, stream->staging.ring,
                          candidates, chosen, description->roots, &preferred);
    description->chunk = preferred ? ATS_BESIDE_CHUNK : 0;
    return ok;
}

bool ats_promotion_choose(struct ats_stream *stream, struct ats_description *description,
                          bool may_use)
{
    const size_t n_roots = description->graph.n_roots;
    if (stream->staging.buffer == NULL) {
        return true;
    }
    bool *candidates = calloc(n_roots + 1, sizeof(*candidates));
    bool *chosen = calloc(n_roots + 1, sizeof(*chosen));
    bool ok = candidates != NULL && chosen != NULL;
    const struct ats_promotion *rule = &stream->device->config->promotion;
    for (size_t r = 0; ok && r < n_roots; r++) {
        const struct ats_location *location = &description->locations[r];
        candidates[r] = is_candidate(location) && !description->roots[r].sliced &&
                        (rule->kind != ATS_PROMOTE_RANDOM ||
                         ats_toss(rule->seed + stream->n_built, location->record->as_made.name));
    }
    if (ok && promote(stream, description, may_use, candidates, chosen) == 0) {
        join_experts(description);
        ok = hold(stream, description, candidates, chosen);
        if (ok && rule->kind == ATS_PROMOTE_FASTER && stream->staging.transfer != NULL) {
            ok = prefer_beside(stream, description, candidates, chosen);
        }
        if (description->chunk == 0) {
            join(description);
        }
    }
    if (rule->kind == ATS_PROMOTE_RANDOM) {
        description->chunk = RANDOM_CHUNK;
    }
    for (size_t r = 0; ok && r < n_roots; r++) {
        if (chosen[r]) {
            description->roots[r].home = ATS_ON(ATS_ACCEL);
            ats_buffer_pin(description->locations[r].buffer);
        }
    }
    free(candidates);
    free(chosen);
    return ok;
}

static struct ats_staged staged_of(const struct ats_stream *stream,
                                   const struct ats_description *description, uint32_t root,
                                   uint32_t piece)
{
    const struct ats_pieces *pieces = &description->roots[root].pieces;
    struct ggml_tensor passes = description->locations[root].record->as_made;
    if (pieces->n > 1) {
        passes = ats_piece_tensor(&passes, ats_piece_rows(pieces, (uint64_t)passes.ne[1], piece));
    }
    const size_t bytes = description->roots[root].by_use ? description->roots[root].used_place_bytes
                                                         : ats_vram_bytes(stream->device, &passes);
    return (struct ats_staged){.root = root, .piece = piece, .bytes = bytes};
}

/* The weights that pass through with the splits that read them, or those that stay, which are
 * read in all. */
static size_t list_staged(const struct ats_stream *stream,
                          const struct ats_description *description,
                          const struct ats_schedule *schedule, struct ats_staged *list)
{
    size_t n = 0;
    for (; n < schedule->n_promotions; n++) {
        const struct ats_promoted *promoted = &schedule->promotions[n];
        list[n] = staged_of(stream, description, promoted->root, promoted->piece);
        list[n].first_split = promoted->first_split;
        list[n].last_split = promoted->last_split;
    }
    if (n > 0) {
        return n;
    }
    for (uint32_t r = 0; r < description->graph.n_roots; r++) {
        if (description->roots[r].held) {
            list[n] = staged_of(stream, description, r, 0);
            list[n++].last_split = UINT32_MAX;
        }
    }
    return n;
}

bool ats_promotion_stage(struct ats_stream *stream, struct ats_description *description,
                         const struct ats_schedule *schedule, struct ats_staged **staged, size_t *n)
{
    const struct ats_staging_area *area = &stream->staging;
    struct ats_staged *list =
        calloc(schedule->n_promotions + description->graph.n_roots + 1, sizeof(*list));
    *staged = NULL;
    *n = 0;
    if (list == NULL) {
        return false;
    }
    const size_t n_staged = list_staged(stream, description, schedule, list);
    const size_t alignment = ggml_backend_buft_get_alignment(stream->device->accel_buffer_type);
    const size_t capacity = schedule->n_promotions > 0 ? area->ring : area->size;
    if (!ats_staging_assign(list, n_staged, capacity, alignment)) {
        free(list);
        return false;
    }
    for (size_t i = 0; i < n_staged; i++) {
        struct ats_location *location = &description->locations[list[i].root];
        const struct ats_root *root = &description->roots[list[i].root];
        if (root->by_use || root->pieces.n > 1) {
            continue; /* its reader knows the place, or that of each piece */
        }
        location->staging = area->buffer;
        location->staged = area->base + list[i].offset;
    }
    *staged = list;
    *n = n_staged;
    return true;
}

uint64_t ats_promotion_name(const struct ats_description *description,
                            const struct ats_staged *staged, size_t n)
{
    struct ats_rng mix = {.state = n};
    for (size_t i = 0; i < n; i++) {
        const struct ats_record *record = description->locations[staged[i].root].record;
        mix.state ^= (uint64_t)(uintptr_t)record + staged[i].offset;
        mix.state = ats_rng_next(&mix);
    }
    return mix.state | 1;
}
