#include "backend/used.h"

#include "backend/graph_plan.h"
#include "backend/observe.h"
#include "backend/pieces.h"
#include "backend/residency.h"
#include "backend/stand_ins.h"
#include "bind/family.h"

#include <stdlib.h>
#include <string.h>

/* The matrix with `n` experts. */
static struct ggml_tensor experts_of(const struct ggml_tensor *matrix, uint32_t n)
{
    struct ggml_tensor experts = ats_piece_tensor(matrix, (uint32_t)matrix->ne[1]);
    experts.ne[2] = n;
    experts.nb[3] = experts.nb[2] * n;
    return experts;
}

/* The product that alone reads the root, if its ids come to the CPU with nothing else. */
static const struct ggml_tensor *product_of(const struct ats_description *d, size_t root)
{
    const struct ggml_tensor *node = ats_pieces_reader(d, root);
    if (node == NULL || node->op != GGML_OP_MUL_MAT_ID) {
        return NULL;
    }
    const struct ggml_tensor *ids = node->src[2];
    const struct ggml_tensor *input = node->src[1];
    return ids->type == GGML_TYPE_I32 && ids->nb[0] == sizeof(int32_t) && ids->ne[2] == 1 &&
                   ids->ne[3] == 1 && ids->ne[1] == node->ne[2] && ids->ne[0] == node->ne[1] &&
                   input->ne[2] == node->ne[2] && ids->ne[0] <= ATS_EXPERT_MOST_USED
               ? node
               : NULL;
}

struct ats_used_matrix ats_used_matrix_of(const struct ats_device *device,
                                          const struct ats_description *description, size_t root)
{
    const struct ggml_tensor *node = product_of(description, root);
    if (node == NULL) {
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
                                    .padding = ats_vram_bytes(device, &one) - matrix->nb[2]};
}

/* ---- tensors and graphs ---- */

static struct ggml_tensor numbers_at(const struct ggml_tensor *bytes, size_t offset, int64_t ne0,
                                     int64_t ne1)
{
    const size_t row = (size_t)ne0 * sizeof(int32_t);
    return (struct ggml_tensor){
        .type = GGML_TYPE_I32,
        .buffer = bytes->buffer,
        .ne = {ne0, ne1, 1, 1},
        .nb = {sizeof(int32_t), row, row * (size_t)ne1, row * (size_t)ne1},
        .op = GGML_OP_NONE,
        .data = (char *)bytes->data + offset,
    };
}

/* `n` rows of words one behind the other. */
static struct ggml_tensor words_at(ggml_backend_buffer_t buffer, void *data, size_t row_bytes,
                                   int64_t n)
{
    return (struct ggml_tensor){
        .type = GGML_TYPE_F32,
        .buffer = buffer,
        .ne = {(int64_t)(row_bytes / sizeof(float)), n, 1, 1},
        .nb = {sizeof(float), row_bytes, row_bytes * (size_t)n, row_bytes * (size_t)n},
        .op = GGML_OP_NONE,
        .data = data,
    };
}

/* A graph of one operator, which is another one each time: it has no identity. */
static bool make_graph(struct ggml_cgraph *graph, struct ggml_tensor **node)
{
    enum { MOST_OPERANDS = 4 };
    if (!ats_graph_make_counts(graph, MOST_OPERANDS)) {
        return false;
    }
    ats_graph_set_uses(graph, *node, 1);
    *graph = ats_graph_slice(graph, node, 0, 1);
    graph->uid = 0;
    return true;
}

/* The operator that copies hits from slots. False: memory is out. Without a store if there are no
 * slots, or the accelerator has no such operator. */
