#include "daemon/loop/workers.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/base/ahead.h"

/* A running compute is charged for so long until it is over. Otherwise a job whose computes begin
 * on all workers at once would not have been charged for any. */
#define GUESSED_BYTES_A_US 4096u

/* A growing ring of computes; its lock is the owner's. */
struct queue {
    struct compute **entry;
    size_t capacity; /* a power of two, or 0 */
    size_t head;
    size_t count;
};

/* A loop that is spread over threads. It lies on its caller's stack. */
struct spread {
    struct spread *next;
    void (*part)(void *arg, unsigned p, unsigned thread);
    void *arg;
    unsigned caller; /* a thread */
    unsigned parts;
    atomic_uint claimed; /* the next part; at most `parts` + the number of threads */
    unsigned helping;    /* workers inside a part; guarded by the lock */
};

struct worker {
    struct workers *workers;
    pthread_t thread;
    unsigned number;
    atomic_uint_least64_t since_us; /* its compute has been running; 0: none is */
    uint64_t helped_us;             /* time that other workers spent on its compute's loops */
};

struct workers {
    pthread_mutex_t lock; /* guards all from here to `finished` */
    pthread_cond_t wake;
    pthread_cond_t helped;  /* a worker has left a part */
    struct spread *spreads; /* loops that may have parts left */
    unsigned idle;
    struct share waiting;
    struct queue done; /* has room for every running and waiting compute */
    size_t running;
    uint64_t busy_us; /* of all threads, in work that is over */
    bool stopping;
    atomic_size_t finished; /* computes in done: read without the lock by a loop that spins */
    void (*notify)(void *context);
    void *context;
    unsigned count;
    struct ahead ahead;
    struct worker worker[];
};

static bool workers_queue_reserve(struct queue *queue, size_t wanted)
{
    size_t capacity = queue->capacity > 0 ? queue->capacity : 16;
    struct compute **entry;

    if (wanted <= queue->capacity) {
        return true;
    }
    while (capacity < wanted) {
        capacity *= 2;
    }
    entry = malloc(capacity * sizeof(*entry));
    if (entry == NULL) {
        return false;
    }
    for (size_t i = 0; i < queue->count; i++) {
        entry[i] = queue->entry[(queue->head + i) & (queue->capacity - 1)];
    }
    free(queue->entry);
    queue->entry = entry;
    queue->capacity = capacity;
    queue->head = 0;
    return true;
}

static void workers_queue_put(struct queue *queue, struct compute *compute)
{
    queue->entry[(queue->head + queue->count) & (queue->capacity - 1)] = compute;
    queue->count++;
}

static struct compute *workers_queue_get(struct queue *queue)
{
    struct compute *compute = queue->entry[queue->head];

    queue->head = (queue->head + 1) & (queue->capacity - 1);
    queue->count--;
    return compute;
}

static uint64_t workers_monotonic_ns(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t workers_monotonic_us(void)
{
    return workers_monotonic_ns() / 1000;
}

static void workers_begin_work(struct worker *self)
{
    atomic_store_explicit(&self->since_us, workers_monotonic_us(), memory_order_relaxed);
}

/* Returns how many microseconds it took. */
static uint64_t workers_end_work(struct worker *self)
{
    uint64_t since = atomic_load_explicit(&self->since_us, memory_order_relaxed);

    atomic_store_explicit(&self->since_us, 0, memory_order_relaxed);
    return workers_monotonic_us() - since;
}

/* ------------------------------------------------------------------ loops */

/* Runs parts until none is left. */
static void workers_run_parts(struct spread *spread, unsigned thread)
{
    unsigned p;

    while ((p = atomic_fetch_add_explicit(&spread->claimed, 1, memory_order_relaxed)) <
           spread->parts) {
        spread->part(spread->arg, p, thread);
    }
}

/* With the lock: takes a loop out of the list, if it is still there. */
static void workers_unlist(struct workers *workers, const struct spread *spread)
{
    struct spread **at = &workers->spreads;

    while (*at != NULL && *at != spread) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = spread->next;
    }
}

