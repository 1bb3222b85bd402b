/*
 * How much CPU time the longest iteration of a thread took: everything else that the thread serves
 * waits for so long. An iteration ends where the next one begins, and includes the events that
 * ended a sleep.
 *
 * Reading the CPU clock is a system call. So it is read only when the wall clock says that an
 * iteration could be the longest, and otherwise every ITERATIONS_MARK_US, to know its value before
 * the iteration. A figure is therefore too high by at most ITERATIONS_MARK_US, and never too low.
 */
#ifndef ADTOPK_LOOP_ITERATIONS_H
#define ADTOPK_LOOP_ITERATIONS_H

#include <stdint.h>

#define ITERATIONS_MARK_US 250u
#define ITERATIONS_SLOT_US 10000000u
#define ITERATIONS_SLOTS 7u /* the one that runs and 60 seconds before it */

struct iterations {
    uint64_t now_us;                      /* the end of the last iteration */
    uint64_t mark_us;                     /* when the CPU clock was read last */
    uint64_t mark_cpu_us;                 /* its value: of the thread, since it began */
    uint64_t longest_us;                  /* CPU time, since the start */
    uint64_t recent_us[ITERATIONS_SLOTS]; /* the longest of each ten seconds, a ring */
    uint64_t slot;                        /* number of the ten seconds that run */
};

/** The first iteration begins. */
void iterations_begin(struct iterations *iterations, uint64_t now_us);

/** Reads the CPU clock and notes an iteration that ended at now_us; for iterations_end(). */
void iterations_measure(struct iterations *iterations, uint64_t now_us);

/** An iteration ends, and the next one begins. To be called by the thread that takes the
 * iterations. */
static inline void iterations_end(struct iterations *iterations, uint64_t now_us)
{
    if (now_us - iterations->mark_us >= ITERATIONS_MARK_US ||
        now_us - iterations->now_us > iterations->recent_us[iterations->slot % ITERATIONS_SLOTS]) {
        iterations_measure(iterations, now_us);
    }
    iterations->now_us = now_us;
}

/** The longest iteration of the last minute, or of up to 10 seconds more. */
uint64_t iterations_last_minute_us(const struct iterations *iterations);

#endif
