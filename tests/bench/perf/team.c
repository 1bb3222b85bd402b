#include "tests/bench/perf/team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "kernels/base/ahead.h"
#include "tests/bench/perf/clock.h"

#define SPINS 2000 /* some ten microseconds */

struct member {
    struct team *team;
    unsigned index;
    pthread_t thread;
};

struct team {
    unsigned threads;
    void (*part)(void *context, unsigned index); /* NULL: the members end */
    void *context;
    struct ahead ahead;            /* as the daemon's workers have it */
    bool looping;                  /* inside of team_parallel()'s loop */
    _Alignas(64) atomic_uint task; /* counts them */
    _Alignas(64) atomic_uint left; /* members that have not finished it */
    struct member member[TEAM_MAX];
};

/* Waits until *word is `value` (or is not). */
static void team_await(atomic_uint *word, unsigned value, bool equal)
{
    for (unsigned spins = 0; (atomic_load_explicit(word, memory_order_acquire) == value) != equal;
         spins++) {
        if (spins >= SPINS) {
            (void)sched_yield();
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

static void *team_member(void *argument)
{
    const struct member *member = argument;
    struct team *team = member->team;

    for (unsigned task = 0;; task++) {
        team_await(&team->task, task, false);
        if (team->part == NULL) {
            return NULL;
        }
        team->part(team->context, member->index);
        (void)atomic_fetch_sub_explicit(&team->left, 1, memory_order_release);
    }
}

struct team *team_new(unsigned threads)
{
    struct team *team = aligned_alloc(64, sizeof(*team));

    if (team == NULL) {
        return NULL;
    }
    *team = (struct team){.threads = 1, .ahead.now_ns = clock_ns};
    for (unsigned i = 1; i < threads; i++) {
        struct member *member = &team->member[i];

        *member = (struct member){.team = team, .index = i};
        if (pthread_create(&member->thread, NULL, team_member, member) != 0) {
            team_free(team);
            return NULL;
        }
        team->threads++;
    }
    return team;
}

unsigned team_threads(const struct team *team)
{
    return team->threads;
}

/* Announces a task to the members. */
static void team_announce(
    struct team *team, void (*part)(void *context, unsigned index), void *context)
{
    team->part = part;
    team->context = context;
    atomic_store_explicit(&team->left, team->threads - 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&team->task, 1, memory_order_release);
}

static void team_run(struct team *team, void (*part)(void *context, unsigned index), void *context)
{
    team_announce(team, part, context);
    part(context, 0);
    team_await(&team->left, 0, true);
}

/* A loop whose parts go to whoever is free. */
struct loop {
    void (*part)(void *arg, unsigned p, unsigned thread);
    void *arg;
    unsigned parts;
    atomic_uint next;
};

static void loop_parts(void *context, unsigned thread)
{
    struct loop *loop = context;

    for (unsigned p = atomic_fetch_add_explicit(&loop->next, 1, memory_order_relaxed);
         p < loop->parts; p = atomic_fetch_add_explicit(&loop->next, 1, memory_order_relaxed)) {
        loop->part(loop->arg, p, thread);
    }
}

static void loop_run(void *context, unsigned caller,
    void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts)
{
    struct team *team = context;
    struct loop loop = {.part = part, .arg = arg, .parts = parts};

    if (team->looping) {
        loop_parts(&loop, caller);
        return;
    }
    team->looping = true;
    team_run(team, loop_parts, &loop);
    team->looping = false;
}

struct parallel team_parallel(struct team *team)
{
    return (struct parallel){
        .run = loop_run, .context = team, .threads = team->threads, .ahead = &team->ahead};
}

void team_free(struct team *team)
{
    if (team == NULL) {
        return;
    }
    team_announce(team, NULL, NULL);
    for (unsigned i = 1; i < team->threads; i++) {
        (void)pthread_join(team->member[i].thread, NULL);
    }
    free(team);
}
