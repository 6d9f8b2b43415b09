#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool text_read(struct text *text, const char *path, struct ats_error *err)
{
    *text = (struct text){0};
    struct stat info;
    FILE *file = fopen(path, "rb");
    if (file == NULL || fstat(fileno(file), &info) != 0) {
        ats_fail(err, "cannot read %s: %s", path, strerror(errno));
        if (file != NULL) {
            fclose(file);
        }
        return false;
    }
    const size_t size = S_ISREG(info.st_mode) ? (size_t)info.st_size : 0;
    text->bytes = malloc(size + 1);
    const bool ok = text->bytes != NULL && fread(text->bytes, 1, size, file) == size;
    fclose(file);
    if (!ok || size == 0) {
        text_free(text);
        return ats_fail(err, "cannot read %s: it is %s", path,
                        size == 0 ? "empty or no file" : "larger than memory or changing");
    }
    text->bytes[size] = '\0';
    text->n = size;
    return true;
}

void text_free(struct text *text)
{
    free(text->bytes);
    *text = (struct text){0};
}

bool text_piece(const struct text *text, size_t *at, const char **piece, size_t *length)
{
    while (*at < text->n && (text->bytes[*at] == '\f' || text->bytes[*at] == '\n')) {
        ++*at;
    }
    if (*at >= text->n) {
        return false;
    }
    const char *begin = text->bytes + *at;
    const char *end = memchr(begin, '\f', text->n - *at);
    size_t n = end != NULL ? (size_t)(end - begin) : text->n - *at;
    *at += n;
    while (n > 0 && begin[n - 1] == '\n') {
        n--;
    }
    *piece = begin;
    *length = n;
    return true;
}
