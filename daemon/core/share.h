/*
 * Shares: whose turn it is on something that serves one at a time, such as the link to a peer or
 * the worker threads. Pure bookkeeping: the caller queues items, asks which is next, and says what
 * serving it cost.
 *
 * Between jobs: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996). Every job has a
 * virtual time, which grows by cost / weight when it is served, and the job whose time is least is
 * next; one that was idle goes on from the time of the one served last, or, where nothing was
 * queued at all, with all others from the latest time. So while two jobs have items, what they got,
 * over their weights, differs by no more than their largest costs over their weights.
 *
 * Within a job: the lowest place is next, the oldest of equals. But when the job's oldest item was
 * passed over SHARE_PASSES times in a row, it is next. So an item is served after at most
 * (SHARE_PASSES + 1) * (1 + the turns that the job's older items take) turns of its job, whatever
 * is queued behind it.
 *
 * An item that takes several turns is *begun* at the first, and a job has at most SHARE_BEGUN_MAX
 * begun ones, the last of which only its oldest item may become. When more cannot begin, one that
 * has is next.
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

/* What decides when something goes. Zero is a class as well: of no job. */
struct share_class {
    uint64_t job;
    uint32_t weight; /* of the job, up to SHARE_WEIGHT_MAX; 0 counts as 1 */
    uint64_t place;  /* among the job's: lower goes first */
};

struct share_job;

/* Embedded in what is queued. */
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

/** The item whose turn it is, or NULL. may_begin says whether one that has not begun could; NULL:
 * every one could. */
struct share_item *share_next(const struct share *share,
    bool (*may_begin)(const void *context, const struct share_item *item), const void *context);

/** The oldest item of a job, from which `newer` leads to its others; NULL if it has none. */
struct share_item *share_oldest(const struct share *share, uint64_t job);

/** The item, which share_next() returned, begins. */
void share_begin(struct share_item *item);

/** It was its turn, and that cost so much. */
void share_charge(struct share *share, struct share_item *item, uint64_t cost);

/** Takes an item out. */
void share_remove(struct share *share, struct share_item *item);

/** Keeps the item's job, although it may have no more items, until share_correct(). */
struct share_job *share_hold(struct share_item *item);

/** What the job was charged for turned out to cost so much more, or less. Ends one share_hold(). */
void share_correct(struct share_job *job, int64_t cost);

#endif
