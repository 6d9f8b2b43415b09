#include "backend/used.h"

#include "backend/graph_plan.h"
#include "backend/observe.h"
#include "backend/pieces.h"
#include "backend/residency.h"
#include "backend/rows.h"
#include "backend/stand_ins.h"
#include "bind/family.h"

#include <stdlib.h>
#include <string.h>

enum { LISTS = ATS_USED_LISTS };

/* ---- what can pass ---- */

/* The matrix with `n` experts. */
static struct ggml_tensor experts_of(const struct ggml_tensor *matrix, uint32_t n)
{
    struct ggml_tensor experts = ats_piece_tensor(matrix, (uint32_t)matrix->ne[1]);
    experts.ne[2] = n;
    experts.nb[3] = experts.nb[2] * n;
    return experts;
}

/* Whether each column of the product has an input of its own. */
static bool has_own_inputs(const struct ggml_tensor *node)
{
    return node->src[1]->ne[1] > 1;
}

/* Inputs that are rows, as far as each other apart. */
static bool is_flat(const struct ggml_tensor *input, const struct ggml_tensor *node)
{
    return input->type == GGML_TYPE_F32 && input->nb[0] == sizeof(float) && input->ne[3] == 1 &&
           input->ne[2] == node->ne[2] &&
           (input->ne[1] == 1 ||
            (input->ne[1] == node->ne[1] && input->nb[2] == input->nb[1] * (size_t)input->ne[1]));
}

/* The product that alone reads the root, if its ids come to the CPU with nothing else. */
static const struct ggml_tensor *product_of(const struct ats_description *d, size_t root)
{
    const struct ggml_tensor *node = ats_pieces_reader(d, root);
    if (node == NULL || node->op != GGML_OP_MUL_MAT_ID) {
        return NULL;
    }
    const struct ggml_tensor *ids = node->src[2];
    return ids->type == GGML_TYPE_I32 && ids->nb[0] == sizeof(int32_t) &&
                   ids->nb[1] % sizeof(int32_t) == 0 && ids->ne[2] == 1 && ids->ne[3] == 1 &&
                   ids->ne[1] == node->ne[2] && ids->ne[0] == node->ne[1] &&
                   is_flat(node->src[1], node) && ids->ne[0] <= ATS_EXPERT_MOST_USED
               ? node
               : NULL;
}

static size_t column_bytes(const struct ggml_tensor *node, uint64_t n)
{
    return ats_used_scratch((uint64_t)node->src[1]->ne[0], (uint64_t)node->ne[0], n);
}

static uint64_t all_columns(const struct ggml_tensor *node)
{
    return (uint64_t)(node->ne[1] * node->ne[2]);
}

static size_t alignment_of(const struct ats_device *device)
{
    return ggml_backend_buft_get_alignment(device->accel_buffer_type);
}

size_t ats_used_scratch_of(const struct ats_device *device,
                           const struct ats_description *description, size_t root, uint64_t tokens)
{
    const struct ggml_tensor *node = product_of(description, root);
    const uint64_t all = ats_piece_columns(description, root, tokens);
    const uint64_t n = all < ATS_USED_COLUMNS ? all : ATS_USED_COLUMNS;
    return node != NULL ? column_bytes(node, n) + alignment_of(device) : 0;
}

/* At most so many columns at once. CUDA asks the host for the ids if types that are not quantised
 * have more tokens, and its helper for ids has shared memory for 12288. */
static uint64_t most_at_once(const struct ggml_tensor *matrix)
{
    const enum ats_type_family family = ats_family_of(matrix->type);
    return family == ATS_FAMILY_F32 || family == ATS_FAMILY_F16 ? 128 : 4096;
}

/* Columns that scratch has room for: inputs, and then results. If not for all, then for a multiple
 * of what keeps their lists aligned; 0 if not even for that. */