static bool make_hits(const struct ats_stream *stream, struct ats_used_step *step,
                      struct ats_error *err)
{
    uint32_t part = 0;
    struct ats_expert_store *store =
        step->weight->sliced ? ats_experts_store_of(stream, step->weight, &part) : NULL;
    const size_t bytes = step->matrix.expert_bytes;
    if (store == NULL || bytes % sizeof(float) != 0 || store->slots.part_bytes[part] != bytes) {
        return true;
    }
    const size_t ids = (size_t)step->matrix.n_used * step->matrix.n_tokens * sizeof(int32_t);
    step->slots = words_at(store->in_vram[part].buffer, store->in_vram[part].data, bytes,
                           store->slots.n_slots);
    step->list = numbers_at(&step->lists, ids, store->slots.n_slots, 1);
    step->hits = words_at(step->bytes.buffer, step->bytes.data, bytes, store->slots.n_slots);
    step->hits.op = GGML_OP_GET_ROWS;
    step->hits.flags = GGML_TENSOR_FLAG_COMPUTE;
    step->hits.src[0] = &step->slots;
    step->hits.src[1] = &step->list;
    step->hits_node = &step->hits;
    ats_name_after(&step->list, step->ids);
    ats_name_after(&step->hits, &step->weight->as_made);
    if (!ggml_backend_dev_supports_op(stream->device->accel, &step->hits)) {
        return true;
    }
    step->store = store;
    return (make_graph(&step->hits_graph, &step->hits_node) || ats_fail(err, "out of memory")) &&
           ats_stand_in_init(&step->slots, err) && ats_stand_in_init(&step->list, err) &&
           ats_stand_in_init(&step->hits, err);
}

static bool make_product(struct ats_description *description, struct ats_used_step *step,
                         struct ats_error *err)
{
    const struct ggml_tensor *node = step->node;
    step->weight_there = experts_of(node->src[0], step->shape.room);
    step->weight_there.buffer = step->bytes.buffer;
    step->weight_there.data = step->bytes.data;
    step->ids_there = numbers_at(&step->lists, 0, step->matrix.n_used, step->matrix.n_tokens);
    ats_name_after(&step->ids_there, step->ids);
    step->input = *ats_description_find(description, node->src[1])->stand_in;
    step->input.view_src = NULL; /* Vulkan would look for a view's bytes there */
    step->input.view_offs = 0;
    step->product = *ats_description_find(description, node)->stand_in;
    step->product.op = GGML_OP_MUL_MAT_ID;
    step->product.flags =
        GGML_TENSOR_FLAG_COMPUTE | (step->product.flags & GGML_TENSOR_FLAG_OUTPUT);
    memcpy(step->product.op_params, node->op_params, sizeof(node->op_params));
    memset(step->product.src, 0, sizeof(step->product.src));
    step->product.src[0] = &step->weight_there;
    step->product.src[1] = &step->input;
    step->product.src[2] = &step->ids_there;
    step->product_node = &step->product;
    return (make_graph(&step->product_graph, &step->product_node) ||
            ats_fail(err, "out of memory")) &&
           ats_stand_in_init(&step->weight_there, err) &&
           ats_stand_in_init(&step->ids_there, err) && ats_stand_in_init(&step->input, err) &&
           ats_stand_in_init(&step->product, err);
}

struct ats_used_step *ats_used_make(const struct ats_stream *stream,
                                    struct ats_description *description, size_t root,
                                    const struct ats_used_shape *shape,
                                    const struct ggml_tensor *accel, struct ats_error *err)
{
    const struct ggml_tensor *node = product_of(description, root);
    const struct ats_used_matrix matrix = ats_used_matrix_of(stream->device, description, root);
    const size_t n_ids = (size_t)matrix.n_used * matrix.n_tokens;
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
    step->bytes = ats_raw_tensor(accel->buffer, accel->data, shape->lists);
    step->lists = ats_raw_tensor(accel->buffer, (char *)accel->data + shape->lists,
                                 shape->place_bytes - shape->lists);
    ats_name_after(&step->bytes, &step->weight->as_made);
    ats_name_after(&step->lists, step->ids);
    step->numbers = calloc(n_ids + matrix.n_experts, sizeof(*step->numbers));
    step->found.place_of = calloc(matrix.n_experts, sizeof(*step->found.place_of));
    step->found.hits = calloc(matrix.n_experts, sizeof(*step->found.hits));
    step->found.runs = calloc(matrix.n_experts, sizeof(*step->found.runs));
    if (step->numbers == NULL || step->found.place_of == NULL || step->found.hits == NULL ||
        step->found.runs == NULL) {
        ats_fail(err, "out of memory");
        ats_used_free(step);
        return NULL;
    }
    if (!make_product(description, step, err) || !make_hits(stream, step, err)) {
        ats_used_free(step);
        return NULL;
    }
    return step;
}

