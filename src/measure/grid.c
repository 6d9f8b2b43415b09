#include "measure/grid.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is measured ---- */

struct size {
    double m;
    double k;
    bool is_quick;
};

/* A small projection; a large matrix of a 70B model, well beyond what caches hold; between. */
static const struct size matmul_sizes[] = {
    {1024, 2048, true}, {14336, 4096, false}, {4096, 4096, true}};

static const struct {
    const char *type;
    bool is_quick;
} matmul_types[] = {{"q4_K", true},  {"f16", true},   {"q8_0", true},  {"mxfp4", true},
                    {"q6_K", false}, {"q4_0", false}, {"q5_K", false}, {"f32", false}};

struct experts {
    double m;
    double k;
    double n_experts;
    double n_used;
};

/* Experts as narrow and as wide as those of Qwen3-30B-A3B and GPT-OSS; fewer of them. */
static const struct experts expert_sizes[] = {{768, 2048, 64, 8}, {2880, 2880, 16, 4}};
static const char *const expert_types[] = {"q4_K", "mxfp4"};

struct heads {
    double k;
    double heads;
    double kv_heads;
};

static const struct heads layouts[] = {{128, 32, 8}, {64, 64, 8}, {256, 16, 2}};
static const double cache_rows[] = {512, 2048, 8192};

/* Qwen3, then shapes between: other widths, other experts, other depths. */
static const struct size held_sizes[] = {
    {1536, 3072, true}, {6144, 2560, true}, {9728, 3584, true}};
static const char *const held_types[] = {"q4_K", "f16", "q8_0"};
static const struct experts held_experts[] = {{1024, 2304, 48, 6}};
static const struct heads held_layouts[] = {{128, 24, 6}};
static const double held_rows[] = {1280, 4096};

#define N(array) (sizeof(array) / sizeof((array)[0]))

/* ---- lists ---- */

struct list {
    struct ats_grid_shape *shapes;
    size_t n;
    size_t room;
    double (*row_bytes)(const char *type, double k);
};

static void add(struct list *l, struct ats_profile_curve curve, const char *type, bool is_quick)
{
    if (l->shapes == NULL || l->n == l->room) {
        return;
    }
    snprintf(curve.type, sizeof(curve.type), "%s", type);
    l->shapes[l->n++] = (struct ats_grid_shape){curve, is_quick};
}

static void add_matmul(struct list *l, const char *type, double m, double k, bool is_quick)
{
    add(l,
        (struct ats_profile_curve){
            .kind = ATS_COST_MATMUL, .m = m, .k = k, .weight_bytes = m * l->row_bytes(type, k)},
        type, is_quick);
}

static void add_experts(struct list *l, const char *type, const struct experts *e, bool is_quick)
{
    add(l,
        (struct ats_profile_curve){.kind = ATS_COST_EXPERTS,
                                   .m = e->m,
                                   .k = e->k,
                                   .n_experts = e->n_experts,
                                   .n_used = e->n_used,
                                   .weight_bytes = e->m * l->row_bytes(type, e->k)},
        type, is_quick);
}

static void add_attention(struct list *l, double rows, const struct heads *h, bool is_quick)
{
    add(l,
        (struct ats_profile_curve){.kind = ATS_COST_ATTENTION,
                                   .m = rows,
                                   .k = h->k,
                                   .heads = h->heads,
                                   .weight_bytes =
                                       2 * rows * h->kv_heads * l->row_bytes("f16", h->k)},
        "f16", is_quick);
}

static void add_bytes(struct list *l, const char *op)
{
    add(l, (struct ats_profile_curve){.kind = ATS_COST_BYTES}, op, true);
}

struct ats_grid_shape *ats_grid_shapes(double (*row_bytes)(const char *type, double k), size_t *n)
{
    enum { ROOM = 64 };
    struct list l = {calloc(ROOM, sizeof(*l.shapes)), 0, ROOM, row_bytes};
    add_bytes(&l, "add");
    add_bytes(&l, "rms_norm");
    for (size_t t = 0; t < N(matmul_types); t++) {
        for (size_t i = 0; i < N(matmul_sizes); i++) {
            const struct size *s = &matmul_sizes[i];
            add_matmul(&l, matmul_types[t].type, s->m, s->k,
                       s->is_quick && matmul_types[t].is_quick);
        }
    }
    for (size_t t = 0; t < N(expert_types); t++) {
        for (size_t i = 0; i < N(expert_sizes); i++) {
            add_experts(&l, expert_types[t], &expert_sizes[i], i == 0);
        }
    }
    for (size_t h = 0; h < N(layouts); h++) {
        for (size_t i = 0; i < N(cache_rows); i++) {
            add_attention(&l, cache_rows[i], &layouts[h], h == 0 && i < 2);
        }
    }
    *n = l.n;
    return l.shapes;
}

