#include "emu/contents.h"

#include "cost/routing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers that nobody computed ---- */

/* Words of the table: more than a cache line's worth of a row, less than a core's cache. */
enum { TABLE_WORDS = 1 << 14, POISON_WORD = -1 };

static uint32_t table[TABLE_WORDS];

/* Sums of uniform numbers are near enough to a normal distribution. The low halves are zero, so
 * that the bytes are finite numbers as f16 and bf16 too, and as scales of quantised blocks. */
static void fill_table(void)
{
    struct ats_rng rng = {.state = 1};
    for (size_t i = 0; i < TABLE_WORDS; i++) {
        float sum = 0;
        for (int j = 0; j < 12; j++) {
            sum += (float)(ats_rng_next(&rng) >> 40) * 0x1p-24F;
        }
        const float value = sum - 6;
        memcpy(&table[i], &value, sizeof(value));
        table[i] &= UINT32_C(0xFFFF0000);
    }
}

/* Copies of other types than integers are stored up to this size only: the first store to a page
 * takes 2 to 15 us on a virtual machine, and nothing depends on their values. */
static const size_t MAX_STORED_NUMBERS_BYTES = (size_t)64 << 10;

static bool is_integer(enum ggml_type type)
{
    return type == GGML_TYPE_I32 || type == GGML_TYPE_I64 || type == GGML_TYPE_I16;
}

bool ats_emu_is_stored(const struct ggml_tensor *tensor, size_t size)
{
    if (tensor->buffer != NULL && tensor->buffer->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS) {
        return false;
    }
    if (is_integer(tensor->type)) {
        return true;
    }
    /* bytes without a type may be integers */
    const bool may_be = tensor->type == GGML_TYPE_I8;
    return size <= (may_be ? ATS_EMU_MAX_STORED_BYTES : MAX_STORED_NUMBERS_BYTES);
}

/* What is handled at a time. */
enum { PIECE_WORDS = 1024 };

static uint32_t poison[PIECE_WORDS];

static void fill_tables(void)
{
    fill_table();
    memset(poison, ATS_EMU_POISON, sizeof(poison));
}

/* Words of poison become those of `numbers`, or 0. */
static void replace_poison(uint8_t *bytes, size_t size, const uint32_t *numbers)
{
    for (size_t i = 0; i < size / sizeof(uint32_t); i++) {
        uint32_t word;
        memcpy(&word, bytes + i * sizeof(word), sizeof(word));
        if (word == (uint32_t)POISON_WORD) {
            word = numbers == NULL ? 0 : numbers[i];
            memcpy(bytes + i * sizeof(word), &word, sizeof(word));
        }
    }
    /* a last half word of poison is NaN in 16 bits */
    for (size_t at = size / sizeof(uint32_t) * sizeof(uint32_t); at < size; at++) {
        bytes[at] = bytes[at] == ATS_EMU_POISON ? 0 : bytes[at];
    }
}

void ats_emu_read_contents(struct ats_emu_device *device, const struct ggml_tensor *tensor,
                           const uint8_t *stored, uint8_t *out, size_t size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_tables);
    const uint64_t reads = atomic_fetch_add(&device->n_reads, 1);
    struct ats_rng rng = {.state = device->profile.seed + reads * UINT64_C(0xD1342543DE82EF95)};
    const bool by_zero = is_integer(tensor->type);
    for (size_t at = 0; at < size; at += sizeof(poison)) {
        const size_t n = size - at < sizeof(poison) ? size - at : sizeof(poison);
        const uint32_t *numbers = &table[ats_rng_below(&rng, TABLE_WORDS - PIECE_WORDS)];
        const bool untouched = memcmp(stored + at, poison, n) == 0;
        if (untouched && !by_zero) {
            memcpy(out + at, numbers, n);
            continue;
        }
        memmove(out + at, stored + at, n); /* `out` may be `stored` */
        replace_poison(out + at, n, by_zero ? NULL : numbers);
    }
}

/* ---- experts ---- */

/* Of batches of up to so many tokens a router's scores say what the process chose, so that it
 * counts wherever they are sorted. */
enum { MOST_SCORED_TOKENS = 32, MOST_SCORED_USED = 64 };

