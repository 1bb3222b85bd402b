#include "daemon/local/store.h"

#include <stdlib.h>

#include "daemon/local/segment.h"

struct store {
    struct store *next;
    uint64_t job;
    unsigned part;
    struct segment memory;
};

struct stores {
    struct store *first;
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

/* The link that points to the part of the job's store, or to NULL at the end. */
static struct store **store_find(struct stores *stores, uint64_t job, unsigned part)
{
    struct store **link = &stores->first;

    while (*link != NULL && ((*link)->job != job || (*link)->part != part)) {
        link = &(*link)->next;
    }
    return link;
}

static void store_drop(struct store **link)
{
    struct store *store = *link;

    *link = store->next;
    free(store);
}

void stores_destroy(struct stores *stores)
{
    while (stores != NULL && stores->first != NULL) {
        segment_drop(&stores->first->memory);
        store_drop(&stores->first);
    }
    free(stores);
}

void *stores_get(struct stores *stores, uint64_t job, unsigned part, uint64_t size,
    uint64_t promised, struct error *err)
{
    struct store *store;

    if (*store_find(stores, job, part) != NULL) {
        (void)error_set(err, ADTOPK_ERR_STATE, "the job's residual store is in use");
        return NULL;
    }
    store = calloc(1, sizeof *store);
    if (store == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a residual store");
        return NULL;
    }
    if (segment_private(&store->memory, "residual store", size, promised, err) != ADTOPK_OK) {
        free(store);
        return NULL;
    }
    store->job = job;
    store->part = part;
    store->next = stores->first;
    stores->first = store;
    return store->memory.bytes;
}

void stores_release(struct stores *stores, uint64_t job, unsigned part)
{
    struct store **link = store_find(stores, job, part);

    if (*link != NULL) {
        keeper_release(stores->keeper, &(*link)->memory);
        store_drop(link);
    }
}

uint64_t stores_bytes(const struct stores *stores)
{
    uint64_t bytes = 0;

    for (const struct store *store = stores->first; store != NULL; store = store->next) {
        bytes += store->memory.size;
    }
    return bytes;
}

uint64_t stores_untouched(const struct stores *stores)
{
    uint64_t bytes = 0;

    for (const struct store *store = stores->first; store != NULL; store = store->next) {
        bytes += segment_untouched(&store->memory);
    }
    return bytes;
}
