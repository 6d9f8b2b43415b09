/* The loss curve as an SVG file. */
#ifndef ATS_TRAIN_CURVE_H
#define ATS_TRAIN_CURVE_H

#include "run.h"

/* Training loss as a line and held-out loss as dots, over the tokens seen. */
bool curve_save(const struct run *run, const char *path, struct ats_error *err);

#endif