struct layer {
    struct layer *next;
    uint64_t seed;
    uint64_t number;
    struct ats_routing routing;
    int32_t chosen[MOST_SCORED_TOKENS * MOST_SCORED_USED]; /* n_used of each scored token */
    int64_t n_scored; /* tokens of the latest batch; 0: none, or sorted already */
};

static pthread_mutex_t layers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct layer *layers;

void ats_emu_reset_routing(void)
{
    pthread_mutex_lock(&layers_lock);
    while (layers != NULL) {
        struct layer *layer = layers;
        layers = layer->next;
        ats_routing_free(&layer->routing);
        free(layer);
    }
    pthread_mutex_unlock(&layers_lock);
}

/* The process of a layer, made if need be; NULL if it cannot be. `n_used` 0: as before. */
static struct layer *find_layer(const struct ats_emu_profile *profile, uint64_t number,
                                int32_t n_experts, int32_t n_used)
{
    struct layer *layer = layers;
    while (layer != NULL && (layer->number != number || layer->seed != profile->seed)) {
        layer = layer->next;
    }
    if (layer != NULL && layer->routing.n_experts == n_experts &&
        (n_used == 0 || layer->routing.n_used == n_used)) {
        return layer;
    }
    if (n_used == 0) {
        n_used = n_experts < 8 ? n_experts : 8; /* nobody said */
    }
    struct ats_routing routing;
    if (!ats_routing_init(&routing, &profile->routing, profile->seed, number, n_experts, n_used)) {
        return NULL;
    }
    if (layer != NULL) {
        ats_routing_free(&layer->routing);
    } else {
        layer = calloc(1, sizeof(*layer));
        if (layer == NULL) {
            ats_routing_free(&routing);
            return NULL;
        }
        layer->next = layers;
        layers = layer;
    }
    layer->seed = profile->seed;
    layer->number = number;
    layer->routing = routing;
    layer->n_scored = 0;
    return layer;
}

/* The N of one of the names followed by N. */
static bool number_of(const struct ggml_tensor *node, const char *const *names, size_t n_names,
                      uint64_t *number)
{
    for (size_t i = 0; i < n_names; i++) {
        const size_t length = strlen(names[i]);
        if (strncmp(node->name, names[i], length) == 0) {
            *number = strtoull(node->name + length, NULL, 10);
            return true;
        }
    }
    return false;
}

static bool is_sorted_experts(const struct ggml_tensor *node, uint64_t *number)
{
    static const char *const names[] = {"ffn_moe_argsort-", "ffn_moe_topk-"};
    return number_of(node, names, sizeof(names) / sizeof(names[0]), number);
}

/* A product that scores experts, and what is made of its result before it is sorted. */
static bool is_scores(const struct ggml_tensor *node, uint64_t *number)
{
    static const char *const names[] = {"ffn_moe_logits-", "ffn_moe_logits_biased-",
                                        "ffn_moe_probs-", "ffn_moe_probs_biased-"};
    return node->type == GGML_TYPE_F32 && ggml_is_contiguous(node) &&
           number_of(node, names, sizeof(names) / sizeof(names[0]), number);
}

/* How many of each sorted row count: the width of the view that follows. */
static int32_t view_width(const struct ggml_cgraph *graph, int index)
{
    const struct ggml_tensor *sorted = graph->nodes[index];
    for (int i = index + 1; i < graph->n_nodes && i <= index + 4; i++) {
        const struct ggml_tensor *node = graph->nodes[i];
        if (node->op == GGML_OP_VIEW && (node->view_src == sorted || node->src[0] == sorted)) {
            return (int32_t)node->ne[0];
        }
    }
    return 0;
}

/* Row by row the experts of a token, and behind them all others in the order of their numbers. */
static void write_tokens(struct layer *layer, int32_t *rows, int64_t width, int64_t n_rows)
{
    struct ats_routing *routing = &layer->routing;
    const size_t n_used = (size_t)routing->n_used;
    const bool scored = layer->n_scored == n_rows;
    for (int64_t i = 0; i < n_rows; i++) {
        int32_t *row = rows + i * width;
        if (scored) {
            memcpy(row, layer->chosen + (size_t)i * n_used, n_used * sizeof(*row));
        } else {
            ats_routing_next(routing, row);
        }
        bool taken[ATS_ROUTING_MAX_EXPERTS] = {false};
        for (size_t k = 0; k < n_used; k++) {
            taken[row[k]] = true;
        }
        int64_t n = routing->n_used;
        for (int32_t e = 0; e < routing->n_experts && n < width; e++) {
            if (!taken[e]) {
                row[n++] = e;
            }
        }
    }
    layer->n_scored = 0;
}

