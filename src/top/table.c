/* The table of `ats top`. */
#include "base/parse.h"
#include "top/show.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

enum { BAR = 20 };

/* Lines on their way out. */
struct page {
    FILE *out;
    const struct ats_top_style *style;
    size_t n_lines;
};

#define GREEN "32"
#define BOLD "1"
#define PLAIN ""

/* A line, cut at the last column. `colour` is of its first n_coloured characters. */
static void put_line(struct page *page, const char *colour, size_t from, size_t n_coloured,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));

static void put_line(struct page *page, const char *colour, size_t from, size_t n_coloured,
                     const char *format, ...)
{
    const size_t most = page->style->most_lines;
    if (most > 0 && page->n_lines >= most) {
        return;
    }
    char text[ATS_TOP_COLUMNS + 1];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    size_t n = strlen(text);
    while (n > 0 && text[n - 1] == ' ') {
        text[--n] = '\0';
    }
    if (from > n) {
        from = n;
    }
    if (n_coloured > n - from) {
        n_coloured = n - from;
    }
    /* a full screen would scroll at the end of its last line */
    const char *end = most > 0 && page->n_lines + 1 == most ? "" : page->style->line_end;
    if (page->style->colours && colour[0] != '\0' && n_coloured > 0) {
        fprintf(page->out, "%.*s\033[%sm%.*s\033[0m%s%s", (int)from, text, colour, (int)n_coloured,
                text + from, text + from + n_coloured, end);
    } else {
        fprintf(page->out, "%s%s", text, end);
    }
    page->n_lines++;
}

/* ---- values as text; "-" for none ---- */

struct text {
    char chars[32];
};

/* Three digits are enough of anything. */
static struct text number(double value)
{
    struct text t = {"-"};
    if (isfinite(value)) {
        snprintf(t.chars, sizeof(t.chars), "%.*f",
                 value < 9.995    ? 2
                 : value < 999.95 ? 1
                                  : 0,
                 value);
    }
    return t;
}

static struct text percent(double share)
{
    struct text t = {"-"};
    if (isfinite(share)) {
        snprintf(t.chars, sizeof(t.chars), "%.0f %%", 100 * share);
    }
    return t;
}

static struct text size(uint64_t bytes)
{
    struct text t;
    ats_format_bytes((size_t)bytes, t.chars, sizeof(t.chars));
    return t;
}

/* "12 s", "3:20 min", "5:01 h", "3 d 4 h". */
static struct text duration(double seconds)
{
    struct text t;
    const uint64_t s = seconds > 0 ? (uint64_t)seconds : 0;
    if (s < 60) {
        snprintf(t.chars, sizeof(t.chars), "%" PRIu64 " s", s);
    } else if (s < 3600) {
        snprintf(t.chars, sizeof(t.chars), "%" PRIu64 ":%02" PRIu64 " min", s / 60, s % 60);
    } else if (s < 86400) {
        snprintf(t.chars, sizeof(t.chars), "%" PRIu64 ":%02" PRIu64 " h", s / 3600, s % 3600 / 60);
    } else {
        snprintf(t.chars, sizeof(t.chars), "%" PRIu64 " d %" PRIu64 " h", s / 86400,
                 s % 86400 / 3600);
    }
    return t;
}

static const char *bar(char text[BAR + 3], double share)
{
    const double filled = isfinite(share) ? fmax(0, fmin(1, share)) * BAR : 0;
    const size_t n = (size_t)(filled + 0.5);
    text[0] = '[';
    memset(text + 1, '#', n);
    memset(text + 1 + n, ' ', BAR - n);
    text[BAR + 1] = ']';
    text[BAR + 2] = '\0';
    return text;
}

/* ---- blocks ---- */

enum { LABEL = 18 }; /* columns before a bar or a value */

static void put_bar(struct page *page, const char *label, double share, const char *value)
{
    char text[BAR + 3];
    put_line(page, GREEN, LABEL + 2, BAR, "  %-*.*s %s  %s", LABEL - 1, LABEL - 1, label,
             bar(text, share), value);
}

/* What the device is doing: words, and how long it has. */
static const char *state_of(const struct ats_live_device *device, uint64_t at_ns,
                            struct text *how_long)
{
    const double idle_s = ats_top_idle_s(device, at_ns);
    const uint64_t since = device->figures[ATS_LIVE_BUSY_SINCE_NS];
    const double running_s = since > 0 && at_ns > since ? (double)(at_ns - since) * 1e-9 : 0;
    how_long->chars[0] = '\0';
    if (running_s >= 1) {
        *how_long = duration(running_s);
        return "in a pass for ";
    }
    if (idle_s >= 1) {
        *how_long = duration(idle_s);
        return "idle for ";
    }
    return "computing";
}

