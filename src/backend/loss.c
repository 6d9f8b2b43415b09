#include "backend/loss.h"

#include "backend/residency.h"
#include "backend/stream.h"

static bool still_works(struct ats_device *device)
{
    const size_t little = ggml_backend_buft_get_alignment(device->accel_buffer_type);
    ggml_backend_buffer_t buffer =
        ggml_backend_buft_alloc_buffer(device->accel_buffer_type, little);
    if (buffer == NULL) {
        return false;
    }
    ggml_backend_buffer_free(buffer);
    return true;
}

/* Leaves a record what it has in host memory. Returns whether its bytes are gone. */
static bool give_up_record(struct ats_record *record)
{
    if (record->block == NULL) {
        return false;
    }
    const ats_side_set left = record->valid & ATS_ON(ATS_HOST);
    ats_vram_release(record);
    record->valid = left;
    record->home = ATS_ON(ATS_HOST);
    return left == 0;
}

static void give_up(struct ats_device *device)
{
    size_t gone = 0;
    for (struct ats_buffer *buffer = device->buffers; buffer != NULL; buffer = buffer->next) {
        for (size_t i = 0; i < buffer->n_records; i++) {
            gone += give_up_record(buffer->records[i]);
        }
        ats_mirror_release(buffer);
        buffer->ranges.n_ranges = 0;
    }
    for (struct ats_stream *stream = device->streams; stream != NULL; stream = stream->next) {
        ats_staging_give_up(stream);
        ats_experts_give_up(stream);
    }
    device->accel_lost = true;
    device->vram_budget = 0;
    device->budget_known = true;
    device->epoch++;
    ats_log_error(
        "%s: %s is lost; computing on the CPU from now on. %zu tensors were in its memory "
        "only: contexts and models that need them must be made anew\n",
        device->name, ggml_backend_dev_name(device->accel), gone);
}

bool ats_device_check_loss(struct ats_device *device)
{
    pthread_rwlock_wrlock(&device->lock);
    if (!device->accel_lost && !still_works(device)) {
        give_up(device);
    }
    const bool lost = device->accel_lost;
    pthread_rwlock_unlock(&device->lock);
    return lost;
}
