/* The printed form of a placement, and its reader.
 *
 *   ats-plan 1
 *   staging 3 pieces
 *   vram 4194304 blk.0.attn_q.weight
 *   host 9437184 blk.0.ffn_up.weight
 *
 * A line per tensor: where, bytes in VRAM, name. '#' starts a comment line. How staging memory is
 * used is a line that may be missing: places, and whether matrices pass in pieces or whole. */
#include "plan/placement.h"

#include "base/parse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char header[] = "ats-plan 1";
static const char staging_word[] = "staging ";

static const char *const where_names[] = {
    [ATS_WHERE_HOST] = "host",
    [ATS_WHERE_VRAM] = "vram",
    [ATS_WHERE_BOTH] = "both",
};

bool ats_placement_print(FILE *out, struct ats_staging_way staging, const struct ats_unit *units,
                         size_t n, const enum ats_where *where)
{
    fprintf(out, "%s\n", header);
    if (staging.places > 0) {
        fprintf(out, "%s%u %s\n", staging_word, staging.places, staging.whole ? "whole" : "pieces");
    }
    for (size_t i = 0; i < n; i++) {
        fprintf(out, "%s %zu %s\n", where_names[where[i]], units[i].bytes, units[i].name);
    }
    return ferror(out) == 0;
}

static bool parse_where(const char *word, enum ats_where *where)
{
    for (size_t i = 0; i < sizeof(where_names) / sizeof(where_names[0]); i++) {
        if (strcmp(word, where_names[i]) == 0) {
            *where = (enum ats_where)i;
            return true;
        }
    }
    return false;
}

/* Splits "where bytes name" in place. The name is the rest of the line. */
static bool parse_line(char *line, struct ats_placement_entry *entry, struct ats_error *err)
{
    char *rest = line;
    const char *where = strsep(&rest, " ");
    const char *bytes = strsep(&rest, " ");
    if (bytes == NULL || rest == NULL || *rest == '\0') {
        return ats_fail(err, "expected 'host|vram|both BYTES NAME'");
    }
    if (!parse_where(where, &entry->where)) {
        return ats_fail(err, "'%.40s' is not one of host, vram, both", where);
    }
    uint64_t number = 0;
    if (!ats_parse_u64(bytes, SIZE_MAX, &number, err)) {
        return false;
    }
    entry->bytes = (size_t)number;
    entry->name = strdup(rest);
    return entry->name != NULL || ats_fail(err, "out of memory");
}

/* "staging PLACES pieces|whole" behind the first word, in place. */
static bool parse_staging(char *rest, struct ats_staging_way *staging, struct ats_error *err)
{
    const char *places = strsep(&rest, " ");
    uint64_t number = 0;
    if (rest == NULL || (strcmp(rest, "pieces") != 0 && strcmp(rest, "whole") != 0)) {
        return ats_fail(err, "expected 'staging PLACES pieces|whole'");
    }
    if (!ats_parse_u64(places, ATS_STAGING_MOST_PLACES, &number, err)) {
        return false;
    }
    *staging =
        (struct ats_staging_way){.places = (unsigned)number, .whole = strcmp(rest, "whole") == 0};
    return number > 0 || ats_fail(err, "staging memory has one place at least");
}

static bool append(struct ats_placement_table *table, struct ats_placement_entry entry,
                   struct ats_error *err)
{
    if (table->n_entries == table->capacity) {
        const size_t grown = table->capacity == 0 ? 256 : 2 * table->capacity;
        void *entries = realloc(table->entries, grown * sizeof(*table->entries));
        if (entries == NULL) {
            free(entry.name);
            return ats_fail(err, "out of memory");
        }
        table->entries = entries;
        table->capacity = grown;
    }
    table->entries[table->n_entries++] = entry;
    return true;
}

static int compare_names(const void *a, const void *b)
{
    const struct ats_placement_entry *x = a;
    const struct ats_placement_entry *y = b;
    return strcmp(x->name, y->name);
}

static bool read_lines(FILE *in, const char *path, struct ats_placement_table *table,
                       struct ats_error *err)
{
    char *line = NULL;
    size_t line_size = 0;
    size_t number = 0;
    bool ok = true;
    while (ok && getline(&line, &line_size, in) >= 0) {
        number++;
        line[strcspn(line, "\r\n")] = '\0';
        if (number == 1) {
            if (strcmp(line, header) != 0) {
                ok = ats_fail(err, "%s: not a placement plan: the first line must be '%s'", path,
                              header);
            }
            continue;
        }
        if (line[0] == '\0' || line[0] == '#') {
            continue;
        }
        struct ats_placement_entry entry = {0};
        struct ats_error reason = {{0}};
        const size_t word = sizeof(staging_word) - 1;
        ok = strncmp(line, staging_word, word) == 0
                 ? parse_staging(line + word, &table->staging, &reason)
                 : parse_line(line, &entry, &reason) && append(table, entry, &reason);
        if (!ok) {
            ats_fail(err, "%s, line %zu: %.300s", path, number, reason.text);
        }
    }
    if (ok && feof(in) == 0) { /* a read error, or no memory for a line */
        ok = ats_fail(err, "cannot read the placement plan %s: %s", path, strerror(errno));
    } else if (ok && number == 0) {
        ok = ats_fail(err, "%s: not a placement plan: the file is empty", path);
    }
    free(line);
    return ok;
}

bool ats_placement_read_more(const char *path, struct ats_placement_table *table,
                             struct ats_error *err)
{
    FILE *in = fopen(path, "r");
    if (in == NULL) {
        return ats_fail(err, "cannot read the placement plan %s: %s", path, strerror(errno));
    }
    const struct ats_staging_way first = table->staging;
    const bool ok = read_lines(in, path, table, err);
    fclose(in);
    table->staging = first.places > 0 ? first : table->staging;
    if (ok && table->n_entries > 0) {
        qsort(table->entries, table->n_entries, sizeof(*table->entries), compare_names);
    }
    return ok;
}

bool ats_placement_read(const char *path, struct ats_placement_table *table, struct ats_error *err)
{
    *table = (struct ats_placement_table){.source = strdup(path)};
    if (table->source == NULL) {
        return ats_fail(err, "out of memory");
    }
    if (!ats_placement_read_more(path, table, err)) {
        ats_placement_table_free(table);
        return false;
    }
    return true;
}

void ats_placement_table_free(struct ats_placement_table *table)
{
    for (size_t i = 0; i < table->n_entries; i++) {
        free(table->entries[i].name);
    }
    free(table->entries);
    free(table->source);
    *table = (struct ats_placement_table){0};
}
