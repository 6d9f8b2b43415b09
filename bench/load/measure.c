#include "load/measure.h"

#include "load/competitor.h"

/* the program links to ggml itself: no redirection of its functions */
#define ATS_GGML_BIND_IMPLEMENTATION
#include "emu/emu.h"

#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* A ramp is told to the other process in steps of this size. */
static const double RAMP_STEP_PERCENT = 0.1;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* CPU time of this thread. */
static double own_cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* ---- load of the accelerator ---- */

typedef bool (*set_load_t)(ggml_backend_dev_t, double, double, struct ats_error *);

/* Of all emulated devices. False if there is none, or one refuses. */
static bool set_accel_load(double compute, double link, struct ats_error *err)
{
    bool any = false;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        void *address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device),
                                                          "ats_emu_set_load");
        set_load_t set_load = NULL;
        memcpy(&set_load, &address, sizeof(address));
        if (set_load != NULL && !set_load(device, compute, link, err)) {
            return false;
        }
        any = any || set_load != NULL;
    }
    return any || ats_fail(err, "there is no emulated accelerator: load on a real one has to come "
                                "from another program");
}

/* ---- one phase ---- */

struct progress {
    const struct load_run *run;
    const struct load_phase *phase;
    double start_s; /* of the first phase */
    struct competitor competitor;
    double cpu_percent; /* as last told */
    json_t *begins;
    json_t *times;
    json_t *goods;
    uint64_t n_tokens;
    uint64_t n_good;
    double core_sum;
};

/* The load that the phase has after `seconds` of it. */
static bool follow_ramp(struct progress *p, double seconds, struct ats_error *err)
{
    const struct load_phase *phase = p->phase;
    const double share = phase->seconds > 0 ? fmin(seconds / phase->seconds, 1)
                                            : (double)p->n_tokens / (double)phase->tokens;
    const double percent = phase->cpu_from + share * (phase->cpu_to - phase->cpu_from);
    if (p->competitor.pid == 0 || fabs(percent - p->cpu_percent) < RAMP_STEP_PERCENT) {
        return true;
    }
    p->cpu_percent = percent;
    return competitor_set(&p->competitor, percent / 100, err);
}

static bool begin_load(struct progress *p, struct ats_error *err)
{
    const struct load_phase *phase = p->phase;
    if (load_phase_has_accel(phase) && !set_accel_load(phase->compute, phase->link, err)) {
        return false;
    }
    return !load_phase_has_cpu(phase) ||
           (competitor_start(&p->competitor, p->run->cpu_load, p->run->period_ms, err) &&
            follow_ramp(p, 0, err));
}

/* Decodes until the phase is over. */
static bool decode_phase(struct progress *p, double begin_s, struct ats_error *err)
{
    const struct load_run *run = p->run;
    const struct load_phase *phase = p->phase;
    double share = 0;
    bool good_before = run->undisturbed(run->data, &share);
    while (phase->seconds > 0 ? now_s() - begin_s < phase->seconds : p->n_tokens < phase->tokens) {
        if (!follow_ramp(p, now_s() - begin_s, err)) {
            return false;
        }
        run->make_room(run->data);
        const double token_s = now_s();
        run->decode(run->data);
        const double us = (now_s() - token_s) * 1e6;
        const bool good = run->undisturbed(run->data, &share);
        json_array_append_new(p->begins, json_real(token_s - p->start_s));
        json_array_append_new(p->times, json_real(us));
        json_array_append_new(p->goods, json_integer(good && good_before));
        p->n_good += good && good_before;
        p->core_sum += share;
        p->n_tokens++;
        good_before = good;
    }
    return true;
}

/* Takes the load away again, also after a failure. */
static bool end_load(struct progress *p, struct ats_error *err)
{
    const bool stopped = competitor_stop(&p->competitor, err);
    return (!load_phase_has_accel(p->phase) || set_accel_load(1, 1, err)) && stopped;
}

static json_t *describe(const struct progress *p, double begin_s, double own_s)
{
    const struct load_phase *phase = p->phase;
    const double seconds = now_s() - begin_s;
    const double n = (double)(p->n_tokens > 0 ? p->n_tokens : 1);
    const bool has_cpu = p->competitor.pid != 0;
    return json_pack(
        "{s:f, s:f, s:[f, f], s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:{s:O, "
        "s:O, s:O}}",
        "begin_s", begin_s - p->start_s, "end_s", begin_s + seconds - p->start_s, "cpu_percent",
        phase->cpu_from, phase->cpu_to, "cpu_taken",
        has_cpu ? json_real(competitor_share(&p->competitor)) : json_null(), "cpu_priority",
        has_cpu ? json_string(competitor_priority(&p->competitor)) : json_null(), "compute",
        phase->compute, "link", phase->link, "own_cpu", (own_cpu_s() - own_s) / seconds,
        "disturbed", 1 - (double)p->n_good / n, "core_speed", p->core_sum / n, "all_seconds",
        seconds, "counters", bench_counters_end(p->run->counters), "tokens", "begin_s", p->begins,
        "us", p->times, "undisturbed", p->goods);
}

static json_t *measure_phase(const struct load_run *run, const struct load_phase *phase,
                             double start_s, struct ats_error *err)
{
    struct progress p = {.run = run,
                         .phase = phase,
                         .start_s = start_s,
                         .begins = json_array(),
                         .times = json_array(),
                         .goods = json_array()};
    json_t *result = NULL;
    if (begin_load(&p, err)) {
        const double begin_s = now_s();
        const double own_s = own_cpu_s();
        bench_counters_begin(run->counters);
        if (decode_phase(&p, begin_s, err)) {
            result = describe(&p, begin_s, own_s);
        }
    }
    struct ats_error late = {""};
    if (!end_load(&p, &late) && result != NULL) {
        *err = late;
        json_decref(result);
        result = NULL;
    }
    json_decref(p.begins);
    json_decref(p.times);
    json_decref(p.goods);
    return result;
}

json_t *load_measure(const struct load_run *run, struct ats_error *err)
{
    json_t *phases = json_array();
    const double start_s = now_s();
    for (size_t i = 0; i < run->n_phases; i++) {
        json_t *phase = measure_phase(run, &run->phases[i], start_s, err);
        if (phase == NULL) {
            json_decref(phases);
            return NULL;
        }
        json_array_append_new(phases, phase);
    }
    return phases;
}
