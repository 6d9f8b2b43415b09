#include "run.h"

#include "base/replace.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool allocate(struct run *run, struct ats_error *err)
{
    run->n_params = net_param_count(&run->options.shape);
    run->params = calloc(run->n_params, sizeof(float));
    run->mean = calloc(run->n_params, sizeof(float));
    run->square = calloc(run->n_params, sizeof(float));
    if (run->params == NULL || run->mean == NULL || run->square == NULL) {
        const size_t n = run->n_params;
        run_free(run);
        return ats_fail(err, "out of memory for %zu parameters", n);
    }
    return true;
}

bool run_new(struct run *run, const struct run_options *options, struct ats_error *err)
{
    *run = (struct run){.options = *options};
    if (!net_shape_check(&options->shape, err) || !allocate(run, err)) {
        return false;
    }
    net_init_params(&options->shape, options->seed, run->params);
    return true;
}

bool run_add_point(struct run *run, struct run_point point, struct ats_error *err)
{
    struct run_point *points = realloc(run->points, (run->n_points + 1) * sizeof *points);
    if (points == NULL) {
        return ats_fail(err, "out of memory for the loss curve");
    }
    run->points = points;
    run->points[run->n_points++] = point;
    return true;
}

/* The file's head; the arrays follow in the order of their mention. */
struct head {
    char magic[8];
    struct run_options options;
    uint64_t step;
    uint64_t n_params; /* parameters, means, mean squares */
    uint64_t n_points;
};

static const char magic[8] = "ats-run1";

bool run_save(const struct run *run, const char *path, struct ats_error *err)
{
    struct head head;
    memset(&head, 0, sizeof head); /* padding too: the file has only what is meant */
    memcpy(head.magic, magic, sizeof magic);
    head.options = run->options;
    head.step = run->step;
    head.n_params = run->n_params;
    head.n_points = run->n_points;
    struct ats_replace file;
    if (!ats_replace_begin(&file, path)) {
        return ats_fail(err, "cannot write %s: %s", path, strerror(errno));
    }
    const size_t n = run->n_params;
    const bool ok = fwrite(&head, sizeof head, 1, file.out) == 1 &&
                    fwrite(run->params, sizeof(float), n, file.out) == n &&
                    fwrite(run->mean, sizeof(float), n, file.out) == n &&
                    fwrite(run->square, sizeof(float), n, file.out) == n &&
                    (run->n_points == 0 || fwrite(run->points, sizeof *run->points, run->n_points,
                                                  file.out) == run->n_points);
    return ats_replace_end(&file, ok) ||
           ats_fail(err, "cannot write %s: %s", path, strerror(errno));
}

/* Sizes that no run of ours has would only ask for absurd amounts of memory. */
static bool head_is_sane(const struct head *head)
{
    const struct net_shape *s = &head->options.shape;
    return memcmp(head->magic, magic, sizeof magic) == 0 && net_shape_check(s, NULL) &&
           s->vocab <= 1u << 18 && s->width <= 1u << 13 && s->layers <= 256 && s->ff <= 1u << 15 &&
           head->n_params == net_param_count(s) && head->n_points <= RUN_MAX_POINTS;
}

static bool read_arrays(struct run *run, FILE *file)
{
    const size_t n = run->n_params;
    return fread(run->params, sizeof(float), n, file) == n &&
           fread(run->mean, sizeof(float), n, file) == n &&
           fread(run->square, sizeof(float), n, file) == n &&
           fread(run->points, sizeof *run->points, run->n_points, file) == run->n_points &&
           fgetc(file) == EOF;
}

bool run_load(struct run *run, const char *path, struct ats_error *err)
{
    *run = (struct run){0};
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return ats_fail(err, "cannot read %s: %s", path, strerror(errno));
    }
    struct head head;
    bool ok = fread(&head, sizeof head, 1, file) == 1 && head_is_sane(&head);
    if (!ok) {
        ats_fail(err, "%s is no checkpoint of this program", path);
    } else {
        run->options = head.options;
        run->step = head.step;
        ok = allocate(run, err);
    }
    if (ok) {
        run->n_points = head.n_points;
        run->points = calloc(run->n_points + 1, sizeof *run->points);
        ok = run->points != NULL && read_arrays(run, file);
        if (!ok) {
            run_free(run);
            ats_fail(err, "%s is damaged: its length is wrong", path);
        }
    }
    fclose(file);
    return ok;
}

static bool same_shape(const struct net_shape *a, const struct net_shape *b)
{
    return a->vocab == b->vocab && a->width == b->width && a->layers == b->layers &&
           a->heads == b->heads && a->kv_heads == b->kv_heads && a->ff == b->ff &&
           a->context == b->context;
}

static bool same_rates(const struct adamw *a, const struct adamw *b)
{
    return a->peak_rate == b->peak_rate && a->beta1 == b->beta1 && a->beta2 == b->beta2 &&
           a->epsilon == b->epsilon && a->decay == b->decay && a->clip == b->clip &&
           a->warm_up_steps == b->warm_up_steps;
}

/* True if at `step` the rate has not been less than its peak because of the end. */
static bool end_is_open(const struct adamw *adamw, size_t step)
{
    return step + adamw->fall_steps <= adamw->steps;
}

bool run_continue(struct run *run, const struct run_options *given, struct ats_error *err)
{
    const struct run_options *own = &run->options;
    const struct adamw *a = &own->adamw;
    const struct adamw *b = &given->adamw;
    if (!same_shape(&own->shape, &given->shape)) {
        return ats_fail(err, "the run has another shape of the model");
    }
    if (own->windows != given->windows || !same_rates(a, b)) {
        return ats_fail(err, "the run has other rates or another number of windows per step");
    }
    if (own->seed != given->seed) {
        return ats_fail(err, "the run has another seed");
    }
    if (own->text != given->text) {
        return ats_fail(err, "the run has another text or tokenizer");
    }
    const bool changes = a->steps != b->steps || a->fall_steps != b->fall_steps;
    if (changes && !(end_is_open(a, run->step) && end_is_open(b, run->step))) {
        return ats_fail(err,
                        "the run of %u steps is at step %zu; too late to make it one of %u, whose "
                        "rate falls from step %u on",
                        a->steps, run->step, b->steps, b->steps - b->fall_steps);
    }
    run->options.adamw = *b;
    return true;
}

void run_free(struct run *run)
{
    free(run->params);
    free(run->mean);
    free(run->square);
    free(run->points);
    *run = (struct run){0};
}
