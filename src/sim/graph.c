#include "sim/graph.h"

#include <stdlib.h>

/* Bytes of an activation, of a number of a row of the cache or of a token. */
enum { VALUE_BYTES = 4, ROW_ID_BYTES = 8 };

/* What the user gives to a graph: embeddings, positions, rows of keys and of values, mask, rows
 * whose logits are asked for. */
enum input { EMBEDDINGS, POSITIONS, KEY_ROWS, VALUE_ROWS, MASK, OUTPUT_ROWS, INPUTS };

/* An operator reads at most these besides weights, on average: activations and inputs, the results
 * of all products of its unit included. */
enum { MOST_READS = 16 };

static const uint32_t NONE = UINT32_MAX;

struct builder {
    const struct ats_sim_setting *setting;
    const struct ats_model *model;
    const struct ats_model_pass *pass;
    struct ats_sim_graph *graph;
    struct ats_plan_rates rates;
    size_t n_reads;
    uint32_t inputs[INPUTS];
    uint32_t stream;   /* the residual stream */
    uint32_t normed;   /* what the latest norm made of it */
    uint32_t latest;   /* what the operator before wrote */
    uint32_t selected; /* experts' ids and shares */
    uint32_t queries;  /* of attention */
    uint32_t combined; /* sum over the experts */
    bool dropped;      /* tokens whose logits nobody wants have been left behind */
};

/* The unit at hand. */
struct unit {
    uint32_t index;
    const struct ats_model_unit *model;
    uint32_t in;
    uint32_t first_product; /* roots of its products are neighbours */
    uint32_t n_products;
    uint32_t n_others; /* operators that are no products */
    double rows;
};

/* ---- roots ---- */

static uint32_t add_root(struct builder *b, double bytes)
{
    const size_t root = b->graph->desc.n_roots++;
    b->graph->roots[root] = (struct ats_root){.bytes = (size_t)bytes};
    return (uint32_t)root;
}

static void read_root(struct builder *b, struct ats_op *op, uint32_t root)
{
    if (root != NONE) {
        b->graph->reads[b->n_reads++] = root;
        op->n_reads++;
    }
}

/* Inputs become known when they are first read. */
static void read_input(struct builder *b, struct ats_op *op, enum input input, double bytes)
{
    if (b->inputs[input] == NONE) {
        b->inputs[input] = add_root(b, bytes);
    }
    read_root(b, op, b->inputs[input]);
}

static ats_side_set home_of(bool in_vram, bool on_both)
{
    if (on_both) {
        return ATS_ON_BOTH;
    }
    return in_vram ? ATS_ON(ATS_ACCEL) : ATS_ON(ATS_HOST);
}

static void add_homes(struct builder *b, const struct ats_sim_placement *p)
{
    const struct ats_model *m = b->model;
    struct ats_root *roots = b->graph->roots;
    for (size_t i = 0; i < m->n_tensors; i++) {
        roots[i].bytes = (size_t)m->tensors[i].bytes;
        roots[i].home = home_of(p->tensor[i], p->on_both[i]);
    }
    for (size_t i = 0; i < m->n_units; i++) {
        struct ats_root *state = &roots[m->n_tensors + i];
        state->bytes =
            (size_t)ats_model_state_bytes(&m->units[i], b->setting->n_ctx, b->setting->ubatch);
        state->home = home_of(p->unit_state[i], false);
    }
    b->graph->desc.n_roots = m->n_tensors + m->n_units;
}

/* ---- operators ---- */

static bool is_product(const struct ats_model_op *op)
{
    return op->kind == ATS_COST_MATMUL || op->kind == ATS_COST_EXPERTS;
}

static bool is_op_weight(const struct builder *b, const struct ats_model_unit *u, int32_t tensor)
{
    for (uint32_t o = u->first_op; o < u->first_op + u->n_ops; o++) {
        if (b->model->ops[o].tensor == tensor) {
            return true;
        }
    }
    return false;
}

/* The operator's own weight; with the first operator, those that no operator names: scales,
 * biases, sinks. */
static void read_weights(struct builder *b, struct ats_op *op, const struct ats_model_unit *u,
                         uint32_t index)
{
    const int32_t own = b->model->ops[index].tensor;
    if (own != ATS_NO_TENSOR) {
        read_root(b, op, (uint32_t)own);
    }
    for (uint32_t w = 0; w < u->n_weights && index == u->first_op; w++) {
        const int32_t t = b->model->weights[u->first_weight + w];
        if (!is_op_weight(b, u, t)) {
            read_root(b, op, (uint32_t)t);
        }
    }
}

