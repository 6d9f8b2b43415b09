#include "emu/fusion.h"

enum {
    MAX_PATTERN = 12,
    MAX_CHAIN = 8,            /* operands of one kernel that adds or multiplies */
    MAX_REDUCED_EXPERTS = 15, /* of one kernel that weighs and adds experts */
};

/* What must hold besides the sequence of operators. */
enum condition {
    ANY,
    CHAINED,     /* each node reads the one before */
    VECTOR,      /* the first node is a product with one column */
    VECTOR_PAIR, /* the same, and both products read the same activations */
};

struct pattern {
    enum condition condition;
    int n;
    enum ggml_op ops[MAX_PATTERN];
    uint32_t outputs; /* besides the last node: bits */
};

#define BIT(i) (UINT32_C(1) << (i))
#define NORM GGML_OP_RMS_NORM
#define RESHAPE GGML_OP_RESHAPE
#define MM GGML_OP_MUL_MAT
#define MM_ID GGML_OP_MUL_MAT_ID

/* Longer patterns come before those that they begin with. The ids of selected experts stay
 * visible: the matrix products read them. */
static const struct pattern patterns[] = {
    /* selection of experts: softmax or sigmoid, with a bias or without, normalised, scaled */
    {ANY,
     11,
     {GGML_OP_SOFT_MAX, RESHAPE, GGML_OP_ARGSORT, GGML_OP_VIEW, GGML_OP_GET_ROWS, RESHAPE,
      GGML_OP_SUM_ROWS, GGML_OP_CLAMP, GGML_OP_DIV, RESHAPE, GGML_OP_SCALE},
     BIT(3)},
    {ANY,
     10,
     {GGML_OP_SOFT_MAX, RESHAPE, GGML_OP_ARGSORT, GGML_OP_VIEW, GGML_OP_GET_ROWS, RESHAPE,
      GGML_OP_SUM_ROWS, GGML_OP_CLAMP, GGML_OP_DIV, RESHAPE},
     BIT(3)},
    {ANY,
     6,
     {GGML_OP_SOFT_MAX, RESHAPE, GGML_OP_ARGSORT, GGML_OP_VIEW, GGML_OP_GET_ROWS, GGML_OP_SCALE},
     BIT(3)},
    {ANY, 5, {GGML_OP_SOFT_MAX, RESHAPE, GGML_OP_ARGSORT, GGML_OP_VIEW, GGML_OP_GET_ROWS}, BIT(3)},
    {ANY,
     12,
     {GGML_OP_UNARY, RESHAPE, GGML_OP_ADD, GGML_OP_ARGSORT, GGML_OP_VIEW, GGML_OP_GET_ROWS, RESHAPE,
      GGML_OP_SUM_ROWS, GGML_OP_CLAMP, GGML_OP_DIV, RESHAPE, GGML_OP_SCALE},
     BIT(4)},
    {ANY,
     11,
     {GGML_OP_UNARY, RESHAPE, GGML_OP_ADD, GGML_OP_ARGSORT, GGML_OP_VIEW, GGML_OP_GET_ROWS, RESHAPE,
      GGML_OP_SUM_ROWS, GGML_OP_CLAMP, GGML_OP_DIV, RESHAPE},
     BIT(4)},
    {ANY,
     11,
     {GGML_OP_UNARY, RESHAPE, GGML_OP_ARGSORT, GGML_OP_VIEW, GGML_OP_GET_ROWS, RESHAPE,
      GGML_OP_SUM_ROWS, GGML_OP_CLAMP, GGML_OP_DIV, RESHAPE, GGML_OP_SCALE},
     BIT(3)},
    {ANY, 5, {GGML_OP_UNARY, RESHAPE, GGML_OP_ARGSORT, GGML_OP_VIEW, GGML_OP_GET_ROWS}, BIT(3)},
    {ANY,
     6,
     {GGML_OP_ARGSORT, GGML_OP_VIEW, GGML_OP_GET_ROWS, RESHAPE, GGML_OP_SOFT_MAX, RESHAPE},
     BIT(1)},

    {ANY, 5, {NORM, GGML_OP_MUL, GGML_OP_ROPE, GGML_OP_VIEW, GGML_OP_SET_ROWS}, 0},
    {ANY, 3, {GGML_OP_ROPE, GGML_OP_VIEW, GGML_OP_SET_ROWS}, 0},
    {CHAINED, 3, {NORM, GGML_OP_MUL, GGML_OP_ROPE}, 0},
    {CHAINED, 3, {NORM, GGML_OP_MUL, GGML_OP_ADD}, 0},
    {CHAINED, 2, {NORM, GGML_OP_MUL}, 0},

    {VECTOR_PAIR, 5, {MM, GGML_OP_ADD, MM, GGML_OP_ADD, GGML_OP_GLU}, 0},
    {VECTOR_PAIR, 5, {MM_ID, GGML_OP_ADD_ID, MM_ID, GGML_OP_ADD_ID, GGML_OP_GLU}, 0},
    {VECTOR_PAIR, 3, {MM, MM, GGML_OP_GLU}, 0},
    {VECTOR_PAIR, 3, {MM_ID, MM_ID, GGML_OP_GLU}, 0},
    {VECTOR, 2, {MM, GGML_OP_ADD}, 0},
    {VECTOR, 2, {MM_ID, GGML_OP_ADD_ID}, 0},

    {CHAINED, 3, {GGML_OP_SSM_CONV, GGML_OP_ADD, GGML_OP_UNARY}, 0},
    {CHAINED, 2, {GGML_OP_SSM_CONV, GGML_OP_UNARY}, 0},
    {CHAINED, 2, {GGML_OP_UNARY, GGML_OP_MUL}, 0},
    {CHAINED, 2, {GGML_OP_UNARY, GGML_OP_SQR}, 0},
    {CHAINED, 3, {GGML_OP_SCALE, GGML_OP_UNARY, GGML_OP_SCALE}, 0},
};

