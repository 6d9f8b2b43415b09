#include "backend/share.h"

#include "backend/observe.h"
#include "backend/residency.h"
#include "backend/rows.h"
#include "backend/stand_ins.h"
#include "backend/stream.h"
#include "base/rng.h"
#include "bind/family.h"

#include <stdlib.h>
#include <string.h>

/* ---- what can be shared ---- */

static const struct ats_location *location_of(const struct ats_description *d,
                                              const struct ggml_tensor *tensor)
{
    const struct ats_tensor_entry *entry =
        ats_description_find((struct ats_description *)(uintptr_t)d, tensor);
    return entry == NULL || entry->root == ATS_NO_ROOT ? NULL : &d->locations[entry->root];
}

static const struct ats_root *root_of(const struct ats_description *d,
                                      const struct ggml_tensor *tensor)
{
    const struct ats_location *location = location_of(d, tensor);
    return location != NULL ? &d->roots[location - d->locations] : NULL;
}

static const struct ggml_tensor *result_of(const struct ggml_cgraph *cgraph,
                                           const struct ats_expert_region *region)
{
    return cgraph->nodes[region->first + region->n - 1];
}

/* The first product's input: a column for each token. */
static const struct ggml_tensor *input_of(const struct ggml_cgraph *cgraph,
                                          const struct ats_expert_region *region)
{
    return cgraph->nodes[region->first]->src[1];
}

static bool is_input(const struct ggml_tensor *input)
{
    return input->type == GGML_TYPE_F32 && input->ne[1] == 1 && input->ne[3] == 1 &&
           input->nb[0] == sizeof(float);
}

/* A weight that may pass. */
static bool is_on_host(const struct ats_description *d, const struct ggml_tensor *weight)
{
    const struct ats_location *location = location_of(d, weight);
    return location != NULL && location->record != NULL &&
           location->record->home == ATS_ON(ATS_HOST) &&
           location->record->valid == ATS_ON(ATS_HOST) && location->record->block == NULL;
}

/* What else the region's operators read from outside must be on both sides for good. */
static bool is_on_both(const struct ats_description *d, const struct ggml_tensor *bias)
{
    const struct ats_location *location = location_of(d, bias);
    return location != NULL && location->record != NULL &&
           (location->record->valid & ATS_ON(ATS_HOST)) != 0 &&
           location->record->home == ATS_ON_BOTH;
}

/* How many columns fit in scratch. */
static uint32_t most_columns(const struct ats_stream *stream, const struct ggml_tensor *result)
{
    const size_t scratch = stream->staging.size - stream->staging.ring;
    const size_t alignment = ggml_backend_buft_get_alignment(stream->device->accel_buffer_type);
    const size_t n =
        scratch > alignment ? (scratch - alignment) / (result->nb[1] + sizeof(int32_t)) : 0;
    const size_t all = (size_t)(result->ne[1] * result->ne[2]);
    return (uint32_t)(n < all ? n : all);
}

static bool can_put(const struct ats_device *device, const struct ggml_tensor *result, int64_t n)
{
    struct ggml_tensor flat = ats_rows_at(result->ne[0], result->ne[1] * result->ne[2], NULL, NULL);
    struct ggml_tensor columns = ats_rows_at(result->ne[0], n, NULL, NULL);
    struct ggml_tensor list = ats_list_at(n, NULL, NULL);
    const struct ggml_tensor put = ats_rows_put(&columns, &list, &flat);
    return ggml_backend_dev_supports_op(device->accel, &put);
}

