#include "plan/watch.h"

const char *ats_watch_reason_text(enum ats_watch_reason reason)
{
    static const char *const texts[ATS_WATCH_REASONS] = {
        [ATS_WATCH_NOTHING] = "nothing",
        [ATS_WATCH_CPU_SLOWER] = "the CPU is slower",
        [ATS_WATCH_CPU_FASTER] = "the CPU is faster",
        [ATS_WATCH_ACCEL_SLOWER] = "the accelerator is slower",
        [ATS_WATCH_ACCEL_FASTER] = "the accelerator is faster",
        [ATS_WATCH_LINK_SLOWER] = "the link is slower",
        [ATS_WATCH_LINK_TRIED] = "whether the link is faster again",
        [ATS_WATCH_TAKEN_BACK] = "the new plan was slower",
    };
    return (unsigned)reason < ATS_WATCH_REASONS ? texts[reason] : "unknown";
}