void ats_used_free(struct ats_used_step *step)
{
    if (step == NULL) {
        return;
    }
    ats_graph_free_counts(&step->product_graph);
    ats_graph_free_counts(&step->hits_graph);
    free(step->numbers);
    free(step->found.place_of);
    free(step->found.hits);
    free(step->found.runs);
    free(step);
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

/* Gives the columns that the CPU has places of experts that the token does not use: kernels rely on
 * a token's experts being different ones. They are, if any is left to the CPU, so there are as many
 * places as a token uses, at least. */
static void fill_voids(int32_t *places, uint32_t n_used)
{
    int32_t next = 0;
    for (uint32_t i = 0; i < n_used; i++) {
        if (places[i] != ATS_USED_NONE) {
            continue;
        }
        for (uint32_t k = 0; k < n_used; k++) { /* from the start again where one is taken */
            if (places[k] == next) {
                next++;
                k = UINT32_MAX;
            }
        }
        places[i] = next++;
    }
}

/* Finds the places of what the tokens from `first` on use, and makes the lists of it. */
static void find(struct ats_used_step *step, uint32_t first)
{
    const uint32_t n_used = step->matrix.n_used;
    const uint32_t n_tokens = step->matrix.n_tokens - first;
    struct ats_used *found = &step->found;
    for (uint32_t t = 0; t < n_tokens; t++) {
        memcpy(step->numbers + (size_t)t * n_used, row_of(step, first + t),
               n_used * sizeof(int32_t));
    }
    const struct ats_used_query query = {
        .ids = step->numbers,
        .n_tokens = n_tokens,
        .n_used = n_used,
        .n_experts = (int32_t)step->node->src[0]->ne[2],
        .slot_of = step->store != NULL ? step->store->slots.slot_of : NULL,
        .left = step->share != NULL ? step->share->left : NULL,
        .gap = step->shape.gap,
        .room = step->shape.room,
    };
    ats_used_find(&query, found);
    for (size_t i = 0; i < (size_t)found->n_tokens * n_used; i++) {
        step->numbers[i] = found->place_of[step->numbers[i]];
    }
    for (uint32_t t = 0; step->share != NULL && t < found->n_tokens; t++) {
        fill_voids(step->numbers + (size_t)t * n_used, n_used);
    }
    int32_t *slots = step->numbers + (size_t)step->matrix.n_tokens * n_used;
    for (uint32_t h = 0; h < found->n_hits; h++) {
        slots[h] = query.slot_of[found->hits[h]];
    }
}

/* What an accelerator reads behind the last expert must be numbers. */
static const char zeros[4096];

size_t ats_used_copy(struct ats_used_step *step, ggml_backend_t backend, uint32_t first)
{
    int32_t wrong = 0;
    if (first == 0 && !are_experts(step, &wrong)) {
        step->found.n_tokens = 0; /* nothing is copied, and nothing computed */
        return 0;
    }
    find(step, first);
    const struct ats_used *found = &step->found;
    const size_t bytes = step->matrix.expert_bytes;
    const size_t n_ids = (size_t)step->matrix.n_tokens * step->matrix.n_used;
    const size_t numbers = (n_ids + found->n_hits) * sizeof(int32_t);
    ggml_backend_tensor_set_async(backend, &step->lists, step->numbers, 0, numbers);
    if (first == 0 && step->listed != NULL) {
        ggml_backend_event_record(step->listed, backend);
    }
    size_t place = found->n_hits;
    const char *host = ats_record_host(step->weight);
    for (uint32_t r = 0; r < found->n_runs; r++) {
        const struct ats_used_run *run = &found->runs[r];
        const size_t n = (size_t)run->n;
        ggml_backend_tensor_set_async(backend, &step->bytes, host + bytes * (size_t)run->first,
                                      place * bytes, n * bytes);
        place += n;
    }
    for (size_t done = 0; done < step->matrix.padding;) {
        const size_t left = step->matrix.padding - done;
        const size_t n = left < sizeof(zeros) ? left : sizeof(zeros);
        ggml_backend_tensor_set_async(backend, &step->bytes, zeros, place * bytes + done, n);
        done += n;
    }
    return (place - found->n_hits) * bytes;
}

static enum ggml_status copy_hits(struct ats_stream *stream, struct ats_used_step *step)
{
    const uint32_t n = step->found.n_tokens > 0 ? step->found.n_hits : 0;
    if (n == 0) {
        return GGML_STATUS_SUCCESS;
    }
    const int32_t *slots = step->numbers + (size_t)step->matrix.n_tokens * step->matrix.n_used;
    step->hits.ne[1] = n;
    step->hits.nb[2] = step->hits.nb[1] * n;
    step->hits.nb[3] = step->hits.nb[2];
    step->list.ne[0] = n;
    step->list.nb[1] = n * sizeof(int32_t);
    step->list.nb[2] = step->list.nb[1];
    step->list.nb[3] = step->list.nb[1];
    ats_observe_slots(stream, step->store, NULL, slots, step->found.hits, n);
    const enum ggml_status status =
        ggml_backend_graph_compute_async(stream->accel, &step->hits_graph);
    ats_observe_slots(stream, NULL, NULL, NULL, NULL, 0);
    return status;
}

/* The product for the tokens from `first` on that have been served. */
static enum ggml_status compute(struct ats_stream *stream, struct ats_used_step *step,
                                const struct ggml_tensor *input, const struct ggml_tensor *product,
                                uint32_t first)
{
    const uint32_t n = step->found.n_tokens;
    step->weight_there.ne[2] = step->found.n_places;
    step->weight_there.nb[3] = step->weight_there.nb[2] * step->found.n_places;
    step->ids_there.ne[1] = n;
    step->ids_there.nb[2] = step->ids_there.nb[1] * n;
    step->ids_there.nb[3] = step->ids_there.nb[2];
    step->input.data = (char *)input->data + first * input->nb[2];
    step->input.ne[2] = n;
    step->product.data = (char *)product->data + first * product->nb[2];
    step->product.ne[2] = n;
    return ggml_backend_graph_compute_async(stream->accel, &step->product_graph);
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

enum ggml_status ats_used_run(struct ats_stream *stream, const struct ats_graph_plan *plan,
                              size_t split, struct ats_error *err)
{
    const struct ats_plan_split *s = &plan->splits[split];
    struct ats_used_step *step = plan->promotions[s->first_promotion].used;
    const bool is_first = stream->staging.known_ids != step->ids;
    if (is_first) {
        ats_stream_wait(stream);
        if (stream->reports_errors && ats_accel_failed(stream->accel, err)) {
            return GGML_STATUS_FAILED;
        }
        stream->staging.known_ids = step->ids;
    }
    const bool shares = is_first && step->share != NULL && choose_left(step);
    ats_promotions_ids_known(stream, plan, split);
    if (shares) {
        ats_share_keep_input(step->share);
    }
    enum ggml_status status = GGML_STATUS_SUCCESS;
    if (step->listed != NULL && step->found.n_tokens > 0) { /* beside the copies of the others */
        ggml_backend_event_wait(stream->accel, step->listed);
        stream->in_flight = true;
        status = copy_hits(stream, step);
    }
    if (status != GGML_STATUS_SUCCESS || !ats_promotions_await(stream, plan, split)) {
        return GGML_STATUS_FAILED;
    }
    int32_t wrong = 0;
    if (step->found.n_tokens == 0 && !are_experts(step, &wrong)) {
        ats_fail(err, "%s names expert %d of %u", step->ids->name, (int)wrong,
                 step->matrix.n_experts);
        return GGML_STATUS_FAILED;
    }
    ats_meter_given(stream, s->profile_us[ATS_ACCEL]);
    const struct ggml_tensor input = step->input;
    const struct ggml_tensor product = step->product;
    if (step->listed == NULL) {
        status = copy_hits(stream, step);
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = compute(stream, step, &input, &product, 0);
    }
    uint32_t done = step->found.n_tokens;
    stream->device->counters.used_matrices++;
    stream->device->counters.used_rounds++;
    while (status == GGML_STATUS_SUCCESS && done < step->matrix.n_tokens) {
        ats_stream_wait(stream); /* the place, and the lists in host memory, are free */
        const size_t crossed = ats_used_copy(step, stream->accel, done);
        stream->device->counters.copied_to_accel_bytes += crossed;
        stream->device->counters.promoted_bytes += crossed;
        stream->device->counters.used_rounds++;
        stream->in_flight = true;
        status = copy_hits(stream, step);
        if (status == GGML_STATUS_SUCCESS) {
            status = compute(stream, step, &input, &product, done);
        }
        done += step->found.n_tokens;
    }
    step->input = input;
    step->product = product;
    return status;
}