static uint32_t most_columns(const struct ats_stream *stream, const struct ggml_tensor *node)
{
    const size_t scratch = stream->staging.size - stream->staging.ring;
    const size_t alignment = alignment_of(stream->device);
    const uint64_t room = scratch > alignment ? (scratch - alignment) / column_bytes(node, 1) : 0;
    const uint64_t most = most_at_once(node->src[0]);
    const uint64_t n = room < most ? room : most;
    const uint64_t all = all_columns(node);
    return (uint32_t)(n < all ? n / ATS_USED_LIST_STEP * ATS_USED_LIST_STEP : all);
}

/* ---- tensors ---- */

/* Sets the number of columns that the operators compute, and where they begin in the first of three
 * lists, each of which takes `list` numbers. */
static void resize(struct ats_used_step *step, const struct ats_used_place *place, size_t first,
                   size_t list, uint32_t n)
{
    for (int i = 0; i < 3; i++) {
        char *lists = place->lists.data;
        step->lists[i].data =
            lists != NULL ? lists + (first + (size_t)i * list) * sizeof(int32_t) : NULL;
        step->lists[i].buffer = place->lists.buffer;
        step->lists[i].extra = place->lists.extra;
        ats_list_resize(&step->lists[i], n);
    }
    struct ggml_tensor *ids = &step->lists[1]; /* one for each column */
    ids->ne[0] = 1;
    ids->ne[1] = n;
    ids->nb[1] = sizeof(int32_t);
    ats_rows_resize(&step->inputs, n);
    ats_rows_resize(&step->results, n);
    struct ggml_tensor *three[2] = {&step->columns, &step->product};
    for (int i = 0; i < 2; i++) {
        three[i]->ne[2] = n;
        three[i]->nb[3] = three[i]->nb[2] * n;
    }
}

/* The same rows, each of which is a matrix. */
static struct ggml_tensor stacked(struct ggml_tensor *rows)
{
    struct ggml_tensor view = *rows;
    view.op = GGML_OP_NONE;
    view.view_src = rows;
    memset(view.src, 0, sizeof(view.src));
    view.ne[1] = 1;
    view.ne[2] = rows->ne[1];
    view.nb[2] = rows->nb[1];
    view.nb[3] = view.nb[2] * (size_t)view.ne[2];
    return view;
}

/* What computes columns that are in scratch at `at`. Without places: they may be none. */
static void make_tensors(struct ats_used_step *step, struct ggml_tensor input,
                         const struct ggml_tensor *result, ggml_backend_buffer_t buffer, char *at,
                         size_t alignment)
{
    const struct ggml_tensor *node = step->node;
    const int64_t n = step->most_columns;
    const int64_t n_in = node->src[1]->ne[0];
    const int64_t n_out = node->ne[0];
    const size_t in_bytes = (size_t)(n * n_in) * sizeof(float);
    char *out = at != NULL ? at + (in_bytes + alignment - 1) / alignment * alignment : NULL;
    step->input =
        ats_rows_at(n_in, node->src[1]->ne[1] * node->src[1]->ne[2], input.buffer, input.data);
    step->input.extra = input.extra;
    step->input.nb[1] = input.nb[has_own_inputs(node) ? 1 : 2];
    step->input.nb[2] = step->input.nb[1] * (size_t)step->input.ne[1];
    step->input.nb[3] = step->input.nb[2];
    step->result = ats_rows_at(n_out, node->ne[1] * node->ne[2], result->buffer, result->data);
    step->result.extra = result->extra;
    for (int i = 0; i < 3; i++) {
        step->lists[i] = ats_list_at(n, buffer, NULL);
    }
    const struct ggml_tensor inputs = ats_rows_at(n_in, n, buffer, at);
    step->inputs = ats_rows_gather(&step->input, &step->lists[0], &inputs);
    step->columns = stacked(&step->inputs);
    step->results = ats_rows_at(n_out, n, buffer, out);
    step->product = stacked(&step->results);
    step->product.view_src = NULL;
    step->product.op = GGML_OP_MUL_MAT_ID;
    step->product.flags = GGML_TENSOR_FLAG_COMPUTE;
    memcpy(step->product.op_params, node->op_params, sizeof(node->op_params));
    step->product.src[0] = &step->experts;
    step->product.src[1] = &step->columns;
    step->product.src[2] = &step->lists[1];
    step->results.view_src = &step->product;
    step->put = ats_rows_put(&step->results, &step->lists[2], &step->result);
    step->nodes[0] = &step->inputs;
    step->nodes[1] = &step->product;
    step->nodes[2] = &step->put;
}

