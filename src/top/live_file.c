#include "top/live_file.h"

#include <string.h>

/* The layout has no holes, so that equal files are equal bytes. */
_Static_assert(sizeof(struct ats_live_file_header) == 8 + 4 * 4 + 2 * 8 + ATS_LIVE_PROGRAM,
               "a hole in the header");
_Static_assert(sizeof(struct ats_live_file_device) ==
                   ATS_LIVE_NAME + ATS_LIVE_ACCELERATOR + 8 * (1 + ATS_LIVE_FIGURES),
               "a hole in a device");

/* Zero-terminated and printable, so that no terminal obeys it. */
static void copy_text(char *to, const char *from, size_t size)
{
    size_t n = 0;
    for (; n + 1 < size && from[n] != '\0'; n++) {
        to[n] = (char)(from[n] >= ' ' && from[n] <= '~' ? from[n] : '?');
    }
    memset(to + n, 0, size - n);
}

static void copy_device(struct ats_live_device *to, const char *bytes)
{
    /* plain memory, in which the atomic numbers are just numbers */
    copy_text(to->name, bytes + offsetof(struct ats_live_file_device, name), sizeof(to->name));
    copy_text(to->accelerator, bytes + offsetof(struct ats_live_file_device, accelerator),
              sizeof(to->accelerator));
    memcpy(to->figures, bytes + offsetof(struct ats_live_file_device, figures),
           sizeof(to->figures));
}

bool ats_live_parse(const void *bytes, size_t n, struct ats_live_process *process,
                    struct ats_error *err)
{
    struct ats_live_file_header header;
    if (n < sizeof(header)) {
        return ats_fail(err, "%zu bytes are too few", n);
    }
    memcpy(&header, bytes, sizeof(header));
    if (memcmp(header.magic, ATS_LIVE_MAGIC, sizeof(header.magic)) != 0) {
        return ats_fail(err, "not figures of ATS");
    }
    if (header.version != ATS_LIVE_VERSION) {
        return ats_fail(err, "version %u of the figures, this is for %d", header.version,
                        ATS_LIVE_VERSION);
    }
    if (header.header_bytes != sizeof(header) ||
        header.device_bytes != sizeof(struct ats_live_file_device) || header.n_devices == 0 ||
        header.n_devices > ATS_LIVE_DEVICES || header.pid <= 0 ||
        n != ats_live_file_bytes(header.n_devices)) {
        return ats_fail(err, "sizes that do not fit together");
    }
    *process = (struct ats_live_process){
        .pid = header.pid, .started_s = header.started_s, .n_devices = header.n_devices};
    copy_text(process->program, header.program, sizeof(process->program));
    for (uint32_t i = 0; i < header.n_devices; i++) {
        copy_device(&process->devices[i], (const char *)bytes + ats_live_file_bytes(i));
    }
    return true;
}

bool ats_live_is_settled(const void *first, const void *second, size_t n)
{
    if (memcmp(first, second, n) != 0) {
        return false;
    }
    for (size_t at = sizeof(struct ats_live_file_header); at < n;
         at += sizeof(struct ats_live_file_device)) {
        uint64_t sequence;
        memcpy(&sequence,
               (const char *)first + at + offsetof(struct ats_live_file_device, sequence),
               sizeof(sequence));
        if (sequence % 2 != 0) {
            return false;
        }
    }
    return true;
}
