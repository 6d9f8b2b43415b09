#include "cpu_speed.h"

#include <stddef.h>
#include <time.h>

enum { N_VALUES = 1536, N_REPEATS = 600, N_PASSES = 3 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bench_cpu_speed(void)
{
    static _Thread_local float values[N_VALUES];
    static _Thread_local float steps[N_VALUES];
    double best = 0;
    volatile float kept = 0; /* a result is used, so all are computed */
    for (size_t pass = 0; pass < N_PASSES; pass++) {
        for (size_t i = 0; i < N_VALUES; i++) {
            values[i] = (float)i;
            steps[i] = 0.5F;
        }
        const double begin = now_s();
        for (size_t r = 0; r < N_REPEATS; r++) {
            const float factor = 0.5F + 0.001F * (float)r;
            for (size_t i = 0; i < N_VALUES; i++) {
                values[i] = values[i] * factor + steps[i];
            }
            kept = values[r];
        }
        const double speed = 2e-9 * N_VALUES * N_REPEATS / (now_s() - begin);
        best = speed > best ? speed : best;
    }
    (void)kept;
    return best;
}

double bench_cpu_speed_best(double seconds)
{
    const double end = now_s() + seconds;
    double best = 0;
    do {
        const double speed = bench_cpu_speed();
        best = speed > best ? speed : best;
    } while (now_s() < end);
    return best;
}