/* The experts that the process chooses come first in the order of these numbers. */
static void write_scores(const struct layer *layer, float *scores)
{
    static const float highest = 4;
    static const float step = 0.0625F;
    const int32_t n_experts = layer->routing.n_experts;
    const int32_t n_used = layer->routing.n_used;
    for (int64_t i = 0; i < layer->n_scored; i++) {
        float *row = scores + i * n_experts;
        for (int32_t e = 0; e < n_experts; e++) {
            row[e] = -1;
        }
        for (int32_t k = 0; k < n_used; k++) {
            row[layer->chosen[i * n_used + k]] = highest - step * (float)k;
        }
    }
}

static int64_t count_rows(const struct ggml_tensor *tensor)
{
    return tensor->ne[1] * tensor->ne[2] * tensor->ne[3];
}

/* The router's product draws the experts of its tokens; what follows has the same. */
static void make_scores(struct ats_emu_device *device, const struct ggml_tensor *node,
                        uint64_t number, float *out)
{
    const int64_t n_rows = count_rows(node);
    if (n_rows > MOST_SCORED_TOKENS || node->ne[0] > ATS_ROUTING_MAX_EXPERTS) {
        return;
    }
    pthread_mutex_lock(&layers_lock);
    struct layer *layer = find_layer(&device->profile, number, (int32_t)node->ne[0], 0);
    if (layer != NULL && node->op == GGML_OP_MUL_MAT && layer->routing.n_used <= MOST_SCORED_USED) {
        for (int64_t i = 0; i < n_rows; i++) {
            ats_routing_next(&layer->routing, layer->chosen + i * layer->routing.n_used);
        }
        layer->n_scored = n_rows;
    }
    if (layer != NULL && layer->n_scored == n_rows) {
        write_scores(layer, out);
    }
    pthread_mutex_unlock(&layers_lock);
}

static void write_permutations(struct ats_emu_device *device, int32_t *rows, int64_t width,
                               int64_t n_values, int64_t n_rows)
{
    struct ats_rng rng = {.state = atomic_fetch_add(&device->n_reads, 1)};
    for (int64_t i = 0; i < n_rows; i++) {
        const int64_t first = (int64_t)ats_rng_below(&rng, (uint64_t)n_values);
        for (int64_t j = 0; j < width; j++) {
            rows[i * width + j] = (int32_t)((first + j) % n_values);
        }
    }
}

static void write_sorted(struct ats_emu_device *device, const struct ggml_cgraph *graph, int index,
                         int32_t *rows)
{
    const struct ggml_tensor *node = graph->nodes[index];
    const int64_t n_values = node->src[0]->ne[0];
    const bool whole = node->op == GGML_OP_ARGSORT;
    uint64_t number = 0;
    struct layer *layer = NULL;
    pthread_mutex_lock(&layers_lock);
    if (n_values <= ATS_ROUTING_MAX_EXPERTS && is_sorted_experts(node, &number)) {
        const int32_t n_used = whole ? view_width(graph, index) : (int32_t)node->ne[0];
        layer = find_layer(&device->profile, number, (int32_t)n_values, n_used);
    }
    if (layer != NULL) {
        write_tokens(layer, rows, node->ne[0], count_rows(node));
    }
    pthread_mutex_unlock(&layers_lock);
    if (layer == NULL) {
        write_permutations(device, rows, node->ne[0], n_values, count_rows(node));
    }
}

/* ---- results ---- */

static uint8_t *shadow_of(struct ats_emu_device *device, const struct ggml_tensor *tensor)
{
    return ats_emu_device_reach(device, tensor->data, ggml_nbytes(tensor));
}

/* Element by element through both tensors' strides; both have 32-bit elements, equally many. */
static void copy_words(const struct ggml_tensor *from, const uint8_t *src,
                       const struct ggml_tensor *to, uint8_t *dst)
{
    const int64_t n = ggml_nelements(to);
    for (int64_t i = 0; i < n; i++) {
        size_t offsets[2] = {0, 0};
        const struct ggml_tensor *const tensors[2] = {from, to};
        for (int t = 0; t < 2; t++) {
            int64_t rest = i;
            for (int d = 0; d < GGML_MAX_DIMS; d++) {
                offsets[t] += (size_t)(rest % tensors[t]->ne[d]) * tensors[t]->nb[d];
                rest /= tensors[t]->ne[d];
            }
        }
        memcpy(dst + offsets[1], src + offsets[0], sizeof(int32_t));
    }
}

