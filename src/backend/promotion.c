#include "backend/promotion.h"

#include "backend/place.h"
#include "backend/residency.h"
#include "plan/partition.h"
#include "plan/placement.h"
#include "plan/promote.h"

#include <stdlib.h>

/* Whether a location is a weight of a layer that could pass through staging memory. What
 * belongs to no layer (the output matrix) is large and placed before all else. */
static bool can_pass(const struct ats_location *location)
{
    const struct ats_record *record = location->record;
    return record != NULL && record->buffer->ggml->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS &&
           !location->written && location->accel_can && location->first_use != SIZE_MAX &&
           ats_layer_of(record->as_made.name) >= 0;
}

void ats_promotion_reserve(struct ats_stream *stream, const struct ats_description *description)
{
    /* room for the largest weight and for those that are copied ahead of it */
    enum { WEIGHTS_AT_ONCE = 3, MOST_OF_BUDGET = 3 };
    const struct ats_device *device = stream->device;
    if (device->config->promotion.kind == ATS_PROMOTE_NONE || stream->staging.buffer != NULL) {
        return;
    }
    size_t largest = 0;
    size_t total = ats_unlayered_bytes(device);
    for (size_t r = 0; r < description->graph.n_roots; r++) {
        const struct ats_location *location = &description->locations[r];
        if (location->record == NULL || location->record->block != NULL ||
            ats_is_unlayered(location->record)) {
            continue;
        }
        const size_t bytes = ats_vram_bytes(device, &location->record->as_made);
        total += bytes;
        largest = can_pass(location) && bytes > largest ? bytes : largest;
    }
    const bool fits = total <= device->vram_budget - device->vram_used;
    if (largest == 0 || (fits && device->config->promotion.kind == ATS_PROMOTE_FASTER)) {
        return;
    }
    const size_t most = device->vram_budget / MOST_OF_BUDGET;
    const size_t wanted = WEIGHTS_AT_ONCE * largest;
    (void)ats_staging_take(stream, wanted < most ? wanted : most);
}

/* A weight that lives in host memory, and nowhere else. */
static bool is_candidate(const struct ats_location *location)
{
    return can_pass(location) && location->record->home == ATS_ON(ATS_HOST) &&
           location->record->valid == ATS_ON(ATS_HOST) && location->record->block == NULL;
}

bool ats_promotion_choose(struct ats_stream *stream, struct ats_description *description)
{
    const struct ats_staging_area *area = &stream->staging;
    struct ats_promotion rule = stream->device->config->promotion;
    const size_t n_roots = description->graph.n_roots;
    if (area->buffer == NULL) {
        return true;
    }
    bool *promoted = calloc(n_roots + 1, sizeof(*promoted));
    if (promoted == NULL) {
        return false;
    }
    for (size_t r = 0; r < n_roots; r++) {
        promoted[r] = is_candidate(&description->locations[r]);
    }
    rule.seed += stream->n_built;
    rule.link_bytes_per_us = ats_partition_default_costs.link_bytes_per_us;
    rule.most_bytes = area->size / 2;
    ats_promote(&description->graph, &rule, promoted, promoted);
    description->graph.promoted_at_once = rule.most_bytes;
    for (size_t r = 0; r < n_roots; r++) {
        if (promoted[r]) {
            description->roots[r].promoted = true;
            description->roots[r].home = ATS_ON(ATS_ACCEL);
            ats_buffer_pin(description->locations[r].buffer);
        }
    }
    free(promoted);
    return true;
}

bool ats_promotion_stage(struct ats_stream *stream, struct ats_description *description,
                         const struct ats_schedule *schedule, struct ats_staged **staged)
{
    const struct ats_staging_area *area = &stream->staging;
    const struct ats_device *device = stream->device;
    const size_t n = schedule->n_promotions;
    struct ats_staged *list = calloc(n + 1, sizeof(*list));
    *staged = NULL;
    if (list == NULL) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        const struct ats_promoted *promoted = &schedule->promotions[i];
        const struct ats_record *record = description->locations[promoted->root].record;
        list[i] = (struct ats_staged){.bytes = ats_vram_bytes(device, &record->as_made),
                                      .first_split = promoted->first_split,
                                      .last_split = promoted->last_split};
    }
    if (!ats_staging_assign(list, n, area->size,
                            ggml_backend_buft_get_alignment(device->accel_buffer_type))) {
        free(list);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        struct ats_location *location = &description->locations[schedule->promotions[i].root];
        location->staging = area->buffer;
        location->staged = area->base + list[i].offset;
    }
    *staged = list;
    return true;
}
