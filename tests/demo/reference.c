#include "reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tensor of that name. */
static const double *find(const struct net_shape *shape, const double *params, const char *name)
{
    for (size_t i = 0; i < net_tensor_count(shape); i++) {
        const struct net_tensor t = net_tensor_at(shape, i);
        if (strcmp(t.name, name) == 0) {
            return params + t.offset;
        }
    }
    fprintf(stderr, "no tensor %s\n", name);
    abort();
}

static const double *find_in_layer(const struct net_shape *shape, const double *params,
                                   size_t layer, const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%zu.%s.weight", layer, name);
    return find(shape, params, full);
}

static double *zeros(size_t n)
{
    double *x = calloc(n + 1, sizeof *x);
    if (x == NULL) {
        abort();
    }
    return x;
}

static void multiply(const double *weight, size_t rows, size_t columns, const double *x, double *y)
{
    for (size_t r = 0; r < rows; r++) {
        y[r] = 0.0;
        for (size_t c = 0; c < columns; c++) {
            y[r] += weight[r * columns + c] * x[c];
        }
    }
}

static void normalise(size_t n, const double *gain, const double *x, double *y)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    for (size_t i = 0; i < n; i++) {
        y[i] = gain[i] * x[i] / sqrt(sum / (double)n + (double)NET_NORM_EPSILON);
    }
}

static void turn_head(size_t width, size_t position, double *head)
{
    for (size_t i = 0; i < width; i += 2) {
        const double angle =
            (double)position * pow((double)NET_ROPE_BASE, -(double)i / (double)width);
        const double x = head[i];
        const double y = head[i + 1];
        head[i] = x * cos(angle) - y * sin(angle);
        head[i + 1] = x * sin(angle) + y * cos(angle);
    }
}

/* The result of head h at position t, from the keys and values of positions 0 to t. */
static void attend_head(size_t head, size_t t, const double *query, const double *keys,
                        const double *values, size_t stride, double *out)
{
    double *weights = zeros(t + 1);
    double sum = 0.0;
    for (size_t p = 0; p <= t; p++) {
        double product = 0.0;
        for (size_t i = 0; i < head; i++) {
            product += query[i] * keys[p * stride + i];
        }
        weights[p] = exp(product / sqrt((double)head));
        sum += weights[p];
    }
    for (size_t i = 0; i < head; i++) {
        out[i] = 0.0;
        for (size_t p = 0; p <= t; p++) {
            out[i] += weights[p] / sum * values[p * stride + i];
        }
    }
    free(weights);
}

static void feed_forward(const struct net_shape *s, const double *params, size_t layer, double *x)
{
    double *normed = zeros(s->width);
    double *gate = zeros(s->ff);
    double *up = zeros(s->ff);
    normalise(s->width, find_in_layer(s, params, layer, "ffn_norm"), x, normed);
    multiply(find_in_layer(s, params, layer, "ffn_gate"), s->ff, s->width, normed, gate);
    multiply(find_in_layer(s, params, layer, "ffn_up"), s->ff, s->width, normed, up);
    for (size_t i = 0; i < s->ff; i++) {
        up[i] *= gate[i] / (1.0 + exp(-gate[i]));
    }
    multiply(find_in_layer(s, params, layer, "ffn_down"), s->width, s->ff, up, normed);
    for (size_t i = 0; i < s->width; i++) {
        x[i] += normed[i];
    }
    free(normed);
    free(gate);
    free(up);
}

/* One layer over a window: stream is context x width. */
static void layer(const struct net_shape *s, const double *params, size_t index, double *stream)
{
    const size_t sharing = s->kv_heads > 0 ? s->heads / s->kv_heads : 0;
    if (sharing == 0) {
        abort(); /* no shape of these tests */
    }
    const size_t head = s->width / s->heads;
    const size_t kv = head * s->kv_heads;
    double *normed = zeros(s->width);
    double *queries = zeros((size_t)s->context * s->width);
    double *keys = zeros(s->context * kv);
    double *values = zeros(s->context * kv);
    double *attended = zeros(s->width);
    for (size_t t = 0; t < s->context; t++) {
        normalise(s->width, find_in_layer(s, params, index, "attn_norm"), stream + t * s->width,
                  normed);
        multiply(find_in_layer(s, params, index, "attn_q"), s->width, s->width, normed,
                 queries + t * s->width);
        multiply(find_in_layer(s, params, index, "attn_k"), kv, s->width, normed, keys + t * kv);
        multiply(find_in_layer(s, params, index, "attn_v"), kv, s->width, normed, values + t * kv);
        for (size_t h = 0; h < s->heads; h++) {
            turn_head(head, t, queries + t * s->width + h * head);
        }
        for (size_t h = 0; h < s->kv_heads; h++) {
            turn_head(head, t, keys + t * kv + h * head);
        }
    }
    for (size_t t = 0; t < s->context; t++) {
        for (size_t h = 0; h < s->heads; h++) {
            const size_t shared = h / sharing * head;
            attend_head(head, t, queries + t * s->width + h * head, keys + shared, values + shared,
                        kv, attended + h * head);
        }
        multiply(find_in_layer(s, params, index, "attn_output"), s->width, s->width, attended,
                 normed);
        for (size_t i = 0; i < s->width; i++) {
            stream[t * s->width + i] += normed[i];
        }
        feed_forward(s, params, index, stream + t * s->width);
    }
    free(normed);
    free(queries);
    free(keys);
    free(values);
    free(attended);
}

static double *stream_of(const struct net_shape *s, const double *params, const int32_t *tokens)
{
    double *stream = zeros((size_t)s->context * s->width);
    for (size_t t = 0; t < s->context; t++) {
        memcpy(stream + t * s->width, params + (size_t)tokens[t] * s->width,
               s->width * sizeof *stream);
    }
    for (size_t i = 0; i < s->layers; i++) {
        layer(s, params, i, stream);
    }
    return stream;
}

static void logits_of(const struct net_shape *s, const double *params, const double *stream,
                      double *logits)
{
    double *normed = zeros(s->width);
    normalise(s->width, find(s, params, "output_norm.weight"), stream, normed);
    multiply(params, s->vocab, s->width, normed, logits);
    free(normed);
}

double reference_loss(const struct net_shape *s, const double *params, const int32_t *tokens,
                      size_t windows)
{
    double *logits = zeros(s->vocab);
    double loss = 0.0;
    for (size_t w = 0; w < windows; w++, tokens += s->context + 1) {
        double *stream = stream_of(s, params, tokens);
        for (size_t t = 0; t < s->context; t++) {
            logits_of(s, params, stream + t * s->width, logits);
            double sum = 0.0;
            for (size_t i = 0; i < s->vocab; i++) {
                sum += exp(logits[i]);
            }
            loss += log(sum) - logits[tokens[t + 1]];
        }
        free(stream);
    }
    free(logits);
    return loss / (double)(windows * s->context);
}

void reference_logits(const struct net_shape *s, const double *params, const int32_t *tokens,
                      size_t at, double *logits)
{
    double *stream = stream_of(s, params, tokens);
    logits_of(s, params, stream + at * s->width, logits);
    free(stream);
}