static void workers_spread_run(void *context, unsigned caller,
    void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts)
{
    struct workers *workers = context;
    struct spread spread = {.part = part, .arg = arg, .caller = caller, .parts = parts};

    (void)pthread_mutex_lock(&workers->lock);
    spread.next = workers->spreads;
    workers->spreads = &spread;
    for (unsigned i = 0; i < workers->idle && i + 1 < parts; i++) {
        (void)pthread_cond_signal(&workers->wake);
    }
    (void)pthread_mutex_unlock(&workers->lock);
    workers_run_parts(&spread, caller);
    (void)pthread_mutex_lock(&workers->lock);
    workers_unlist(workers, &spread);
    while (spread.helping > 0) {
        (void)pthread_cond_wait(&workers->helped, &workers->lock);
    }
    (void)pthread_mutex_unlock(&workers->lock);
}

struct parallel workers_parallel(struct workers *workers)
{
    return (struct parallel){.run = workers_spread_run,
        .context = workers,
        .threads = workers->count + 1,
        .ahead = &workers->ahead};
}

/* With the lock, which it gives up meanwhile: runs one part of a loop. */
static void workers_help(struct worker *self)
{
    struct workers *workers = self->workers;
    struct spread *spread = workers->spreads;
    const unsigned p = atomic_fetch_add_explicit(&spread->claimed, 1, memory_order_relaxed);
    uint64_t spent_us;

    if (p >= spread->parts) {
        workers_unlist(workers, spread);
        return;
    }
    spread->helping++;
    (void)pthread_mutex_unlock(&workers->lock);
    workers_begin_work(self);
    spread->part(spread->arg, p, self->number);
    spent_us = workers_end_work(self);
    (void)pthread_mutex_lock(&workers->lock);
    workers->busy_us += spent_us;
    if (spread->caller > 0) {
        workers->worker[spread->caller - 1].helped_us += spent_us;
    }
    if (--spread->helping == 0) {
        (void)pthread_cond_broadcast(&workers->helped);
    }
}

/* ------------------------------------------------------------------ computes */

/* Call it with the lock: removes the next compute. Charges it for its estimated time, and keeps its
 * job for the rest. */
static struct compute *workers_take_next(
    struct workers *workers, uint64_t *guess, struct share_job **job)
{
    struct share_item *item = share_next(&workers->waiting, NULL, NULL);
    struct compute *compute =
        (struct compute *)((uintptr_t)item - offsetof(struct compute, waiting));

    *guess = 1 + compute->bytes / GUESSED_BYTES_A_US;
    share_charge(&workers->waiting, item, *guess);
    *job = share_hold(item);
    share_remove(&workers->waiting, item);
    return compute;
}

/* Call it with the lock, which it gives up meanwhile: runs the next compute. */
static void workers_run_next(struct worker *self)
{
    struct workers *workers = self->workers;
    struct share_job *job;
    uint64_t guess, spent;
    struct compute *compute = workers_take_next(workers, &guess, &job);

    workers->running++;
    self->helped_us = 0;
    (void)pthread_mutex_unlock(&workers->lock);
    compute->thread = self->number;
    workers_begin_work(self);
    compute->run(compute);
    spent = workers_end_work(self);
    compute->took_us = spent + 1;
    (void)pthread_mutex_lock(&workers->lock);
    workers->busy_us += spent;
    spent += self->helped_us;
    share_correct(job, (int64_t)(spent > 0 ? spent : 1) - (int64_t)guess);
    workers->running--;
    workers_queue_put(&workers->done, compute);
    atomic_store_explicit(&workers->finished, workers->done.count, memory_order_release);
    (void)pthread_mutex_unlock(&workers->lock);
    workers->notify(workers->context);
    (void)pthread_mutex_lock(&workers->lock);
}

static void *workers_main(void *argument)
{
    struct worker *self = argument;
    struct workers *workers = self->workers;

    (void)pthread_mutex_lock(&workers->lock);
    while (!workers->stopping) {
        if (workers->waiting.items > 0) {
            workers_run_next(self);
        } else if (workers->spreads != NULL) {
            workers_help(self);
        } else {
            workers->idle++;
            (void)pthread_cond_wait(&workers->wake, &workers->lock);
            workers->idle--;
        }
    }
    (void)pthread_mutex_unlock(&workers->lock);
    return NULL;
}

