/*
 * Memory that outlives the daemon: parts of stores whose descriptors a service manager keeps.
 *
 * Happy path: the loop has the manager keep the descriptor of each new part, with left_describe()'s
 * text. The daemon is killed, and its workers with it. The next daemon brings all such memory here
 * before it serves (device_take_left): as parts that *wait*. They have their places in the window,
 * so no other part gets these, and count as memory that is used. A job that returns to its store
 * opens its parts, and finds those that wait. They are mapped like parts of a worker that has died.
 *
 * Failures: the part has another stretch, other bytes or spare slots than this daemon would give
 * it, since it has other devices or is of another release. Then the job gets new memory, which
 * lacks the part's mark, so that all of the job's memory there counts as lost. A store that no job
 * returns to is removed, and what waits for it is given back (device_drop_left). A driver may
 * refuse to map such memory: see left_replace().
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/device/state.h"

/* Changes with all that kernels keep in a part between passes (pool.h, kernels/cuda/slots.h). */
#define LEFT_FORMAT 1u

void left_describe(const struct device *device, const struct worker *worker,
    const struct part *part, char text[DEVICE_LEFT_SIZE])
{
    (void)snprintf(text, DEVICE_LEFT_SIZE, "%u,%s,%llx,%llx,%llx,%llx,%llx,%x,%x,%x", LEFT_FORMAT,
        device->gpu[worker->gpu].uuid, (unsigned long long)part->place,
        (unsigned long long)part->size, (unsigned long long)part->extent.begin,
        (unsigned long long)part->extent.bytes, (unsigned long long)part->mark, part->extent.blocks,
        part->note, part->extent.shards);
}

/* The part that a text describes; false: it describes none. */
static bool left_read(const char *text, struct part *part, char uuid[DRIVER_UUID_SIZE])
{
    unsigned long long place, size, begin, bytes, mark;
    unsigned format;

    if (sscanf(text, "%u,%40[^,],%llx,%llx,%llx,%llx,%llx,%x,%x,%x", &format, uuid, &place, &size,
            &begin, &bytes, &mark, &part->extent.blocks, &part->note, &part->extent.shards) != 10 ||
        format != LEFT_FORMAT || part->note == 0 || part->note > DEVICE_KEPT) {
        return false;
    }
    part->place = place;
    part->size = size;
    part->extent.begin = begin;
    part->extent.bytes = bytes;
    part->mark = mark;
    return true;
}

/* With a new first part nothing of the store is missing: all of it begins anew. */
static void left_begin_anew(struct device *device, uint64_t store)
{
    for (uint32_t at = 0; at < DEVICE_KEPT; at++) {
        if (!atomic_load(&device->noted[at]) && atomic_load(&device->notes->store[at]) == store) {
            atomic_store(&device->notes->store[at], 0);
        }
    }
}

enum adtopk_status left_note(struct device *device, struct part *part, struct error *err)
{
    uint32_t at = 0;
    bool taken = false;

    while (at < DEVICE_KEPT && !atomic_compare_exchange_strong(&device->noted[at], &taken, true)) {
        taken = false;
        at++;
    }
    if (at == DEVICE_KEPT) {
        return error_set(err, ADTOPK_ERR_MEMORY,
            "jobs of this node have %u parts of stores on GPUs, and the next daemon takes no more",
            DEVICE_KEPT);
    }
    if (part->number == 0) {
        left_begin_anew(device, part->store);
    }
    atomic_store(&device->notes->store[at], 0);
    atomic_store(&device->notes->begun[at], 0);
    part->note = at + 1;
    return ADTOPK_OK;
}

/* From now on the store is of no use without the part. */
static void left_expect(const struct device *device, const struct part *part)
{
    if (part->note != 0) {
        atomic_store(&device->notes->store[part->note - 1], part->store);
    }
}

static bool left_is(const struct part *part, uint64_t store, unsigned number, unsigned shard)
{
    return part->store == store && part->number == number && part->shard == shard;
}

void device_note_left(struct device *device, const struct device_left *left)
{
    (void)pthread_mutex_lock(&device->mutex);
    for (const struct worker *worker = device->workers; worker != NULL; worker = worker->next) {
        for (const struct part *part = worker->parts; part != NULL; part = part->next) {
            if (!part->dropped && left_is(part, left->store, left->number, left->shard)) {
                left_expect(device, part);
            }
        }
    }
    (void)pthread_mutex_unlock(&device->mutex);
}

void left_drop(const struct device *device, struct part *part)
{
    part->dropped = true;
    if (part->note != 0) {
        atomic_store(&device->notes->store[part->note - 1], 0);
    }
}

/* The note stays until the place has another part: if a manager that is deaf still has this one,
 * the next daemon finds that it was cleared. */
void left_forget(struct device *device, const struct part *part)
{
    if (part->note != 0) {
        atomic_store(&device->noted[part->note - 1], false);
    }
}

uint64_t device_next_missing(const struct device *device, uint32_t *at)
{
    uint64_t store = 0;

    for (; device->notes != NULL && store == 0 && *at < DEVICE_KEPT; (*at)++) {
        if (!atomic_load(&device->noted[*at]) && atomic_load(&device->notes->begun[*at]) != 0) {
            store = atomic_load(&device->notes->store[*at]);
        }
    }
    return store;
}

