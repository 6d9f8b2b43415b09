#include "trace/export.h"

#include <inttypes.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1 /* uthash would end the program */
#include <uthash.h>

/* The page as it lies in src/trace/page, ATS_TRACE_PAGE by CMake; data goes where the mark is. */
__asm__(".pushsection .rodata\n"
        ".global ats_trace_page_begin\n"
        ".hidden ats_trace_page_begin\n"
        ".global ats_trace_page_end\n"
        ".hidden ats_trace_page_end\n"
        "ats_trace_page_begin:\n"
        ".incbin \"" ATS_TRACE_PAGE "\"\n"
        "ats_trace_page_end:\n"
        ".byte 0\n"
        ".popsection\n");
extern const char ats_trace_page_begin[] __attribute__((visibility("hidden")));
extern const char ats_trace_page_end[] __attribute__((visibility("hidden")));

static const char mark[] = "@DATA@";

/* Writes JSON text into a script element: a "<" in it could end that. It can only be within a
 * string, where \u003c means the same. */
static bool put_json(FILE *out, const json_t *value, size_t flags)
{
    char *text = json_dumps(value, flags | JSON_COMPACT);
    bool ok = text != NULL;
    for (const char *c = text; ok && *c != '\0'; c++) {
        ok = *c == '<' ? fputs("\\u003c", out) >= 0 : fputc(*c, out) != EOF;
    }
    free(text);
    return ok;
}

/* ---- names, each once ---- */

struct name {
    const char *text; /* key */
    size_t index;
    UT_hash_handle hh;
};

struct names {
    struct name *table;
    struct name *entries;
    size_t n;
};

static bool learn(struct names *names, const char *text)
{
    struct name *name;
    HASH_FIND_STR(names->table, text, name);
    if (name != NULL) {
        return true;
    }
    name = &names->entries[names->n];
    *name = (struct name){.text = text, .index = names->n};
    HASH_ADD_KEYPTR(hh, names->table, name->text, strlen(name->text), name);
    names->n += name->hh.tbl != NULL;
    return name->hh.tbl != NULL;
}

static bool learn_all(struct names *names, const struct ats_trace_bars *bars)
{
    names->entries = calloc(2 * bars->n_bars + 1, sizeof(*names->entries));
    bool ok = names->entries != NULL;
    for (size_t i = 0; ok && i < bars->n_bars; i++) {
        ok = learn(names, bars->bars[i].name) && learn(names, bars->bars[i].last);
    }
    return ok;
}

static uint64_t index_of(const struct names *names, const char *text)
{
    struct name *name;
    HASH_FIND_STR(names->table, text, name);
    return name != NULL ? name->index : 0; /* all are known */
}

static bool put_names(FILE *out, const struct names *names)
{
    bool ok = fputs(",\n\"names\": [", out) >= 0;
    for (size_t i = 0; ok && i < names->n; i++) {
        json_t *text = json_string(names->entries[i].text);
        ok = text != NULL && fputs(i > 0 ? "," : "", out) >= 0 &&
             put_json(out, text, JSON_ENCODE_ANY);
        json_decref(text);
    }
    return ok && fputs("]", out) >= 0;
}

/* ---- tables ---- */

static bool put_lanes(FILE *out, const struct ats_trace *trace)
{
    json_t *lanes = json_array();
    for (size_t i = 0; i < trace->n_lanes; i++) {
        char name[96];
        ats_trace_lane_name(trace, i, name, sizeof(name));
        json_array_append_new(lanes,
                              json_pack("{s:s, s:i, s:b}", "name", name, "role",
                                        trace->lanes[i].role, "clock", trace->lanes[i].has_clock));
    }
    const bool ok = json_array_size(lanes) == trace->n_lanes && fputs(",\n\"lanes\": ", out) >= 0 &&
                    put_json(out, lanes, 0);
    json_decref(lanes);
    return ok;
}

