#include "backend/place.h"

#include "backend/residency.h"
#include "backend/unplaced.h"
#include "base/parse.h"
#include "base/replace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- taking VRAM ---- */

static bool same_block(const struct ats_unit *a, const struct ats_unit *b)
{
    return a->kind == b->kind && ats_layer_of(a->name) == ats_layer_of(b->name) &&
           ats_is_expert_weight(a->name) == ats_is_expert_weight(b->name);
}

/* What has been taken for this batch, to be given back if it has to be planned again. */
struct taking {
    struct ats_record **records;
    size_t n;
    size_t failed_bytes; /* of the allocation that the accelerator refused */
    struct ats_error reason;
};

/* Takes VRAM for the run of units [first, last) of one layer. */
static bool take_run(struct ats_device *device, const struct ats_unplaced *batch, size_t first,
                     size_t last, struct taking *t)
{
    struct ats_record **run = t->records + t->n;
    size_t n = 0;
    size_t bytes = 0;
    for (size_t i = first; i < last; i++) {
        /* an upload that failed before may have left VRAM taken */
        if (batch->where[i] != ATS_WHERE_HOST && batch->records[i]->block == NULL) {
            run[n++] = batch->records[i];
            bytes += batch->units[i].bytes;
        }
    }
    if (n > 0 && !ats_vram_take(device, run, n, &t->reason)) {
        t->failed_bytes = bytes;
        return false;
    }
    t->n += n;
    return true;
}

/* Takes VRAM for what is to live there. Stops at the first refusal, or leaves the units of that run
 * in host memory and goes on. */
static bool take_all(struct ats_device *device, const struct ats_unplaced *batch, bool goes_on,
                     struct taking *t)
{
    size_t last = 0;
    for (size_t first = 0; first < batch->n; first = last) {
        while (last < batch->n && same_block(&batch->units[first], &batch->units[last])) {
            last++;
        }
        if (take_run(device, batch, first, last, t)) {
            continue;
        }
        if (!goes_on) {
            return false;
        }
        size_t n = 0;
        for (size_t i = first; i < last; i++) {
            n += batch->where[i] != ATS_WHERE_HOST;
            batch->where[i] = ATS_WHERE_HOST;
        }
        ats_log_warn("%s: %zu tensors stay in host memory: %s\n", device->name, n, t->reason.text);
    }
    return true;
}

