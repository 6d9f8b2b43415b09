#include "cost/bound.h"

#include "cost/simplex.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* GB/s in bytes per microsecond */
static const double BYTES_PER_US = 1e3;

/* Variables of an item; the time saved against "all on the CPU" is one more, the last. Where both
 * sides work at once, the item's own time is cpu_us less SAVED. */
enum { HIT, MOVED, RESIDENT, SAVED, VARIABLES };

/* Rows that sum over all items. */
enum { ROW_VRAM, ROW_CPU, ROW_GPU, ROW_LINK, ROW_DRAM, ROW_SERIES, SHARED_ROWS };

/* Rows of an item besides those of its curve: shares add up to 1, residency to 1, own time. */
enum { OWN_ROWS = 4 };

struct sums {
    double cpu_us;
    double read_bytes;
    double size_bytes;
    double all_cpu_us; /* the time of "all on the CPU": the scale of the program */
};

static const struct ats_bound_curve *curve_of(const struct ats_bound_item *item)
{
    static double one[] = {1};
    static double zero[] = {0};
    static const struct ats_bound_curve whole = {one, zero, 1};
    return item->hits != NULL ? item->hits : &whole;
}

static struct sums sum_up(const struct ats_bound_item *items, size_t n,
                          const struct ats_bound_limits *limits)
{
    struct sums s = {0};
    for (size_t i = 0; i < n; i++) {
        s.cpu_us += items[i].cpu_us;
        s.read_bytes += items[i].read_bytes;
        s.size_bytes += items[i].size_bytes;
    }
    s.all_cpu_us = fmax(s.cpu_us, s.read_bytes / (limits->dram_gbps * BYTES_PER_US));
    return s;
}

/* Times are in units of all_cpu_us, sizes in units of the sum of sizes. Each of the rows on time
 * says: what it sums up <= all_cpu_us - saved time. */
static void fill_item(struct ats_simplex *p, const struct ats_bound_item *item, size_t at,
                      const struct ats_bound_limits *limits, const struct sums *s)
{
    const double us = 1 / s->all_cpu_us;
    const double link = 1 / (limits->link_gbps * BYTES_PER_US) * us;
    const double dram = 1 / (limits->dram_gbps * BYTES_PER_US) * us;
    *ats_simplex_at(p, ROW_VRAM, at + RESIDENT) = item->size_bytes / s->size_bytes;
    for (int share = HIT; share <= MOVED; share++) {
        const size_t column = at + (size_t)share;
        *ats_simplex_at(p, ROW_CPU, column) = -item->cpu_us * us;
        *ats_simplex_at(p, ROW_GPU, column) = item->gpu_us * us;
        *ats_simplex_at(p, ROW_DRAM, column) = -item->read_bytes * dram;
        if (!item->parallel) {
            *ats_simplex_at(p, ROW_SERIES, column) = (item->gpu_us - item->cpu_us) * us;
        }
    }
    *ats_simplex_at(p, ROW_LINK, at + MOVED) = item->move_bytes * link;
    *ats_simplex_at(p, ROW_DRAM, at + MOVED) += item->move_bytes * dram;
    if (item->parallel) {
        *ats_simplex_at(p, ROW_SERIES, at + SAVED) = -us;
    }
}

/* The rows that concern one item alone, from `row` on; returns the row behind them. */
static size_t fill_own(struct ats_simplex *p, const struct ats_bound_item *item, size_t at,
                       size_t row)
{
    const size_t b = p->n_columns;
    *ats_simplex_at(p, row, at + HIT) = 1;
    *ats_simplex_at(p, row, at + MOVED) = 1;
    *ats_simplex_at(p, row++, b) = 1;
    *ats_simplex_at(p, row, at + RESIDENT) = 1;
    *ats_simplex_at(p, row++, b) = 1;
    const double scale = item->parallel ? 1 / fmax(item->cpu_us, 1e-9) : 0;
    /* saved <= cpu_us (hit + moved), and gpu_us (hit + moved) + saved <= cpu_us */
    *ats_simplex_at(p, row, at + SAVED) = item->parallel ? scale : 1;
    for (int share = HIT; item->parallel && share <= MOVED; share++) {
        *ats_simplex_at(p, row, at + (size_t)share) = -1;
        *ats_simplex_at(p, row + 1, at + (size_t)share) = item->gpu_us * scale;
        *ats_simplex_at(p, row + 1, at + SAVED) = scale;
        *ats_simplex_at(p, row + 1, b) = 1;
    }
    row += 2;
    const struct ats_bound_curve *curve = curve_of(item);
    for (size_t i = 0; i < curve->n; i++) {
        *ats_simplex_at(p, row, at + HIT) = 1;
        *ats_simplex_at(p, row, at + RESIDENT) = -curve->slope[i];
        *ats_simplex_at(p, row++, b) = curve->at_zero[i];
    }
    return row;
}

