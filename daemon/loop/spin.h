/*
 * How to pass the time until the next event: pause, yield, or sleep.
 *
 * The next event of a training step is often microseconds away, and waking from epoll costs more
 * than that. But spinning must not take the core away from a rank that shares it, and it is in vain
 * where a slow link has the next event. So the last waits decide how long to spin.
 * Pure decisions: the caller has the clock, and pauses, yields and sleeps itself.
 */
#ifndef ADTOPK_SPIN_H
#define ADTOPK_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define SPIN_PAUSE_US 1      /* after an event: only pauses */
#define SPIN_US 50           /* after an event: pauses and yields; then sleep */
#define SPIN_SHORT_US 5      /* the same while the core is crowded, or spins are in vain */
#define SPIN_LONG_US 200     /* a longer yield means that another thread needs this core */
#define SPIN_RELIEF_US 10000 /* for so long the core then counts as crowded */
#define SPIN_VAIN 0.5f       /* spins are in vain if `vain` is more */
#define SPIN_TRIAL 8u        /* after so many waits that were slept through, one is not */

enum spin_step { SPIN_PAUSE, SPIN_YIELD, SPIN_SLEEP };

struct spin {
    uint64_t active_us; /* something happened last */
    uint64_t crowded_until_us;
    uint64_t waited_us; /* since active_us, when spin_choose() was last asked */
    float vain;         /* share of the last few spins that were in vain */
    unsigned skipped;   /* waits since the last long spin */
};

/** Whether spins are in vain. Sleeping makes waits longer, so waits that were slept through do not
 * tell: trials do. */
static inline bool spin_is_vain(const struct spin *spin)
{
    return spin->vain > SPIN_VAIN && spin->skipped < SPIN_TRIAL;
}

/** How to pass this moment. */
static inline enum spin_step spin_choose(struct spin *spin, uint64_t now_us)
{
    const uint64_t waited = now_us - spin->active_us;

    spin->waited_us = waited;
    if (now_us < spin->crowded_until_us) {
        return waited < SPIN_SHORT_US ? SPIN_PAUSE : SPIN_SLEEP;
    }
    if (waited < SPIN_PAUSE_US) {
        return SPIN_PAUSE;
    }
    return waited < (spin_is_vain(spin) ? SPIN_SHORT_US : SPIN_US) ? SPIN_YIELD : SPIN_SLEEP;
}

/** Something happened, and the wait before it is over. */
static inline void spin_active(struct spin *spin, uint64_t now_us)
{
    if (spin->waited_us >= SPIN_SHORT_US && spin_is_vain(spin)) {
        spin->skipped++;
    } else if (spin->waited_us >= SPIN_SHORT_US) {
        spin->skipped = 0;
        spin->vain += ((spin->waited_us < SPIN_US ? 0.0f : 1.0f) - spin->vain) / 4;
    }
    spin->waited_us = 0;
    spin->active_us = now_us;
}

/** A sleep has ended. */
static inline void spin_woken(struct spin *spin, uint64_t now_us)
{
    spin->waited_us = now_us - spin->active_us;
    spin_active(spin, now_us);
}

/** A yield has lasted from one moment to the other. */
static inline void spin_yielded(struct spin *spin, uint64_t from_us, uint64_t to_us)
{
    if (to_us - from_us > SPIN_LONG_US) {
        spin->crowded_until_us = to_us + SPIN_RELIEF_US;
    }
}

#endif
