/*
 * How much CPU time the longest turn of a thread took: everything else that the thread serves waits
 * for so long. A turn ends where the next one begins, and includes the events that ended a sleep.
 *
 * Reading the CPU clock is a system call. So it is read only when the wall clock says that a turn
 * could be the longest, and otherwise every TURNS_MARK_US, to know its value before the turn. A
 * figure is therefore too high by at most TURNS_MARK_US, and never too low.
 */
#ifndef ADTOPK_TURNS_H
#define ADTOPK_TURNS_H

#include <stdint.h>

#define TURNS_MARK_US 250u
#define TURNS_SLOT_US 10000000u
#define TURNS_SLOTS 7u /* the one that runs and 60 seconds before it */

struct turns {
    uint64_t now_us;  /* the end of the last turn */
    uint64_t mark_us; /* when the CPU clock was read last */
    uint64_t mark_cpu_us;
    uint64_t longest_us;             /* CPU time, since the start */
    uint64_t recent_us[TURNS_SLOTS]; /* the longest of each ten seconds, a ring */
    uint64_t slot;                   /* number of the ten seconds that run */
};

/** The first turn begins. */
void turns_begin(struct turns *turns, uint64_t now_us);

/** Reads the CPU clock and notes a turn that ended at now_us; for turns_end(). */
void turns_measure(struct turns *turns, uint64_t now_us);

/** A turn ends, and the next one begins. To be called by the thread that takes the turns. */
static inline void turns_end(struct turns *turns, uint64_t now_us)
{
    if (now_us - turns->mark_us >= TURNS_MARK_US ||
        now_us - turns->now_us > turns->recent_us[turns->slot % TURNS_SLOTS]) {
        turns_measure(turns, now_us);
    }
    turns->now_us = now_us;
}

/** The longest turn of the last minute, or of up to 10 seconds more. */
uint64_t turns_last_minute_us(const struct turns *turns);

#endif
