/*
 * A loop whose parts may run on several threads at once. The owner of the threads lends them as a
 * struct parallel. Without threads the loop runs on the calling thread.
 *
 * Parts must be independent: they run in any order, and their results must not depend on the
 * thread. Only scratch memory may depend on it: arrays of `threads` entries, indexed by `thread`.
 */
#ifndef ADTOPK_KERNELS_PARALLEL_H
#define ADTOPK_KERNELS_PARALLEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ahead;

struct parallel {
    /* Calls part(arg, p, thread) once for each p < parts, and returns when all calls have returned.
     * The calls run on the calling thread, whose number is `caller`, and on idle threads. The parts
     * see everything that was written before run(), and the caller then sees everything that the
     * parts wrote. A part may itself run a loop. NULL: the parts run one after the other. */
    void (*run)(void *context, unsigned caller,
        void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts);
    void *context;
    unsigned threads;    /* every `thread` is below this number; 0 counts as 1 */
    unsigned caller;     /* the number of the thread that has this copy of the struct */
    bool eager;          /* for tests: splits even the smallest piece of work in parts */
    struct ahead *ahead; /* what passes have learned of this machine (ahead.h), or NULL */
};

/** The largest number of threads that may run parts at once, at least 1. */
static inline unsigned parallel_threads(const struct parallel *parallel)
{
    return parallel->run != NULL && parallel->threads > 1 ? parallel->threads : 1;
}

/** The number of parts to split work of this size into, from 1 to `most`. A part of less than
 * `each` is not worth another thread. */
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
