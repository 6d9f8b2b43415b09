#include "emu/report.h"

#include "base/replace.h"
#include "emu/timed.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool ats_emu_counters(ggml_backend_dev_t dev, struct ats_emu_counters *counters)
{
    if (!ats_emu_is_device(dev) || counters->version != ATS_EMU_COUNTERS_VERSION) {
        return false;
    }
    struct ats_emu_device *device = dev->context;
    if (device->timed == NULL) {
        return false;
    }
    const struct ats_emu_clock_counters clock = ats_emu_clock_counters();
    const struct ats_timeline_totals totals =
        ats_timeline_totals(ats_emu_clock_lock(), device->timed->index);
    ats_emu_clock_unlock();
    *counters = (struct ats_emu_counters){
        .version = ATS_EMU_COUNTERS_VERSION,
        .graphs = atomic_load(&device->timed->graphs),
        .launches = totals.launches,
        .copies_h2d = totals.copies[ATS_TO_DEVICE],
        .copies_d2h = totals.copies[ATS_TO_HOST],
        .bytes_h2d = totals.bytes[ATS_TO_DEVICE],
        .bytes_d2h = totals.bytes[ATS_TO_HOST],
        .compute_us = totals.compute_us,
        .copy_h2d_us = totals.copy_us[ATS_TO_DEVICE],
        .copy_d2h_us = totals.copy_us[ATS_TO_HOST],
        .scale = device->profile.scale.factor,
        .wall_us = clock.wall_us,
        .in_use_us = clock.in_use_us,
        .wait_us = clock.wait_us,
        .lag_us = clock.lag_us,
        .cpu_us = clock.cpu_us,
        .own_cpu_us = clock.own_cpu_us,
        .waits = clock.waits,
        .synchronizations = clock.synchronizations,
        .link_us = totals.link_us,
        .both_us = totals.both_us,
    };
    return true;
}

/* What the rig was scaled by; nothing of it for a device without a rig. */
static json_t *describe_scale(const struct ats_rig_scale *scale)
{
    json_t *object =
        json_pack("{s:f, s:b, s:s, s:i}", "factor", scale->factor, "given", scale->given, "type",
                  ats_family_name(scale->reference), "threads", scale->host.threads);
    if (scale->given) {
        return object;
    }
    const struct ats_host_speed *host = &scale->host;
    json_object_set_new(object, "compute_ratio", json_real(scale->compute_ratio));
    json_object_set_new(object, "host",
                        json_pack("{s:s, s:s, s:b, s:f, s:f, s:f, s:f}", "cpu", host->cpu, "ggml",
                                  host->ggml, "measured_before", host->cached, "matvec_q4_gbps",
                                  host->matvec_gbps[ATS_FAMILY_Q4], "matvec_f16_gbps",
                                  host->matvec_gbps[ATS_FAMILY_F16], "matvec_mxfp4_gbps",
                                  host->matvec_gbps[ATS_FAMILY_MXFP4], "matmul_gflops",
                                  host->matmul_gflops));
    return object;
}

char *ats_emu_describe(ggml_backend_dev_t dev)
{
    if (!ats_emu_is_device(dev)) {
        return NULL;
    }
    const struct ats_emu_device *device = dev->context;
    const struct ats_emu_profile *profile = &device->profile;
    json_t *object = json_pack("{s:s, s:s}", "profile", profile->name, "mode",
                               profile->timed ? "timed" : "exact");
    if (profile->rig[0] != '\0') {
        json_object_set_new(object, "rig", json_string(profile->rig));
        json_object_set_new(object, "scale", describe_scale(&profile->scale));
    }
    if (device->timed != NULL) {
        ats_emu_clock_look(0);
        const struct ats_timeline_load load =
            ats_timeline_load(ats_emu_clock_lock(), device->timed->index);
        ats_emu_clock_unlock();
        json_object_set_new(object, "load",
                            json_pack("{s:f, s:f}", "compute", load.compute, "link", load.link));
    }
    char *text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    return text;
}

double ats_emu_lag_ratio(const struct ats_emu_counters *counters)
{
    return counters->in_use_us > 0 ? counters->lag_us / counters->in_use_us : 0;
}

