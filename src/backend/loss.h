/* Loss of an accelerator: a driver that crashed, a device that was unplugged.
 *
 * What had a copy in host memory goes on on the CPU; what was in VRAM only is gone, and
 * graphs that need it fail with a message until someone writes it anew. */
#ifndef ATS_BACKEND_LOSS_H
#define ATS_BACKEND_LOSS_H

#include "backend/device.h"

/* Called after a failure: finds out whether the accelerator still works, by a small
 * allocation, and if not, gives it up for the rest of the process, with one log line.
 * Takes the write lock. Returns whether the accelerator is lost. */
bool ats_device_check_loss(struct ats_device *device);

#endif
