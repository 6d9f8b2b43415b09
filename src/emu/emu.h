/* The emulated accelerator: ggml devices EMU0, EMU1, ... that behave like
 * discrete GPUs and compute with ggml's own CPU kernels.
 *
 * What is like a GPU: memory of limited size that host code cannot dereference
 * and that holds NaN until something is written; streams (backend instances)
 * that execute commands in order on their own threads, after random pauses;
 * events; pinned host memory that is read when a copy executes, pageable
 * memory that is staged when it is enqueued; failures on request. What is not:
 * results are bit-identical to the CPU backend, whatever the schedule.
 *
 * Mode "timed" of a profile, and every rig: commands take the time that the
 * profile says instead, and results are not computed but safe (docs/rigs.md).
 *
 * Registry "EMU" exports by ggml_backend_reg_get_proc_address:
 *   ggml_backend_set_n_threads(backend, n)         threads of later computes of this stream
 *   ggml_backend_set_abort_callback(backend, f, d) while one is set, graph_compute waits for
 *                                                  the result, so that it can return ABORTED
 *   ggml_backend_register_host_buffer(ptr, size)   pins host memory: bool
 *   ggml_backend_unregister_host_buffer(ptr)
 *   ats_backend_take_error                         see ats_emu_take_error
 *   ats_backend_observe, ats_backend_tag           see ats_emu_observe, ats_emu_tag
 *   ats_emu_inject                                 see below
 *   ats_emu_set_load                               see below
 *   ats_emu_counters                               see below
 *   ats_emu_describe                               see below
 *
 * Environment, over what the profiles say, for all devices: ATS_EMU_MEMORY
 * (6G), ATS_EMU_SEED, ATS_EMU_DELAY_US, ATS_EMU_FAIL (a failure spec). Timed
 * mode: ATS_RIG_SCALE, ATS_RIG_TYPE (rig_scale.h), ATS_EMU_REPORT (a file for
 * the counters at exit, report.h), ATS_EMU_STRICT=1 (a process whose emulation
 * did not keep its clock ends with exit code 1), ATS_EMU_LOAD (what load from
 * elsewhere the device has when, "10s:compute=2.5,link=2.5;40s:off" in seconds
 * after its first command: load.h).
 *
 * Failure spec: comma-separated "what:N" (the Nth fails) or "what:N+" (all
 * from the Nth on), N counted from 1 per device, from the moment the spec is
 * set; "off" fails nothing. What fails:
 *   alloc    allocation of a device buffer: NULL
 *   pinned   allocation of pinned host memory: pageable memory instead, as CUDA does
 *   copy     a copy from, to or between devices; a failed read delivers 0xFF bytes
 *   compute  a graph
 *   loss     at the Nth copy or graph the device is gone for good: commands do nothing,
 *            allocations and new streams fail, reads deliver 0xFF, nothing blocks */
#ifndef ATS_EMU_EMU_H
#define ATS_EMU_EMU_H

#include "base/error.h"
#include "bind/ggml_bind.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Creates one device for each profile in `spec` (comma-separated names or JSON
 * file paths: the value of ATS_EMULATE) and registers them with ggml. NULL or
 * empty: does nothing. All or nothing. Once per process: again with the same
 * spec does nothing (programs load backends twice), with another fails. Keeps
 * the library that contains it loaded for good. Not thread-safe, as loading is not. */
bool ats_emu_start(const char *spec, struct ats_error *err);

/* Replaces the failure spec of one emulated device; the counters restart. */
bool ats_emu_inject(ggml_backend_dev_t dev, const char *spec, struct ats_error *err);

/* From now on operators of a timed device take `compute` times as long, and its link's rate and
 * latency are by `link` worse, as if other programs used it: 60 % load is 2.5, none is 1. What is
 * under way goes on at the new speed. Replaces what ATS_EMU_LOAD has planned for later. False if
 * `dev` is not an emulated device in timed mode or a factor is not from 1 to 1000. From any thread.
 */
bool ats_emu_set_load(ggml_backend_dev_t dev, double compute, double link, struct ats_error *err);

/* Whether a command of this stream, or an operation on a buffer of its device,
 * failed since the last call; if so describes the first failure. Clears it,
 * unless the device is lost. Waits for nothing: synchronize first. While an
 * error is latched, the stream skips its copies and graphs and graph_compute
 * returns GGML_STATUS_FAILED. */
bool ats_emu_take_error(ggml_backend_t backend, char *text, size_t size);

/* From now on `ended` is told of each copy, graph and wait of this stream that was given to it
 * under a tag, once it is over: from when to when it ran on the device, or held it up, in
 * microseconds of CLOCK_MONOTONIC. Commands are told of in their order, a graph of timed mode
 * operator by operator; on the queue's thread, or in timed mode on whatever thread moves the clock
 * on, one at a time. It must not call the emulator. */
typedef void (*ats_emu_ended_t)(void *data, uint64_t tag, double begin_us, double end_us);
void ats_emu_observe(ggml_backend_t backend, ats_emu_ended_t ended, void *data);

/* What commands given to the stream from now on are called. 0: nobody is told of them. Called by
 * the thread that gives them. */
void ats_emu_tag(ggml_backend_t backend, uint64_t tag);

/* What a timed device has done since it was created. Take the counters before
 * and after a phase and subtract; wait for the device first, or what is in
 * flight is split between phases. Those marked (all) are of all timed devices
 * together. Later versions append members and raise the version. */
enum { ATS_EMU_COUNTERS_VERSION = 2 };

struct ats_emu_counters {
    uint32_t version; /* set by the caller: ATS_EMU_COUNTERS_VERSION */
    uint32_t reserved;
    uint64_t graphs;
    uint64_t launches;   /* kernels, copy kernels among them */
    uint64_t copies_h2d; /* over the link, by copy engine or copy kernel */
    uint64_t copies_d2h;
    double bytes_h2d;
    double bytes_d2h;
    double compute_us; /* in which the device computed */
    double copy_h2d_us;
    double copy_d2h_us;
    double scale;              /* of the rig's rates to this host; 1 without a rig */
    double wall_us;            /* (all) since the emulation began */
    double in_use_us;          /* (all) in which a device had something to do */
    double wait_us;            /* (all) in which the host waited for a device */
    double lag_us;             /* (all) by which the emulation was late: clock.h */
    double cpu_us;             /* (all) CPU time of the process */
    double own_cpu_us;         /* (all) of this, the emulation's */
    uint64_t waits;            /* (all) of the host, which had to last */
    uint64_t synchronizations; /* (all) of the host, with those that did not have to */
    double link_us;            /* in which copies were under way, either way */
    double both_us;            /* of this, in which the device computed */
};

/* False if `dev` is not a timed device or the version is not known. From any thread. */
bool ats_emu_counters(ggml_backend_dev_t dev, struct ats_emu_counters *counters);

/* What a device emulates, as JSON: {"profile", "mode"}, for a rig also "rig" and "scale"
 * (`ats rig --json` has the same), in timed mode "load" {"compute", "link"}: the factors now. To be
 * freed with free(); NULL if `dev` is not emulated or memory is out. */
char *ats_emu_describe(ggml_backend_dev_t dev);

/* Other programs have so many bytes of the device's memory from now on; 0: none. False if `dev` is
 * not emulated. From any thread. */
bool ats_emu_occupy(ggml_backend_dev_t dev, size_t bytes);

/* Whether `dev` or `backend` belongs to the emulator. */
bool ats_emu_is_device(ggml_backend_dev_t dev);
bool ats_emu_is_backend(ggml_backend_t backend);

#endif
