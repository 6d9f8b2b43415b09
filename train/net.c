#include "net.h"

#include "attention.h"
#include "layers.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROWS_PER_JOB = 128, /* of work that goes row by row */
    LOGIT_ROWS = 512,   /* rows whose logits exist at once: 8 MiB with 4096 tokens */
    BUFFER_ALIGN = 64,
};

/* What a layer computes and its way back needs; a row per token. */
struct layer_state {
    float *in; /* residual stream before the layer */
    float *attn_normed;
    float *attn_scale;
    float *qkv;
    float *probs; /* per window and query head: context x context */
    float *attended;
    float *middle; /* residual stream after attention */
    float *ff_normed;
    float *ff_scale;
    float *gate_up;
    float *hidden;
};

struct layer_params { /* offsets into parameters and gradients; q, k, v and gate, up are adjacent */
    size_t attn_norm, qkv, attn_output, ff_norm, gate_up, down;
};

struct net {
    struct net_shape shape;
    size_t windows;
    size_t rows; /* windows in use x context */
    struct pool *pool;
    struct matmul_space **spaces;
    struct layer_params *at;
    size_t final_norm;
    struct layer_state *layers;
    float *out; /* residual stream after the last layer */
    float *normed;
    float *scale;
    float *logits;
    float *turns;
    /* the way back */
    float *d_stream;
    float *d_normed;
    float *d_qkv;
    float *d_attended;
    float *d_gate_up;
    float *d_hidden;
    float *dgain;     /* a row per job */
    double *loss;     /* a sum per job */
    float **scratch;  /* per worker */
    int32_t *targets; /* per row */
    /* of the run in progress */
    const float *params;
    float *grads;
};

static size_t qkv_width(const struct net_shape *s)
{
    return (size_t)s->width / s->heads * (s->heads + 2 * (size_t)s->kv_heads);
}

static size_t row_jobs(size_t rows)
{
    return (rows + ROWS_PER_JOB - 1) / ROWS_PER_JOB;
}

static size_t rows_of_job(const struct net *net, size_t job)
{
    const size_t left = net->rows - job * ROWS_PER_JOB;
    return left < ROWS_PER_JOB ? left : ROWS_PER_JOB;
}

/* Adds a buffer of n floats to what is wrong if memory is short. */
static float *buffer(size_t n, bool *ok)
{
    const size_t bytes = (n * sizeof(float) + BUFFER_ALIGN - 1) / BUFFER_ALIGN * BUFFER_ALIGN;
    float *floats = aligned_alloc(BUFFER_ALIGN, bytes);
    *ok = *ok && floats != NULL;
    return floats;
}

static void allocate_layer(const struct net *net, struct layer_state *layer, bool *ok)
{
    const struct net_shape *s = &net->shape;
    const size_t rows = net->windows * s->context;
    layer->in = buffer(rows * s->width, ok);
    layer->attn_normed = buffer(rows * s->width, ok);
    layer->attn_scale = buffer(rows, ok);
    layer->qkv = buffer(rows * qkv_width(s), ok);
    layer->probs = buffer(rows * s->heads * s->context, ok);
    layer->attended = buffer(rows * s->width, ok);
    layer->middle = buffer(rows * s->width, ok);
    layer->ff_normed = buffer(rows * s->width, ok);
    layer->ff_scale = buffer(rows, ok);
    layer->gate_up = buffer(rows * 2 * s->ff, ok);
    layer->hidden = buffer(rows * s->ff, ok);
}

