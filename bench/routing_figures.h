/* How local the routing of one layer is: figures over the experts that consecutive tokens chose.
 * Pure; the caller owns all memory. */
#ifndef ATS_BENCH_ROUTING_FIGURES_H
#define ATS_BENCH_ROUTING_FIGURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Shares are in [0, 1]. Selections of the last tokens, whose future the stream does not hold, are
 * left out of the reuse figures. */
struct routing_figures {
    double repeat_next;     /* selections that the next token repeats */
    double repeat_within_8; /* that one of the next 8 tokens repeats */
    double median_reuse_tokens;
    double top_tenth;      /* selections of the most used tenth of the experts, rounded up */
    double lru_eighth;     /* hit rates of an LRU that holds an eighth of the experts, */
    double lru_quarter;    /* a quarter, */
    double lru_40_percent; /* 40 % (rounded down), before it is warm left out: first 64 tokens */
};

/* ids[n_tokens][n_used], each in [0, n_experts). False if memory is out, an id is out of range, or
 * there are fewer than 128 tokens. */
bool routing_measure(struct routing_figures *figures, const int32_t *ids, size_t n_tokens,
                     size_t n_used, size_t n_experts);

#endif