static bool can_share(const struct ats_stream *stream, const struct ats_description *d,
                      const struct ggml_cgraph *cgraph, const struct ats_expert_region *region)
{
    const struct ggml_tensor *result = result_of(cgraph, region);
    const struct ggml_tensor *input = input_of(cgraph, region);
    const uint32_t n = most_columns(stream, result);
    if (!is_input(input) || result->type != GGML_TYPE_F32 || !ggml_is_contiguous(result) ||
        result->ne[3] != 1 || n == 0 || !can_put(stream->device, result, n)) {
        return false;
    }
    const int64_t n_experts = cgraph->nodes[region->first]->src[0]->ne[2];
    for (size_t i = region->first; i < region->first + region->n; i++) {
        const struct ggml_tensor *node = cgraph->nodes[i];
        if (!ats_op_is_empty(node) && d->ops[i].supported != ATS_ON_BOTH) {
            return false;
        }
        if (node->op == GGML_OP_MUL_MAT_ID) {
            if (!is_on_host(d, node->src[0]) || node->src[0]->ne[2] != n_experts ||
                (ats_expert_reads_input(cgraph, region, node) && node->src[1] != input)) {
                return false;
            }
        } else if (node->op == GGML_OP_ADD_ID && !is_on_both(d, node->src[1])) {
            return false;
        }
    }
    return true;
}

void ats_shares_find(const struct ats_stream *stream, struct ats_description *description,
                     const struct ggml_cgraph *cgraph, const struct ats_expert_region *regions,
                     size_t n_regions)
{
    for (size_t i = 0; i < n_regions; i++) {
        const bool can = can_share(stream, description, cgraph, &regions[i]);
        const uint32_t n = most_columns(stream, result_of(cgraph, &regions[i]));
        if (can && (description->share_columns == 0 || n < description->share_columns)) {
            description->share_columns = n;
        }
        for (size_t k = regions[i].first; can && k < regions[i].first + regions[i].n; k++) {
            const struct ggml_tensor *node = cgraph->nodes[k];
            if (node->op == GGML_OP_MUL_MAT_ID) {
                description->roots[root_of(description, node->src[0]) - description->roots]
                    .may_share = true;
            }
        }
    }
}

/* Whether all products of the region take experts by use, and the CPU can take a share. */
static bool is_shared(const struct ats_description *d, const struct ggml_cgraph *cgraph,
                      const struct ats_expert_region *region)
{
    for (size_t i = region->first; i < region->first + region->n; i++) {
        const struct ggml_tensor *node = cgraph->nodes[i];
        if (node->op == GGML_OP_MUL_MAT_ID) {
            const struct ats_root *weight = root_of(d, node->src[0]);
            if (weight == NULL || !weight->may_share || !weight->promoted || !weight->by_use) {
                return false;
            }
        }
    }
    return true;
}

void ats_shares_mark(struct ats_description *description, const struct ggml_cgraph *cgraph,
                     const struct ats_expert_region *regions, size_t n_regions)
{
    for (size_t i = 0; i < n_regions; i++) {
        if (!is_shared(description, cgraph, &regions[i])) {
            continue;
        }
        for (size_t k = regions[i].first; k < regions[i].first + regions[i].n; k++) {
            description->ops[k].share = (uint32_t)(i + 1);
            description->ops[k].supported = ATS_ON(ATS_ACCEL);
        }
    }
}

/* ---- making ---- */

static void note_costs(const struct ats_description *d, const struct ggml_cgraph *cgraph,
                       const struct ats_expert_region *region, struct ats_share *share)
{
    double bytes = 0;
    double flops = 0;
    double n = 0;
    for (size_t i = region->first; i < region->first + region->n; i++) {
        const struct ggml_tensor *node = cgraph->nodes[i];
        if (node->op == GGML_OP_MUL_MAT_ID) {
            const struct ggml_tensor *matrix = node->src[0];
            bytes += (double)matrix->nb[2];
            flops += 2.0 * (double)matrix->ne[0] * (double)matrix->ne[1];
            n += 1;
        }
    }
    const struct ggml_tensor *first = cgraph->nodes[region->first]->src[0];
    share->costs = ats_share_costs_of(d->rates, ats_family_of(first->type), bytes, n, flops);
    share->profile_us = share->costs.column_us;
}

