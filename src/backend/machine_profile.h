/* The measured profile of the machine that this library runs on, for whoever
 * plans at load.
 *
 * A profile is measured by a child process, the program ats-ggml, never within
 * the program that has loaded this library: measuring takes a gigabyte of
 * memory, binds threads to cores, and drivers may abort when memory runs out. The child
 * gets the ggml libraries and the environment of this process, so it finds the
 * same devices. It has no standard streams and no other open file of this process.
 *
 * A file that the user names is used as it is, whatever machine it is of. */
#ifndef ATS_BACKEND_MACHINE_PROFILE_H
#define ATS_BACKEND_MACHINE_PROFILE_H

#include "bind/ggml_bind.h"
#include "profile/profile.h"

/* Reads `file`, or if that is NULL gets the kept profile of `accel` and that number of CPU threads
 * (0: the number that was found to be the best), or runs `ats profile --quick`, which takes a few
 * seconds, once. False if there is none: then the built-in rates have to do. Says in one line of
 * ggml's log what is measured and why, or why there is no profile. Never fails a load, never waits
 * longer than 20 seconds. The caller frees the profile (ats_profile_free). Takes device memory for
 * a moment, so call it before the device is filled. One call at a time per device. */
bool ats_machine_profile_get(ggml_backend_dev_t accel, int threads, const char *file,
                             struct ats_profile *profile);

#endif
