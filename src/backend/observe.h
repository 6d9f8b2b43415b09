/* Recording what the backend does (ATS_TRACE): the recorder stands between the backend and ggml.
 *
 * When recording is on, those entries of `ats_ggml` that give work to a backend or wait for one are
 * replaced by functions that call the original and record it (trace/recorder.h). So nothing that is
 * given to an accelerator is missed, and when recording is off nothing is different. What ggml's
 * interface does not tell is told by the functions below, which do nothing when recording is off.
 *
 * No synchronisation is added. An accelerator whose registry offers "ats_backend_observe" and
 * "ats_backend_tag" (emu/emu.h) tells when its commands ran; of others only the host's side of it
 * is known.
 *
 * Thread-safety: as the stream's: one thread at a time per stream; streams run in parallel. */
#ifndef ATS_BACKEND_OBSERVE_H
#define ATS_BACKEND_OBSERVE_H

#include "backend/stream.h"

struct ats_config;
struct ats_expert_fill;
struct ats_expert_store;

/* Starts recording if the configuration asks for it; the recording is written when the process
 * exits. Once, when the library is loaded and bound to ggml, before there are streams. */
bool ats_observe_start(const struct ats_config *config, struct ats_error *err);

/* A stream has its accelerator and its CPU side; ends; has started a transfer stream: that of
 * staging memory, or one more. */
void ats_observe_stream(struct ats_stream *stream);
void ats_observe_stream_end(struct ats_stream *stream);
void ats_observe_transfer(struct ats_stream *stream, ggml_backend_t transfer);

/* The stream's staging memory has been taken, or is about to be given back: then `there` is false.
 */
void ats_observe_staging(struct ats_stream *stream, bool there);

/* A layer's slots have been taken, or are about to be given back. */
void ats_observe_store(struct ats_stream *stream, const struct ats_expert_store *store, bool there);

/* What the stream is given from here on touches, of the store's tensors, these `n` slots alone,
 * which have or get these experts; and, if `fill` is not NULL, of its place the rows of these
 * experts. Slots of NULL are 0, 1, ...; experts of NULL have the numbers of their slots. Borrowed
 * until the next call; a store of NULL: no more of it. */
void ats_observe_slots(struct ats_stream *stream, const struct ats_expert_store *store,
                       const struct ats_expert_fill *fill, const int32_t *slots,
                       const int32_t *experts, uint32_t n);

/* A graph of llama.cpp begins and ends; between them, a plan for it is ready, made or found. */
void ats_observe_pass(struct ats_stream *stream, const struct ggml_cgraph *cgraph);
void ats_observe_planned(struct ats_stream *stream);
void ats_observe_pass_end(struct ats_stream *stream);

/* The host has moved bytes that the accelerator had put elsewhere. */
void ats_observe_move(struct ats_stream *stream, const char *name, const void *from, const void *to,
                      size_t bytes);

/* What is given from here on is part of this split; -1: of none. */
void ats_observe_split(struct ats_stream *stream, int32_t split);

#endif
