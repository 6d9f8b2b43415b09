#include "plan/hold.h"

#include "plan/placement.h"

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

void ats_hold(const struct ats_holdable *weights, size_t n, size_t capacity, bool *held)
{
    struct holder h = {.weights = weights, .n = n, .left = capacity, .held = held};
    int last = -1;
    for (size_t i = 0; i < n; i++) {
        held[i] = false;
        const int layer = ats_layer_of(weights[i].name);
        last = layer > last ? layer : last;
    }
    for (int layer = last; layer >= 0; layer--) {
        if (!take(&h, layer, WHOLE) && !take(&h, layer, INNER)) {
            take(&h, layer, OUTER);
        }
    }
}
