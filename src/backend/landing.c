#include "backend/landing.h"

#include "backend/observe.h"
#include "backend/stream.h"

#include <string.h>

enum {
    AREA_BYTES = 1 << 20,
    MOST_BYTES = 64 << 10, /* as much as drivers stage on the other way */
    ALIGNMENT = 64,
};

void ats_landing_open(struct ats_stream *stream)
{
    struct ats_landing *landing = &stream->landing;
    if (landing->is_tried) {
        return;
    }
    landing->is_tried = true;
    ggml_backend_buffer_type_t type = ggml_backend_dev_host_buffer_type(stream->device->accel);
    if (type != NULL) {
        landing->buffer = ggml_backend_buft_alloc_buffer(type, AREA_BYTES);
    }
}

void ats_landing_close(struct ats_stream *stream)
{
    ggml_backend_buffer_free(stream->landing.buffer);
    stream->landing.buffer = NULL;
}

void ats_landing_get(struct ats_stream *stream, const struct ggml_tensor *tensor, char *to,
                     size_t offset, size_t bytes)
{
    struct ats_landing *landing = &stream->landing;
    char *at = to;
    if (landing->buffer != NULL && bytes <= MOST_BYTES && landing->used + bytes <= AREA_BYTES &&
        landing->n_landed < ATS_LANDING_MOST) {
        at = (char *)ggml_backend_buffer_get_base(landing->buffer) + landing->used;
        landing->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        landing->landed[landing->n_landed++] = (struct ats_landed){tensor->name, to, at, bytes};
    }
    ggml_backend_tensor_get_async(stream->accel, tensor, at, offset, bytes);
}

void ats_landing_move(struct ats_stream *stream)
{
    struct ats_landing *landing = &stream->landing;
    for (size_t i = 0; i < landing->n_landed; i++) {
        const struct ats_landed *landed = &landing->landed[i];
        memcpy(landed->to, landed->from, landed->bytes);
        ats_observe_move(stream, landed->name, landed->from, landed->to, landed->bytes);
    }
    landing->n_landed = 0;
    landing->used = 0;
}