static enum adtopk_status left_place(
    struct device *device, const struct device_left *left, struct part *part, struct error *err)
{
    char uuid[DRIVER_UUID_SIZE];
    const unsigned gpu = left_read(left->text, part, uuid)
                             ? driver_index(device->gpu, device->gpus, uuid)
                             : device->gpus;
    struct worker *worker;
    uint64_t begun, store;

    if (gpu == device->gpus) {
        return error_set(err, ADTOPK_ERR_LOST,
            "it is on a GPU that this node has not, or of another release: %.120s", left->text);
    }
    worker = device_worker_on(device, gpu, left->owner, err);
    if (worker == NULL) {
        return err->code;
    }
    if (!part_fits(device, worker, part)) {
        return error_set(err, ADTOPK_ERR_LOST, "its addresses are taken: %.120s", left->text);
    }
    begun = atomic_load(&device->notes->begun[part->note - 1]);
    store = atomic_load(&device->notes->store[part->note - 1]);
    if ((begun != 0 && begun != part->mark) || (store != 0 && store != left->store)) {
        return error_set(err, ADTOPK_ERR_LOST,
            "the daemon before had lost what was there, and had not said so, or had other memory: "
            "%.120s",
            left->text);
    }
    part->used = begun != 0;
    atomic_store(&device->noted[part->note - 1], true);
    part->next = worker->parts;
    worker->parts = part;
    return ADTOPK_OK;
}

enum adtopk_status device_take_left(
    struct device *device, const struct device_left *left, struct error *err)
{
    struct part *part = calloc(1, sizeof(*part));
    enum adtopk_status status;

    if (part == NULL) {
        (void)close(left->descriptor);
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a part of a store");
    }
    *part = (struct part){.store = left->store,
        .waits = true,
        .number = left->number,
        .shard = left->shard,
        .descriptor = left->descriptor,
        .left = true};
    (void)pthread_mutex_lock(&device->mutex);
    status = left_place(device, left, part, err);
    (void)pthread_mutex_unlock(&device->mutex);
    if (status != ADTOPK_OK) {
        (void)close(part->descriptor);
        free(part);
    }
    return status;
}

/* The next part that waits; NULL: there is none. */
static struct part *left_next(struct part *part)
{
    while (part != NULL && (part->dropped || !part->waits)) {
        part = part->next;
    }
    return part;
}

void device_drop_left(struct device *device,
    bool (*stays)(void *context, const struct device_left *left), void *context)
{
    (void)pthread_mutex_lock(&device->mutex);
    for (struct worker *worker = device->workers; worker != NULL; worker = worker->next) {
        for (struct part *part = left_next(worker->parts); part != NULL;
             part = left_next(part->next)) {
            const struct device_left left = {
                .store = part->store, .number = part->number, .shard = part->shard};

            if (!stays(context, &left)) {
                left_drop(device, part);
                worker_wake(worker);
            }
        }
    }
    (void)pthread_mutex_unlock(&device->mutex);
}

/* The part that waits for what is asked; NULL: none does. */
static struct part *left_find(const struct worker *worker, const struct device_part *asked)
{
    struct part *part = left_next(worker->parts);

    while (part != NULL && !left_is(part, asked->store, asked->number, asked->shard)) {
        part = left_next(part->next);
    }
    return part;
}

/* Without a job's first part nothing is known of the others. */
static void left_drop_shard(const struct device *device, const struct device_part *asked)
{
    for (struct worker *worker = device->workers; worker != NULL; worker = worker->next) {
        for (struct part *part = left_next(worker->parts); part != NULL;
             part = left_next(part->next)) {
            if (part->store == asked->store && part->shard == asked->shard) {
                left_drop(device, part);
                worker_wake(worker);
            }
        }
    }
}

struct part *left_claim(const struct device *device, const struct device_part *asked,
    struct worker **worker, bool *lost)
{
    struct part *part = NULL;

    *lost = false;
    for (*worker = device->workers; asked->store != 0 && *worker != NULL;
         *worker = (*worker)->next) {
        part = left_find(*worker, asked);
        if (part != NULL) {
            break;
        }
    }
    if (part != NULL && (*worker)->owner == asked->owner &&
        !device_has_other_shard(device, (*worker)->gpu, asked) &&
        part_is_like(device, *worker, asked, part)) {
        part->waits = false;
        part->job = asked->job;
        left_expect(device, part);
        return part;
    }
    if (part != NULL) {
        *lost = true;
        left_drop(device, part);
        worker_wake(*worker);
    }
    if (asked->store != 0 && asked->lost) {
        left_drop_shard(device, asked);
    }
    return NULL;
}

enum adtopk_status left_replace(struct worker *worker, struct error *err)
{
    struct device *device = worker->device;
    enum adtopk_status status = ADTOPK_OK;

    (void)pthread_mutex_lock(&device->mutex);
    for (struct part *part = worker->parts; status == ADTOPK_OK && part != NULL;
         part = part->next) {
        if (part->left && !part->reached && !part->waits && !part->dropped) {
            (void)close(part->descriptor);
            part->descriptor = -1;
            part->mark = page_now_us(); /* the next daemon must not take the old memory for this */
            status = part_create(device, worker->gpu, part->size, "residuals", &part->handle,
                &part->descriptor, err);
            part->left = status != ADTOPK_OK;
        }
    }
    (void)pthread_mutex_unlock(&device->mutex);
    return status;
}
