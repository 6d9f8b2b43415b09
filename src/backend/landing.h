/* Landing: page-locked memory through which small activations come to host memory.
 *
 * A copy to pageable memory holds the calling thread until it has ended, so that several for one
 * split would wait one after the other. Copies to page-locked memory follow each other on the
 * accelerator's stream, and the host waits once for all of them; then it moves the bytes to where
 * they belong, which takes a few microseconds.
 *
 * Thread-safety: as the stream's: one thread at a time. */
#ifndef ATS_BACKEND_LANDING_H
#define ATS_BACKEND_LANDING_H

#include <ggml-backend.h>
#include <stdbool.h>
#include <stddef.h>

struct ats_stream;

enum { ATS_LANDING_MOST = 32 };

struct ats_landed {
    const char *name; /* of the tensor, as long as the plan that copies it, or its record */
    char *to;
    const char *from;
    size_t bytes;
};

struct ats_landing {
    ggml_backend_buffer_t buffer; /* NULL: there is none, and copies go where they belong */
    bool is_tried;
    size_t used;
    struct ats_landed landed[ATS_LANDING_MOST]; /* not moved yet */
    size_t n_landed;
};

/* Makes the area, once; without memory for it everything works as before. */
void ats_landing_open(struct ats_stream *stream);

void ats_landing_close(struct ats_stream *stream);

/* Starts a copy of `bytes` behind `offset` of the accelerator's tensor; they are at `to` once the
 * accelerator has been waited for and ats_landing_move was called. */
void ats_landing_get(struct ats_stream *stream, const struct ggml_tensor *tensor, char *to,
                     size_t offset, size_t bytes);

/* The accelerator has been waited for: moves what has landed. */
void ats_landing_move(struct ats_stream *stream);

#endif
