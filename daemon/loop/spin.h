/*
 * How to pass the time until the next event: pause, yield, or sleep.
 *
 * The next event of a training step is often microseconds away, and waking from epoll costs more
 * than that. But spinning must not take the core away from a rank that shares it. Pure decisions:
 * the caller has the clock, and pauses, yields and sleeps itself.
 */
#ifndef ADTOPK_SPIN_H
#define ADTOPK_SPIN_H

#include <stdint.h>

#define SPIN_PAUSE_US 1      /* after an event: only pauses */
#define SPIN_US 50           /* after an event: pauses and yields; then sleep */
#define SPIN_CROWDED_US 5    /* the same while the core is crowded: only pauses */
#define SPIN_LONG_US 200     /* a longer yield means that another thread needs this core */
#define SPIN_RELIEF_US 10000 /* for so long the core then counts as crowded */

enum spin_step { SPIN_PAUSE, SPIN_YIELD, SPIN_SLEEP };

struct spin {
    uint64_t active_us; /* something happened last */
    uint64_t crowded_until_us;
};

/** How to pass this moment. */
static inline enum spin_step spin_choose(const struct spin *spin, uint64_t now_us)
{
    uint64_t idle = now_us - spin->active_us;

    if (now_us < spin->crowded_until_us) {
        return idle < SPIN_CROWDED_US ? SPIN_PAUSE : SPIN_SLEEP;
    }
    return idle < SPIN_PAUSE_US ? SPIN_PAUSE : idle < SPIN_US ? SPIN_YIELD : SPIN_SLEEP;
}

/** A yield has lasted from one moment to the other. */
static inline void spin_yielded(struct spin *spin, uint64_t from_us, uint64_t to_us)
{
    if (to_us - from_us > SPIN_LONG_US) {
        spin->crowded_until_us = to_us + SPIN_RELIEF_US;
    }
}

#endif
