/* A tokenizer as a text file. */
#include "bpe.h"
#include "text.h"

#include "base/replace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char first_line[] = "ats-bpe-1";

bool bpe_save(const struct bpe *bpe, const char *path, struct ats_error *err)
{
    struct ats_replace file;
    if (!ats_replace_begin(&file, path)) {
        return ats_fail(err, "cannot write %s: %s", path, strerror(errno));
    }
    fprintf(file.out, "%s %zu\n", first_line, bpe->n_tokens);
    for (size_t i = 0; i + BPE_FIRST_MERGE < bpe->n_tokens; i++) {
        fprintf(file.out, "%" PRId32 " %" PRId32 "\n", bpe->merges[i].left, bpe->merges[i].right);
    }
    return ats_replace_end(&file, true) ||
           ats_fail(err, "cannot write %s: %s", path, strerror(errno));
}

/* Reads "LEFT RIGHT" with both smaller than `limit`; moves *at behind the line. */
static bool parse_merge(const char **at, long limit, struct bpe_merge *merge)
{
    char *end;
    const long left = strtol(*at, &end, 10);
    if (end == *at || *end != ' ' || left < BPE_FIRST_BYTE || left >= limit) {
        return false;
    }
    const char *second = end + 1;
    const long right = strtol(second, &end, 10);
    if (end == second || *end != '\n' || right < BPE_FIRST_BYTE || right >= limit) {
        return false;
    }
    *merge = (struct bpe_merge){(int32_t)left, (int32_t)right};
    *at = end + 1;
    return true;
}

bool bpe_parse(struct bpe *bpe, const char *text, const char *name, struct ats_error *err)
{
    *bpe = (struct bpe){0};
    char *end = NULL;
    const size_t prefix = sizeof first_line - 1;
    long n = 0;
    if (strncmp(text, first_line, prefix) == 0 && text[prefix] == ' ') {
        n = strtol(text + prefix + 1, &end, 10);
    }
    if (end == NULL || *end != '\n' || n < BPE_FIRST_MERGE || n > BPE_MAX_TOKENS) {
        return ats_fail(err, "%s is no tokenizer: its first line is not \"%s N\"", name,
                        first_line);
    }
    const size_t n_merges = (size_t)n - BPE_FIRST_MERGE;
    bpe->merges = calloc(n_merges + 1, sizeof *bpe->merges);
    if (bpe->merges == NULL) {
        return ats_fail(err, "out of memory for %ld tokens", n);
    }
    const char *at = end + 1;
    for (size_t i = 0; i < n_merges; i++) {
        if (!parse_merge(&at, (long)(BPE_FIRST_MERGE + i), &bpe->merges[i])) {
            bpe_free(bpe);
            return ats_fail(err, "%s line %zu: two numbers of earlier tokens expected", name,
                            i + 2);
        }
    }
    bpe->n_tokens = (size_t)n;
    if (*at != '\0') {
        bpe_free(bpe);
        return ats_fail(err, "%s: more than the %ld tokens that its first line names", name, n);
    }
    return true;
}

bool bpe_load(struct bpe *bpe, const char *path, struct ats_error *err)
{
    struct text text;
    if (!text_read(&text, path, err)) {
        return false;
    }
    const bool ok = bpe_parse(bpe, text.bytes, path, err);
    text_free(&text);
    return ok;
}
