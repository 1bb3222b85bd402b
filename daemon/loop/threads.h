/*
 * The processor time of threads that a library started in this process.
 */
#ifndef ADTOPK_THREADS_H
#define ADTOPK_THREADS_H

#include <stdint.h>

/** Microseconds that all threads with names that begin with `prefix` have run together, as the
 * kernel counts them in ticks of mostly 10 ms. 0 where /proc does not tell. Any thread. */
uint64_t threads_cpu_us(const char *prefix);

#endif
