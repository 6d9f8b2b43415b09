/* The summary of what the devices hold and did, as JSON for `ats report` and machines. */
#ifndef ATS_BACKEND_STATS_H
#define ATS_BACKEND_STATS_H

#include "backend/config.h"

/* Writes the summary of all devices to config->stats, if asked for, replacing the file
 * at once. Failing is logged. Takes the devices' read locks. */
void ats_stats_write(const struct ats_config *config);

#endif
