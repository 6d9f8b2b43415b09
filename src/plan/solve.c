#include "plan/solve.h"

#include "plan/solve_blocks.h"
#include "plan/solve_labels.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The secant method ends after about ten steps; each step moves to another placement. */
enum { MAX_STEPS = 200 };

/* Sums of thousands of times carry rounding errors of about this share. */
static const double ROUNDING = 1e-12;

/* Beyond any memory, and far from the end of 64 bits. */
static const uint64_t MAX_BYTES = UINT64_C(1) << 56;

/* ---- units to blocks ---- */

static const char *name_of(const struct ats_solve_unit *unit)
{
    return unit->name != NULL ? unit->name : "a unit";
}

static bool is_time(double us)
{
    return isfinite(us) && us >= 0;
}

static bool check_unit(const struct ats_solve_unit *unit, struct ats_error *err)
{
    for (int p = 0; p < ATS_PHASES; p++) {
        if (!is_time(unit->change_us[p]) || !is_time(unit->us[p][ATS_HOST]) ||
            !is_time(unit->us[p][ATS_ACCEL])) {
            return ats_fail(err, "%s has a time that is negative or no number", name_of(unit));
        }
    }
    if (unit->bytes > MAX_BYTES) {
        return ats_fail(err, "%s has an absurd size of %" PRIu64 " bytes", name_of(unit),
                        unit->bytes);
    }
    return (unit->sides & ATS_ON_BOTH) != 0 ||
           ats_fail(err, "%s can be on neither side", name_of(unit));
}

static bool add_to_block(const struct ats_solve_problem *p, size_t at, struct ats_block *block,
                         struct ats_error *err)
{
    const struct ats_solve_unit *unit = &p->units[at];
    block->bytes += unit->bytes;
    block->sides &= unit->sides;
    for (int phase = 0; phase < ATS_PHASES; phase++) {
        for (int side = 0; side < ATS_SIDES; side++) {
            block->us[side] += p->weight[phase] * unit->us[phase][side];
        }
        block->change_us += at == block->first ? p->weight[phase] * unit->change_us[phase] : 0;
    }
    if (block->bytes > MAX_BYTES) {
        return ats_fail(err, "the units around %s have an absurd size", name_of(unit));
    }
    return block->sides != 0 ||
           ats_fail(err, "%s is joined with units of another side", name_of(unit));
}

/* What cannot fit on the accelerator, nor anywhere else, is an error. */
static bool settle(const struct ats_solve_problem *p, struct ats_blocks *b, struct ats_error *err)
{
    uint64_t total = 0;
    uint64_t needed = 0;
    for (size_t i = 0; i < b->n; i++) {
        struct ats_block *block = &b->at[i];
        if (block->bytes > p->budget && (block->sides & ATS_ON(ATS_HOST)) != 0) {
            block->sides = ATS_ON(ATS_HOST);
        }
        total += block->bytes;
        needed += block->sides == ATS_ON(ATS_ACCEL) ? block->bytes : 0;
        if (total > MAX_BYTES) {
            return ats_fail(err, "the units have an absurd size together");
        }
    }
    b->budget = p->budget < total ? p->budget : total;
    return needed <= p->budget ||
           ats_fail(err,
                    "what only the accelerator can compute needs %" PRIu64 " bytes of VRAM, the "
                    "budget is %" PRIu64,
                    needed, p->budget);
}

static bool make_blocks(const struct ats_solve_problem *p, struct ats_blocks *b,
                        struct ats_error *err)
{
    for (int phase = 0; phase < ATS_PHASES; phase++) {
        if (!is_time(p->weight[phase])) {
            return ats_fail(err, "the weight of a phase is negative or no number");
        }
    }
    for (size_t i = 0; i < p->n; i++) {
        if (!check_unit(&p->units[i], err)) {
            return false;
        }
        if (i == 0 || !p->units[i].joined) {
            b->at[b->n++] = (struct ats_block){.first = i, .sides = ATS_ON_BOTH};
        }
        if (!add_to_block(p, i, &b->at[b->n - 1], err)) {
            return false;
        }
    }
    return settle(p, b, err);
}

bool ats_blocks_make(struct ats_blocks *b, size_t most)
{
    *b = (struct ats_blocks){
        .at = calloc(most + 1, sizeof(b->at[0])),
        .rest_us = calloc(most + 1, sizeof(b->rest_us[0])),
        .next = calloc(most + 1, sizeof(b->next[0])),
    };
    return b->at != NULL && b->rest_us != NULL && b->next != NULL;
}

void ats_blocks_free(struct ats_blocks *b)
{
    free(b->at);
    free(b->rest_us);
    free(b->next);
}

/* ---- the priced problem ---- */

/* A point of the trade between time and bytes. */
struct point {
    double us;
    double bytes;
};

/* Sides without a budget, but at a price of `us_per_byte`: b->rest_us and b->next. `least`: with
 * the fewest bytes, whatever the time. */
