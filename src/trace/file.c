#include "trace/file.h"

#include "base/replace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char magic[8] = {'A', 'T', 'S', 'T', 'R', 'A', 'C', 'E'};

enum {
    VERSION = 1,
    HAS_OPERANDS = 1,
    IS_INCOMPLETE = 2,
};

struct header {
    char magic[8];
    uint32_t version;
    uint32_t record_bytes;
    uint32_t lane_bytes;
    uint32_t n_lanes;
    uint64_t n_records;
    uint64_t dropped;
    uint32_t flags;
    uint32_t reserved;
};

bool ats_trace_write(const struct ats_trace *trace, const char *path, struct ats_error *err)
{
    struct header header = {
        .version = VERSION,
        .record_bytes = sizeof(struct ats_trace_record),
        .lane_bytes = sizeof(struct ats_trace_lane),
        .n_lanes = (uint32_t)trace->n_lanes,
        .n_records = trace->n_records,
        .dropped = trace->dropped,
        .flags = (trace->has_operands ? (uint32_t)HAS_OPERANDS : 0) |
                 (trace->is_incomplete ? (uint32_t)IS_INCOMPLETE : 0),
    };
    memcpy(header.magic, magic, sizeof(magic));
    struct ats_replace file;
    if (ats_replace_begin(&file, path)) {
        const bool good = fwrite(&header, sizeof(header), 1, file.out) == 1 &&
                          fwrite(trace->lanes, sizeof(trace->lanes[0]), trace->n_lanes, file.out) ==
                              trace->n_lanes &&
                          fwrite(trace->records, sizeof(trace->records[0]), trace->n_records,
                                 file.out) == trace->n_records;
        if (ats_replace_end(&file, good)) {
            return true;
        }
    }
    return ats_fail(err, "cannot write the recording %.300s: %s", path, strerror(errno));
}

/* ---- reading ---- */

static bool check_header(const struct header *h, uint64_t file_bytes, const char *path,
                         struct ats_error *err)
{
    if (memcmp(h->magic, magic, sizeof(magic)) != 0) {
        return ats_fail(err, "%.300s is not a recording of ATS_TRACE", path);
    }
    if (h->version != VERSION || h->record_bytes != sizeof(struct ats_trace_record) ||
        h->lane_bytes != sizeof(struct ats_trace_lane)) {
        return ats_fail(err,
                        "%.300s is a recording of another version of ATS (%u, this one reads %d): "
                        "record it again",
                        path, h->version, VERSION);
    }
    if (h->n_lanes > ATS_TRACE_MAX_LANES ||
        h->n_records > file_bytes / sizeof(struct ats_trace_record) ||
        file_bytes != sizeof(*h) + h->n_lanes * sizeof(struct ats_trace_lane) +
                          h->n_records * sizeof(struct ats_trace_record)) {
        return ats_fail(err, "the recording %.300s is damaged: its length is wrong", path);
    }
    return true;
}

static bool is_sound(const struct ats_trace_record *r, size_t n_lanes)
{
    /* a hundred years, so that sums stay small */
    const uint64_t most_ns = UINT64_C(36500) * 24 * 3600 * 1000000000;
    return r->kind >= ATS_TRACE_PASS && r->kind < ATS_TRACE_KINDS && r->lane < n_lanes &&
           r->end_ns >= r->begin_ns && r->end_ns < most_ns && r->bytes < UINT64_C(1) << 48 &&
           r->address <= UINT64_MAX - r->bytes && r->split >= ATS_TRACE_NO_SPLIT &&
           (!ats_trace_is_copy(r) || r->host <= UINT64_MAX - r->bytes) &&
           memchr(r->name, '\0', sizeof(r->name)) != NULL &&
           memchr(r->last, '\0', sizeof(r->last)) != NULL;
}

/* Names may come to a terminal, a page, a JSON text. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++) {
        if (*text < ' ' || *text > '~') {
            *text = '?';
        }
    }
}

static bool check_content(struct ats_trace *trace, const char *path, struct ats_error *err)
{
    for (size_t i = 0; i < trace->n_lanes; i++) {
        struct ats_trace_lane *lane = &trace->lanes[i];
        if (lane->role >= ATS_TRACE_ROLES || lane->context >= ATS_TRACE_MAX_LANES ||
            memchr(lane->device, '\0', sizeof(lane->device)) == NULL ||
            memchr(lane->description, '\0', sizeof(lane->description)) == NULL) {
            return ats_fail(err, "the recording %.300s is damaged: lane %zu makes no sense", path,
                            i);
        }
        make_printable(lane->device);
        make_printable(lane->description);
    }
    for (size_t i = 0; i < trace->n_records; i++) {
        struct ats_trace_record *r = &trace->records[i];
        if (!is_sound(r, trace->n_lanes) || (i > 0 && r->begin_ns < r[-1].begin_ns)) {
            return ats_fail(err, "the recording %.300s is damaged: record %zu makes no sense", path,
                            i);
        }
        make_printable(r->name);
        make_printable(r->last);
    }
    return true;
}

/* Booleans of a file may hold anything; reading one that is neither 0 nor 1 is undefined. */
static void read_lane(const unsigned char *bytes, struct ats_trace_lane *lane)
{
    unsigned char copy[sizeof(*lane)];
    memcpy(copy, bytes, sizeof(copy));
    copy[offsetof(struct ats_trace_lane, has_clock)] &= 1;
    copy[offsetof(struct ats_trace_lane, emulated)] &= 1;
    memcpy(lane, copy, sizeof(copy));
}

static bool read_body(FILE *in, const struct header *h, struct ats_trace *trace)
{
    unsigned char lane[sizeof(struct ats_trace_lane)];
    for (; trace->n_lanes < h->n_lanes; trace->n_lanes++) {
        if (fread(lane, sizeof(lane), 1, in) != 1) {
            return false;
        }
        read_lane(lane, &trace->lanes[trace->n_lanes]);
    }
    trace->n_records = h->n_records;
    trace->records = malloc((trace->n_records + 1) * sizeof(*trace->records));
    return trace->records != NULL &&
           fread(trace->records, sizeof(*trace->records), trace->n_records, in) == trace->n_records;
}

bool ats_trace_read(const char *path, struct ats_trace *trace, struct ats_error *err)
{
    *trace = (struct ats_trace){0};
    struct header header;
    struct stat info;
    FILE *in = fopen(path, "r");
    if (in == NULL || fstat(fileno(in), &info) != 0) {
        const int reason = errno;
        if (in != NULL) {
            fclose(in);
        }
        return ats_fail(err, "cannot read the recording %.300s: %s", path, strerror(reason));
    }
    bool ok = S_ISREG(info.st_mode) && fread(&header, sizeof(header), 1, in) == 1;
    if (!ok) {
        ats_fail(err, "%.300s is not a recording of ATS_TRACE", path);
    }
    ok = ok && check_header(&header, (uint64_t)info.st_size, path, err);
    if (ok) {
        trace->dropped = header.dropped;
        trace->has_operands = (header.flags & HAS_OPERANDS) != 0;
        trace->is_incomplete = (header.flags & IS_INCOMPLETE) != 0;
        errno = ENOMEM;
        ok = read_body(in, &header, trace);
        if (!ok) {
            ats_fail(err, "cannot read the recording %.300s: %s", path, strerror(errno));
        }
        ok = ok && check_content(trace, path, err);
    }
    fclose(in);
    if (!ok) {
        ats_trace_free(trace);
    }
    return ok;
}
