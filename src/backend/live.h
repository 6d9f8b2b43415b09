/* Live figures of this process, for `ats top`: a small file, mapped and shared (top/live_file.h),
 * that is there from the first stream to the end of the process.
 *
 * What a pass pays: a few readings of the clock, two uncontended locks and some forty stores; no
 * system call. What lives where is summed anew only after a plan was built or memory was taken or
 * given back, and only if no other stream is placing weights just then: nothing is waited for.
 *
 * If the file cannot be made, that is one line of the log, and all functions do nothing; so they do
 * with ATS_LIVE=off, and in a process that was forked off from one with a file until it creates a
 * stream of its own.
 *
 * Thread-safety: as the stream's: one thread at a time; streams run in parallel. The device's lock
 * must not be held. */
#ifndef ATS_BACKEND_LIVE_H
#define ATS_BACKEND_LIVE_H

#include "backend/stream.h"

/* The stream has been created, and is about to be freed. */
void ats_live_stream(struct ats_stream *stream);
void ats_live_stream_end(struct ats_stream *stream);

/* A pass begins, and has been given out: what is counted of it is in the device's counters. It runs
 * on as long as the stream has work in flight... */
void ats_live_pass(struct ats_stream *stream);
void ats_live_pass_end(struct ats_stream *stream);

/* ...which has been waited for. */
void ats_live_idle(struct ats_stream *stream);

#endif
