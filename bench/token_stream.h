/* The text that every system of the benchmark is fed with: token ids that stay with a topic.
 *
 * Random tokens would spread over the experts of a mixture without any locality, and what a model
 * generates differs between runs, so both would measure something else than a real text. This
 * stream walks through topics: each token continues the topic of the one before, or, with
 * probability 1 / mean_stay_tokens, a new topic is drawn. Within a topic tokens are drawn
 * uniformly. Token v belongs to topic v modulo n_topics, as in the models of `ats synth --model`
 * (src/cli/synth_topics.h), whose embeddings make tokens of one topic choose similar experts.
 *
 * Pure: the same parameters give the same tokens on every machine, and a longer stream begins
 * with the shorter one. No state, safe from any thread. */
#ifndef ATS_BENCH_TOKEN_STREAM_H
#define ATS_BENCH_TOKEN_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct token_stream {
    uint64_t seed;
    uint32_t n_vocab;          /* tokens are in [0, n_vocab) */
    uint32_t n_topics;         /* at most n_vocab */
    uint32_t mean_stay_tokens; /* mean length of a stay with one topic; at least 1 */
};

/* The models' number of topics, and the stay with which routing is as local as in real texts
 * (docs/models.md). */
enum { TOKEN_STREAM_TOPICS = 64, TOKEN_STREAM_STAY_TOKENS = 32 };

/* Fills tokens[0 .. n). False, with nothing written, if the parameters make no sense. */
bool token_stream_fill(const struct token_stream *stream, int32_t *tokens, size_t n);

#endif