static bool allocate(struct net *net)
{
    const struct net_shape *s = &net->shape;
    const size_t rows = net->windows * s->context;
    bool ok = true;
    for (size_t i = 0; i < s->layers; i++) {
        allocate_layer(net, &net->layers[i], &ok);
    }
    net->out = buffer(rows * s->width, &ok);
    net->normed = buffer(rows * s->width, &ok);
    net->scale = buffer(rows, &ok);
    net->logits = buffer((size_t)LOGIT_ROWS * s->vocab, &ok);
    net->turns = buffer((size_t)s->context * (s->width / s->heads), &ok);
    net->d_stream = buffer(rows * s->width, &ok);
    net->d_normed = buffer(rows * s->width, &ok);
    net->d_qkv = buffer(rows * qkv_width(s), &ok);
    net->d_attended = buffer(rows * s->width, &ok);
    net->d_gate_up = buffer(rows * 2 * s->ff, &ok);
    net->d_hidden = buffer(rows * s->ff, &ok);
    net->dgain = buffer(row_jobs(rows) * s->width, &ok);
    for (size_t i = 0; i < pool_workers(net->pool); i++) {
        net->scratch[i] = buffer((size_t)ATTEND_BLOCK * s->context, &ok);
        net->spaces[i] = matmul_space_new();
        ok = ok && net->spaces[i] != NULL;
    }
    return ok;
}

static void find_params(struct net *net)
{
    enum { FIRST_OF_LAYER = 1, PER_LAYER = 9 };
    for (size_t i = 0; i < net->shape.layers; i++) {
        const size_t first = FIRST_OF_LAYER + i * PER_LAYER;
        net->at[i] = (struct layer_params){
            .attn_norm = net_tensor_at(&net->shape, first).offset,
            .qkv = net_tensor_at(&net->shape, first + 1).offset,
            .attn_output = net_tensor_at(&net->shape, first + 4).offset,
            .ff_norm = net_tensor_at(&net->shape, first + 5).offset,
            .gate_up = net_tensor_at(&net->shape, first + 6).offset,
            .down = net_tensor_at(&net->shape, first + 8).offset,
        };
    }
    net->final_norm = net_tensor_at(&net->shape, net_tensor_count(&net->shape) - 1).offset;
}

struct net *net_new(const struct net_shape *shape, size_t windows, struct pool *pool,
                    struct ats_error *err)
{
    if (!net_shape_check(shape, err)) {
        return NULL;
    }
    const size_t workers = pool_workers(pool);
    struct net *net = calloc(1, sizeof *net);
    if (net != NULL) {
        net->shape = *shape;
        net->windows = windows;
        net->pool = pool;
        net->at = calloc(shape->layers, sizeof *net->at);
        net->layers = calloc(shape->layers, sizeof *net->layers);
        net->spaces = calloc(workers, sizeof(void *));
        net->scratch = calloc(workers, sizeof *net->scratch);
        net->targets = calloc(windows * shape->context, sizeof *net->targets);
        net->loss = calloc(row_jobs(windows * shape->context), sizeof *net->loss);
    }
    if (net == NULL || net->at == NULL || net->layers == NULL || net->spaces == NULL ||
        net->scratch == NULL || net->targets == NULL || net->loss == NULL || !allocate(net)) {
        ats_fail(err, "out of memory for %zu windows of %u tokens; use fewer", windows,
                 shape->context);
        net_free(net);
        return NULL;
    }
    find_params(net);
    rope_turns(shape->context, shape->width / shape->heads, net->turns);
    return net;
}

static void free_layer(struct layer_state *layer)
{
    free(layer->in);
    free(layer->attn_normed);
    free(layer->attn_scale);
    free(layer->qkv);
    free(layer->probs);
    free(layer->attended);
    free(layer->middle);
    free(layer->ff_normed);
    free(layer->ff_scale);
    free(layer->gate_up);
    free(layer->hidden);
}

void net_free(struct net *net)
{
    if (net == NULL) {
        return;
    }
    for (size_t i = 0; net->layers != NULL && i < net->shape.layers; i++) {
        free_layer(&net->layers[i]);
    }
    for (size_t i = 0; i < pool_workers(net->pool); i++) {
        if (net->scratch != NULL) {
            free(net->scratch[i]);
        }
        if (net->spaces != NULL) {
            matmul_space_free(net->spaces[i]);
        }
    }
    free(net->out);
    free(net->normed);
    free(net->scale);
    free(net->logits);
    free(net->turns);
    free(net->d_stream);
    free(net->d_normed);
    free(net->d_qkv);
    free(net->d_attended);
    free(net->d_gate_up);
    free(net->d_hidden);
    free(net->dgain);
    free(net->loss);
    free(net->scratch);
    free(net->spaces);
    free(net->targets);
    free(net->layers);
    free(net->at);
    free(net);
}