static bool is_supported(const struct ats_device *device, const struct ggml_tensor *node,
                         uint32_t n_columns)
{
    const struct ats_used_place nowhere = {.lists = {.buffer = NULL}};
    struct ats_used_step step = {.node = node, .most_columns = n_columns};
    step.experts = experts_of(node->src[0], 1);
    make_tensors(&step, *node->src[1], node, NULL, NULL, 1);
    step.input.buffer = NULL;
    step.input.data = NULL;
    step.result.buffer = NULL;
    step.result.data = NULL;
    resize(&step, &nowhere, 0, n_columns, n_columns);
    bool all = true;
    for (int i = 0; i < 3; i++) {
        all = all && ggml_backend_dev_supports_op(device->accel, step.nodes[i]);
    }
    return all;
}

struct ats_used_matrix ats_used_matrix_of(const struct ats_stream *stream,
                                          const struct ats_description *description, size_t root)
{
    const struct ggml_tensor *node = product_of(description, root);
    const uint32_t n_columns = node != NULL ? most_columns(stream, node) : 0;
    if (n_columns == 0 || !is_supported(stream->device, node, n_columns)) {
        return (struct ats_used_matrix){.n_experts = 0};
    }
    const struct ggml_tensor *matrix = node->src[0];
    const struct ggml_tensor one = experts_of(matrix, 1);
    const double flops = 2.0 * (double)matrix->ne[0] * (double)matrix->ne[1];
    return (struct ats_used_matrix){.n_experts = (uint32_t)matrix->ne[2],
                                    .n_used = (uint32_t)node->ne[1],
                                    .n_tokens = (uint32_t)node->ne[2],
                                    .expert_bytes = matrix->nb[2],
                                    .flops = description->roots[root].may_share ? flops : 0,
                                    .family = ats_family_of(matrix->type),
                                    .most_columns = description->share_columns,
                                    .padding =
                                        ats_vram_bytes(stream->device, &one) - matrix->nb[2]};
}

/* Its slots, if there are any. */
static void find_slots(const struct ats_stream *stream, struct ats_used_step *step)
{
    uint32_t part = 0;
    struct ats_expert_store *store =
        step->weight->sliced ? ats_experts_store_of(stream, step->weight, &part) : NULL;
    if (store != NULL && store->slots.part_bytes[part] == step->matrix.expert_bytes) {
        step->store = store;
        step->slots = store->in_vram[part];
    }
}

static bool make_graph(const struct ats_stream *stream, struct ats_description *description,
                       struct ats_used_step *step, struct ats_error *err)
{
    const struct ats_staging_area *area = &stream->staging;
    const struct ggml_tensor *node = step->node;
    step->experts = experts_of(node->src[0], step->shape.room);
    step->experts.buffer = area->buffer;
    step->experts.data = area->base;
    make_tensors(step, *ats_description_find(description, node->src[1])->stand_in,
                 ats_description_find(description, node)->stand_in, area->buffer,
                 area->base + area->ring, alignment_of(stream->device));
    ats_name_after(&step->experts, &step->weight->as_made);
    ats_name_after(&step->input, node->src[1]);
    ats_name_after(&step->inputs, node->src[1]);
    ats_name_after(&step->product, node);
    ats_name_after(&step->result, node);
    ats_name_after(&step->put, node);
    for (int i = 0; i < 3; i++) {
        step->lists[i].data = area->base;
        ats_name_after(&step->lists[i], step->ids);
    }
    struct ggml_tensor *made[] = {&step->experts, &step->lists[0], &step->lists[1], &step->lists[2],
                                  &step->input,   &step->inputs,   &step->columns,  &step->product,
                                  &step->results, &step->result,   &step->put};
    if (!ats_rows_graph(&step->graph, step->nodes, 3)) {
        return ats_fail(err, "out of memory");
    }
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++) {
        if (!ats_stand_in_init(made[i], err)) {
            return false;
        }
    }
    return true;
}

