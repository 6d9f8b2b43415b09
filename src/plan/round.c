#include "plan/round.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A schedule of the units so far. */
struct label {
    double us;
    double credit;
    int32_t before; /* its index among those of the unit before, both sides counted through */
};

/* Those that end on one side, by rising time. */
struct state {
    struct label labels[ATS_ROUND_MOST_LABELS];
    size_t n;
};

/* What is kept to find the way back: by unit, side and label. */
struct trail {
    int32_t (*before)[ATS_SIDES][ATS_ROUND_MOST_LABELS];
};

static bool is_too_large(const struct ats_round *round, const struct ats_round_unit *unit)
{
    return unit->at_once > round->capacity / 2;
}

static struct label extended(const struct ats_round *round, const struct ats_round_unit *unit,
                             const struct label *from, enum ats_side side, bool changes)
{
    struct label next = {.us = from->us + (changes ? (double)round->split_us : 0),
                         .credit = from->credit};
    const double rate = (double)round->bytes_per_us[ATS_ACCEL];
    double bytes = side == ATS_ACCEL ? (double)unit->bytes : 0;
    const double most = (double)round->capacity / 2;
    bytes = is_too_large(round, unit) && bytes > most ? most : bytes;
    if (bytes > next.credit) {
        next.us += (bytes - next.credit) / rate;
        next.credit = 0;
    } else {
        next.credit -= bytes;
    }
    const double us = (double)unit->us[side];
    next.us += us;
    next.credit += us * (double)round->bytes_per_us[side];
    next.credit = next.credit < (double)round->capacity ? next.credit : (double)round->capacity;
    return next;
}

/* Time if all that is lacking of a credit must be waited for, apart from a constant. */
static double debt(const struct ats_round *round, const struct label *label)
{
    return label->us - label->credit / (double)round->bytes_per_us[ATS_ACCEL];
}

/* Puts a label where it belongs, unless it loses; drops those that lose against it. */
static void insert(const struct ats_round *round, struct state *state, const struct label *label)
{
    const double own = debt(round, label);
    size_t at = 0;
    while (at < state->n && state->labels[at].us <= label->us) {
        if (debt(round, &state->labels[at]) <= own) {
            return;
        }
        at++;
    }
    size_t rest = at;
    while (rest < state->n && debt(round, &state->labels[rest]) >= own) {
        rest++;
    }
    if (at == ATS_ROUND_MOST_LABELS) {
        return;
    }
    size_t moved = state->n - rest;
    if (at + 1 + moved > ATS_ROUND_MOST_LABELS) {
        moved = ATS_ROUND_MOST_LABELS - at - 1;
    }
    memmove(&state->labels[at + 1], &state->labels[rest], moved * sizeof(struct label));
    state->labels[at] = *label;
    state->n = at + 1 + moved;
}

static bool may_run(const struct ats_round *round, const struct ats_round_unit *unit,
                    enum ats_side side)
{
    const bool excludes = side == ATS_ACCEL && is_too_large(round, unit);
    return (unit->allowed & ATS_ON(side)) != 0 &&
           (!excludes || (unit->allowed & ATS_ON(ATS_HOST)) == 0);
}

static void extend(const struct ats_round *round, const struct ats_round_unit *unit,
                   const struct state *from, struct state *to, bool first)
{
    for (int s = 0; s < ATS_SIDES; s++) {
        const enum ats_side side = (enum ats_side)s;
        to[s].n = 0;
        if (!may_run(round, unit, side)) {
            continue;
        }
        for (int p = 0; p < ATS_SIDES; p++) {
            for (size_t i = 0; i < from[p].n; i++) {
                struct label label =
                    extended(round, unit, &from[p].labels[i], side, !first && p != s);
                label.before = (int32_t)(p * ATS_ROUND_MOST_LABELS + (int)i);
                insert(round, &to[s], &label);
            }
        }
    }
}

static void walk_back(const struct trail *trail, const struct state *last, size_t n,
                      enum ats_side *sides, float *us)
{
    int32_t at = -1;
    double best = 0;
    for (int s = 0; s < ATS_SIDES; s++) {
        if (last[s].n > 0 && (at < 0 || last[s].labels[0].us < best)) {
            at = s * ATS_ROUND_MOST_LABELS;
            best = last[s].labels[0].us;
        }
    }
    *us = (float)best;
    for (size_t i = n; i-- > 0;) {
        const int32_t side = at / ATS_ROUND_MOST_LABELS;
        sides[i] = (enum ats_side)side;
        at = trail->before[i][side][at % ATS_ROUND_MOST_LABELS];
    }
}

bool ats_plan_round(const struct ats_round *round, const struct ats_round_unit *units, size_t n,
                    enum ats_side *sides, float *us)
{
    struct state *states = calloc(2 * (size_t)ATS_SIDES, sizeof(*states));
    const struct trail trail = {.before = calloc(n + 1, sizeof(*trail.before))};
    const bool ok = states != NULL && trail.before != NULL;
    if (ok) {
        struct state *from = states;
        struct state *to = states + ATS_SIDES;
        from[ATS_HOST].n = 1; /* nothing has run, and nothing has crossed */
        for (size_t i = 0; i < n; i++) {
            extend(round, &units[i], from, to, i == 0);
            for (int s = 0; s < ATS_SIDES; s++) {
                for (size_t k = 0; k < to[s].n; k++) {
                    trail.before[i][s][k] = to[s].labels[k].before;
                }
            }
            struct state *swap = from;
            from = to;
            to = swap;
        }
        walk_back(&trail, from, n, sides, us);
    }
    free(states);
    free(trail.before);
    return ok;
}
