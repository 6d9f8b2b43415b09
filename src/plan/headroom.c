#include "plan/headroom.h"

#include "plan/placement.h"

#include <math.h>
#include <string.h>

static const size_t SCARCE = 64;
static const size_t LEFT_ALONE = 32;
static const size_t PLENTY = 16;
static const double MOST_TIME = 0.02;
/* Twice a second is often enough for what people start and end. */
static const double INTERVAL_US = 5e5;
static const double MOST_LATE_US = 1e7;
static const double MOST_WAIT_US = 6e7;

static size_t without(size_t bytes, size_t less)
{
    return bytes > less ? bytes - less : 0;
}

size_t ats_headroom_budget(const struct ats_headroom *m)
{
    const size_t reach = m->used + m->free; /* what we could have in all */
    const bool others_took = reach + m->total / SCARCE < m->before;
    if (others_took && m->budget > without(reach, m->total / SCARCE)) {
        return without(reach, m->total / LEFT_ALONE);
    }
    const size_t plenty = without(reach, m->total / PLENTY);
    if (m->budget < m->wanted && m->budget < plenty) {
        return plenty < m->wanted ? plenty : m->wanted;
    }
    return m->budget;
}

enum kind { KIND_EXPERTS, KIND_DENSE, KIND_ATTENTION, KIND_OUTSIDE };

static enum kind kind_of(const char *name)
{
    if (ats_layer_of(name) < 0) {
        return KIND_OUTSIDE;
    }
    if (ats_is_expert_weight(name)) {
        return KIND_EXPERTS;
    }
    const bool attends = strstr(name, "attn") != NULL || strstr(name, "ssm") != NULL;
    return attends ? KIND_ATTENTION : KIND_DENSE;
}

int ats_leaves_before(const char *a, const char *b)
{
    const int kinds = (int)kind_of(a) - (int)kind_of(b);
    return kinds != 0 ? kinds : ats_layer_of(a) - ats_layer_of(b);
}

enum ats_look ats_look_at(double due_us, double now_us)
{
    if (now_us < due_us) {
        return ATS_LOOK_LATER;
    }
    return now_us < due_us + MOST_LATE_US ? ATS_LOOK_IF_FREE : ATS_LOOK_NOW;
}

double ats_look_again(double now_us)
{
    return now_us + INTERVAL_US;
}

double ats_look_after_return(double now_us, size_t bytes, double link_bytes_per_us)
{
    return ats_look_again(now_us) + (double)bytes / link_bytes_per_us / MOST_TIME;
}

double ats_look_after_failure(double now_us, double *wait_us)
{
    *wait_us = fmin(2 * *wait_us + INTERVAL_US, MOST_WAIT_US);
    return ats_look_again(now_us) + *wait_us;
}