static json_t *describe(const struct ats_emu_device *device, const struct ats_emu_counters *c)
{
    return json_pack("{s:s, s:s, s:s, s:f, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
                     "name", device->name, "profile", device->profile.name, "rig",
                     device->profile.rig, "scale", c->scale, "graphs", (json_int_t)c->graphs,
                     "launches", (json_int_t)c->launches, "copies_h2d", (json_int_t)c->copies_h2d,
                     "copies_d2h", (json_int_t)c->copies_d2h, "bytes_h2d", c->bytes_h2d,
                     "bytes_d2h", c->bytes_d2h, "compute_us", c->compute_us, "copy_h2d_us",
                     c->copy_h2d_us, "copy_d2h_us", c->copy_d2h_us, "link_us", c->link_us,
                     "both_us", c->both_us);
}

static json_t *describe_clock(const struct ats_emu_counters *c)
{
    const struct ats_emu_clock_counters clock = ats_emu_clock_counters();
    const double ratio = ats_emu_lag_ratio(c);
    return json_pack("{s:f, s:f, s:f, s:f, s:{s:f, s:f, s:f}, s:f, s:f, s:I, s:I, s:f, s:f, s:b}",
                     "wall_us", c->wall_us, "in_use_us", c->in_use_us, "wait_us", c->wait_us,
                     "lag_us", c->lag_us, "lag_parts", "enter_us", clock.lag_enter_us, "wait_us",
                     clock.lag_wait_us, "read_us", clock.lag_read_us, "cpu_us", c->cpu_us,
                     "own_cpu_us", c->own_cpu_us, "waits", (json_int_t)c->waits, "synchronizations",
                     (json_int_t)c->synchronizations, "lag_ratio", ratio, "max_lag_ratio",
                     ATS_EMU_MAX_LAG, "ok", ratio <= ATS_EMU_MAX_LAG);
}

bool ats_emu_report_write(struct ats_emu_device *const *devices, size_t n, const char *path)
{
    json_t *list = json_array();
    struct ats_emu_counters c = {.version = ATS_EMU_COUNTERS_VERSION};
    for (size_t i = 0; i < n; i++) {
        if (devices[i]->timed != NULL && ats_emu_counters(&devices[i]->dev, &c)) {
            json_array_append_new(list, describe(devices[i], &c));
        }
    }
    json_t *root = json_pack("{s:s, s:o, s:o}", "format", "ats-emu-report-1", "clock",
                             describe_clock(&c), "devices", list);
    struct ats_replace file;
    const bool ok = root != NULL && ats_replace_begin(&file, path) &&
                    ats_replace_end(&file, json_dumpf(root, file.out, JSON_INDENT(2)) == 0);
    json_decref(root);
    return ok;
}

/* ---- at exit ---- */

static struct ats_emu_device *const *exit_devices;
static size_t n_exit_devices;

/* To stderr and not to ggml's log: at exit the program's own log may be gone. */
static void report_at_exit(void)
{
    struct ats_emu_counters c = {.version = ATS_EMU_COUNTERS_VERSION};
    size_t i = 0;
    while (i < n_exit_devices && !ats_emu_counters(&exit_devices[i]->dev, &c)) {
        i++;
    }
    const double ratio = ats_emu_lag_ratio(&c);
    const bool ok = ratio <= ATS_EMU_MAX_LAG;
    if (c.in_use_us > 0) {
        fprintf(stderr,
                "ats: emulated clock: devices in use %.1f ms, late by %.2f ms (%.1f %%)%s\n",
                c.in_use_us * 1e-3, c.lag_us * 1e-3, ratio * 100,
                ok ? "" : ": INVALID, the limit is 5 %: this machine is too busy or too slow");
    }
    const char *path = getenv("ATS_EMU_REPORT");
    if (path != NULL && path[0] != '\0' &&
        !ats_emu_report_write(exit_devices, n_exit_devices, path)) {
        fprintf(stderr, "ats: cannot write the report to %s (ATS_EMU_REPORT): %s\n", path,
                strerror(errno));
    }
    const char *strict = getenv("ATS_EMU_STRICT");
    if (!ok && strict != NULL && strcmp(strict, "1") == 0) {
        fflush(NULL);
        _exit(EXIT_FAILURE); /* the only way for a library to say that a run has failed */
    }
}

void ats_emu_report_at_exit(struct ats_emu_device *const *devices, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        any = any || devices[i]->timed != NULL;
    }
    if (any && exit_devices == NULL) {
        exit_devices = devices;
        n_exit_devices = n;
        atexit(report_at_exit);
    }
}