struct ats_used_step *ats_used_make(const struct ats_stream *stream,
                                    struct ats_description *description, size_t root,
                                    const struct ats_used_shape *shape, struct ats_error *err)
{
    const struct ggml_tensor *node = product_of(description, root);
    const struct ats_used_matrix matrix = ats_used_matrix_of(stream, description, root);
    struct ats_used_step *step = calloc(1, sizeof(*step));
    if (step == NULL) {
        ats_fail(err, "out of memory");
        return NULL;
    }
    step->weight = description->locations[root].record;
    step->node = node;
    step->ids = node->src[2];
    step->matrix = matrix;
    step->shape = *shape;
    step->most_columns = most_columns(stream, node);
    step->places = calloc(shape->n_parcels, sizeof(*step->places));
    find_slots(stream, step);
    const bool has_memory =
        ats_used_init(matrix.n_experts, all_columns(node), shape->n_parcels, &step->found) &&
        step->places != NULL;
    if ((!has_memory && !ats_fail(err, "out of memory")) ||
        !make_graph(stream, description, step, err)) {
        ats_used_step_free(step);
        return NULL;
    }
    return step;
}

void ats_used_step_free(struct ats_used_step *step)
{
    if (step == NULL) {
        return;
    }
    ats_graph_free_counts(&step->graph);
    ats_used_free(&step->found);
    free(step->places);
    free(step);
}

void ats_used_set_place(struct ats_used_step *step, uint32_t parcel,
                        const struct ggml_tensor *accel)
{
    const struct ats_used_shape *shape = &step->shape;
    struct ats_used_place *place = &step->places[parcel];
    place->bytes = ats_words_tensor(accel->buffer, accel->data, shape->lists);
    place->lists = ats_raw_tensor(accel->buffer, (char *)accel->data + shape->lists,
                                  shape->place_bytes - shape->lists);
    ats_name_after(&place->bytes, &step->weight->as_made);
    ats_name_after(&place->lists, step->ids);
}

/* ---- a pass ---- */

static const int32_t *row_of(const struct ats_used_step *step, uint32_t token)
{
    return (const int32_t *)((const char *)step->ids->data + token * step->ids->nb[1]);
}

/* What the router says must be experts of this layer. False: *wrong is none. */
static bool are_experts(const struct ats_used_step *step, int32_t *wrong)
{
    for (uint32_t t = 0; t < step->matrix.n_tokens; t++) {
        const int32_t *row = row_of(step, t);
        for (uint32_t i = 0; i < step->matrix.n_used; i++) {
            *wrong = row[i];
            if (row[i] < 0 || row[i] >= (int32_t)step->matrix.n_experts) {
                return false;
            }
        }
    }
    return true;
}

static void find(struct ats_used_step *step)
{
    const struct ats_used_query query = {
        .ids = step->ids->data,
        .stride = step->ids->nb[1] / sizeof(int32_t),
        .n_tokens = step->matrix.n_tokens,
        .n_used = step->matrix.n_used,
        .n_experts = (int32_t)step->matrix.n_experts,
        .slot_of = step->store != NULL ? step->store->slots.slot_of : NULL,
        .left = step->share != NULL ? step->share->left : NULL,
        .own_inputs = has_own_inputs(step->node),
        .gap = step->shape.gap,
        .room = step->shape.room,
        .n_parcels = step->shape.n_parcels,
    };
    ats_used_find(&query, &step->found);
}

/* What an accelerator reads behind the last expert must be numbers. */
static const char zeros[4096];

/* The place of the parcel: those behind the plan's have the last one's. */
static const struct ats_used_place *place_of(const struct ats_used_step *step, uint32_t parcel)
{
    const uint32_t last = step->shape.n_parcels - 1;
    return &step->places[parcel < last ? parcel : last];
}

/* Where the parcel's lists begin in its place: behind those of the hits, in the first one. */
static size_t first_number(const struct ats_used_step *step, uint32_t parcel)
{
    return parcel == 0 ? LISTS * ats_used_list(step->found.hits.n) : 0;
}

