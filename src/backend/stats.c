#include "backend/stats.h"

#include "backend/buffer.h"
#include "base/replace.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

struct tally {
    json_int_t tensors;
    json_int_t bytes;
};

/* What lives in VRAM and what in host memory, by the homes of the records. */
static void count(struct ats_device *device, struct tally weights[ATS_SIDES],
                  struct tally state[ATS_SIDES], json_int_t *budget, json_int_t *used)
{
    pthread_rwlock_rdlock(&device->lock);
    *budget = (json_int_t)device->vram_budget;
    *used = (json_int_t)device->vram_used;
    for (const struct ats_buffer *b = device->buffers; b != NULL; b = b->next) {
        for (size_t i = 0; i < b->n_records; i++) {
            const struct ats_record *record = b->records[i];
            struct tally *tallies = record->is_weight ? weights : state;
            for (int side = 0; side < ATS_SIDES; side++) {
                if ((record->home & ATS_ON(side)) != 0) {
                    tallies[side].tensors++;
                    tallies[side].bytes += (json_int_t)record->bytes;
                }
            }
        }
    }
    pthread_rwlock_unlock(&device->lock);
}

static json_int_t number(atomic_ullong *counter)
{
    return (json_int_t)atomic_load(counter);
}

static json_t *describe_device(struct ats_device *device)
{
    struct tally weights[ATS_SIDES] = {{0}};
    struct tally state[ATS_SIDES] = {{0}};
    json_int_t budget = 0;
    json_int_t used = 0;
    count(device, weights, state, &budget, &used);
    struct ats_device_counters *c = &device->counters;
    return json_pack(
        "{s:s, s:s, s:I, s:I, s:{s:{s:I,s:I}, s:{s:I,s:I}}, s:{s:I, s:I}, s:I, s:I, "
        "s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I}, s:{s:I, s:I, s:I}}",
        "name", device->name, "accelerator", ggml_backend_dev_name(device->accel), "budget_bytes",
        budget, "used_bytes", used, "weights", "vram", "tensors", weights[ATS_ACCEL].tensors,
        "bytes", weights[ATS_ACCEL].bytes, "host", "tensors", weights[ATS_HOST].tensors, "bytes",
        weights[ATS_HOST].bytes, "kv", "vram_bytes", state[ATS_ACCEL].bytes, "host_bytes",
        state[ATS_HOST].bytes, "graphs", number(&c->graphs), "plans_built", number(&c->plans_built),
        "splits", number(&c->splits), "last_splits", number(&c->last_splits),
        "copied_to_accel_bytes", number(&c->copied_to_accel_bytes), "copied_to_host_bytes",
        number(&c->copied_to_host_bytes), "promoted_bytes", number(&c->promoted_bytes), "experts",
        "hits", number(&c->expert_hits), "misses", number(&c->expert_misses), "admitted_bytes",
        number(&c->expert_bytes), "adapt", "replans", number(&c->replans), "rollbacks",
        number(&c->rollbacks), "replan_ns", number(&c->replan_ns));
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