static double output_bytes(const struct builder *b, const struct unit *u, uint32_t index)
{
    const struct ats_model_op *op = &b->model->ops[index];
    if (is_product(op)) {
        const double columns = op->kind == ATS_COST_EXPERTS ? u->model->n_used : 1;
        return u->rows * columns * (double)op->m * VALUE_BYTES;
    }
    if (u->model->role == ATS_ROLE_ROUTER) {
        /* all experts in order of preference, of which the first are used, and their shares */
        return u->rows * (b->model->params.n_experts + b->model->params.n_used) * VALUE_BYTES;
    }
    return u->rows * (double)u->model->out_bytes_per_token;
}

static void estimate(struct builder *b, struct ats_op *op, const struct unit *u, uint32_t index)
{
    const struct ats_op_shape s =
        ats_model_shape(b->model, u->model, &b->model->ops[index], b->pass);
    for (int side = 0; side < ATS_SIDES; side++) {
        op->cost_us[side] = (float)ats_cost_op_us(&b->rates.side[side], &s);
    }
}

/* ---- what is read and written, by role ---- */

/* Queries, keys and values: their norms and rotations, and the writes to the cache. */
static uint32_t finish_qkv(struct builder *b, const struct unit *u, struct ats_op *op)
{
    const uint32_t product = u->n_others < u->n_products ? u->first_product + u->n_others : u->in;
    read_root(b, op, product);
    if (u->n_others < 2) {
        read_input(b, op, POSITIONS, u->rows * VALUE_BYTES);
    }
    if (u->n_others == 0) {
        b->queries = add_root(b, (double)b->graph->roots[product].bytes);
        return b->queries;
    }
    const uint32_t next = u->index + 1; /* attention, with the cache */
    if (next == b->model->n_units || b->model->units[next].kv_bytes_per_token == 0) {
        return NONE;
    }
    read_input(b, op, u->n_others == 1 ? KEY_ROWS : VALUE_ROWS, u->rows * ROW_ID_BYTES);
    op->partial_write = true;
    return (uint32_t)b->model->n_tensors + next;
}

static void read_attention(struct builder *b, const struct unit *u, struct ats_op *op)
{
    const uint32_t state = (uint32_t)b->model->n_tensors + u->index;
    read_root(b, op, state);
    read_root(b, op, b->queries != NONE ? b->queries : u->in);
    if (u->model->kv_bytes_per_token > 0) {
        read_input(b, op, MASK,
                   u->rows * (double)ats_model_cache_rows(u->model, b->pass) * VALUE_BYTES);
    }
}

/* Activations that an operator reads which is no product. */
static void read_activations(struct builder *b, const struct unit *u, struct ats_op *op)
{
    const bool ends_block =
        u->model->role == ATS_ROLE_ATTN_OUT || u->model->role == ATS_ROLE_FFN_DOWN ||
        u->model->role == ATS_ROLE_COMBINE || u->model->role == ATS_ROLE_SHARED_DOWN;
    for (uint32_t i = 0; i + 1 < u->n_products; i++) {
        read_root(b, op, u->first_product + i);
    }
    read_root(b, op, b->latest);
    if (u->model->role == ATS_ROLE_COMBINE && u->n_others == 0) {
        read_root(b, op, b->selected);
    } else if (ends_block) {
        read_root(b, op, b->stream);
    }
    if (u->model->role == ATS_ROLE_SHARED_DOWN) {
        read_root(b, op, b->combined);
    }
}

static void add_op(struct builder *b, struct unit *u, uint32_t index)
{
    const struct ats_model_op *source = &b->model->ops[index];
    const size_t at = b->graph->desc.n_ops++;
    struct ats_op *op = &b->graph->ops[at];
    uint32_t written = NONE;
    b->graph->sources[at] = (struct ats_sim_graph_op){u->index, index};
    *op = (struct ats_op){.first_read = (uint32_t)b->n_reads, .supported = ATS_ON_BOTH};
    if (is_product(source)) {
        read_weights(b, op, u->model, index);
        read_root(b, op, u->in);
        if (source->kind == ATS_COST_EXPERTS) {
            read_root(b, op, b->selected);
        }
    } else if (source->kind == ATS_COST_ATTENTION || u->model->recurrent_bytes > 0) {
        read_attention(b, u, op);
        read_weights(b, op, u->model, index);
    } else if (u->model->role == ATS_ROLE_QKV) {
        read_weights(b, op, u->model, index);
        written = finish_qkv(b, u, op);
    } else {
        read_weights(b, op, u->model, index);
        read_activations(b, u, op);
    }
    if (u->model->outputs_only && !b->dropped) {
        read_input(b, op, OUTPUT_ROWS, u->rows * VALUE_BYTES);
        b->dropped = true;
    }
    if (written == NONE) {
        written = add_root(b, output_bytes(b, u, index));
        b->latest = written;
    }
    op->write = (int32_t)written;
    estimate(b, op, u, index);
    if (is_product(source)) {
        u->first_product = u->n_products == 0 ? written : u->first_product;
        u->n_products++;
    } else {
        u->n_others++;
    }
}

