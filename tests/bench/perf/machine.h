/*
 * The machine that a measurement was taken on.
 */
#ifndef PERF_MACHINE_H
#define PERF_MACHINE_H

#include <stdint.h>

#define MACHINE_TEXT 128

struct machine {
    char cpu[MACHINE_TEXT];     /* model name of the first core; "unknown" */
    char kernel[MACHINE_TEXT];  /* "Linux 6.1.0 x86_64" */
    char vectors[MACHINE_TEXT]; /* "avx2 avx512f": those that the processor has */
    long cores;                 /* online */
    double load;                /* of the last minute, when the run began; -1: unknown */
};

/** Never fails: values that cannot be found out become "unknown". */
void machine_describe(struct machine *machine);

/** Bytes of memory that can be had without anything being killed or swapped out, as far as the
 * kernel knows. */
uint64_t machine_available(void);

/** Microseconds that a core of this machine had nothing to do since it started, on average over its
 * cores; NAN: unknown. */
double machine_idle_us(void);

#endif
