#include "daemon/local/store.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/local/segment.h"

#define STORES_INLINE (UINT64_C(4) << 20) /* reserved at once: that takes a few milliseconds */
#define STORES_LOOK 24u /* strides that one call counts, which takes up to a millisecond */

static const char store_name[] = "residual store";

/* A file whose space the keeper reserves. */
struct store_fill {
    struct keeper_task task;
    struct store *store; /* NULL: dropped meanwhile */
    struct segment file; /* a descriptor of its own, because of that */
    struct error error;
};

struct store {
    struct store *next;
    uint64_t job;
    unsigned part;
    struct segment memory;
    bool shown;
    struct store_fill *fill; /* the keeper reserves its file; NULL: not, or it has ended */
    struct error unfilled;   /* why it could not; OK: it did not fail */
    uint64_t next_stride;    /* the stride at which the next count of the store goes on */
    uint64_t touched[];      /* touched bytes of each stride at its last count */
};

struct stores {
    struct store *first;
    struct store *next;      /* the store at which the next count goes on; NULL: the first one */
    uint64_t bytes, touched; /* of all stores */
    struct keeper *keeper;
    struct folder *folder; /* NULL: stores end with the daemon */
};

struct stores *stores_create(struct keeper *keeper, struct folder *folder)
{
    struct stores *stores = calloc(1, sizeof(*stores));

    if (stores != NULL) {
        stores->keeper = keeper;
        stores->folder = folder;
    }
    return stores;
}

/* The link that points to this part of the job's store, or to NULL at the end. */
static struct store **store_find(struct stores *stores, uint64_t job, unsigned part)
{
    struct store **link = &stores->first;

    while (*link != NULL && ((*link)->job != job || (*link)->part != part)) {
        link = &(*link)->next;
    }
    return link;
}

static uint64_t store_strides(const struct store *store)
{
    return (store->memory.size + SEGMENT_STRIDE - 1) / SEGMENT_STRIDE;
}

static void store_stop_fill(struct store *store)
{
    if (store->fill != NULL) {
        atomic_store(&store->fill->task.unwanted, true);
        store->fill->store = NULL;
        store->fill = NULL;
    }
}

/* Removes the store from the list. Its memory was given back, or is about to be. */
static void store_drop(struct stores *stores, struct store **link, uint64_t size)
{
    struct store *store = *link;

    for (uint64_t i = 0; i * SEGMENT_STRIDE < size; i++) {
        stores->touched -= store->touched[i];
    }
    stores->bytes -= size;
    stores->next = stores->next == store ? store->next : stores->next;
    *link = store->next;
    store_stop_fill(store);
    free(store);
}

void stores_destroy(struct stores *stores)
{
    while (stores != NULL && stores->first != NULL) {
        const uint64_t size = stores->first->memory.size;

        segment_drop(&stores->first->memory);
        store_drop(stores, &stores->first, size);
    }
    free(stores);
}

/* ---- reserving the space of a file ---- */

static struct store_fill *store_fill_of(struct keeper_task *task)
{
    return (struct store_fill *)(void *)((char *)task - offsetof(struct store_fill, task));
}

static bool store_fill_start(struct keeper_task *task)
{
    (void)task;
    return true;
}

static void store_fill_run(struct keeper_task *task)
{
    struct store_fill *fill = store_fill_of(task);

    (void)keeper_fill(task, &fill->file, store_name, 0, fill->file.size, &fill->error);
}

static void store_fill_done(struct keeper_task *task)
{
    struct store_fill *fill = store_fill_of(task);

    if (fill->store != NULL) {
        fill->store->fill = NULL;
        fill->store->unfilled = fill->error;
    }
    segment_close(&fill->file);
    free(fill);
}

static enum adtopk_status store_fill(struct stores *stores, struct store *store, struct error *err)
{
    struct store_fill *fill = calloc(1, sizeof *fill);

    if (fill == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a residual store");
    }
    fill->store = store;
    fill->file = (struct segment){
        .fd = fcntl(store->memory.fd, F_DUPFD_CLOEXEC, 0), .size = store->memory.size};
    if (fill->file.fd < 0) {
        free(fill);
        return error_set(err, ADTOPK_ERR_SYSTEM, "no descriptor for a residual store");
    }
    fill->task = (struct keeper_task){
        .start = store_fill_start, .run = store_fill_run, .done = store_fill_done};
    store->fill = fill;
    keeper_add(stores->keeper, &fill->task);
    return ADTOPK_OK;
}

void stores_stop_filling(struct stores *stores)
{
    for (struct store *store = stores->first; store != NULL; store = store->next) {
        store_stop_fill(store);
    }
}

bool stores_filling(const struct stores *stores, uint64_t job, struct error *failed)
{
    bool filling = false;

    for (const struct store *store = stores->first; store != NULL; store = store->next) {
        if (store->job == job && store->unfilled.code != ADTOPK_OK) {
            *failed = store->unfilled;
            return true;
        }
        filling = filling || (store->job == job && store->fill != NULL);
    }
    return filling;
}

/* ---- parts ---- */