static bool reads_normed(enum ats_model_role role)
{
    return role == ATS_ROLE_QKV || role == ATS_ROLE_ROUTER || role == ATS_ROLE_EXPERTS_UP ||
           role == ATS_ROLE_SHARED_UP || role == ATS_ROLE_FFN_UP;
}

/* What later units know the unit's result as. */
static void end_unit(struct builder *b, const struct unit *u)
{
    switch (u->model->role) {
    case ATS_ROLE_NORM:
    case ATS_ROLE_OUTPUT_NORM:
        b->normed = b->latest;
        return;
    case ATS_ROLE_ROUTER:
        b->selected = b->latest;
        return;
    case ATS_ROLE_COMBINE:
        b->combined = b->latest;
        b->stream = b->latest;
        return;
    case ATS_ROLE_ATTN_OUT:
    case ATS_ROLE_FFN_DOWN:
    case ATS_ROLE_SHARED_DOWN:
        b->stream = b->latest;
        b->queries = NONE;
        return;
    default:
        return;
    }
}

static void add_unit(struct builder *b, uint32_t index)
{
    const struct ats_model_unit *m = &b->model->units[index];
    struct unit u = {.index = index, .model = m, .rows = ats_model_rows(m, b->pass)};
    if (u.rows == 0 || m->role == ATS_ROLE_EMBEDDING) {
        return;
    }
    if (b->inputs[EMBEDDINGS] == NONE) {
        b->inputs[EMBEDDINGS] =
            add_root(b, (double)b->pass->n_tokens * b->model->params.n_embd * VALUE_BYTES);
        b->stream = b->inputs[EMBEDDINGS];
        b->latest = b->stream;
        b->normed = b->stream;
    }
    u.in = reads_normed(m->role) ? b->normed : b->latest;
    for (uint32_t o = m->first_op; o < m->first_op + m->n_ops; o++) {
        add_op(b, &u, o);
    }
    end_unit(b, &u);
}

bool ats_sim_graph_build(const struct ats_sim_setting *setting,
                         const struct ats_sim_placement *placement,
                         const struct ats_model_pass *pass, struct ats_sim_graph *graph)
{
    const struct ats_model *m = setting->model;
    const size_t n_roots = m->n_tensors + m->n_units + m->n_ops + INPUTS;
    const size_t n_reads = m->n_weights + MOST_READS * m->n_ops;
    *graph = (struct ats_sim_graph){
        .ops = calloc(m->n_ops + 1, sizeof(graph->ops[0])),
        .sources = calloc(m->n_ops + 1, sizeof(graph->sources[0])),
        .roots = calloc(n_roots + 1, sizeof(graph->roots[0])),
        .reads = calloc(n_reads + 1, sizeof(graph->reads[0])),
    };
    if (graph->ops == NULL || graph->sources == NULL || graph->roots == NULL ||
        graph->reads == NULL) {
        ats_sim_graph_free(graph);
        return false;
    }
    graph->desc =
        (struct ats_graph_desc){.ops = graph->ops, .reads = graph->reads, .roots = graph->roots};
    struct builder b = {.setting = setting,
                        .model = m,
                        .pass = pass,
                        .graph = graph,
                        .rates = ats_sim_machine_plan_rates(setting->machine),
                        .stream = NONE,
                        .normed = NONE,
                        .latest = NONE,
                        .selected = NONE,
                        .queries = NONE,
                        .combined = NONE};
    for (int i = 0; i < INPUTS; i++) {
        b.inputs[i] = NONE;
    }
    add_homes(&b, placement);
    for (uint32_t i = 0; i < m->n_units; i++) {
        add_unit(&b, i);
    }
    graph->logits = b.latest;
    return true;
}

void ats_sim_graph_free(struct ats_sim_graph *graph)
{
    free(graph->ops);
    free(graph->sources);
    free(graph->roots);
    free(graph->reads);
    *graph = (struct ats_sim_graph){0};
}
