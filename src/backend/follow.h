/* Following the device's memory: weights leave VRAM while others need it, and come back.
 *
 * Looked at between two passes, twice a second. What leaves is valid in host memory first, and
 * computes there; what comes back is copied a group at a time, the one that left last first, as
 * much at once as takes a fiftieth of the time (plan/headroom.h). When all are back, slots of
 * experts and staging memory that had to shrink are taken anew. Context state does not move.
 *
 * Thread-safety: called by the thread of the stream, which holds no lock. */
#ifndef ATS_BACKEND_FOLLOW_H
#define ATS_BACKEND_FOLLOW_H

struct ats_stream;

void ats_follow(struct ats_stream *stream);

#endif
