/* The clock check of timed mode, and what the devices have done, at exit.
 *
 * A run in which the emulation was late by more than ATS_EMU_MAX_LAG of the
 * time in which a device was in use says so: its figures mean nothing. */
#ifndef ATS_EMU_REPORT_H
#define ATS_EMU_REPORT_H

#include "emu/device.h"
#include "emu/emu.h"

/* The largest lag of a valid run, relative to the time in which devices were in use. */
#define ATS_EMU_MAX_LAG 0.05

/* lag_us / in_use_us; 0 if nothing was in use. */
double ats_emu_lag_ratio(const struct ats_emu_counters *counters);

/* Writes the counters of timed devices as JSON (format "ats-emu-report-1") to
 * `path`, at once; false if it cannot be written. */
bool ats_emu_report_write(struct ats_emu_device *const *devices, size_t n, const char *path);

/* At exit: one line on stderr, and the file that ATS_EMU_REPORT names. The
 * array must live until then. Does nothing without timed devices. */
void ats_emu_report_at_exit(struct ats_emu_device *const *devices, size_t n);

#endif
