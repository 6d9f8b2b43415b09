/* Recordings in files. The file is a header, the lanes and the records as they are in memory, of
 * this machine's byte order: to be read by the same version of ATS on the same kind of machine. */
#ifndef ATS_TRACE_FILE_H
#define ATS_TRACE_FILE_H

#include "base/error.h"
#include "trace/record.h"

/* Replaces the file at once. */
bool ats_trace_write(const struct ats_trace *trace, const char *path, struct ats_error *err);

/* Reads and checks: kinds, lanes, numbers and texts are sound afterwards, whatever the file holds.
 * The caller frees the result by ats_trace_free. */
bool ats_trace_read(const char *path, struct ats_trace *trace, struct ats_error *err);

#endif