static bool make_graphs(const struct ats_stream *stream, struct ats_description *d,
                        const struct ggml_cgraph *cgraph, const struct ats_expert_region *region,
                        struct ats_share *share, struct ats_error *err)
{
    const struct ggml_tensor *result = result_of(cgraph, region);
    const struct ats_staging_area *area = &stream->staging;
    const size_t alignment = ggml_backend_buft_get_alignment(stream->device->accel_buffer_type);
    const size_t bytes = share->most_columns * result->nb[1];
    char *scratch = area->base + area->ring;
    const struct ggml_tensor *there = ats_description_find(d, result)->stand_in;
    const struct ggml_tensor inputs =
        ats_rows_at(share->input->ne[0], share->most_columns, NULL, share->inputs);
    share->columns = ats_rows_at(result->ne[0], share->most_columns, area->buffer, scratch);
    share->list = ats_list_at(share->most_columns, area->buffer,
                              scratch + (bytes + alignment - 1) / alignment * alignment);
    share->result =
        ats_rows_at(result->ne[0], result->ne[1] * result->ne[2], there->buffer, there->data);
    share->put = ats_rows_put(&share->columns, &share->list, &share->result);
    share->put_node = &share->put;
    ats_name_after(&share->columns, result);
    ats_name_after(&share->list, share->ids);
    ats_name_after(&share->result, result);
    ats_name_after(&share->put, result);
    if (!ats_rows_graph(&share->put_graph, &share->put_node, 1)) {
        return ats_fail(err, "out of memory");
    }
    return ats_expert_host_graph_make(d, cgraph, region, share->experts, &inputs,
                                      share->most_columns, &share->graph, err) &&
           ats_stand_in_init(&share->columns, err) && ats_stand_in_init(&share->list, err) &&
           ats_stand_in_init(&share->result, err) && ats_stand_in_init(&share->put, err);
}

size_t ats_share_inputs(const struct ats_stream *stream, const struct ggml_cgraph *cgraph,
                        const struct ats_expert_region *region)
{
    return most_columns(stream, result_of(cgraph, region)) *
           (size_t)input_of(cgraph, region)->ne[0];
}

bool ats_share_make(const struct ats_stream *stream, struct ats_description *description,
                    const struct ggml_cgraph *cgraph, const struct ats_expert_region *region,
                    float *inputs, struct ats_share *share, struct ats_error *err)
{
    const struct ggml_tensor *result = result_of(cgraph, region);
    const struct ggml_tensor *first = cgraph->nodes[region->first];
    const struct ats_promotion *rule = &stream->device->config->promotion;
    uint32_t part = 0;
    *share = (struct ats_share){
        .ids = region->ids,
        .input = input_of(cgraph, region),
        .draw =
            rule->kind != ATS_PROMOTE_FASTER ? rule->seed + stream->n_built + region->first + 1 : 0,
        .n_used = (uint32_t)result->ne[1],
        .n_tokens = (uint32_t)result->ne[2],
        .n_experts = (uint32_t)first->src[0]->ne[2],
        .most_columns = most_columns(stream, result),
        .column_bytes = result->nb[1],
        .host_result = result->data,
        .inputs = inputs,
    };
    const struct ats_record *weight = location_of(description, first->src[0])->record;
    share->store = weight->sliced ? ats_experts_store_of(stream, weight, &part) : NULL;
    const size_t n = share->most_columns;
    share->left = calloc(share->n_experts, sizeof(*share->left));
    share->experts = calloc(n, sizeof(*share->experts));
    share->places = calloc(n, sizeof(*share->places));
    share->found = calloc(share->n_experts, sizeof(*share->found));
    if (share->left == NULL || share->experts == NULL || share->places == NULL ||
        share->found == NULL) {
        return ats_fail(err, "out of memory");
    }
    note_costs(description, cgraph, region, share);
    return make_graphs(stream, description, cgraph, region, share, err);
}

void ats_share_free(struct ats_share *share)
{
    ats_expert_graph_free(&share->graph);
    ats_graph_free_counts(&share->put_graph);
    free(share->left);
    free(share->experts);
    free(share->places);
    free(share->found);
}

/* ---- a pass ---- */

