#include "backend/unplaced.h"

#include "backend/residency.h"

#include <stdlib.h>

bool ats_unplaced_make(struct ats_unplaced *batch, size_t capacity)
{
    *batch = (struct ats_unplaced){
        .records = calloc(capacity + 1, sizeof(struct ats_record *)),
        .units = calloc(capacity + 1, sizeof(*batch->units)),
        .where = calloc(capacity + 1, sizeof(*batch->where)),
    };
    return batch->records != NULL && batch->units != NULL && batch->where != NULL;
}

void ats_unplaced_free(struct ats_unplaced *batch)
{
    free(batch->records);
    free(batch->units);
    free(batch->where);
}

/* Whether the record may get a home: it has none yet, and an operator uses what is not made by
 * this graph. Other records are results of a graph, and live where they are used. */
static bool may_get_home(const struct ats_location *location)
{
    return location->record != NULL && location->record->home == 0 && !location->is_node &&
           location->first_use != SIZE_MAX;
}

/* What gets a home: weights, and state, which the graph writes. The rest are its inputs. */
static void collect(const struct ats_device *device, const struct ats_description *d,
                    struct ats_unplaced *batch)
{
    for (size_t r = 0; r < d->graph.n_roots; r++) {
        const struct ats_location *location = &d->locations[r];
        if (!may_get_home(location)) {
            continue;
        }
        struct ats_record *record = location->record;
        record->is_weight = atomic_load(&record->buffer->is_weights);
        if (!record->is_weight && !location->written) {
            continue;
        }
        batch->records[batch->n] = record;
        batch->units[batch->n++] = (struct ats_unit){
            .name = record->as_made.name,
            .bytes = ats_vram_bytes(device, &record->as_made),
            .kind = record->is_weight ? ATS_UNIT_WEIGHT : ATS_UNIT_STATE,
            .is_vector = record->is_weight && record->as_made.ne[1] == 1,
            .accel_can = location->accel_can && !record->sliced,
            .host_can = location->host_can,
        };
    }
}

/* ---- what the first graph does not show ---- */

/* Whether a side can multiply by the matrix, as the graphs to come will. */
static bool can_multiply(ggml_backend_dev_t dev, const struct ats_record *record)
{
    struct ggml_tensor matrix = record->as_made;
    struct ggml_tensor vector = {.type = GGML_TYPE_F32,
                                 .ne = {matrix.ne[0], 1, 1, 1},
                                 .nb = {sizeof(float), sizeof(float) * (size_t)matrix.ne[0],
                                        sizeof(float) * (size_t)matrix.ne[0],
                                        sizeof(float) * (size_t)matrix.ne[0]}};
    const struct ggml_tensor product = {.type = GGML_TYPE_F32,
                                        .op = GGML_OP_MUL_MAT,
                                        .ne = {matrix.ne[1], 1, 1, 1},
                                        .nb = {sizeof(float), sizeof(float) * (size_t)matrix.ne[1],
                                               sizeof(float) * (size_t)matrix.ne[1],
                                               sizeof(float) * (size_t)matrix.ne[1]},
                                        .src = {&matrix, &vector}};
    return ggml_backend_dev_supports_op(dev, &product);
}

bool ats_is_unlayered(const struct ats_record *record)
{
    return record->home == 0 && atomic_load(&record->buffer->is_weights) &&
           ats_layer_of(record->as_made.name) < 0 && record->as_made.ne[1] > 1;
}

static size_t count_unseen(const struct ats_device *device)
{
    size_t n = 0;
    for (const struct ats_buffer *b = device->buffers; b != NULL; b = b->next) {
        for (size_t i = 0; i < b->n_records; i++) {
            n += ats_is_unlayered(b->records[i]);
        }
    }
    return n;
}

size_t ats_unlayered_bytes(const struct ats_device *device)
{
    size_t bytes = 0;
    for (const struct ats_buffer *b = device->buffers; b != NULL; b = b->next) {
        for (size_t i = 0; i < b->n_records; i++) {
            if (ats_is_unlayered(b->records[i])) {
                bytes += ats_vram_bytes(device, &b->records[i]->as_made);
            }
        }
    }
    return bytes;
}

size_t ats_unplaced_bytes(const struct ats_device *device,
                          const struct ats_description *description)
{
    size_t bytes = ats_unlayered_bytes(device);
    for (size_t r = 0; r < description->graph.n_roots; r++) {
        const struct ats_record *record = description->locations[r].record;
        if (record != NULL && record->block == NULL && !ats_is_unlayered(record)) {
            bytes += ats_vram_bytes(device, &record->as_made);
        }
    }
    return bytes;
}

static void collect_unseen(const struct ats_device *device, struct ats_unplaced *batch)
{
    const size_t n_seen = batch->n;
    for (const struct ats_buffer *b = device->buffers; b != NULL; b = b->next) {
        for (size_t i = 0; i < b->n_records; i++) {
            struct ats_record *record = b->records[i];
            bool seen = !ats_is_unlayered(record);
            for (size_t k = 0; k < n_seen && !seen; k++) {
                seen = batch->records[k] == record;
            }
            if (seen) {
                continue;
            }
            record->is_weight = true;
            batch->records[batch->n] = record;
            batch->units[batch->n++] = (struct ats_unit){
                .name = record->as_made.name,
                .bytes = ats_vram_bytes(device, &record->as_made),
                .kind = ATS_UNIT_WEIGHT,
                .accel_can = can_multiply(device->accel, record),
                .host_can = true,
            };
        }
    }
}

bool ats_unplaced_list(const struct ats_device *device, const struct ats_description *description,
                       bool unlayered, struct ats_unplaced *unplaced)
{
    const size_t most = description->graph.n_roots + (unlayered ? count_unseen(device) : 0);
    if (!ats_unplaced_make(unplaced, most)) {
        return false;
    }
    collect(device, description, unplaced);
    if (unlayered && unplaced->n > 0) {
        collect_unseen(device, unplaced);
    }
    return true;
}
