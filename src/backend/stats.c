#include "backend/stats.h"

#include "backend/buffer.h"
#include "base/replace.h"
#include "plan/watch.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

void ats_stats_tally(const struct ats_device *device, struct ats_tally weights[ATS_SIDES],
                     struct ats_tally state[ATS_SIDES])
{
    for (const struct ats_buffer *b = device->buffers; b != NULL; b = b->next) {
        for (size_t i = 0; i < b->n_records; i++) {
            const struct ats_record *record = b->records[i];
            struct ats_tally *tallies = record->is_weight ? weights : state;
            for (int side = 0; side < ATS_SIDES; side++) {
                if ((record->home & ATS_ON(side)) != 0) {
                    tallies[side].tensors++;
                    tallies[side].bytes += record->bytes;
                }
            }
        }
    }
}

static json_int_t number(const atomic_ullong *counter)
{
    return (json_int_t)atomic_load(counter);
}

/* A side's share of a kind: {"tensors", "bytes"}. */
static json_t *describe_tally(const struct ats_tally *tally)
{
    return json_pack("{s:I, s:I}", "tensors", (json_int_t)tally->tensors, "bytes",
                     (json_int_t)tally->bytes);
}

/* What the device did: counters as they are. */
static json_t *describe_work(const struct ats_device_counters *c)
{
    const int reason = atomic_load(&c->replan_reason);
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I, s:I, s:I, s:I}, s:{s:I, s:I}, "
        "s:{s:I, "
        "s:I}, "
        "s:I, s:I, s:I, s:{s:I, s:I, s:I, s:I, s:I, s:s}}",
        "graphs", number(&c->graphs), "plans_built", number(&c->plans_built), "splits",
        number(&c->splits), "last_splits", number(&c->last_splits), "copied_to_accel_bytes",
        number(&c->copied_to_accel_bytes), "copied_to_host_bytes", number(&c->copied_to_host_bytes),
        "promoted_bytes", number(&c->promoted_bytes), "experts", "hits", number(&c->expert_hits),
        "misses", number(&c->expert_misses), "admitted_bytes", number(&c->expert_bytes),
        "used_matrices", number(&c->used_matrices), "used_rounds", number(&c->used_rounds),
        "shared_columns", number(&c->shared_columns), "prompt", "tokens", number(&c->prompt_tokens),
        "ns", number(&c->prompt_ns), "answer", "tokens", number(&c->answer_tokens), "ns",
        number(&c->answer_ns), "cpu_ns", number(&c->cpu_ns), "accel_ns", number(&c->accel_ns),
        "stalled_ns", number(&c->stalled_ns), "adapt", "replans", number(&c->replans), "rollbacks",
        number(&c->rollbacks), "replan_ns", number(&c->replan_ns), "beside", number(&c->beside),
        "beside_ns", number(&c->beside_ns), "reason",
        ats_watch_reason_text((enum ats_watch_reason)reason));
}

static json_t *describe_device(struct ats_device *device)
{
    struct ats_tally weights[ATS_SIDES] = {{0}};
    struct ats_tally state[ATS_SIDES] = {{0}};
    pthread_rwlock_rdlock(&device->lock);
    const size_t budget = device->vram_budget;
    const size_t used = device->vram_used;
    ats_stats_tally(device, weights, state);
    pthread_rwlock_unlock(&device->lock);
    json_t *summary = json_pack(
        "{s:s, s:s, s:I, s:I, s:{s:o, s:o}, s:{s:I, s:I}}", "name", device->name, "accelerator",
        ggml_backend_dev_name(device->accel), "budget_bytes", (json_int_t)budget, "used_bytes",
        (json_int_t)used, "weights", "vram", describe_tally(&weights[ATS_ACCEL]), "host",
        describe_tally(&weights[ATS_HOST]), "kv", "vram_bytes", (json_int_t)state[ATS_ACCEL].bytes,
        "host_bytes", (json_int_t)state[ATS_HOST].bytes);
    json_t *work = describe_work(&device->counters);
    const bool ok = work != NULL && json_object_update(summary, work) == 0;
    json_decref(work);
    if (!ok) {
        json_decref(summary);
        return NULL;
    }
    return summary;
}

char *ats_stats_device(ggml_backend_dev_t dev)
{
    json_t *summary = describe_device(ats_device_of(dev));
    char *text = summary == NULL ? NULL : json_dumps(summary, JSON_COMPACT);
    json_decref(summary);
    return text;
}

void ats_stats_write(const struct ats_config *config)
{
    if (config->stats == NULL) {
        return;
    }
    json_t *devices = json_array();
    for (size_t i = 0; i < ats_device_count(); i++) {
        json_array_append_new(devices, describe_device(ats_device_at(i)));
    }
    json_t *root = json_pack("{s:s, s:o}", "format", "ats-stats-1", "devices", devices);
    struct ats_replace file;
    if (root == NULL || !ats_replace_begin(&file, config->stats) ||
        !ats_replace_end(&file, json_dumpf(root, file.out, JSON_INDENT(2)) == 0)) {
        static atomic_bool told;
        if (!atomic_exchange(&told, true)) {
            ats_log_error("cannot write the summary to %s (ATS_STATS): %s\n", config->stats,
                          strerror(errno));
        }
    }
    json_decref(root);
}
