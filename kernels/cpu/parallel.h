/*
 * A loop whose parts may run on several threads at once. Who has threads lends them as a struct
 * parallel; without any, the loop runs where it is called.
 *
 * Parts must be independent: they run in any order, and what they compute must not depend on the
 * thread. Only what is scratch may: arrays of `threads` entries, indexed by `thread`.
 */
#ifndef ADTOPK_KERNELS_PARALLEL_H
#define ADTOPK_KERNELS_PARALLEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct parallel {
    /* Calls part(arg, p, thread) once for each p < parts, on the calling thread, whose number is
     * `caller`, and on others that are idle; returns when all calls have. Everything that was
     * written before run() is seen by the parts, and what they write by the caller. A part may
     * itself run a loop. NULL: one part after the other. */
    void (*run)(void *context, unsigned caller,
        void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts);
    void *context;
    unsigned threads; /* numbers that `thread` is below; 0 counts as 1 */
    unsigned caller;  /* the number of the thread that has this copy of the struct */
    bool eager;       /* for tests: the least bit of work is cut in parts */
};

/** How many threads may run parts at once, at least 1. */
static inline unsigned parallel_threads(const struct parallel *parallel)
{
    return parallel->run != NULL && parallel->threads > 1 ? parallel->threads : 1;
}

/** In how many parts to cut work of this size, 1 to `most`, if less than `each` is not worth
 * another thread's attention. */
static inline unsigned parallel_parts(
    const struct parallel *parallel, uint64_t size, uint64_t each, unsigned most)
{
    uint64_t parts = parallel->eager ? size : size / each;

    parts = parallel_threads(parallel) > 1 ? parts : 1;
    parts = parts < most ? parts : most;
    return parts > 1 ? (unsigned)parts : 1;
}

/** Runs all parts, see struct parallel.run. Does nothing if there are none. */
static inline void parallel_for(const struct parallel *parallel,
    void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts)
{
    if (parts > 1 && parallel->run != NULL) {
        parallel->run(parallel->context, parallel->caller, part, arg, parts);
        return;
    }
    for (unsigned p = 0; p < parts; p++) {
        part(arg, p, parallel->caller);
    }
}

#endif
