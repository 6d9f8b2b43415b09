/* The summary of what the devices hold and did, as JSON for `ats report` and machines. */
#ifndef ATS_BACKEND_STATS_H
#define ATS_BACKEND_STATS_H

#include "backend/config.h"
#include "backend/device.h"

/* Writes the summary of all devices to config->stats, if asked for, replacing the file
 * at once. Failing is logged. Takes the devices' read locks. */
void ats_stats_write(const struct ats_config *config);

/* The summary of one device, as in that file; also by the registry's proc address
 * "ats_device_summary". The caller frees it. NULL: out of memory. Takes the read lock. */
char *ats_stats_device(ggml_backend_dev_t dev);

#endif
