#include "sim/best.h"

#include "sim/op_time.h"

#include <stdlib.h>
#include <string.h>

/* Tokens on which the hit rate of a cache is measured: it settles to about a percent. */
enum { CURVE_TOKENS = 2000 };

struct ats_sim_best {
    const struct ats_sim_setting *setting;
    struct ats_bound_curve curve; /* of the model's experts; n of 0: not yet made */
    uint32_t curve_experts;
    struct ats_bound_item *each; /* of one unit */
    struct ats_bound_item *sums; /* of all units like it */
    struct ats_bound_item *last; /* sums of the pass before, and what came of them */
    size_t n_last;
    struct ats_bound bound;
};

struct ats_sim_best *ats_sim_best_new(const struct ats_sim_setting *setting)
{
    struct ats_sim_best *b = calloc(1, sizeof(*b));
    if (b == NULL) {
        return NULL;
    }
    const size_t n = setting->model->n_units;
    b->setting = setting;
    b->each = calloc(n, sizeof(b->each[0]));
    b->sums = calloc(n, sizeof(b->sums[0]));
    b->last = calloc(n, sizeof(b->last[0]));
    if (b->each == NULL || b->sums == NULL || b->last == NULL) {
        ats_sim_best_free(b);
        return NULL;
    }
    return b;
}

void ats_sim_best_free(struct ats_sim_best *b)
{
    if (b == NULL) {
        return;
    }
    ats_bound_curve_free(&b->curve);
    free(b->each);
    free(b->sums);
    free(b->last);
    free(b);
}

static const struct ats_bound_curve *curve_for(struct ats_sim_best *b,
                                               const struct ats_model_unit *u)
{
    if (b->curve.n == 0) {
        const bool good =
            ats_bound_lru_curve(&b->setting->machine->routing, b->setting->seed,
                                (int32_t)u->n_experts, (int32_t)u->n_used, CURVE_TOKENS, &b->curve);
        b->curve_experts = good ? u->n_experts : 0;
    }
    return b->curve_experts == u->n_experts ? &b->curve : NULL;
}

static double distinct_experts(const struct ats_model_unit *u,
                               const struct ats_sim_routing *routing)
{
    return u->n_experts > 0 ? routing->distinct[u->layer < 0 ? 0 : u->layer] : 0;
}

static void describe_unit(struct ats_sim_best *b, const struct ats_model_unit *u,
                          const struct ats_model_pass *pass, const struct ats_sim_routing *routing,
                          struct ats_bound_item *item)
{
    const struct ats_sim_setting *s = b->setting;
    const uint64_t state = ats_model_state_bytes(u, s->n_ctx, s->ubatch);
    *item = (struct ats_bound_item){.size_bytes = (double)(u->weight_bytes + state)};
    for (uint32_t o = u->first_op; o < u->first_op + u->n_ops; o++) {
        struct ats_op_shape shape = ats_model_shape(s->model, u, &s->model->ops[o], pass);
        shape.n_distinct = shape.kind == ATS_COST_EXPERTS ? distinct_experts(u, routing) : 0;
        const char *type = ats_sim_op_type(s->model, &s->model->ops[o]);
        item->gpu_us += ats_sim_machine_op_us(s->machine, ATS_ACCEL, type, &shape);
        shape.fused = true; /* the bound's CPU dispatches in no time */
        item->cpu_us += ats_sim_machine_op_us(s->machine, ATS_HOST, type, &shape);
        if (shape.kind == ATS_COST_EXPERTS) {
            item->read_bytes += shape.weight_bytes * shape.n_distinct;
        } else if (shape.kind != ATS_COST_NONE) {
            item->read_bytes += shape.weight_bytes;
        }
    }
    if (u->recurrent_bytes > 0 && item->cpu_us > 0) {
        item->read_bytes += (double)u->recurrent_bytes;
    }
    item->move_bytes = item->read_bytes;
    item->parallel = u->n_experts > 0;
    item->hits = item->parallel && ats_model_rows(u, pass) == 1 ? curve_for(b, u) : NULL;
}

static bool is_alike(const struct ats_bound_item *a, const struct ats_bound_item *b)
{
    return a->size_bytes == b->size_bytes && a->read_bytes == b->read_bytes &&
           a->cpu_us == b->cpu_us && a->gpu_us == b->gpu_us && a->parallel == b->parallel &&
           a->hits == b->hits;
}

static void accumulate(struct ats_bound_item *sum, const struct ats_bound_item *item)
{
    sum->size_bytes += item->size_bytes;
    sum->read_bytes += item->read_bytes;
    sum->move_bytes += item->move_bytes;
    sum->cpu_us += item->cpu_us;
    sum->gpu_us += item->gpu_us;
    sum->parallel = item->parallel;
    sum->hits = item->hits;
}

/* Writes b->sums; returns their number. */
static size_t describe(struct ats_sim_best *b, const struct ats_model_pass *pass,
                       const struct ats_sim_routing *routing)
{
    const struct ats_model *m = b->setting->model;
    size_t n = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        struct ats_bound_item item;
        if (m->units[i].role == ATS_ROLE_EMBEDDING) {
            continue;
        }
        describe_unit(b, &m->units[i], pass, routing, &item);
        size_t at = 0;
        while (at < n && !is_alike(&b->each[at], &item)) {
            at++;
        }
        if (at == n) {
            b->each[n] = item;
            b->sums[n++] = (struct ats_bound_item){0};
        }
        accumulate(&b->sums[at], &item);
    }
    return n;
}

static bool is_same(const struct ats_sim_best *b, size_t n)
{
    bool same = n == b->n_last;
    for (size_t i = 0; i < n && same; i++) {
        same = is_alike(&b->sums[i], &b->last[i]);
    }
    return same;
}

bool ats_sim_best_pass(struct ats_sim_best *b, const struct ats_model_pass *pass,
                       const struct ats_sim_routing *routing, struct ats_bound *bound,
                       struct ats_error *err)
{
    const size_t n = describe(b, pass, routing);
    const struct ats_sim_machine *m = b->setting->machine;
    const struct ats_bound_limits limits = {(double)b->setting->vram_bytes, m->device.h2d_gbps,
                                            m->device.dram_limit_gbps};
    /* attention reads the cache in steps, so most tokens' passes are alike */
    if (!is_same(b, n)) {
        if (!ats_bound_solve(b->sums, n, &limits, &b->bound, err)) {
            return false;
        }
        memcpy(b->last, b->sums, n * sizeof(b->last[0]));
        b->n_last = n;
    }
    *bound = b->bound;
    return true;
}