static int32_t id_of(const struct ats_share *share, uint32_t token, uint32_t i)
{
    const char *row = (const char *)share->ids->data + token * share->ids->nb[1];
    int32_t id = 0;
    memcpy(&id, row + i * share->ids->nb[0], sizeof(id));
    return id;
}

/* For tests: each of them, with even odds. */
static uint32_t draw(struct ats_share *share, uint32_t n)
{
    struct ats_rng rng = {.state = share->draw};
    uint32_t n_left = 0;
    uint64_t columns = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct ats_share_expert drawn = share->found[i];
        const bool fits = columns + drawn.n_columns <= share->most_columns;
        if (ats_rng_below(&rng, 2) == 0 && fits) {
            share->found[i] = share->found[n_left];
            share->found[n_left++] = drawn;
            columns += drawn.n_columns;
        }
    }
    return n_left;
}

void ats_share_leave_nothing(struct ats_share *share)
{
    memset(share->left, 0, share->n_experts * sizeof(*share->left));
    share->n_columns = 0;
}

void ats_share_choose_left(struct ats_share *share)
{
    uint32_t n = 0;
    memset(share->left, 0, share->n_experts * sizeof(*share->left));
    memset(share->found, 0, share->n_experts * sizeof(*share->found));
    for (uint32_t t = 0; t < share->n_tokens; t++) {
        for (uint32_t i = 0; i < share->n_used; i++) {
            share->found[id_of(share, t, i)].n_columns++;
        }
    }
    for (uint32_t e = 0; e < share->n_experts; e++) {
        const uint32_t n_columns = share->found[e].n_columns;
        const bool is_hit =
            share->store != NULL && share->store->slots.slot_of[e] != ATS_EXPERT_NONE;
        if (n_columns > 0 && !is_hit) {
            share->found[n++] = (struct ats_share_expert){(int32_t)e, n_columns};
        }
    }
    const uint32_t n_left =
        share->draw != 0 ? draw(share, n)
                         : ats_share_choose(&share->costs, share->found, n, share->most_columns);
    for (uint32_t i = 0; i < n_left; i++) {
        share->left[share->found[i].expert] = true;
    }
}

void ats_share_keep_input(struct ats_share *share)
{
    const size_t width = (size_t)share->input->ne[0];
    share->n_columns = 0;
    for (uint32_t t = 0; t < share->n_tokens; t++) {
        for (uint32_t i = 0; i < share->n_used; i++) {
            const int32_t id = id_of(share, t, i);
            if (!share->left[id]) {
                continue;
            }
            const uint32_t c = share->n_columns++;
            share->experts[c] = id;
            share->places[c] = (int32_t)(t * share->n_used + i);
            memcpy(share->inputs + c * width,
                   (const char *)share->input->data + t * share->input->nb[2],
                   width * sizeof(float));
        }
    }
}

static void resize(struct ats_share *share, uint32_t n)
{
    ats_rows_resize(&share->columns, n);
    ats_list_resize(&share->list, n);
    ats_expert_host_graph_resize(&share->graph, n);
}

enum ggml_status ats_share_finish(struct ats_stream *stream, struct ats_share *share)
{
    const uint32_t n = share->n_columns;
    if (n == 0) {
        return GGML_STATUS_SUCCESS;
    }
    resize(share, n);
    ats_meter_look(stream);
    const enum ggml_status status =
        ggml_backend_graph_compute_async(stream->cpu.backend, &share->graph.graph);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    ats_meter_cpu(stream, share->profile_us * (float)n);
    const size_t bytes = n * share->column_bytes;
    ats_meter_copy(stream, bytes);
    ggml_backend_tensor_set_async(stream->accel, &share->columns, share->host_result, 0, bytes);
    ggml_backend_tensor_set_async(stream->accel, &share->list, share->places, 0,
                                  n * sizeof(int32_t));
    stream->device->counters.copied_to_accel_bytes += bytes + n * sizeof(int32_t);
    stream->device->counters.shared_columns += n;
    stream->in_flight = true;
    return ggml_backend_graph_compute_async(stream->accel, &share->put_graph);
}
