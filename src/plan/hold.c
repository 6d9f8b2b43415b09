#include "plan/hold.h"

#include "plan/beside.h"
#include "plan/placement.h"

#include <stdlib.h>
#include <string.h>

struct holder {
    const struct ats_holdable *weights;
    size_t n;
    size_t left;
    bool *held;
};

enum which { WHOLE, INNER, OUTER };

static bool belongs(const struct ats_holdable *weight, int layer, enum which which)
{
    return ats_layer_of(weight->name) == layer &&
           (which == WHOLE || ats_is_outer_weight(weight->name) == (which == OUTER));
}

/* All or none. */
static bool take(struct holder *h, int layer, enum which which)
{
    size_t bytes = 0;
    for (size_t i = 0; i < h->n; i++) {
        if (belongs(&h->weights[i], layer, which)) {
            if (h->weights[i].bytes > h->left - bytes) {
                return false;
            }
            bytes += h->weights[i].bytes;
        }
    }
    for (size_t i = 0; i < h->n; i++) {
        h->held[i] = h->held[i] || belongs(&h->weights[i], layer, which);
    }
    h->left -= bytes;
    return true;
}

static void take_layers(struct holder *h)
{
    int last = -1;
    for (size_t i = 0; i < h->n; i++) {
        const int layer = ats_layer_of(h->weights[i].name);
        last = layer > last ? layer : last;
    }
    for (int layer = last; layer >= 0; layer--) {
        if (!take(h, layer, WHOLE) && !take(h, layer, INNER)) {
            take(h, layer, OUTER);
        }
    }
}

/* Single weights, as long as any fits. */
static void take_largest(struct holder *h)
{
    for (size_t best = 0; best < h->n;) {
        best = h->n;
        for (size_t i = 0; i < h->n; i++) {
            const bool fits = !h->held[i] && h->weights[i].bytes <= h->left;
            if (fits && (best == h->n || h->weights[i].bytes >= h->weights[best].bytes)) {
                best = i;
            }
        }
        if (best < h->n) {
            h->held[best] = true;
            h->left -= h->weights[best].bytes;
        }
    }
}

void ats_hold(const struct ats_holdable *weights, size_t n, size_t capacity,
              enum ats_hold_order order, bool *held)
{
    struct holder h = {.weights = weights, .n = n, .left = capacity, .held = held};
    memset(held, 0, n * sizeof(*held));
    if (order != ATS_HOLD_LARGEST) {
        take_layers(&h);
    }
    if (order != ATS_HOLD_LAYERS) {
        take_largest(&h);
    }
}

bool ats_hold_best(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                   const struct ats_holdable *weights, size_t n, size_t capacity,
                   const bool *candidates, bool *chosen)
{
    bool *held = calloc(n + 1, sizeof(*held));
    bool *resident = calloc(graph->n_roots + 1, sizeof(*resident));
    bool ok = held != NULL && resident != NULL;
    float best_us = 0;
    for (int order = 0; ok && order < ATS_HOLD_ORDERS; order++) {
        float us = 0;
        ats_hold(weights, n, capacity, (enum ats_hold_order)order, held);
        memset(resident, 0, graph->n_roots * sizeof(*resident));
        for (size_t i = 0; i < n; i++) {
            resident[weights[i].root] = held[i];
        }
        ok = ats_resident_us(graph, costs, candidates, resident, &us);
        if (ok && (order == 0 || us < best_us)) {
            best_us = us;
            memcpy(chosen, resident, graph->n_roots * sizeof(*chosen));
        }
    }
    free(held);
    free(resident);
    return ok;
}
