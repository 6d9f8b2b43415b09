#include "emu/load.h"

#include "base/parse.h"

#include <stdio.h>
#include <string.h>

static const double MAX_FACTOR = 1000;
static const double MAX_TIME_US = 1e12; /* eleven days */

bool ats_emu_load_is_factor(double factor)
{
    return factor >= 1 && factor <= MAX_FACTOR;
}

/* "10s" or "250ms", up to the colon behind it; returns what follows that, NULL if it is wrong. */
static const char *read_time(const char *text, double *us)
{
    double number = 0;
    const char *unit = ats_parse_decimal(text, &number);
    if (unit == NULL) {
        return NULL;
    }
    const bool is_ms = strncmp(unit, "ms:", 3) == 0;
    if (!is_ms && strncmp(unit, "s:", 2) != 0) {
        return NULL;
    }
    *us = number * (is_ms ? 1e3 : 1e6);
    return *us <= MAX_TIME_US ? unit + (is_ms ? 3 : 2) : NULL;
}

/* "compute=2.5,link=3", each at most once, at least one. */
static bool read_factors(const char *text, struct ats_timeline_load *load)
{
    struct {
        const char *name;
        double *factor;
        bool is_there;
    } keys[] = {{"compute=", &load->compute, false}, {"link=", &load->link, false}};
    for (const char *at = text;; at++) {
        size_t k = 0;
        while (k < 2 && strncmp(at, keys[k].name, strlen(keys[k].name)) != 0) {
            k++;
        }
        if (k == 2 || keys[k].is_there) {
            return false;
        }
        keys[k].is_there = true;
        at = ats_parse_decimal(at + strlen(keys[k].name), keys[k].factor);
        if (at == NULL || !ats_emu_load_is_factor(*keys[k].factor)) {
            return false;
        }
        if (*at != ',') {
            return *at == '\0';
        }
    }
}

static bool parse_step(const char *step, struct ats_timeline_load *load, struct ats_error *err)
{
    *load = (struct ats_timeline_load){.compute = 1, .link = 1};
    const char *what = read_time(step, &load->at_us);
    if (what != NULL && (strcmp(what, "off") == 0 || read_factors(what, load))) {
        return true;
    }
    return ats_fail(err,
                    "'%s' is no step of a load; write e.g. 10s:compute=2.5,link=2.5 or 40s:off, "
                    "with times in s or ms and factors from 1 to 1000, steps separated by ';'",
                    step);
}

bool ats_emu_load_parse(const char *spec, struct ats_emu_load_schedule *schedule,
                        struct ats_error *err)
{
    struct ats_emu_load_schedule parsed = {0};
    if (strcmp(spec, "off") == 0) {
        *schedule = parsed;
        return true;
    }
    for (const char *at = spec;; at++) {
        char step[96];
        const size_t length = strcspn(at, ";");
        snprintf(step, sizeof(step), "%.*s", (int)(length < sizeof(step) ? length : sizeof(step)),
                 at);
        if (parsed.n == ATS_EMU_LOAD_STEPS) {
            return ats_fail(err, "a load has at most %d steps; '%s' is one more",
                            ATS_EMU_LOAD_STEPS, step);
        }
        struct ats_timeline_load *load = &parsed.steps[parsed.n];
        if (!parse_step(step, load, err)) {
            return false;
        }
        if (parsed.n > 0 && load->at_us <= load[-1].at_us) {
            return ats_fail(err, "'%s' is not later than the step before it", step);
        }
        parsed.n++;
        at += length;
        if (*at == '\0') {
            *schedule = parsed;
            return true;
        }
    }
}
