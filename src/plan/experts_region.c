#include "plan/experts_region.h"

#include <string.h>

static bool takes_ids(const struct ats_expert_node *node)
{
    return node->kind == ATS_EXPERT_PRODUCT || node->kind == ATS_EXPERT_BIAS;
}

/* One behind the last node that takes the ids of nodes[first]. */
static size_t find_end(const struct ats_expert_node *nodes, size_t n_nodes, size_t first)
{
    size_t end = first + 1;
    for (size_t i = end; i < n_nodes; i++) {
        if (takes_ids(&nodes[i]) && nodes[i].ids == nodes[first].ids) {
            end = i + 1;
        }
    }
    return end;
}

/* What a source is to the region whose nodes so far are marked in `inside`. */
static bool is_inside(const bool *inside, size_t first, int32_t source)
{
    return source >= (int32_t)first && inside[source];
}

/* Whether all activations that the node reads are columns of the region. */
static bool reads_columns(const struct ats_expert_node *node, const bool *inside, size_t first)
{
    bool any = false;
    for (int s = 0; s < ATS_EXPERT_MOST_SOURCES; s++) {
        if (node->sources[s] == ATS_EXPERT_NO_SOURCE) {
            continue;
        }
        if (!is_inside(inside, first, node->sources[s])) {
            return false;
        }
        any = true;
    }
    return any;
}

/* Whether a product reads a single column that the region does not make: the input of all experts.
 */
static bool reads_input(const struct ats_expert_node *nodes, const struct ats_expert_node *node,
                        const bool *inside, size_t first)
{
    const int32_t source = node->sources[0];
    if (node->sources[1] != ATS_EXPERT_NO_SOURCE || is_inside(inside, first, source)) {
        return false;
    }
    return source >= 0 ? nodes[source].one_column : source == ATS_EXPERT_ONE_COLUMN;
}

/* Marks node `i` if it is one of the region's. False: it does not belong in a region. */
static bool join(const struct ats_expert_node *nodes, const void *ids, size_t first, size_t i,
                 bool *inside)
{
    const struct ats_expert_node *node = &nodes[i];
    const bool columns = reads_columns(node, inside, first);
    inside[i] = true;
    switch (node->kind) {
    case ATS_EXPERT_EMPTY:
        inside[i] = columns; /* else a view of something else, which does not matter */
        return !columns || node->whole;
    case ATS_EXPERT_PRODUCT:
        return node->ids == ids && node->whole &&
               (columns || reads_input(nodes, node, inside, first));
    case ATS_EXPERT_BIAS:
        return node->ids == ids && node->whole && columns;
    case ATS_EXPERT_COLUMN:
        return node->whole && columns;
    case ATS_EXPERT_OTHER:
        break;
    }
    return false;
}

/* Whether only the region reads what it makes, its result excepted. */
static bool is_closed(const struct ats_expert_node *nodes, size_t first, size_t end,
                      const bool *inside)
{
    for (size_t i = first; i + 1 < end; i++) {
        if (!inside[i]) {
            continue;
        }
        uint32_t n = 0;
        for (size_t j = i + 1; j < end; j++) {
            for (int s = 0; s < ATS_EXPERT_MOST_SOURCES; s++) {
                n += nodes[j].sources[s] == (int32_t)i;
            }
        }
        if (nodes[i].keeps || n != nodes[i].n_uses) {
            return false;
        }
    }
    return true;
}

size_t ats_expert_regions(const struct ats_expert_node *nodes, size_t n_nodes, bool *inside,
                          struct ats_expert_region *regions, size_t most)
{
    size_t n_regions = 0;
    memset(inside, 0, n_nodes * sizeof(*inside));
    for (size_t first = 0; first < n_nodes; first++) {
        if (nodes[first].kind != ATS_EXPERT_PRODUCT) {
            continue;
        }
        const size_t end = find_end(nodes, n_nodes, first);
        bool good = true;
        for (size_t i = first; good && i < end; i++) {
            good = join(nodes, nodes[first].ids, first, i, inside);
        }
        good = good && is_closed(nodes, first, end, inside);
        if (good && n_regions < most) {
            regions[n_regions] = (struct ats_expert_region){first, end - first, nodes[first].ids};
        }
        n_regions += good;
        first = end - 1; /* the ids' other products would make a part of the same stretch */
    }
    return n_regions;
}