static enum adtopk_status store_map(const struct stores *stores, struct store *store, uint64_t size,
    uint64_t promised, bool *existing, struct error *err)
{
    *existing = false;
    if (stores->folder == NULL) {
        return (store->shown ? segment_shown : segment_private)(
            &store->memory, store_name, size, promised, err);
    }
    return folder_part(stores->folder, store->job, store->part, size,
        size <= STORES_INLINE ? size : 0, &store->memory, existing, err);
}

/* Reserves a file of which not all is there yet. The folder has a descriptor when one is needed. */
static enum adtopk_status store_prepare(
    struct stores *stores, struct store *store, uint64_t promised, struct error *err)
{
    uint64_t missing;

    if (stores->folder == NULL) {
        return ADTOPK_OK;
    }
    missing = segment_missing(&store->memory);
    if (segment_afford(store_name, store->memory.size, missing, promised, err) != ADTOPK_OK ||
        (missing > 0 && store_fill(stores, store, err) != ADTOPK_OK)) {
        return err->code;
    }
    segment_close(&store->memory);
    return ADTOPK_OK;
}

void *stores_get(struct stores *stores, uint64_t job, unsigned part, uint64_t size, bool shown,
    uint64_t promised, bool *existing, struct error *err)
{
    const uint64_t strides = size < UINT64_MAX / 4 ? size / SEGMENT_STRIDE + 2 : 0;
    struct store *store;

    *existing = false;
    if (*store_find(stores, job, part) != NULL) {
        (void)error_set(err, ADTOPK_ERR_STATE, "the job's residual store is in use");
        return NULL;
    }
    store = calloc(1, sizeof *store + strides * sizeof store->touched[0]);
    if (store == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a residual store");
        return NULL;
    }
    store->job = job;
    store->part = part;
    store->shown = shown;
    if (store_map(stores, store, size, promised, existing, err) != ADTOPK_OK) {
        free(store);
        return NULL;
    }
    if (store_prepare(stores, store, promised, err) != ADTOPK_OK) {
        segment_drop(&store->memory);
        free(store);
        return NULL;
    }
    store->next = stores->first;
    stores->first = store;
    stores->bytes += store->memory.size;
    return store->memory.bytes;
}

void stores_release(struct stores *stores, uint64_t job, unsigned part)
{
    struct store **link = store_find(stores, job, part);

    if (stores->folder !=
        NULL) { /* an earlier daemon may have left it, and this one not opened it */
        folder_drop(stores->folder, job, part);
    }
    if (*link != NULL) {
        const uint64_t size = (*link)->memory.size;

        /* A mapping of a file has no memory of its own. */
        keeper_release(stores->keeper, &(*link)->memory,
            stores->folder == NULL ? segment_taken(&(*link)->memory) : 0);
        store_drop(stores, link, size);
    }
}

static int stores_show_file(
    const struct stores *stores, uint64_t job, unsigned part, struct error *err)
{
    struct segment file = {.fd = folder_descriptor(stores->folder, job, part)};
    const int shown = segment_show(&file, store_name, err);

    segment_close(&file);
    return shown;
}

int stores_show(
    const struct stores *stores, uint64_t job, unsigned part, uint64_t *size, struct error *err)
{
    const struct store *store = stores->first;

    while (store != NULL && (store->job != job || store->part != part)) {
        store = store->next;
    }
    *size = store != NULL && store->shown ? store->memory.size : 0;
    if (*size == 0) {
        return -1;
    }
    return stores->folder == NULL ? segment_show(&store->memory, store_name, err)
                                  : stores_show_file(stores, job, part, err);
}

uint64_t stores_bytes(const struct stores *stores)
{
    return stores->bytes;
}

/* Counts anew the strides that were not wholly touched at the last count, at most *budget of them.
 * True: it reached the store's end. */
static bool store_look(struct stores *stores, struct store *store, uint64_t *budget)
{
    const uint64_t strides = store_strides(store);

    while (*budget > 0 && store->next_stride < strides) {
        const uint64_t i = store->next_stride++, before = store->touched[i];

        if (before < SEGMENT_STRIDE) {
            store->touched[i] = segment_touched(&store->memory, i);
            stores->touched += store->touched[i] - before;
            (*budget)--;
        }
    }
    if (store->next_stride < strides) {
        return false;
    }
    store->next_stride = 0;
    return true;
}

/* Counts stores until the budget is used, each store at most once. */
static uint64_t store_look_at_all(struct stores *stores, uint64_t budget)
{
    const struct store *begun;

    stores->next = stores->next != stores->first ? stores->next : NULL;
    begun = stores->next;
    do {
        struct store *store = stores->next != NULL ? stores->next : stores->first;

        if (store == NULL || !store_look(stores, store, &budget)) {
            break;
        }
        stores->next = store->next;
    } while (budget > 0 && stores->next != begun);
    return stores->bytes - stores->touched;
}

uint64_t stores_untouched(struct stores *stores)
{
    return store_look_at_all(stores, STORES_LOOK);
}

uint64_t stores_count(struct stores *stores)
{
    stores->next = NULL;
    for (struct store *store = stores->first; store != NULL; store = store->next) {
        store->next_stride = 0;
    }
    return store_look_at_all(stores, UINT64_MAX);
}
