/* The recorder: keeps records in memory that is set aside when it starts.
 *
 * Each thread fills a chunk of its own, without locks; a lock is taken once per chunk. When all
 * memory is used, the oldest full chunk is emptied and its records count as dropped. One recorder
 * per process.
 *
 * Cost of a record: 144 bytes written, and the readings of the clock by the caller, mostly one.
 * Thread-safety: any thread may add records, at any time between start and stop; a snapshot may be
 * taken meanwhile and has what was added before. */
#ifndef ATS_TRACE_RECORDER_H
#define ATS_TRACE_RECORDER_H

#include "base/error.h"
#include "trace/record.h"

enum {
    ATS_TRACE_CHUNK_RECORDS = 256,
    ATS_TRACE_LEAST_BYTES = 1 << 20,
};

/* Starts recording with that much memory, at least ATS_TRACE_LEAST_BYTES. Pages are taken from the
 * system as they are filled, 2 MiB at once where it has such pages. `with_operands`: what each
 * operator reads and writes is wanted too. Not thread-safe. */
bool ats_trace_start(size_t bytes, bool with_operands, struct ats_error *err);

/* Ends recording and gives all memory back. No thread may record meanwhile. */
void ats_trace_stop(void);

bool ats_trace_wants_operands(void);

/* The clock of the records. */
uint64_t ats_trace_now_ns(void);

/* Adds a lane, or finds the one of this context and role, and describes it anew; -1, and the
 * recording counts as incomplete, if there are too many. */
int ats_trace_lane(const struct ats_trace_lane *lane);

/* Adds a record, or drops it where memory is out. */
void ats_trace_add(const struct ats_trace_record *record);

/* Copies what there is. False: out of memory. The caller frees it by ats_trace_free. */
bool ats_trace_snapshot(struct ats_trace *trace);

#endif