static void give_back(struct taking *t)
{
    for (size_t i = 0; i < t->n; i++) {
        ats_vram_release(t->records[i]);
    }
    t->n = 0;
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool upload(struct ats_stream *stream, const struct ats_unplaced *batch,
                   struct ats_error *err)
{
    enum { REPORT_EVERY_S = 2 };
    size_t total = 0;
    for (size_t i = 0; i < batch->n; i++) {
        total += batch->where[i] != ATS_WHERE_HOST ? batch->records[i]->bytes : 0;
    }
    double reported = seconds_now();
    size_t done = 0;
    for (size_t i = 0; i < batch->n; i++) {
        struct ats_record *record = batch->records[i];
        if (batch->where[i] == ATS_WHERE_HOST) {
            continue;
        }
        if (!ats_record_bring(record, ATS_ACCEL, stream->accel, err)) {
            return false;
        }
        if (batch->where[i] == ATS_WHERE_VRAM) {
            ats_record_drop_host(record);
        }
        done += record->bytes;
        if (seconds_now() - reported > REPORT_EVERY_S) {
            reported = seconds_now();
            ats_log_info("%s: uploading to VRAM, %zu %% of %zu MiB\n", stream->device->name,
                         100 * done / total, total >> 20);
        }
    }
    return true;
}

static void settle_homes(const struct ats_unplaced *batch)
{
    static const ats_side_set homes[] = {
        [ATS_WHERE_HOST] = ATS_ON(ATS_HOST),
        [ATS_WHERE_VRAM] = ATS_ON(ATS_ACCEL),
        [ATS_WHERE_BOTH] = ATS_ON_BOTH,
    };
    for (size_t i = 0; i < batch->n; i++) {
        /* state is written in place, so it has one home */
        const bool state_on_both =
            batch->units[i].kind == ATS_UNIT_STATE && batch->where[i] == ATS_WHERE_BOTH;
        batch->records[i]->home = state_on_both ? ATS_ON(ATS_ACCEL) : homes[batch->where[i]];
    }
}

/* ---- telling ---- */

static void log_summary(const struct ats_device *device, const struct ats_unplaced *batch)
{
    size_t n[2][2] = {{0}};
    size_t bytes[2][2] = {{0}};
    for (size_t i = 0; i < batch->n; i++) {
        const int kind = batch->units[i].kind == ATS_UNIT_STATE;
        const int side = batch->where[i] != ATS_WHERE_HOST;
        n[kind][side]++;
        bytes[kind][side] += batch->records[i]->bytes;
    }
    char text[5][32];
    ats_log_info("%s on %s: weights %zu in VRAM (%s), %zu in host memory (%s); state %s in VRAM, "
                 "%s in host memory; VRAM budget %s\n",
                 device->name, ggml_backend_dev_name(device->accel), n[0][1],
                 ats_format_bytes(bytes[0][1], text[0], sizeof(text[0])), n[0][0],
                 ats_format_bytes(bytes[0][0], text[1], sizeof(text[1])),
                 ats_format_bytes(bytes[1][1], text[2], sizeof(text[2])),
                 ats_format_bytes(bytes[1][0], text[3], sizeof(text[3])),
                 ats_format_bytes(device->vram_budget, text[4], sizeof(text[4])));
}

static enum ats_where where_of(const struct ats_record *record)
{
    if (record->home == ATS_ON_BOTH) {
        return ATS_WHERE_BOTH;
    }
    return record->home == ATS_ON(ATS_ACCEL) ? ATS_WHERE_VRAM : ATS_WHERE_HOST;
}

/* All records of the device that have a home, not only those placed just now. */
static bool collect_placed(const struct ats_device *device, struct ats_unplaced *batch)
{
    size_t n = 0;
    for (const struct ats_buffer *b = device->buffers; b != NULL; b = b->next) {
        n += b->n_records;
    }
    if (!ats_unplaced_make(batch, n)) {
        return false;
    }
    for (const struct ats_buffer *b = device->buffers; b != NULL; b = b->next) {
        for (size_t i = 0; i < b->n_records; i++) {
            struct ats_record *record = b->records[i];
            if (record->home == 0) {
                continue;
            }
            batch->where[batch->n] = where_of(record);
            batch->units[batch->n++] = (struct ats_unit){
                .name = record->as_made.name,
                .bytes = ats_vram_bytes(device, &record->as_made),
            };
        }
    }
    return true;
}

static bool write_file(const char *path, struct ats_staging_way staging,
                       const struct ats_unplaced *batch)
{
    struct ats_replace file;
    return ats_replace_begin(&file, path) &&
           ats_replace_end(
               &file, ats_placement_print(file.out, staging, batch->units, batch->n, batch->where));
}

/* Writes the plan for ATS_PLAN_OUT; with several devices, each to its own file. */
static void write_plan(const struct ats_device *device)
{
    if (device->config->plan_out == NULL) {
        return;
    }
    char path[4000];
    snprintf(path, sizeof(path), device == ats_device_at(0) ? "%s" : "%s.%s",
             device->config->plan_out, device->name);
    struct ats_unplaced batch;
    if (!collect_placed(device, &batch) || !write_file(path, device->staging_way, &batch)) {
        ats_log_error("cannot write the placement plan to %s (ATS_PLAN_OUT): %s\n", path,
                      strerror(errno));
    }
    ats_unplaced_free(&batch);
}

/* A plan is followed as far as the budget goes. */
static void warn_of_shortfall(const struct ats_device *device, const struct ats_unplaced *batch)
{
    size_t bytes = 0;
    const size_t n =
        ats_place_shortfall(batch->units, batch->n, &device->config->rule, batch->where, &bytes);
    if (n > 0) {
        ats_log_warn(
            "%s: the plan %s does not fit the budget: %zu tensors of %zu bytes that it has "
            "in VRAM stay in host memory; make one for this budget (`ats plan --vram`)\n",
            device->name, device->config->rule.table->source, n, bytes);
    }
}

/* What has been decided for this machine, as far as the accelerator can be used now. */
static bool apply_decision(const struct ats_unplaced *batch)
{
    bool decided = false;
    for (size_t i = 0; i < batch->n; i++) {
        decided = decided || batch->records[i]->is_decided;
    }
    for (size_t i = 0; decided && i < batch->n; i++) {
        const struct ats_record *record = batch->records[i];
        batch->where[i] =
            record->is_decided && batch->units[i].accel_can ? record->decided : ATS_WHERE_HOST;
    }
    return decided;
}

/* It was for a larger budget. */
static void drop_decision(const struct ats_unplaced *batch)
{
    for (size_t i = 0; i < batch->n; i++) {
        batch->records[i]->is_decided = false;
    }
}

/* Decides, and takes VRAM. If the accelerator has less than it said, what it gave is the budget
 * from then on, with half of what it refused, and the rule decides again. */
static bool settle_places(struct ats_device *device, struct ats_unplaced *batch, struct taking *t,
                          struct ats_error *err)
{
    enum { ATTEMPTS = 6 };
    for (int attempt = 1;; attempt++) {
        if (!apply_decision(batch) &&
            !ats_place(batch->units, batch->n, ats_device_vram_left(device), &device->config->rule,
                       batch->where, err)) {
            return false;
        }
        if (take_all(device, batch, attempt == ATTEMPTS, t)) {
            warn_of_shortfall(device, batch);
            return true;
        }
        char text[32];
        const size_t given = device->vram_used + t->failed_bytes / 2;
        device->vram_budget = given < device->vram_budget ? given : device->vram_budget;
        device->vram_wanted = device->vram_budget;
        give_back(t);
        drop_decision(batch);
        ats_log_warn("%s: %s; placed by the rule with a VRAM budget of %s\n", device->name,
                     t->reason.text, ats_format_bytes(device->vram_budget, text, sizeof(text)));
    }
}

bool ats_place_new(struct ats_stream *stream, const struct ats_description *description,
                   bool use_accel, struct ats_error *err)
{
    struct ats_device *device = stream->device;
    struct ats_unplaced batch;
    bool ok = ats_unplaced_list(device, description, use_accel, &batch);
    struct taking taking = {.records = calloc(batch.n + 1, sizeof(struct ats_record *))};
    if (!ok || taking.records == NULL) {
        ok = ats_fail(err, "out of memory");
    }
    if (ok && batch.n > 0) {
        ok = settle_places(device, &batch, &taking, err) && upload(stream, &batch, err);
        if (ok) {
            settle_homes(&batch);
            log_summary(device, &batch);
            write_plan(device);
        }
    }
    free(taking.records);
    ats_unplaced_free(&batch);
    return ok;
}