static void put_plans(struct page *page, const struct ats_live_device *device)
{
    const char *reason = ats_top_reason(device);
    put_line(page, PLAIN, 0, 0, "  %-*s %" PRIu64 ", taken back %" PRIu64 "%s%s", LABEL - 1,
             "planned anew", device->figures[ATS_LIVE_REPLANS], device->figures[ATS_LIVE_ROLLBACKS],
             reason != NULL ? "; latest: " : "", reason != NULL ? reason : "");
}

static void put_device(struct page *page, const struct ats_live_device *device,
                       const struct ats_top_rates *rates, uint64_t at_ns)
{
    char line[ATS_TOP_COLUMNS + 1];
    char label[ATS_TOP_COLUMNS + 1];
    const uint64_t *f = device->figures;
    const bool emulated = f[ATS_LIVE_EMULATED] != 0;
    snprintf(label, sizeof(label), "%s = CPU + %.20s%s", device->name, device->accelerator,
             emulated ? ", EMULATED" : "");
    struct text how_long;
    const char *state = state_of(device, at_ns, &how_long);
    put_line(page, BOLD, 0, strlen(device->name), "%-44.44s busy %s, %s%s", label,
             percent(rates->busy).chars, state, how_long.chars);
    put_line(page, PLAIN, 0, 0, "  %-*s %8s tokens/s    prompts %8s tokens/s", LABEL - 1, "answers",
             number(rates->answer_per_s).chars, number(rates->prompt_per_s).chars);

    snprintf(line, sizeof(line), "%5s of the passes", percent(rates->cpu).chars);
    put_bar(page, "CPU computes", rates->cpu, line);
    snprintf(line, sizeof(line), "%5s as the host sees it", percent(rates->accel).chars);
    snprintf(label, sizeof(label), "%.*s works", LABEL - 7, device->accelerator);
    put_bar(page, label, rates->accel, line);
    const double budget = (double)f[ATS_LIVE_BUDGET_BYTES];
    snprintf(line, sizeof(line), "%s of %s", size(f[ATS_LIVE_USED_BYTES]).chars,
             size(f[ATS_LIVE_BUDGET_BYTES]).chars);
    put_bar(page, "VRAM in use", budget > 0 ? (double)f[ATS_LIVE_USED_BYTES] / budget : NAN, line);

    put_line(page, PLAIN, 0, 0, "  %-*s weights %s, KV and state %s", LABEL - 1, "in VRAM",
             size(f[ATS_LIVE_WEIGHTS_VRAM_BYTES]).chars, size(f[ATS_LIVE_STATE_VRAM_BYTES]).chars);
    put_line(page, PLAIN, 0, 0, "  %-*s weights %s, KV and state %s", LABEL - 1, "in host memory",
             size(f[ATS_LIVE_WEIGHTS_HOST_BYTES]).chars, size(f[ATS_LIVE_STATE_HOST_BYTES]).chars);
    put_line(page, PLAIN, 0, 0, "  %-*s %s GB/s there, %s GB/s back; waited for it %s", LABEL - 1,
             "link", number(rates->to_accel_gbps).chars, number(rates->to_host_gbps).chars,
             percent(rates->stalled).chars);
    struct text promoted = {"-"};
    if (isfinite(rates->promoted_per_token) && rates->promoted_per_token < 1e18) {
        promoted = size((uint64_t)rates->promoted_per_token);
    }
    put_line(page, PLAIN, 0, 0, "  %-*s %s splits; %s promoted per token; experts hit %s",
             LABEL - 1, "per pass", number(rates->splits_per_graph).chars, promoted.chars,
             percent(rates->expert_hits).chars);
    put_plans(page, device);
}

static void put_process(struct page *page, const struct ats_top_entry *entry,
                        const struct ats_top_sample *sample)
{
    const struct ats_live_process *process = &entry->process;
    const double age_s = sample->unix_s - (double)process->started_s;
    put_line(page, PLAIN, 0, 0, "%s", "");
    put_line(page, BOLD, 0, strlen(process->program), "%s, process %" PRId64 ", for %s",
             process->program, process->pid, duration(age_s).chars);
    for (uint32_t i = 0; i < process->n_devices; i++) {
        put_device(page, &process->devices[i], &entry->rates[i], sample->at_ns);
    }
}

void ats_top_print(FILE *out, const struct ats_top_sample *sample,
                   const struct ats_top_style *style)
{
    struct page page = {out, style, 0};
    put_line(&page, PLAIN, 0, 0, "ats top  %s  %zu process%s%s", style->clock, sample->n,
             sample->n == 1 ? "" : "es", style->most_lines > 0 ? "  (q quits)" : "");
    for (size_t i = 0; i < sample->n; i++) {
        put_process(&page, &sample->entries[i], sample);
    }
    if (sample->n_other > 0) {
        put_line(&page, PLAIN, 0, 0, "%zu more of another version of ATS", sample->n_other);
    }
}
