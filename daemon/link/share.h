/*
 * Shares: who is next on a resource that serves one item at a time, such as the link to a peer or
 * the worker threads. Pure bookkeeping: the caller queues items, asks for the next one, and reports
 * what serving it cost.
 *
 * Between jobs: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996). Every job has a
 * virtual time, which grows by cost / weight when it is served. The job with the least time is
 * next. A job that was idle goes on from the time of the job served last. If nothing was queued at
 * all, all jobs go on from the latest time. So while two jobs have items, their service over their
 * weights differs by no more than their largest costs over their weights.
 *
 * Within a job: the lowest place is next, the oldest of equals. But when the job's oldest item was
 * passed over SHARE_PASSES times in a row, it is next. So an item is served after at most
 * (SHARE_PASSES + 1) * (1 + the services that the job's older items take) services of its job,
 * whatever is queued behind it.
 *
 * An item that is served several times is *begun* at the first. A job has at most SHARE_BEGUN_MAX
 * begun items, and only its oldest item may become the last of them. When no more can begin, a
 * begun item is next.
 *
 * Not thread-safe: the owner locks.
 */
#ifndef ADTOPK_SHARE_H
#define ADTOPK_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHARE_WEIGHT_MAX 100u
#define SHARE_PASSES 7u
#define SHARE_BEGUN_MAX 8u

/* The class of an item decides when it is served. Zero is a class as well: of no job. */
struct share_class {
    uint64_t job;
    uint32_t weight; /* of the job, up to SHARE_WEIGHT_MAX; 0 counts as 1 */
    uint64_t place;  /* among the job's: lower goes first */
};

struct share_job;

/* Embedded in a queued item. */
struct share_item {
    struct share_job *job; /* NULL: not queued */
    uint64_t place;
    uint64_t number; /* in order of arrival */
    size_t at;       /* in its job's heap, while it is not begun */
    bool begun;
    struct share_item *older, *newer; /* of its job */
};

/* Zero is an empty one. */
struct share {
    struct share_job *jobs;
    uint64_t now; /* virtual time: when the last service began */
    uint64_t arrivals;
    size_t items;
};

/** Drops everything; items are the caller's. */
void share_reset(struct share *share);

/** Queues an item. A weight that differs from before is the job's from now on. False without
 * memory. */
bool share_put(struct share *share, struct share_item *item, const struct share_class *class);

/** The item that is next, or NULL. may_begin says whether an item that has not begun could; NULL:
 * every one could. */
struct share_item *share_next(const struct share *share,
    bool (*may_begin)(const void *context, const struct share_item *item), const void *context);

/** The oldest item of a job, from which `newer` leads to its others; NULL if it has none. */
struct share_item *share_oldest(const struct share *share, uint64_t job);

/** The item, which share_next() returned, begins. */
void share_begin(struct share_item *item);

/** The item was served, at this cost. */
void share_charge(struct share *share, struct share_item *item, uint64_t cost);

/** Takes an item out. */
void share_remove(struct share *share, struct share_item *item);

/** Keeps the item's job, although it may have no more items, until share_correct(). */
struct share_job *share_hold(struct share_item *item);

/** Corrects the charge of a job: serving its item cost so much more, or less. Ends one
 * share_hold(). */
void share_correct(struct share_job *job, int64_t cost);

#endif