static bool is_copy(enum ggml_op op)
{
    return op == GGML_OP_CPY || op == GGML_OP_DUP || op == GGML_OP_CONT;
}

static void make_integers(struct ats_emu_device *device, const struct ggml_cgraph *graph, int index,
                          uint8_t *out)
{
    const struct ggml_tensor *node = graph->nodes[index];
    if (node->op == GGML_OP_ARGSORT || node->op == GGML_OP_TOP_K) {
        write_sorted(device, graph, index, (int32_t *)(void *)out);
        return;
    }
    if (is_copy(node->op) && node->type == GGML_TYPE_I32 && node->src[0]->type == GGML_TYPE_I32) {
        const uint8_t *src = shadow_of(device, node->src[0]);
        if (src != NULL) {
            copy_words(node->src[0], src, node, out);
            return;
        }
    }
    /* the one value that is a valid index everywhere */
    if (ggml_is_contiguous(node)) {
        memset(out, 0, ggml_nbytes(node));
    }
}

/* Results that a kernel puts into pinned memory are there for the host to read. */
static void make_host_contents(struct ats_emu_device *device, const struct ggml_tensor *node)
{
    uint8_t *out = node->data;
    const size_t bytes = ggml_nbytes(node);
    const struct ggml_tensor *from = node->src[0];
    const uint8_t *stored = from != NULL ? shadow_of(device, from) : NULL;
    if (!is_copy(node->op) || stored == NULL || ggml_nbytes(from) != bytes) {
        if (ggml_is_contiguous(node)) {
            memset(out, ATS_EMU_POISON, bytes);
            ats_emu_read_contents(device, node, out, out, bytes);
        }
        return;
    }
    ats_emu_read_contents(device, node, stored, out, bytes);
}

void ats_emu_make_contents(struct ats_emu_device *device, const struct ggml_cgraph *graph,
                           int index)
{
    const struct ggml_tensor *node = graph->nodes[index];
    if (is_integer(node->type)) {
        uint8_t *out = shadow_of(device, node);
        if (out != NULL) {
            make_integers(device, graph, index, out);
        }
        return;
    }
    if (!ats_emu_memory_owns(&device->memory, node->data)) {
        make_host_contents(device, node);
        return;
    }
    uint64_t layer = 0;
    if (is_scores(node, &layer)) {
        float *scores = (float *)(void *)shadow_of(device, node);
        if (scores != NULL) {
            make_scores(device, node, layer, scores);
        }
        return;
    }
    /* copies by the compute queue are copies: small ones are stored */
    if (is_copy(node->op) && !ats_emu_memory_owns(&device->memory, node->src[0]->data)) {
        const size_t bytes = ggml_nbytes(node);
        uint8_t *out = shadow_of(device, node);
        const uint8_t *src = shadow_of(device, node->src[0]);
        if (out != NULL && src != NULL && bytes <= ATS_EMU_MAX_STORED_BYTES &&
            node->type == node->src[0]->type && ggml_nbytes(node->src[0]) == bytes) {
            memcpy(out, src, bytes);
        }
    }
}

int64_t ats_emu_count_experts(struct ats_emu_device *device, const struct ggml_tensor *ids,
                              int64_t n_experts)
{
    uint64_t seen[ATS_ROUTING_MAX_EXPERTS / 64] = {0};
    const uint8_t *data = shadow_of(device, ids);
    if (data == NULL || n_experts > ATS_ROUTING_MAX_EXPERTS) {
        return 0;
    }
    int64_t count = 0;
    for (int64_t row = 0; row < ids->ne[1]; row++) {
        for (int64_t i = 0; i < ids->ne[0]; i++) {
            int32_t id;
            memcpy(&id, data + (size_t)row * ids->nb[1] + (size_t)i * ids->nb[0], sizeof(id));
            if (id < 0 || id >= n_experts) {
                return 0;
            }
            count += (seen[id / 64] >> (id % 64) & 1) == 0;
            seen[id / 64] |= UINT64_C(1) << (id % 64);
        }
    }
    return count;
}
