#include "daemon/local/store.h"

#include <stdlib.h>

#include "daemon/local/segment.h"

#define STORES_LOOK 24u /* strides that one call counts, which takes up to a millisecond */

static const char store_name[] = "residual store";

struct store {
    struct store *next;
    uint64_t job;
    unsigned part;
    struct segment memory;
    uint64_t next_stride; /* the stride at which the next count of the store goes on */
    uint64_t touched[];   /* touched bytes of each stride at its last count */
};

struct stores {
    struct store *first;
    struct store *next;      /* the store at which the next count goes on; NULL: the first one */
    uint64_t bytes, touched; /* of all stores */
    struct keeper *keeper;
};

struct stores *stores_create(struct keeper *keeper)
{
    struct stores *stores = calloc(1, sizeof(*stores));

    if (stores != NULL) {
        stores->keeper = keeper;
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

void *stores_get(struct stores *stores, uint64_t job, unsigned part, uint64_t size, bool shown,
    uint64_t promised, struct error *err)
{
    struct segment memory;
    struct store *store;

    if (*store_find(stores, job, part) != NULL) {
        (void)error_set(err, ADTOPK_ERR_STATE, "the job's residual store is in use");
        return NULL;
    }
    if ((shown ? segment_shown : segment_private)(&memory, store_name, size, promised, err) !=
        ADTOPK_OK) {
        return NULL;
    }
    store = calloc(1, sizeof *store + (size / SEGMENT_STRIDE + 2) * sizeof store->touched[0]);
    if (store == NULL) {
        segment_drop(&memory);
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a residual store");
        return NULL;
    }
    store->memory = memory;
    store->job = job;
    store->part = part;
    store->next = stores->first;
    stores->first = store;
    stores->bytes += store->memory.size;
    return store->memory.bytes;
}

void stores_release(struct stores *stores, uint64_t job, unsigned part)
{
    struct store **link = store_find(stores, job, part);

    if (*link != NULL) {
        const uint64_t size = (*link)->memory.size;

        keeper_release(stores->keeper, &(*link)->memory);
        store_drop(stores, link, size);
    }
}

int stores_show(
    const struct stores *stores, uint64_t job, unsigned part, uint64_t *size, struct error *err)
{
    const struct store *store = stores->first;

    while (store != NULL && (store->job != job || store->part != part)) {
        store = store->next;
    }
    *size = store != NULL && store->memory.fd >= 0 ? store->memory.size : 0;
    return *size > 0 ? segment_show(&store->memory, store_name, err) : -1;
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
