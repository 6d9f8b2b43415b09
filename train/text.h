/* Text files, whole in memory, and the pieces that they consist of. */
#ifndef ATS_TRAIN_TEXT_H
#define ATS_TRAIN_TEXT_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct text {
    char *bytes; /* owned; a zero follows */
    size_t n;
};

bool text_read(struct text *text, const char *path, struct ats_error *err);
void text_free(struct text *text);

/* The piece that begins at *at, without the form feed line that ends it; moves *at behind that.
 * False at the end. Pieces have at least a byte. */
bool text_piece(const struct text *text, size_t *at, const char **piece, size_t *length);

#endif