/* How often the whole graph reads a node; -1 if it does not say. */
static int use_count(const struct ggml_cgraph *graph, const struct ggml_tensor *node)
{
    const struct ggml_hash_set *set = &graph->visited_hash_set;
    if (set->size == 0 || set->keys == NULL || graph->use_counts == NULL) {
        return -1;
    }
    const size_t slot = ggml_hash_find(set, node);
    if (slot == GGML_HASHSET_FULL || !ggml_bitset_get(set->used, slot)) {
        return -1;
    }
    return graph->use_counts[slot];
}

static bool reads(const struct ggml_tensor *node, const struct ggml_tensor *source)
{
    for (int j = 0; j < GGML_MAX_SRC; j++) {
        if (node->src[j] == source) {
            return true;
        }
    }
    return false;
}

static int count_reads(const struct ggml_cgraph *graph, int first, int n,
                       const struct ggml_tensor *source)
{
    int count = 0;
    for (int i = first; i < first + n; i++) {
        for (int j = 0; j < GGML_MAX_SRC; j++) {
            count += graph->nodes[i]->src[j] == source;
        }
    }
    return count;
}

/* Whether nobody but the kernel's own nodes sees what is not in `outputs`. */
static bool is_closed(const struct ggml_cgraph *graph, int first, int n, uint32_t outputs)
{
    for (int i = 0; i < n; i++) {
        const struct ggml_tensor *node = graph->nodes[first + i];
        if ((outputs & BIT(i)) != 0) {
            continue;
        }
        const int uses = use_count(graph, node);
        if ((node->flags & GGML_TENSOR_FLAG_OUTPUT) != 0 || uses <= 0 ||
            uses != count_reads(graph, first + i + 1, n - i - 1, node)) {
            return false;
        }
    }
    return true;
}