static void fill(struct ats_simplex *p, const struct ats_bound_item *items, size_t n,
                 const struct ats_bound_limits *limits, const struct sums *s)
{
    const size_t b = p->n_columns;
    const size_t saved = b - 1;
    size_t row = SHARED_ROWS;
    for (size_t i = 0; i < n; i++) {
        fill_item(p, &items[i], i * VARIABLES, limits, s);
        row = fill_own(p, &items[i], i * VARIABLES, row);
    }
    for (size_t r = ROW_CPU; r <= ROW_SERIES; r++) {
        *ats_simplex_at(p, r, saved) = 1;
        *ats_simplex_at(p, r, b) = 1;
    }
    const double us = 1 / s->all_cpu_us;
    *ats_simplex_at(p, ROW_VRAM, b) = fmax(limits->vram_bytes, 0) / s->size_bytes;
    *ats_simplex_at(p, ROW_CPU, b) -= s->cpu_us * us;
    *ats_simplex_at(p, ROW_SERIES, b) -= s->cpu_us * us;
    *ats_simplex_at(p, ROW_DRAM, b) -= s->read_bytes / (limits->dram_gbps * BYTES_PER_US) * us;
    *ats_simplex_at(p, p->n_rows, saved) = 1;
}

static void read_result(const struct ats_bound_item *items, size_t n,
                        const struct ats_bound_limits *limits, const double *x,
                        const struct sums *s, struct ats_bound *bound)
{
    *bound = (struct ats_bound){.us = s->all_cpu_us * (1 - x[n * VARIABLES])};
    for (size_t i = 0; i < n; i++) {
        const double *own = x + i * VARIABLES;
        const double on_gpu = own[HIT] + own[MOVED];
        bound->resident_bytes += items[i].size_bytes * own[RESIDENT];
        bound->cpu_bytes += items[i].read_bytes * (1 - on_gpu);
        bound->moved_bytes += items[i].move_bytes * own[MOVED];
        bound->cpu_share += items[i].cpu_us * (1 - on_gpu) / bound->us;
        bound->gpu_share += items[i].gpu_us * on_gpu / bound->us;
    }
    bound->link_share = bound->moved_bytes / (limits->link_gbps * BYTES_PER_US) / bound->us;
    bound->dram_share =
        (bound->cpu_bytes + bound->moved_bytes) / (limits->dram_gbps * BYTES_PER_US) / bound->us;
}

static bool is_sound(const struct ats_bound_item *items, size_t n,
                     const struct ats_bound_limits *limits)
{
    for (size_t i = 0; i < n; i++) {
        const double sum = items[i].size_bytes + items[i].read_bytes + items[i].move_bytes +
                           items[i].cpu_us + items[i].gpu_us;
        if (!isfinite(sum)) {
            return false;
        }
    }
    return limits->link_gbps > 0 && limits->dram_gbps > 0 && isfinite(limits->vram_bytes);
}

bool ats_bound_solve(const struct ats_bound_item *items, size_t n,
                     const struct ats_bound_limits *limits, struct ats_bound *bound,
                     struct ats_error *err)
{
    if (!is_sound(items, n, limits)) {
        return ats_fail(err, "the physical bound needs finite times and rates above 0");
    }
    const struct sums s = sum_up(items, n, limits);
    if (!(s.all_cpu_us > 0) || !(s.size_bytes > 0)) {
        *bound = (struct ats_bound){.us = s.all_cpu_us};
        return true;
    }
    size_t rows = SHARED_ROWS;
    for (size_t i = 0; i < n; i++) {
        rows += OWN_ROWS + curve_of(&items[i])->n;
    }
    struct ats_simplex p;
    double *x = calloc(n * VARIABLES + 1, sizeof(*x));
    if (x == NULL || !ats_simplex_init(&p, rows, n * VARIABLES + 1)) {
        free(x);
        return ats_fail(err, "out of memory for the physical bound");
    }
    fill(&p, items, n, limits, &s);
    const bool good = ats_simplex_solve(&p, x);
    if (good) {
        read_result(items, n, limits, x, &s, bound);
    }
    ats_simplex_free(&p);
    free(x);
    return good || ats_fail(err, "the physical bound could not be computed");
}

