#include "token_stream.h"

#include "base/rng.h"

bool token_stream_fill(const struct token_stream *stream, int32_t *tokens, size_t n)
{
    if (stream->n_topics == 0 || stream->n_topics > stream->n_vocab ||
        stream->mean_stay_tokens == 0 || stream->n_vocab > INT32_MAX) {
        return false;
    }
    struct ats_rng rng = {stream->seed};
    uint64_t topic = ats_rng_below(&rng, stream->n_topics);
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && ats_rng_below(&rng, stream->mean_stay_tokens) == 0) {
            topic = ats_rng_below(&rng, stream->n_topics);
        }
        /* how many tokens are congruent to the topic */
        const uint64_t words = (stream->n_vocab - topic - 1) / stream->n_topics + 1;
        tokens[i] = (int32_t)(topic + stream->n_topics * ats_rng_below(&rng, words));
    }
    return true;
}
