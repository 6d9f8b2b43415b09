/* Writes a described model: metadata through ggml's gguf functions, then the
 * tensors one row at a time, so that memory stays small whatever the model's size.
 *
 * The temporary file lies beside the target because only a rename within one file
 * system replaces it at once. */
#include "base/rng.h"
#include "cli/cli.h"
#include "cli/synth.h"
#include "cli/synth_blocks.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Removed by the signal handler; set while the temporary file exists. */
static char *volatile temporary_path;

static void remove_temporary(int signal_number)
{
    if (temporary_path != NULL) {
        unlink(temporary_path);
    }
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void watch_signals(void)
{
    signal(SIGINT, remove_temporary);
    signal(SIGTERM, remove_temporary);
    signal(SIGHUP, remove_temporary);
    signal(SIGXFSZ, SIG_IGN); /* a file-size limit then is an error of write() */
}

/* FNV-1a: gives every tensor a stream of its own, whatever the order. */
static uint64_t hash_name(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name != '\0'; name++) {
        hash = (hash ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* Sum of four uniform 16-bit numbers, centred: near enough to a normal distribution
 * for weights, and, unlike logarithms and cosines, the same on every libm. The
 * variance of the sum is 4 * (2^32 - 1) / 12. */
static float random_unit(struct ats_rng *rng)
{
    const float inverse_std = 1.0f / 37837.227f;
    uint64_t bits = ats_rng_next(rng);
    int32_t sum = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) +
                  (int32_t)(bits >> 32 & 0xffff) + (int32_t)(bits >> 48) - 2 * 0xffff;
    return (float)sum * inverse_std;
}

static void fill_row(float *row, const struct synth_tensor *t, struct ats_rng *rng)
{
    for (int64_t i = 0; i < t->ne[0]; i++) {
        row[i] = t->spread != 0.0f ? t->mean + t->spread * random_unit(rng) : t->mean;
    }
}

static bool write_rows(FILE *file, const struct synth_model *model, const struct synth_tensor *t,
                       struct ats_rng rng)
{
    const int64_t n_rows = t->ne[1] * t->ne[2];
    const size_t row_size = ggml_row_size(t->type, t->ne[0]);
    float *row = cli_alloc((size_t)t->ne[0] * sizeof *row);
    void *packed = cli_alloc(row_size);
    bool ok = true;
    for (int64_t r = 0; r < n_rows && ok; r++) {
        fill_row(row, t, &rng);
        if (t->mask_rows && model->row_mask != NULL && model->row_mask[r]) {
            memset(row, 0, (size_t)t->ne[0] * sizeof *row);
        }
        ggml_quantize_chunk(t->type, row, packed, 0, 1, t->ne[0], NULL);
        ok = fwrite(packed, 1, row_size, file) == row_size;
    }
    free(packed);
    free(row);
    return ok;
}

static bool write_tensor(FILE *file, const struct synth_model *model, const struct synth_tensor *t)
{
    struct ats_rng rng = {model->seed ^ hash_name(t->name)};
    if (t->is_topics) {
        return synth_topics_write(file, t->type, &model->topics, (size_t)t->ne[0], (size_t)t->ne[1],
                                  &rng);
    }
    if (model->in_blocks && synth_blocks_known(t->type)) {
        const size_t n = (size_t)(t->ne[0] / ggml_blck_size(t->type) * t->ne[1] * t->ne[2]);
        return synth_blocks_write(file, t->type, n, t->spread, &rng);
    }
    return write_rows(file, model, t, rng);
}

static const size_t alignment = GGUF_DEFAULT_ALIGNMENT;

/* A line that overwrites itself: how much has been written. */
static void show_progress(uint64_t done, uint64_t total)
{
    static int shown = -1;
    const int percent = total > 0 ? (int)(done * 100 / total) : 100;
    if (percent != shown && isatty(STDERR_FILENO)) {
        fprintf(stderr, percent < 100 ? "\rwriting %3d %%" : "\r             \r", percent);
        shown = percent;
    }
}

static bool write_zeros(FILE *file, size_t n)
{
    static const char zeros[GGUF_DEFAULT_ALIGNMENT];
    return n == 0 || fwrite(zeros, 1, n, file) == n;
}

static bool write_all(FILE *file, const struct synth_model *model)
{
    size_t meta_size = gguf_get_meta_size(model->meta);
    void *meta = cli_alloc(meta_size);
    gguf_get_meta_data(model->meta, meta);
    bool ok = fwrite(meta, 1, meta_size, file) == meta_size;
    free(meta);
    const uint64_t total = synth_bytes(model);
    uint64_t done = 0;
    for (size_t i = 0; i < model->n_tensors && ok && !model->is_meta_only; i++) {
        size_t size = gguf_get_tensor_size(model->meta, (int64_t)i);
        size_t padding = size % alignment > 0 ? alignment - size % alignment : 0;
        ok = write_tensor(file, model, &model->tensors[i]) && write_zeros(file, padding);
        done += size + padding;
        show_progress(done, total);
    }
    return ok && fflush(file) == 0 && fsync(fileno(file)) == 0;
}

uint64_t synth_bytes(const struct synth_model *model)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < model->n_tensors; i++) {
        const struct synth_tensor *t = &model->tensors[i];
        const uint64_t size =
            (uint64_t)ggml_row_size(t->type, t->ne[0]) * (uint64_t)(t->ne[1] * t->ne[2]);
        bytes += (size + alignment - 1) / alignment * alignment;
    }
    return bytes;
}