static bool put_passes(FILE *out, const struct ats_trace_bars *bars)
{
    bool ok = fputs(",\n\"passes\": [", out) >= 0;
    for (size_t i = 0; ok && i < bars->n_passes; i++) {
        const struct ats_trace_pass *pass = &bars->passes[i];
        char name[48];
        ok = fprintf(out,
                     "%s{\"name\":\"%s\",\"begin\":%" PRIu64 ",\"end\":%" PRIu64
                     ",\"tokens\":%u,\"decoded\":%u}",
                     i > 0 ? "," : "", ats_trace_pass_name(pass, name, sizeof(name)),
                     pass->begin_ns - bars->begin_ns, pass->end_ns - bars->begin_ns, pass->tokens,
                     pass->decoded) > 0;
    }
    return ok && fputs("]", out) >= 0;
}

/* A column per member: shorter than an object per bar, and read faster. */
enum column { LANE, KIND, BEGIN, LENGTH, BYTES, NAME, LAST, PASS, COUNT, EXACT, EVENT, COLUMNS };

static int64_t cell(const struct ats_trace_bars *bars, const struct names *names, size_t i,
                    enum column column)
{
    const struct ats_trace_bar *bar = &bars->bars[i];
    switch (column) {
    case LANE:
        return bar->lane;
    case KIND:
        return bar->kind;
    case BEGIN:
        return (int64_t)(bar->begin_ns - bars->begin_ns);
    case LENGTH:
        return (int64_t)(bar->end_ns - bar->begin_ns);
    case BYTES:
        return (int64_t)bar->bytes;
    case NAME:
        return (int64_t)index_of(names, bar->name);
    case LAST:
        return (int64_t)index_of(names, bar->last);
    case PASS:
        return bar->pass == ATS_BAR_NO_PASS ? -1 : (int64_t)bar->pass;
    case COUNT:
        return bar->count;
    case EXACT:
        return bar->exact;
    default:
        return bar->by_event;
    }
}

static bool put_bars(FILE *out, const struct ats_trace_bars *bars, const struct names *names)
{
    static const char *const columns[COLUMNS] = {"lane", "kind", "begin", "length", "bytes", "name",
                                                 "last", "pass", "count", "exact",  "event"};
    bool ok = fputs(",\n\"bars\": {", out) >= 0;
    for (int c = 0; ok && c < COLUMNS; c++) {
        ok = fprintf(out, "%s\n\"%s\": [", c > 0 ? "," : "", columns[c]) > 0;
        for (size_t i = 0; ok && i < bars->n_bars; i++) {
            ok = fprintf(out, "%s%" PRId64, i > 0 ? "," : "",
                         cell(bars, names, i, (enum column)c)) > 0;
        }
        ok = ok && fputs("]", out) >= 0;
    }
    return ok && fputs("}", out) >= 0;
}

static bool put_data(FILE *out, const struct ats_trace_bars *bars, const json_t *summary)
{
    struct names names = {0};
    const bool ok =
        learn_all(&names, bars) && fputs("{\"summary\": ", out) >= 0 && put_json(out, summary, 0) &&
        fprintf(out, ",\n\"length\": %" PRIu64, bars->end_ns - bars->begin_ns) > 0 &&
        fputs(",\n\"kinds\": [\"compute\",\"to device\",\"to host\",\"stall\",\"wait\",\"submit\","
              "\"plan\"]",
              out) >= 0 &&
        put_lanes(out, bars->trace) && put_names(out, &names) && put_passes(out, bars) &&
        put_bars(out, bars, &names) && fputs("}", out) >= 0;
    HASH_CLEAR(hh, names.table);
    free(names.entries);
    return ok;
}

bool ats_trace_write_page(FILE *out, const struct ats_trace_bars *bars, const json_t *summary)
{
    const size_t bytes = (size_t)(ats_trace_page_end - ats_trace_page_begin);
    const char *at = memmem(ats_trace_page_begin, bytes, mark, strlen(mark));
    const char *behind = at + strlen(mark);
    const size_t before = (size_t)(at - ats_trace_page_begin);
    const size_t rest = (size_t)(ats_trace_page_end - behind);
    return fwrite(ats_trace_page_begin, 1, before, out) == before && put_data(out, bars, summary) &&
           fwrite(behind, 1, rest, out) == rest;
}