/* In stretches that a driver stages at once, and returns. */
static void copy_lists(struct ats_used_step *step, ggml_backend_t backend, uint32_t parcel)
{
    enum { MOST_BYTES = 64 << 10 };
    const struct ats_used *found = &step->found;
    const struct ats_used_columns *columns = &found->parcels[parcel].columns;
    const size_t before = first_number(step, parcel);
    const size_t bytes = (before + LISTS * ats_used_list(columns->n)) * sizeof(int32_t);
    const char *numbers = (const char *)(found->numbers + columns->first - before);
    struct ggml_tensor lists = place_of(step, parcel)->lists;
    for (size_t done = 0; done < bytes;) {
        const size_t n = bytes - done < MOST_BYTES ? bytes - done : MOST_BYTES;
        ggml_backend_tensor_set_async(backend, &lists, numbers + done, done, n);
        done += n;
    }
}

size_t ats_used_copy(struct ats_used_step *step, ggml_backend_t backend, uint32_t parcel)
{
    struct ats_used *found = &step->found;
    int32_t wrong = 0;
    if (parcel == 0) {
        step->names_no_expert = !are_experts(step, &wrong);
        found->n_parcels = 0;
        if (!step->names_no_expert) {
            find(step);
        }
    }
    if (parcel >= found->n_parcels) {
        return 0; /* nothing is copied, and nothing computed */
    }
    copy_lists(step, backend, parcel);
    if (parcel == 0 && step->listed != NULL) {
        ggml_backend_event_record(step->listed, backend);
    }
    const size_t bytes = step->matrix.expert_bytes;
    const struct ats_used_parcel *p = &found->parcels[parcel];
    const char *host = ats_record_host(step->weight);
    struct ggml_tensor there = place_of(step, parcel)->bytes;
    size_t place = 0;
    for (uint32_t r = p->first_run; r < p->first_run + p->n_runs; r++) {
        const size_t n = (size_t)found->runs[r].n;
        ggml_backend_tensor_set_async(backend, &there, host + bytes * (size_t)found->runs[r].first,
                                      place * bytes, n * bytes);
        place += n;
    }
    for (size_t done = 0; place > 0 && done < step->matrix.padding;) {
        const size_t left = step->matrix.padding - done;
        const size_t n = left < sizeof(zeros) ? left : sizeof(zeros);
        ggml_backend_tensor_set_async(backend, &there, zeros, place * bytes + done, n);
        done += n;
    }
    return place * bytes;
}

/* Computes columns whose lists begin at a number of the place's, with `n_experts` that are at
 * `experts`: as many at once as scratch has room for. */
static enum ggml_status compute(struct ats_stream *stream, struct ats_used_step *step,
                                const struct ats_used_columns *columns,
                                const struct ats_used_place *place, size_t first,
                                const struct ggml_tensor *experts, uint32_t n_experts)
{
    enum ggml_status status = GGML_STATUS_SUCCESS;
    step->experts.buffer = experts->buffer;
    step->experts.data = experts->data;
    step->experts.ne[2] = n_experts;
    step->experts.nb[3] = step->experts.nb[2] * n_experts;
    for (uint32_t done = 0; status == GGML_STATUS_SUCCESS && done < columns->n;) {
        const uint32_t left = columns->n - done;
        const uint32_t n = left < step->most_columns ? left : step->most_columns;
        resize(step, place, first + done, ats_used_list(columns->n), n);
        stream->in_flight = true;
        status = ggml_backend_graph_compute_async(stream->accel, &step->graph);
        done += n;
    }
    return status;
}

static enum ggml_status compute_hits(struct ats_stream *stream, struct ats_used_step *step)
{
    const struct ats_used *found = &step->found;
    if (found->n_parcels == 0 || found->n_hits == 0) {
        return GGML_STATUS_SUCCESS;
    }
    ats_observe_slots(stream, step->store, NULL, found->hit_slots, found->hit_experts,
                      found->n_hits);
    const enum ggml_status status = compute(stream, step, &found->hits, &step->places[0], 0,
                                            &step->slots, (uint32_t)step->store->slots.n_slots);
    ats_observe_slots(stream, NULL, NULL, NULL, NULL, 0);
    return status;
}