static void price(struct ats_blocks *b, double us_per_byte, bool least)
{
    b->price = us_per_byte;
    memset(b->rest_us[b->n], 0, sizeof(b->rest_us[0]));
    for (size_t i = b->n; i-- > 0;) {
        const struct ats_block *block = &b->at[i];
        const bool is_kept = least && block->bytes > 0 && (block->sides & ATS_ON(ATS_HOST)) != 0;
        const ats_side_set sides = is_kept ? ATS_ON(ATS_HOST) : block->sides;
        double us[ATS_SIDES];
        for (int t = 0; t < ATS_SIDES; t++) {
            us[t] = (sides & ATS_ON(t)) != 0 ? block->us[t] + b->rest_us[i + 1][t] : INFINITY;
        }
        us[ATS_ACCEL] += us_per_byte * (double)block->bytes;
        for (int s = 0; s < ATS_SIDES; s++) {
            const enum ats_side other = ats_other_side((enum ats_side)s);
            const bool stays = us[s] <= us[other] + block->change_us;
            b->next[i][s] = (uint8_t)(stays ? s : (int)other);
            b->rest_us[i][s] = stays ? us[s] : us[other] + block->change_us;
        }
    }
}

static struct point follow(const struct ats_blocks *b, uint8_t *sides)
{
    struct point p = {0, 0};
    uint8_t side = ATS_HOST;
    for (size_t i = 0; i < b->n; i++) {
        const uint8_t before = side;
        side = b->next[i][before];
        sides[i] = side;
        p.us += b->at[i].us[side] + (side != before ? b->at[i].change_us : 0);
        p.bytes += side == ATS_ACCEL ? (double)b->at[i].bytes : 0;
    }
    return p;
}

/* Finds the best price, leaves the blocks priced so, and writes the best placement met that fits.
 * Returns the lower bound of its time. */
static double relax(struct ats_blocks *b, uint8_t *sides, uint8_t *scratch, double *best_us)
{
    const double budget = (double)b->budget;
    price(b, 0, true);
    struct point in = follow(b, sides);
    *best_us = in.us;
    price(b, 0, false);
    struct point out = follow(b, scratch);
    if (out.bytes <= budget) {
        memcpy(sides, scratch, b->n);
        *best_us = out.us;
        return out.us;
    }
    double bound = out.us;
    for (int step = 0; step < MAX_STEPS; step++) {
        const double us_per_byte = fmax((in.us - out.us) / (out.bytes - in.bytes), 0);
        price(b, us_per_byte, false);
        const struct point p = follow(b, scratch);
        const double line = out.us + us_per_byte * out.bytes;
        bound = fmax(bound, b->rest_us[0][ATS_HOST] - us_per_byte * budget);
        if (p.bytes <= budget && p.us < *best_us) {
            memcpy(sides, scratch, b->n);
            *best_us = p.us;
        }
        if (p.us + us_per_byte * p.bytes >= line - ROUNDING * fabs(line)) {
            break;
        }
        if (p.bytes > budget) {
            out = p;
        } else {
            in = p;
        }
    }
    return bound;
}

/* ---- the whole ---- */

static void sum_up(const struct ats_solve_problem *p, const struct ats_blocks *b,
                   const uint8_t *block_sides, enum ats_side *sides, struct ats_solution *s)
{
    enum ats_side before = ATS_HOST;
    for (size_t k = 0; k < b->n; k++) {
        const size_t end = k + 1 < b->n ? b->at[k + 1].first : p->n;
        for (size_t i = b->at[k].first; i < end; i++) {
            const struct ats_solve_unit *unit = &p->units[i];
            sides[i] = (enum ats_side)block_sides[k];
            s->bytes += sides[i] == ATS_ACCEL ? unit->bytes : 0;
            s->changes += sides[i] != before;
            for (int phase = 0; phase < ATS_PHASES; phase++) {
                s->us[phase] += unit->us[phase][sides[i]];
                s->us[phase] += sides[i] != before ? unit->change_us[phase] : 0;
            }
            before = sides[i];
        }
    }
    for (int phase = 0; phase < ATS_PHASES; phase++) {
        s->weighted_us += p->weight[phase] * s->us[phase];
    }
}

static double all_on_host_us(const struct ats_blocks *b)
{
    double us = 0;
    int before = ATS_HOST;
    for (size_t i = 0; i < b->n; i++) {
        const int side = (b->at[i].sides & ATS_ON(ATS_HOST)) != 0 ? ATS_HOST : ATS_ACCEL;
        us += b->at[i].us[side] + (side != before ? b->at[i].change_us : 0);
        before = side;
    }
    return us;
}

static bool solve(const struct ats_solve_problem *p, struct ats_blocks *b, uint8_t *best,
                  enum ats_side *sides, struct ats_solution *s, struct ats_error *err)
{
    if (!make_blocks(p, b, err)) {
        return false;
    }
    double best_us;
    const double relaxed_us = relax(b, best, best + b->n, &best_us);
    double bound_us = best_us;
    if (relaxed_us < best_us - ROUNDING * best_us &&
        !ats_labels_improve(b, best, best_us, &bound_us)) {
        return ats_fail(err, "out of memory for a placement");
    }
    sum_up(p, b, best, sides, s);
    s->host_us = all_on_host_us(b);
    s->exact = bound_us >= s->weighted_us - 2 * ROUNDING * s->weighted_us;
    s->bound_us = s->exact ? s->weighted_us : fmax(bound_us, relaxed_us);
    return true;
}

bool ats_solve(const struct ats_solve_problem *problem, enum ats_side *sides,
               struct ats_solution *solution, struct ats_error *err)
{
    struct ats_blocks b;
    uint8_t *best = calloc(2 * problem->n + 1, 1);
    *solution = (struct ats_solution){.exact = true};
    bool good = ats_blocks_make(&b, problem->n) && best != NULL;
    good = good ? solve(problem, &b, best, sides, solution, err)
                : ats_fail(err, "out of memory for a placement");
    ats_blocks_free(&b);
    free(best);
    return good;
}
