/* The summary of what the devices hold and did, as JSON for `ats report` and machines. */
#ifndef ATS_BACKEND_STATS_H
#define ATS_BACKEND_STATS_H

#include "backend/config.h"
#include "backend/device.h"
#include "plan/side.h"

/* Tensors that have a home on a side. */
struct ats_tally {
    size_t tensors;
    size_t bytes;
};

/* Adds up what lives in VRAM and what in host memory, by the homes of the records. What is on both
 * sides counts on both. The tallies must be zero. Needs the read lock. */
void ats_stats_tally(const struct ats_device *device, struct ats_tally weights[ATS_SIDES],
                     struct ats_tally state[ATS_SIDES]);

/* Writes the summary of all devices to config->stats, if asked for, replacing the file
 * at once. Failing is logged. Takes the devices' read locks. */
void ats_stats_write(const struct ats_config *config);

/* The summary of one device, as in that file; also by the registry's proc address
 * "ats_device_summary". The caller frees it. NULL: out of memory. Takes the read lock. */
char *ats_stats_device(ggml_backend_dev_t dev);

#endif
