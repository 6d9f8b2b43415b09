/* How fast this core computes right now.
 *
 * A virtual machine's core is often half of a physical one: while the other half has work, it
 * computes at 60 to 70 % of its speed, for seconds or minutes, and nothing inside the machine says
 * so. Reading memory or waiting for one result after another does not show it; what shows it is a
 * kernel that keeps all execution units busy, as products with quantised weights do.
 *
 * Thread-safety: may be called from any thread; measures the core that it runs on. */
#ifndef ATS_BENCH_CPU_SPEED_H
#define ATS_BENCH_CPU_SPEED_H

/* Multiplications and additions of a vector kernel in the first-level cache, in 10^9 per second:
 * the best of a few passes, 0.06 to 0.3 ms in all. */
double bench_cpu_speed(void);

/* The best of `seconds` of such probes: the speed with the core to itself, if it ever had that. */
double bench_cpu_speed_best(double seconds);

#endif