/* gguf takes names, types and shapes from ggml tensors; they need no data. */
static bool add_tensors(const struct synth_model *model, struct ats_error *err)
{
    struct ggml_init_params params = {
        .mem_size = (model->n_tensors + 1) * ggml_tensor_overhead(),
        .no_alloc = true,
    };
    struct ggml_context *ctx = ggml_init(params);
    if (ctx == NULL) {
        return ats_fail(err, "out of memory for %zu tensors", model->n_tensors);
    }
    for (size_t i = 0; i < model->n_tensors; i++) {
        const struct synth_tensor *t = &model->tensors[i];
        struct ggml_tensor *tensor = ggml_new_tensor(ctx, t->type, t->n_dims, t->ne);
        ggml_set_name(tensor, t->name);
        gguf_add_tensor(model->meta, tensor);
    }
    ggml_free(ctx);
    return true;
}

/* mkstemp makes files that only the owner reads; give them the usual mode. */
static void set_usual_mode(int fd)
{
    mode_t mask = umask(0);
    umask(mask);
    (void)fchmod(fd, 0666 & ~mask);
}

static bool write_and_rename(const struct synth_model *model, const char *path, char *temporary,
                             struct ats_error *err)
{
    int fd = mkstemp(temporary);
    if (fd < 0) {
        return ats_fail(err, "cannot write %s: %s", path, strerror(errno));
    }
    temporary_path = temporary;
    set_usual_mode(fd);
    FILE *file = fdopen(fd, "wb");
    bool ok = file != NULL && write_all(file, model);
    int write_errno = errno;
    if (file != NULL && fclose(file) != 0 && ok) {
        ok = false;
        write_errno = errno;
    }
    if (ok && rename(temporary, path) != 0) {
        ok = false;
        write_errno = errno;
    }
    if (!ok) {
        unlink(temporary);
    }
    temporary_path = NULL;
    return ok || ats_fail(err, "cannot write %s: %s", path, strerror(write_errno));
}

bool synth_write(const struct synth_model *model, const char *path, struct ats_error *err)
{
    if (!add_tensors(model, err)) {
        return false;
    }
    struct stat status;
    const bool exists = stat(path, &status) == 0;
    if (exists && !S_ISREG(status.st_mode)) {
        return ats_fail(err, "cannot write %s: it is no regular file", path);
    }
    char *target = exists ? realpath(path, NULL) : NULL; /* a link stays one */
    watch_signals();
    char *temporary = cli_format("%s.tmp-XXXXXX", target != NULL ? target : path);
    bool ok = write_and_rename(model, target != NULL ? target : path, temporary, err);
    free(temporary);
    free(target);
    return ok;
}

void synth_free(struct synth_model *model)
{
    gguf_free(model->meta);
    free(model->tensors);
    free(model->row_mask);
    *model = (struct synth_model){0};
}