/* y = x W^T for all rows; W has `out` rows of `in`. */
static void linear(struct net *net, const float *x, size_t in, size_t weight, size_t out, float *y,
                   bool add)
{
    matmul(net->pool, net->spaces, net->rows, out, in, matrix_rows(x, in),
           matrix_transposed(net->params + weight, in), y, out, add);
}

/* dx = dy W, and dW = dy^T x. */
static void linear_back(struct net *net, const float *x, size_t in, size_t weight, size_t out,
                        const float *dy, float *dx)
{
    matmul(net->pool, net->spaces, net->rows, in, out, matrix_rows(dy, out),
           matrix_rows(net->params + weight, in), dx, in, false);
    matmul(net->pool, net->spaces, out, in, net->rows, matrix_transposed(dy, out),
           matrix_rows(x, in), net->grads + weight, in, false);
}

/* One piece of work that goes row by row: which buffers it uses depends on the job. */
struct rows_work {
    struct net *net;
    const float *x;
    const float *gain;
    float *scale;
    const float *dy;
    float *y;
    float direction;
};

static void norm_rows(void *context, size_t job, size_t worker)
{
    (void)worker;
    struct rows_work *w = context;
    const size_t width = w->net->shape.width;
    const size_t first = job * ROWS_PER_JOB;
    rms_norm(rows_of_job(w->net, job), width, w->x + first * width, w->gain, w->y + first * width,
             w->scale + first);
}

static void norm(struct net *net, const float *x, size_t gain, float *y, float *scale)
{
    struct rows_work w = {.net = net, .x = x, .gain = net->params + gain, .y = y, .scale = scale};
    pool_run(net->pool, row_jobs(net->rows), norm_rows, &w);
}

static void norm_back_rows(void *context, size_t job, size_t worker)
{
    (void)worker;
    struct rows_work *w = context;
    const size_t width = w->net->shape.width;
    const size_t first = job * ROWS_PER_JOB;
    float *dgain = w->net->dgain + job * width;
    memset(dgain, 0, width * sizeof *dgain);
    rms_norm_back(rows_of_job(w->net, job), width, w->x + first * width, w->gain, w->scale + first,
                  w->dy + first * width, w->y + first * width, dgain);
}

/* dx += the norm's gradient. */
static void norm_back(struct net *net, const float *x, size_t gain, float *scale, const float *dy,
                      float *dx)
{
    struct rows_work w = {
        .net = net, .x = x, .gain = net->params + gain, .scale = scale, .dy = dy, .y = dx};
    const size_t width = net->shape.width;
    pool_run(net->pool, row_jobs(net->rows), norm_back_rows, &w);
    float *sum = net->grads + gain;
    memset(sum, 0, width * sizeof *sum);
    for (size_t job = 0; job < row_jobs(net->rows); job++) {
        add_to(width, sum, net->dgain + job * width);
    }
}

static void turn_rows(void *context, size_t job, size_t worker)
{
    (void)worker;
    struct rows_work *w = context;
    const struct net_shape *s = &w->net->shape;
    const size_t first = job * ROWS_PER_JOB;
    rope(first, rows_of_job(w->net, job), qkv_width(s), (size_t)s->heads + s->kv_heads,
         s->width / s->heads, s->context, w->net->turns, w->direction, w->y + first * qkv_width(s));
}

static void turn(struct net *net, float *qkv, float direction)
{
    struct rows_work w = {.net = net, .y = qkv, .direction = direction};
    pool_run(net->pool, row_jobs(net->rows), turn_rows, &w);
}

static void swiglu_rows(void *context, size_t job, size_t worker)
{
    (void)worker;
    struct rows_work *w = context;
    const size_t ff = w->net->shape.ff;
    const size_t first = job * ROWS_PER_JOB;
    swiglu(rows_of_job(w->net, job), ff, w->x + first * 2 * ff, w->y + first * ff);
}

static void swiglu_back_rows(void *context, size_t job, size_t worker)
{
    (void)worker;
    struct rows_work *w = context;
    const size_t ff = w->net->shape.ff;
    const size_t first = job * ROWS_PER_JOB;
    swiglu_back(rows_of_job(w->net, job), ff, w->x + first * 2 * ff, w->dy + first * ff,
                w->y + first * 2 * ff);
}

