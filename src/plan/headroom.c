#include "plan/headroom.h"

#include "plan/placement.h"

#include <string.h>

static const size_t SCARCE = 64;
static const size_t LEFT_ALONE = 32;
static const size_t PLENTY = 16;
static const double MOST_TIME = 0.02;

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

double ats_return_us(size_t bytes, double link_bytes_per_us)
{
    return (double)bytes / link_bytes_per_us / MOST_TIME;
}
