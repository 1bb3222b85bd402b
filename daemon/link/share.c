#include "daemon/link/share.h"

#include <stdlib.h>

/* Virtual time of a cost of 1 at a weight of 1: enough for fractions at a weight of 100. Times
 * wrap, so only differences count. */
#define SHARE_UNIT 1024

struct share_job {
    struct share_job *next;
    uint64_t id;
    uint32_t weight;
    uint64_t time;            /* virtual */
    struct share_item **heap; /* items that have not begun; index 0 has the lowest place */
    size_t waiting, capacity;
    struct share_item *begun[SHARE_BEGUN_MAX];
    unsigned begun_count;
    struct share_item *oldest, *newest;
    unsigned passed; /* services in a row that the oldest did not get */
    unsigned held;
};

/* ------------------------------------------------------------------ the heap of a job */

static bool share_before(const struct share_item *a, const struct share_item *b)
{
    return a->place != b->place ? a->place < b->place : a->number < b->number;
}

static void heap_set(struct share_job *job, size_t at, struct share_item *item)
{
    job->heap[at] = item;
    item->at = at;
}

static void heap_up(struct share_job *job, size_t at, struct share_item *item)
{
    while (at > 0 && share_before(item, job->heap[(at - 1) / 2])) {
        heap_set(job, at, job->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_set(job, at, item);
}

static void heap_down(struct share_job *job, size_t at, struct share_item *item)
{
    for (size_t child = 2 * at + 1; child < job->waiting; child = 2 * at + 1) {
        if (child + 1 < job->waiting && share_before(job->heap[child + 1], job->heap[child])) {
            child++;
        }
        if (share_before(item, job->heap[child])) {
            break;
        }
        heap_set(job, at, job->heap[child]);
        at = child;
    }
    heap_set(job, at, item);
}

static bool heap_reserve(struct share_job *job)
{
    size_t capacity = job->capacity > 0 ? 2 * job->capacity : 16;
    struct share_item **grown;

    if (job->waiting < job->capacity) {
        return true;
    }
    grown = realloc(job->heap, capacity * sizeof(*grown));
    if (grown == NULL) {
        return false;
    }
    job->heap = grown;
    job->capacity = capacity;
    return true;
}

static void heap_remove(struct share_job *job, const struct share_item *item)
{
    struct share_item *last = job->heap[--job->waiting];

    if (last == item) {
        return;
    }
    if (share_before(last, item)) {
        heap_up(job, item->at, last);
    } else {
        heap_down(job, item->at, last);
    }
}

/* ------------------------------------------------------------------ jobs */

static bool share_job_is_idle(const struct share_job *job)
{
    return job->oldest == NULL && job->held == 0;
}

static bool is_earlier(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) < 0;
}

static void share_job_free(struct share_job *job)
{
    free(job->heap);
    free(job);
}

void share_reset(struct share *share)
{
    for (struct share_job *job = share->jobs, *next; job != NULL; job = next) {
        next = job->next;
        share_job_free(job);
    }
    *share = (struct share){.jobs = NULL};
}

/* Forgets jobs that have nothing queued and whose time is no longer needed. */
static void forget_jobs(struct share *share)
{
    struct share_job **link = &share->jobs;

    while (*link != NULL) {
        struct share_job *job = *link;

        if (share_job_is_idle(job) && !is_earlier(share->now, job->time)) {
            *link = job->next;
            share_job_free(job);
        } else {
            link = &job->next;
        }
    }
}

static struct share_job *share_find_job(struct share *share, uint64_t id)
{
    struct share_job *job = share->jobs;

    while (job != NULL && job->id != id) {
        job = job->next;
    }
    if (job != NULL) {
        return job;
    }
    forget_jobs(share);
    job = calloc(1, sizeof(*job));
    if (job != NULL) {
        job->id = id;
        job->time = share->now;
        job->next = share->jobs;
        share->jobs = job;
    }
    return job;
}

/* While nothing is queued or being served, all jobs are even: the next one begins with all. */
static void forgive(struct share *share)
{
    uint64_t latest = share->now;

    for (const struct share_job *job = share->jobs; job != NULL; job = job->next) {
        if (!share_job_is_idle(job)) {
            return;
        }
        latest = is_earlier(latest, job->time) ? job->time : latest;
    }
    share->now = latest;
}

/* ------------------------------------------------------------------ items */

bool share_put(struct share *share, struct share_item *item, const struct share_class *class)
{
    struct share_job *job;

    if (share->items == 0) {
        forgive(share);
    }
    job = share_find_job(share, class->job);
    if (job == NULL || !heap_reserve(job)) {
        return false;
    }
    job->weight = class->weight > 0 ? class->weight : 1;
    if (job->oldest == NULL && is_earlier(job->time, share->now)) {
        job->time = share->now;
    }
    *item = (struct share_item){
        .job = job, .place = class->place, .number = share->arrivals++, .older = job->newest};
    if (job->newest != NULL) {
        job->newest->newer = item;
    } else {
        job->oldest = item;
        job->passed = 0;
    }
    job->newest = item;
    heap_up(job, job->waiting++, item);
    share->items++;
    return true;
}

/* The begun item of a job that goes before its others. */
static struct share_item *first_begun(const struct share_job *job, bool by_age)
{
    struct share_item *first = NULL;

    for (unsigned i = 0; i < job->begun_count; i++) {
        struct share_item *item = job->begun[i];

        if (first == NULL || (by_age ? item->number < first->number : share_before(item, first))) {
            first = item;
        }
    }
    return first;
}

/* The item of a job that is next, or NULL. */
static struct share_item *next_of(const struct share_job *job,
    bool (*may_begin)(const void *context, const struct share_item *item), const void *context)
{
    bool by_age = job->passed >= SHARE_PASSES;
    unsigned begun_max = by_age ? SHARE_BEGUN_MAX : SHARE_BEGUN_MAX - 1;
    struct share_item *begun = first_begun(job, by_age);
    struct share_item *other = by_age ? job->oldest : job->waiting > 0 ? job->heap[0] : NULL;

    if (other == NULL || other->begun || job->begun_count >= begun_max ||
        (!by_age && begun != NULL && share_before(begun, other)) ||
        (may_begin != NULL && !may_begin(context, other))) {
        return begun;
    }
    return other;
}

struct share_item *share_next(const struct share *share,
    bool (*may_begin)(const void *context, const struct share_item *item), const void *context)
{
    struct share_item *next = NULL;

    for (const struct share_job *job = share->jobs; job != NULL; job = job->next) {
        struct share_item *item = job->oldest != NULL ? next_of(job, may_begin, context) : NULL;

        if (item != NULL && (next == NULL || is_earlier(job->time, next->job->time) ||
                                (job->time == next->job->time && item->number < next->number))) {
            next = item;
        }
    }
    return next;
}

struct share_item *share_oldest(const struct share *share, uint64_t id)
{
    const struct share_job *job = share->jobs;

    while (job != NULL && job->id != id) {
        job = job->next;
    }
    return job != NULL ? job->oldest : NULL;
}

void share_begin(struct share_item *item)
{
    heap_remove(item->job, item);
    item->job->begun[item->job->begun_count++] = item;
    item->begun = true;
}

/* Idle jobs start at `now` at the earliest when they come back; until then their times must not
 * fall behind so far that they wrap. */
static void share_catch_up(struct share *share)
{
    for (struct share_job *job = share->jobs; job != NULL; job = job->next) {
        if (share_job_is_idle(job) && is_earlier(job->time, share->now)) {
            job->time = share->now;
        }
    }
}

void share_charge(struct share *share, struct share_item *item, uint64_t cost)
{
    struct share_job *job = item->job;

    if (is_earlier(share->now, job->time)) {
        share->now = job->time;
        share_catch_up(share);
    }
    job->time += cost * SHARE_UNIT / job->weight;
    job->passed = item == job->oldest ? 0 : job->passed + 1;
}

void share_remove(struct share *share, struct share_item *item)
{
    struct share_job *job = item->job;

    if (!item->begun) {
        heap_remove(job, item);
    }
    for (unsigned i = 0; item->begun && i < job->begun_count; i++) {
        if (job->begun[i] == item) {
            job->begun[i] = job->begun[--job->begun_count];
        }
    }
    if (item == job->oldest) {
        job->passed = 0;
    }
    *(item->older != NULL ? &item->older->newer : &job->oldest) = item->newer;
    *(item->newer != NULL ? &item->newer->older : &job->newest) = item->older;
    item->job = NULL;
    share->items--;
}

struct share_job *share_hold(struct share_item *item)
{
    item->job->held++;
    return item->job;
}

void share_correct(struct share_job *job, int64_t cost)
{
    job->time += (uint64_t)(cost * SHARE_UNIT / (int64_t)job->weight);
    job->held--;
}