struct attention_work {
    struct net *net;
    struct layer_state *layer;
};

static void attend_window(void *context, size_t job, size_t worker)
{
    struct attention_work *w = context;
    const struct net_shape *s = &w->net->shape;
    const size_t first = job / s->kv_heads * s->context;
    attend(s, job % s->kv_heads, w->net->spaces[worker], w->layer->qkv + first * qkv_width(s),
           w->layer->probs + first * s->heads * s->context, w->layer->attended + first * s->width);
}

static void attend_window_back(void *context, size_t job, size_t worker)
{
    struct attention_work *w = context;
    struct net *net = w->net;
    const struct net_shape *s = &net->shape;
    const size_t first = job / s->kv_heads * s->context;
    attend_back(s, job % s->kv_heads, net->spaces[worker], w->layer->qkv + first * qkv_width(s),
                w->layer->probs + first * s->heads * s->context,
                w->layer->attended + first * s->width, net->d_attended + first * s->width,
                net->scratch[worker], net->d_qkv + first * qkv_width(s));
}

static size_t attention_jobs(const struct net *net)
{
    return net->rows / net->shape.context * net->shape.kv_heads;
}

static void layer_forward(struct net *net, size_t index, float *out)
{
    const struct net_shape *s = &net->shape;
    const struct layer_params *at = &net->at[index];
    struct layer_state *l = &net->layers[index];
    const size_t stream_bytes = net->rows * s->width * sizeof(float);
    norm(net, l->in, at->attn_norm, l->attn_normed, l->attn_scale);
    linear(net, l->attn_normed, s->width, at->qkv, qkv_width(s), l->qkv, false);
    turn(net, l->qkv, 1.0f);
    struct attention_work attention = {net, l};
    pool_run(net->pool, attention_jobs(net), attend_window, &attention);
    memcpy(l->middle, l->in, stream_bytes);
    linear(net, l->attended, s->width, at->attn_output, s->width, l->middle, true);
    norm(net, l->middle, at->ff_norm, l->ff_normed, l->ff_scale);
    linear(net, l->ff_normed, s->width, at->gate_up, 2 * (size_t)s->ff, l->gate_up, false);
    struct rows_work gate = {.net = net, .x = l->gate_up, .y = l->hidden};
    pool_run(net->pool, row_jobs(net->rows), swiglu_rows, &gate);
    memcpy(out, l->middle, stream_bytes);
    linear(net, l->hidden, s->ff, at->down, s->width, out, true);
}

/* d_stream: from the gradient after the layer to that before it. */
static void layer_back(struct net *net, size_t index)
{
    const struct net_shape *s = &net->shape;
    const struct layer_params *at = &net->at[index];
    struct layer_state *l = &net->layers[index];
    linear_back(net, l->hidden, s->ff, at->down, s->width, net->d_stream, net->d_hidden);
    struct rows_work gate = {.net = net, .x = l->gate_up, .dy = net->d_hidden, .y = net->d_gate_up};
    pool_run(net->pool, row_jobs(net->rows), swiglu_back_rows, &gate);
    linear_back(net, l->ff_normed, s->width, at->gate_up, 2 * (size_t)s->ff, net->d_gate_up,
                net->d_normed);
    norm_back(net, l->middle, at->ff_norm, l->ff_scale, net->d_normed, net->d_stream);
    linear_back(net, l->attended, s->width, at->attn_output, s->width, net->d_stream,
                net->d_attended);
    struct attention_work attention = {net, l};
    pool_run(net->pool, attention_jobs(net), attend_window_back, &attention);
    turn(net, net->d_qkv, -1.0f);
    linear_back(net, l->attn_normed, s->width, at->qkv, qkv_width(s), net->d_qkv, net->d_normed);
    norm_back(net, l->in, at->attn_norm, l->attn_scale, net->d_normed, net->d_stream);
}

