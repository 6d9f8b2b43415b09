#include "backend/follow.h"

#include "backend/residency.h"
#include "backend/stream.h"
#include "base/parse.h"
#include "plan/headroom.h"

static size_t budget_now(struct ats_device *device)
{
    struct ats_headroom memory = {.used = device->vram_used,
                                  .budget = device->vram_budget,
                                  .wanted = device->vram_wanted,
                                  .before = device->vram_before};
    ggml_backend_dev_memory(device->accel, &memory.free, &memory.total);
    return ats_headroom_budget(&memory);
}

/* Returns when to look next. */
static double come_back(struct ats_stream *stream, double now_us)
{
    struct ats_device *device = stream->device;
    size_t bytes = 0;
    if (!ats_residency_bring_back(device, stream->accel, &bytes)) {
        if (device->return_wait_us <= 0) {
            ats_log_warn("%s: weights cannot come back to VRAM yet; tried again ever more rarely\n",
                         device->name);
        }
        return ats_look_after_failure(now_us, &device->return_wait_us);
    }
    device->return_wait_us = 0;
    if (device->vram_budget == device->vram_wanted) {
        ats_residency_spread(device);
    }
    return ats_look_after_return(now_us, bytes, device->rates.costs.link_bytes_per_us);
}

static void follow(struct ats_stream *stream, double now_us)
{
    struct ats_device *device = stream->device;
    const size_t before = device->vram_budget;
    double due_us = ats_look_again(now_us);
    device->vram_budget = budget_now(device);
    if (device->vram_used > device->vram_budget) {
        struct ats_error err = {{0}};
        char text[32];
        const bool is_news = device->vram_budget != before;
        if (is_news) {
            ats_log_info("%s: others need VRAM; the budget is %s now\n", device->name,
                         ats_format_bytes(device->vram_budget, text, sizeof(text)));
        }
        /* context state and compute memory cannot leave */
        if (!ats_residency_make_room(device, 0, stream->accel, &err) && is_news) {
            ats_log_warn("%s: no weights are left in VRAM that could make way for others\n",
                         device->name);
        }
    } else if (device->vram_budget >= before) {
        due_us = come_back(stream, now_us);
    }
    device->follow_due_us = due_us;
}

void ats_follow(struct ats_stream *stream)
{
    struct ats_device *device = stream->device;
    const double now_us = ats_meter_now_us();
    const enum ats_look look = ats_look_at(device->follow_due_us, now_us);
    if (device->config->adapt == ATS_ADAPT_OFF || device->accel_lost || look == ATS_LOOK_LATER) {
        return;
    }
    /* another context may be in a long pass; it is worth waiting for only now and then */
    if (pthread_rwlock_trywrlock(&device->lock) != 0) {
        if (look == ATS_LOOK_IF_FREE) {
            return;
        }
        pthread_rwlock_wrlock(&device->lock);
    }
    if (device->budget_known && device->vram_used > 0) {
        follow(stream, now_us);
    }
    pthread_rwlock_unlock(&device->lock);
}