/* Signals belong to the loop's thread. */
static int workers_start_thread(struct workers *workers)
{
    struct worker *self = &workers->worker[workers->count];
    sigset_t all;
    sigset_t old;
    int code;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    self->workers = workers;
    self->number = workers->count + 1;
    code = pthread_create(&self->thread, NULL, workers_main, self);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code == 0) {
        workers->count++;
    }
    return code;
}

struct workers *workers_create(
    unsigned count, void (*notify)(void *context), void *context, struct error *err)
{
    struct workers *workers;

    if (count < 1 || count > CONFIG_WORKERS_MAX) {
        (void)error_set(err, ADTOPK_ERR_ARGUMENT, "%u workers: 1 to %d are possible", count,
            CONFIG_WORKERS_MAX);
        return NULL;
    }
    workers = calloc(1, sizeof(*workers) + count * sizeof(workers->worker[0]));
    if (workers == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for %u workers", count);
        return NULL;
    }
    (void)pthread_mutex_init(&workers->lock, NULL); /* cannot fail with default attributes */
    (void)pthread_cond_init(&workers->wake, NULL);
    (void)pthread_cond_init(&workers->helped, NULL);
    workers->notify = notify;
    workers->context = context;
    workers->ahead.now_ns = workers_monotonic_ns;
    while (workers->count < count) {
        int code = workers_start_thread(workers);

        if (code != 0) {
            (void)error_set(err, ADTOPK_ERR_SYSTEM, "cannot start worker thread %u of %u: %s",
                workers->count + 1, count, strerror(code));
            workers_destroy(workers);
            return NULL;
        }
    }
    return workers;
}

bool workers_submit(struct workers *workers, struct compute *compute)
{
    bool queued;

    (void)pthread_mutex_lock(&workers->lock);
    queued = workers_queue_reserve(&workers->done,
                 workers->done.count + workers->running + workers->waiting.items + 1) &&
             share_put(&workers->waiting, &compute->waiting, &compute->class);
    if (queued) {
        (void)pthread_cond_signal(&workers->wake);
    }
    (void)pthread_mutex_unlock(&workers->lock);
    return queued;
}

struct compute *workers_take(struct workers *workers)
{
    struct compute *compute = NULL;

    (void)pthread_mutex_lock(&workers->lock);
    if (workers->done.count > 0) {
        compute = workers_queue_get(&workers->done);
        atomic_store_explicit(&workers->finished, workers->done.count, memory_order_release);
    }
    (void)pthread_mutex_unlock(&workers->lock);
    return compute;
}

bool workers_finished(const struct workers *workers)
{
    return atomic_load_explicit(&workers->finished, memory_order_acquire) > 0;
}

uint64_t workers_longest_us(const struct workers *workers)
{
    const uint64_t now = workers_monotonic_us();
    uint64_t longest = 0;

    for (unsigned i = 0; i < workers->count; i++) {
        const uint64_t since =
            atomic_load_explicit(&workers->worker[i].since_us, memory_order_relaxed);

        if (since > 0 && since < now && now - since > longest) {
            longest = now - since;
        }
    }
    return longest;
}

unsigned workers_count(const struct workers *workers)
{
    return workers->count;
}

uint64_t workers_busy_us(struct workers *workers)
{
    uint64_t busy_us;

    (void)pthread_mutex_lock(&workers->lock);
    busy_us = workers->busy_us;
    (void)pthread_mutex_unlock(&workers->lock);
    return busy_us;
}

void workers_destroy(struct workers *workers)
{
    if (workers == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&workers->lock);
    workers->stopping = true;
    (void)pthread_cond_broadcast(&workers->wake);
    (void)pthread_mutex_unlock(&workers->lock);
    for (unsigned i = 0; i < workers->count; i++) {
        (void)pthread_join(workers->worker[i].thread, NULL);
    }
    (void)pthread_cond_destroy(&workers->helped);
    (void)pthread_cond_destroy(&workers->wake);
    (void)pthread_mutex_destroy(&workers->lock);
    share_reset(&workers->waiting);
    free(workers->done.entry);
    free(workers);
}