/* Position t of window w is row w x context + t and predicts the token after it. */
static void embed(struct net *net, const int32_t *tokens, size_t window_tokens)
{
    const struct net_shape *s = &net->shape;
    for (size_t row = 0; row < net->rows; row++) {
        const int32_t *at = tokens + row / s->context * window_tokens + row % s->context;
        memcpy(net->layers[0].in + row * s->width, net->params + (size_t)at[0] * s->width,
               s->width * sizeof(float));
        if (window_tokens > s->context) {
            net->targets[row] = at[1];
        }
    }
}

static void forward(struct net *net, const float *params, const int32_t *tokens,
                    size_t window_tokens, size_t windows)
{
    net->rows = windows * net->shape.context;
    net->params = params;
    embed(net, tokens, window_tokens);
    for (size_t i = 0; i < net->shape.layers; i++) {
        layer_forward(net, i, i + 1 < net->shape.layers ? net->layers[i + 1].in : net->out);
    }
    norm(net, net->out, net->final_norm, net->normed, net->scale);
}

struct loss_work {
    struct net *net;
    size_t first; /* row of the first logits */
    size_t rows;
};

static void loss_rows(void *context, size_t job, size_t worker)
{
    (void)worker;
    const struct loss_work *w = context;
    struct net *net = w->net;
    const size_t begin = job * ROWS_PER_JOB;
    const size_t n = w->rows - begin < ROWS_PER_JOB ? w->rows - begin : ROWS_PER_JOB;
    net->loss[job] = cross_entropy(n, net->shape.vocab, net->logits + begin * net->shape.vocab,
                                   net->targets + w->first + begin, 1.0f / (float)net->rows);
}

/* The output layer and the loss, a block of rows at a time; with gradients, d_normed and the
 * embedding's gradient as output matrix. */
static double output_loss(struct net *net)
{
    const size_t width = net->shape.width;
    const size_t vocab = net->shape.vocab;
    double loss = 0.0;
    for (size_t first = 0; first < net->rows; first += LOGIT_ROWS) {
        const size_t rows = net->rows - first < LOGIT_ROWS ? net->rows - first : LOGIT_ROWS;
        const float *x = net->normed + first * width;
        matmul(net->pool, net->spaces, rows, vocab, width, matrix_rows(x, width),
               matrix_transposed(net->params, width), net->logits, vocab, false);
        struct loss_work w = {net, first, rows};
        pool_run(net->pool, row_jobs(rows), loss_rows, &w);
        for (size_t job = 0; job < row_jobs(rows); job++) {
            loss += net->loss[job];
        }
        if (net->grads == NULL) {
            continue;
        }
        matmul(net->pool, net->spaces, rows, width, vocab, matrix_rows(net->logits, vocab),
               matrix_rows(net->params, width), net->d_normed + first * width, width, false);
        matmul(net->pool, net->spaces, vocab, width, rows, matrix_transposed(net->logits, vocab),
               matrix_rows(x, width), net->grads, width, first > 0);
    }
    return loss / (double)net->rows;
}

double net_loss(struct net *net, const float *params, const int32_t *tokens, size_t windows,
                float *grads)
{
    const struct net_shape *s = &net->shape;
    const size_t window_tokens = (size_t)s->context + 1;
    forward(net, params, tokens, window_tokens, windows);
    net->grads = grads;
    const double loss = output_loss(net);
    if (grads == NULL) {
        return loss;
    }
    memset(net->d_stream, 0, net->rows * s->width * sizeof(float));
    norm_back(net, net->out, net->final_norm, net->scale, net->d_normed, net->d_stream);
    for (size_t i = s->layers; i-- > 0;) {
        layer_back(net, i);
    }
    for (size_t row = 0; row < net->rows; row++) {
        const int32_t token = tokens[row / s->context * window_tokens + row % s->context];
        add_to(s->width, grads + (size_t)token * s->width, net->d_stream + row * s->width);
    }
    return loss;
}

void net_logits(struct net *net, const float *params, const int32_t *tokens, float *logits)
{
    const struct net_shape *s = &net->shape;
    forward(net, params, tokens, s->context, 1);
    matmul(net->pool, net->spaces, s->context, s->vocab, s->width,
           matrix_rows(net->normed, s->width), matrix_transposed(params, s->width), logits,
           s->vocab, false);
}
