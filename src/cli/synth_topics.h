/* Token embeddings that give a mixture of experts a realistic routing.
 *
 * Routers are random matrices, so two tokens choose the same experts about as often as their
 * embeddings are alike. The embedding of token v is a blend of a vector of its topic, v modulo the
 * number of topics, and a vector of its own. A text that stays with a topic for a while (see
 * bench/token_stream.h) then repeats its choices of experts as real texts do. `topic_share` is the
 * share of the variance that the topic explains, and so the cosine of two tokens of one topic:
 * higher means more repeats. No state; one thread per call. */
#ifndef ATS_CLI_SYNTH_TOPICS_H
#define ATS_CLI_SYNTH_TOPICS_H

#include "base/rng.h"

#include <ggml.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct synth_topics {
    uint32_t topics;   /* at least 1 */
    float topic_share; /* in [0, 1) */
};

/* Whether synth_topics_write knows the type: F16, Q8_0 or Q4_K. */
bool synth_topics_known(enum ggml_type type);

/* Writes n_tokens embeddings of `width` elements with variance 1. False with errno set if the file
 * takes no more. */
bool synth_topics_write(FILE *file, enum ggml_type type, const struct synth_topics *topics,
                        size_t width, size_t n_tokens, struct ats_rng *rng);

#endif
