/* Timed mode: streams, events and buffers of a device whose commands take the
 * time that its profile says (clock.h) and whose results are only safe
 * (contents.h). See docs/rigs.md for what is modelled.
 *
 * Stands beside the exact mode behind the same ggml interfaces: device.c and
 * backend.c pick by `device->timed`. Threads: as for any backend of ggml, one
 * at a time per stream; devices and buffers may be used by several. */
#ifndef ATS_EMU_TIMED_H
#define ATS_EMU_TIMED_H

#include "emu/clock.h"
#include "emu/device.h"
#include "emu/emu.h"

/* A timed device's part of the clock; one allocation, owned by the device. */
struct ats_emu_timed {
    int index;       /* in the timeline */
    uint32_t stream; /* of operations on buffers */
    _Atomic uint64_t graphs;
};

/* Sets device->timed up or tears it down; the device's memory is there. */
bool ats_emu_timed_init(struct ats_emu_device *device, struct ats_error *err);
void ats_emu_timed_destroy(struct ats_emu_device *device);

/* Waits for all commands of the device. */
void ats_emu_timed_drain(struct ats_emu_device *device);

ggml_backend_t ats_emu_timed_backend_new(struct ats_emu_device *device);
bool ats_emu_is_timed_backend(ggml_backend_t backend);
void ats_emu_timed_observe(ggml_backend_t backend, ats_emu_ended_t ended, void *data);
void ats_emu_timed_tag(ggml_backend_t backend, uint64_t tag);
bool ats_emu_timed_take_error(ggml_backend_t backend, char *text, size_t size);

ggml_backend_event_t ats_emu_timed_event_new(ggml_backend_dev_t dev);
void ats_emu_timed_event_free(ggml_backend_dev_t dev, ggml_backend_event_t event);
void ats_emu_timed_event_synchronize(ggml_backend_dev_t dev, ggml_backend_event_t event);

/* The interface of its device buffers. */
extern const struct ggml_backend_buffer_i ats_emu_timed_buffer_interface;

/* Copies between the host and a tensor's bytes on the device, in the order of
 * a stream of the timeline. Pinned host memory: the copy is entered and the
 * call returns. Pageable memory: the calling thread is busy until the copy is
 * over, except for small copies to the device, which are staged. `wait`: until
 * it is over in any case. The caller has counted the copy (admit); a tensor
 * outside of the device's memory latches `fault`, and reads then give poison. */
struct ats_emu_host_copy {
    struct ats_emu_device *device;
    uint32_t stream;
    struct ats_emu_fault *fault;
    const struct ggml_tensor *tensor;
    size_t offset;
    size_t size;
    size_t n_copies;
    size_t stride_tensor;
    size_t stride_host;
    bool wait;
};

void ats_emu_timed_upload(const struct ats_emu_host_copy *copy, const void *data);
void ats_emu_timed_download(const struct ats_emu_host_copy *copy, void *data);

/* A copy within the device: an operator that reads and writes `bytes`. */
void ats_emu_timed_move(struct ats_emu_device *device, uint32_t stream, double bytes);

#endif