struct ats_grid_shape *ats_grid_held(double (*row_bytes)(const char *type, double k), size_t *n)
{
    enum { ROOM = 32 };
    struct list l = {calloc(ROOM, sizeof(*l.shapes)), 0, ROOM, row_bytes};
    for (size_t t = 0; t < N(held_types); t++) {
        for (size_t i = 0; i < N(held_sizes); i++) {
            add_matmul(&l, held_types[t], held_sizes[i].m, held_sizes[i].k, true);
        }
    }
    for (size_t t = 0; t < N(expert_types); t++) {
        for (size_t i = 0; i < N(held_experts); i++) {
            add_experts(&l, expert_types[t], &held_experts[i], true);
        }
    }
    for (size_t i = 0; i < N(held_rows); i++) {
        add_attention(&l, held_rows[i], &held_layouts[0], true);
    }
    *n = l.n;
    return l.shapes;
}

/* ---- a model ---- */

static bool is_known(const struct list *l, const struct ats_profile_curve *c, const char *type)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct ats_profile_curve *o = &l->shapes[i].curve;
        if (o->kind == c->kind && o->m <= c->m && o->m >= c->m && o->k <= c->k && o->k >= c->k &&
            o->n_experts <= c->n_experts && o->n_experts >= c->n_experts &&
            strcmp(o->type, type) == 0) {
            return true;
        }
    }
    return false;
}

static void add_op(struct list *l, const struct ats_model *model, const struct ats_model_unit *unit,
                   const struct ats_model_op *op)
{
    const struct ats_model_tensor *t = &model->tensors[op->tensor];
    struct ats_profile_curve curve = {
        .kind = op->kind, .m = (double)op->m, .k = (double)op->k, .weight_bytes = (double)t->bytes};
    if (op->kind == ATS_COST_EXPERTS) {
        curve.n_experts = unit->n_experts;
        curve.n_used = unit->n_used;
        curve.weight_bytes /= unit->n_experts;
    }
    if (!is_known(l, &curve, t->type_name)) {
        add(l, curve, t->type_name, true);
    }
}

struct ats_grid_shape *ats_grid_model(const struct ats_model *model, size_t *n)
{
    enum { ROOM = 128 };
    struct list l = {calloc(ROOM, sizeof(*l.shapes)), 0, ROOM, NULL};
    for (size_t u = 0; u < model->n_units; u++) {
        const struct ats_model_unit *unit = &model->units[u];
        for (uint32_t o = unit->first_op; o < unit->first_op + unit->n_ops; o++) {
            const struct ats_model_op *op = &model->ops[o];
            const bool has_weight = op->tensor != ATS_NO_TENSOR;
            if (has_weight && (op->kind == ATS_COST_MATMUL || op->kind == ATS_COST_EXPERTS)) {
                add_op(&l, model, unit, op);
            }
        }
    }
    *n = l.n;
    return l.shapes;
}

/* ---- batches ---- */

const double *ats_grid_pass(size_t pass, bool quick, size_t *n)
{
    static const double passes[][8] = {
        {1, 512}, {32}, {8, 128}, {2, 3, 2048}, {4, 16, 64, 256, 512, 1024}};
    static const double quick_passes[][8] = {{1, 512}, {32}, {8, 128}};
    const size_t n_passes = quick ? N(quick_passes) : N(passes);
    *n = 0;
    if (pass >= n_passes) {
        return NULL;
    }
    const double *batches = quick ? quick_passes[pass] : passes[pass];
    while (*n < 8 && batches[*n] > 0) {
        (*n)++;
    }
    return batches;
}

const double *ats_grid_held_batches(size_t *n)
{
    static const double batches[] = {1, 3, 12, 48, 200};
    *n = N(batches);
    return batches;
}

double ats_grid_n(const struct ats_profile_curve *curve, double tokens)
{
    enum { ROW_BYTES = 4096 * sizeof(float) };
    if (curve->kind != ATS_COST_BYTES) {
        return tokens;
    }
    return tokens * ROW_BYTES * (strcmp(curve->type, "add") == 0 ? 3 : 2);
}