static enum ggml_status compute_parcel(struct ats_stream *stream, struct ats_used_step *step,
                                       uint32_t parcel)
{
    const struct ats_used_place *place = place_of(step, parcel);
    const struct ats_used_parcel *p = &step->found.parcels[parcel];
    return compute(stream, step, &p->columns, place, first_number(step, parcel), &place->bytes,
                   p->n_places);
}

/* Parcels for which the plan has no place: one after the other in that of the last. */
static enum ggml_status add_rounds(struct ats_stream *stream, struct ats_used_step *step)
{
    enum ggml_status status = GGML_STATUS_SUCCESS;
    for (uint32_t p = step->shape.n_parcels;
         status == GGML_STATUS_SUCCESS && p < step->found.n_parcels; p++) {
        ats_stream_wait(stream); /* the place is free */
        const size_t crossed = ats_used_copy(step, stream->accel, p);
        stream->device->counters.copied_to_accel_bytes += crossed;
        stream->device->counters.promoted_bytes += crossed;
        stream->device->counters.used_rounds++;
        status = compute_parcel(stream, step, p);
    }
    return status;
}

/* What is left to the CPU. False: nothing, as the ids are no experts. */
static bool choose_left(const struct ats_used_step *step)
{
    int32_t wrong = 0;
    const bool good = are_experts(step, &wrong);
    if (good) {
        ats_share_choose_left(step->share);
    } else {
        ats_share_leave_nothing(step->share);
    }
    return good;
}

/* The ids are in host memory from now on. False: the accelerator has failed. */
static bool learn_ids(struct ats_stream *stream, const struct ats_graph_plan *plan, size_t split,
                      struct ats_used_step *step, struct ats_error *err)
{
    ats_stream_wait(stream);
    if (stream->reports_errors && ats_accel_failed(stream->accel, err)) {
        return false;
    }
    stream->staging.known_ids = step->ids;
    const bool shares = step->share != NULL && choose_left(step);
    ats_promotions_ids_known(stream, plan, split);
    if (shares) {
        ats_share_keep_input(step->share);
    }
    return true;
}

enum ggml_status ats_used_run(struct ats_stream *stream, const struct ats_graph_plan *plan,
                              size_t split, struct ats_error *err)
{
    const struct ats_plan_split *s = &plan->splits[split];
    const struct ats_promotion_step *promotion = &plan->promotions[s->first_promotion];
    struct ats_used_step *step = promotion->used;
    const uint32_t parcel = promotion->parcel;
    if (stream->staging.known_ids != step->ids && !learn_ids(stream, plan, split, step, err)) {
        return GGML_STATUS_FAILED;
    }
    enum ggml_status status = GGML_STATUS_SUCCESS;
    if (parcel == 0 && step->listed != NULL && step->found.n_parcels > 0) { /* beside the copies */
        ggml_backend_event_wait(stream->accel, step->listed);
        stream->in_flight = true;
        status = compute_hits(stream, step);
    }
    if (status != GGML_STATUS_SUCCESS || !ats_promotions_await(stream, plan, split)) {
        return GGML_STATUS_FAILED;
    }
    int32_t wrong = 0;
    if (step->names_no_expert && !are_experts(step, &wrong)) {
        ats_fail(err, "%s names expert %d of %u", step->ids->name, (int)wrong,
                 step->matrix.n_experts);
        return GGML_STATUS_FAILED;
    }
    ats_meter_given(stream, s->profile_us[ATS_ACCEL]);
    if (parcel == 0) {
        stream->device->counters.used_matrices++;
        stream->device->counters.used_rounds++;
        if (step->listed == NULL) {
            status = compute_hits(stream, step);
        }
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = compute_parcel(stream, step, parcel);
    }
    if (status == GGML_STATUS_SUCCESS && parcel == step->shape.n_parcels - 1) {
        status = add_rounds(stream, step);
    }
    return status;
}
