/* cpu-speed SECONDS: the speed of an undisturbed core, to give to the driver: the best of so many
 * seconds. Ends as soon as that is long enough and the core is at that speed, so that what follows
 * starts on an undisturbed core; after ten times as long at the latest. */
#include "cpu_speed.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    static const double near = 0.9;
    enum { MOST_WAITS = 9 };
    char *end = NULL;
    const double seconds = argc == 2 ? strtod(argv[1], &end) : 0;
    if (end == NULL || *end != '\0' || !(seconds > 0 && seconds <= 60)) {
        fprintf(stderr, "usage: cpu-speed SECONDS (at most 60)\n");
        return 2;
    }
    double best = bench_cpu_speed_best(seconds);
    for (int wait = 0; wait < MOST_WAITS && bench_cpu_speed() < near * best; wait++) {
        const double speed = bench_cpu_speed_best(seconds);
        best = speed > best ? speed : best;
    }
    printf("%.3f\n", best);
    return 0;
}