/* ---- the hit rate of an LRU cache ---- */

void ats_bound_curve_free(struct ats_bound_curve *curve)
{
    free(curve->slope);
    free(curve->at_zero);
    *curve = (struct ats_bound_curve){0};
}

double ats_bound_hit_rate(const struct ats_bound_curve *curve, double share)
{
    double hit = 1;
    for (size_t i = 0; i < curve->n; i++) {
        hit = fmin(hit, curve->slope[i] * share + curve->at_zero[i]);
    }
    return hit;
}

/* The depth of each selected expert in the LRU stack before the token, counted in `found`: a
 * cache of c experts holds those at depths below c. Moves the selected to the top. */
static void count_depths(int32_t *stack, int32_t n_experts, const int32_t *selected, int32_t n_used,
                         double *found)
{
    for (int32_t i = 0; i < n_used; i++) {
        int32_t at = 0;
        while (at < n_experts && stack[at] != selected[i]) {
            at++;
        }
        found[at] += 1;
    }
    for (int32_t i = 0; i < n_used; i++) {
        int32_t at = 0;
        while (stack[at] != selected[i]) {
            at++;
        }
        memmove(stack + 1, stack, (size_t)at * sizeof(stack[0]));
        stack[0] = selected[i];
    }
}

/* The upper hull of the points (i / n, rate[i]), as pieces. */
static void envelope(const double *rate, int32_t n, struct ats_bound_curve *curve)
{
    int32_t at = 0;
    while (at < n) {
        int32_t next = at + 1;
        for (int32_t i = at + 2; i <= n; i++) {
            const double best = (rate[next] - rate[at]) / (next - at);
            if ((rate[i] - rate[at]) / (i - at) >= best) {
                next = i;
            }
        }
        const double slope = (rate[next] - rate[at]) / (next - at) * n;
        curve->slope[curve->n] = slope;
        curve->at_zero[curve->n++] = rate[at] - slope * at / n;
        at = next;
    }
}

static void measure(struct ats_routing *routing, unsigned tokens, int32_t *stack, int32_t *selected,
                    double *rate)
{
    const int32_t n = routing->n_experts;
    for (int32_t i = 0; i < n; i++) {
        stack[i] = i;
    }
    for (int phase = 0; phase < 2; phase++) { /* warm up, then count */
        memset(rate, 0, ((size_t)n + 1) * sizeof(rate[0]));
        for (unsigned t = 0; t < tokens; t++) {
            ats_routing_next(routing, selected);
            count_depths(stack, n, selected, routing->n_used, rate + 1);
        }
    }
    const double all = (double)tokens * routing->n_used;
    for (int32_t i = 1; i <= n; i++) {
        rate[i] = rate[i - 1] + rate[i] / all;
    }
}

bool ats_bound_lru_curve(const struct ats_routing_model *model, uint64_t seed, int32_t n_experts,
                         int32_t n_used, unsigned tokens, struct ats_bound_curve *curve)
{
    *curve = (struct ats_bound_curve){0};
    struct ats_routing routing;
    if (!ats_routing_init(&routing, model, seed, 0, n_experts, n_used)) {
        return false;
    }
    const size_t n = (size_t)n_experts;
    int32_t *stack = calloc(n, sizeof(*stack));
    int32_t *selected = calloc((size_t)n_used, sizeof(*selected));
    double *rate = calloc(n + 1, sizeof(*rate));
    curve->slope = calloc(n, sizeof(*curve->slope));
    curve->at_zero = calloc(n, sizeof(*curve->at_zero));
    const bool good = stack != NULL && selected != NULL && rate != NULL && curve->slope != NULL &&
                      curve->at_zero != NULL;
    if (good) {
        measure(&routing, tokens, stack, selected, rate);
        envelope(rate, n_experts, curve);
    } else {
        ats_bound_curve_free(curve);
    }
    ats_routing_free(&routing);
    free(stack);
    free(selected);
    free(rate);
    return good;
}