static bool has_one_column(const struct ggml_tensor *product)
{
    return product->op == MM ? product->ne[1] == 1 : product->ne[2] == 1;
}

static bool are_twins(const struct ggml_tensor *gate, const struct ggml_tensor *up)
{
    return gate->src[1] == up->src[1] && gate->src[2] == up->src[2] &&
           gate->src[0]->type == up->src[0]->type && gate->src[0]->ne[0] == up->src[0]->ne[0] &&
           gate->src[0]->ne[1] == up->src[0]->ne[1];
}

static bool meets(const struct ggml_cgraph *graph, int first, const struct pattern *p)
{
    struct ggml_tensor **nodes = &graph->nodes[first];
    switch (p->condition) {
    case ANY:
        return true;
    case CHAINED:
        for (int i = 1; i < p->n; i++) {
            if (!reads(nodes[i], nodes[i - 1])) {
                return false;
            }
        }
        return true;
    case VECTOR:
        return has_one_column(nodes[0]) && reads(nodes[1], nodes[0]);
    case VECTOR_PAIR:
        return has_one_column(nodes[0]) && are_twins(nodes[0], nodes[p->n / 2]);
    }
    return false;
}

static bool matches(const struct ggml_cgraph *graph, int first, const struct pattern *p)
{
    if (first + p->n > graph->n_nodes) {
        return false;
    }
    for (int i = 0; i < p->n; i++) {
        const struct ggml_tensor *node = graph->nodes[first + i];
        if (node->op != p->ops[i] || (node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) {
            return false;
        }
    }
    return meets(graph, first, p) && is_closed(graph, first, p->n, p->outputs | BIT(p->n - 1));
}

/* A product with weights per expert, and the sum over the experts: one MUL, then views of its
 * rows and additions. Returns the number of nodes, or 0. */
static int reduction_length(const struct ggml_cgraph *graph, int first)
{
    const struct ggml_tensor *weighted = graph->nodes[first];
    if (weighted->op != GGML_OP_MUL || weighted->ne[1] < 2 ||
        weighted->ne[1] > MAX_REDUCED_EXPERTS) {
        return 0;
    }
    const int n = 2 * (int)weighted->ne[1];
    if (first + n > graph->n_nodes) {
        return 0;
    }
    int views = 0;
    for (int i = 1; i < n; i++) {
        const struct ggml_tensor *node = graph->nodes[first + i];
        if (node->op == GGML_OP_VIEW && node->view_src == weighted) {
            views++;
        } else if (node->op != GGML_OP_ADD) {
            return 0;
        }
    }
    return views == weighted->ne[1] && is_closed(graph, first, n, BIT(n - 1)) ? n : 0;
}

/* Additions, or products, of which each takes the one before as its first operand. */
static int chain_length(const struct ggml_cgraph *graph, int first)
{
    const enum ggml_op op = graph->nodes[first]->op;
    if (op != GGML_OP_ADD && op != GGML_OP_MUL) {
        return 1;
    }
    int n = 1;
    while (n < MAX_CHAIN && first + n < graph->n_nodes) {
        const struct ggml_tensor *last = graph->nodes[first + n - 1];
        const struct ggml_tensor *next = graph->nodes[first + n];
        if (next->op != op || next->src[0] != last || use_count(graph, last) != 1 ||
            (last->flags & GGML_TENSOR_FLAG_OUTPUT) != 0) {
            break;
        }
        n++;
    }
    return n;
}

int ats_emu_fused_nodes(const struct ggml_cgraph *graph, int first, uint32_t *visible)
{
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        if (patterns[i].ops[0] == graph->nodes[first]->op && matches(graph, first, &patterns[i])) {
            *visible = patterns[i].outputs | BIT(patterns[i].n - 1);
            return patterns[i].n;
        }
    }
    int n = reduction_length(graph, first);
    if (n == 0) {
        n = chain_length(graph, first);
    }
    *visible = BIT(n - 1);
    return n;
}
