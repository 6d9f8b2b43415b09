#include "plan/estimate.h"

static const struct {
    float bytes_per_us;
    float flop_per_us;
    float fixed_us;
} rates[ATS_SIDES] = {
    [ATS_HOST] = {30e3F, 100e3F, 2.0F},
    [ATS_ACCEL] = {250e3F, 10e6F, 3.0F},
};

float ats_estimate_us(enum ats_side side, float bytes, float flops)
{
    const float traffic_us = bytes / rates[side].bytes_per_us;
    const float compute_us = flops / rates[side].flop_per_us;
    return rates[side].fixed_us + (traffic_us > compute_us ? traffic_us : compute_us);
}
