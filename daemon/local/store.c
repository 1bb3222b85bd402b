#include "daemon/local/store.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "daemon/local/segment.h"

struct store {
    struct store *next;
    uint64_t job;
    uint64_t expires_ms;
    bool in_use;
    struct segment memory;
};

struct stores {
    struct store *first;
    uint64_t ttl_ms;
};

struct stores *stores_create(uint64_t ttl_ms)
{
    struct stores *stores = calloc(1, sizeof *stores);

    if (stores != NULL) {
        stores->ttl_ms = ttl_ms;
    }
    return stores;
}

/* The link that points to the job's store, or to NULL at the end. */
static struct store **store_find(struct stores *stores, uint64_t job)
{
    struct store **link = &stores->first;

    while (*link != NULL && (*link)->job != job) {
        link = &(*link)->next;
    }
    return link;
}

static void store_drop(struct store **link)
{
    struct store *store = *link;

    *link = store->next;
    segment_drop(&store->memory);
    free(store);
}

void stores_destroy(struct stores *stores)
{
    while (stores != NULL && stores->first != NULL) {
        store_drop(&stores->first);
    }
    free(stores);
}

static struct store *store_new(uint64_t job, uint64_t size, struct error *err)
{
    static const char name[] = "residual store";
    struct store *store = calloc(1, sizeof *store);

    if (store == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a residual store");
        return NULL;
    }
    store->job = job;
    if (segment_create(&store->memory, name, size, err) != ADTOPK_OK ||
        segment_reserve(&store->memory, name, err) != ADTOPK_OK ||
        segment_map(&store->memory, PROT_READ | PROT_WRITE, name, err) != ADTOPK_OK) {
        segment_drop(&store->memory);
        free(store);
        return NULL;
    }
    segment_close(&store->memory); /* nobody else maps it */
    return store;
}

/* Whether a request for `size` bytes is for this store: sizes are rounded up to pages. */
static bool store_fits(const struct store *store, uint64_t size)
{
    return size <= store->memory.size && store->memory.size - size < 4096;
}

void *stores_get(
    struct stores *stores, uint64_t job, uint64_t size, bool *existing, struct error *err)
{
    struct store **link = store_find(stores, job);
    struct store *store = *link;

    if (store != NULL && store->in_use) {
        (void)error_set(err, ADTOPK_ERR_STATE, "the job's residual store is in use");
        return NULL;
    }
    *existing = store != NULL && store_fits(store, size);
    if (store != NULL && !*existing) {
        store_drop(link);
    }
    if (!*existing) {
        store = store_new(job, size, err);
        if (store == NULL) {
            return NULL;
        }
        store->next = stores->first;
        stores->first = store;
    }
    store->in_use = true;
    return store->memory.bytes;
}

void stores_release(struct stores *stores, uint64_t job, bool keep, uint64_t now_ms)
{
    struct store **link = store_find(stores, job);

    if (*link == NULL) {
        return;
    }
    if (!keep) {
        store_drop(link);
        return;
    }
    (*link)->in_use = false;
    (*link)->expires_ms = now_ms + stores->ttl_ms;
}

bool stores_expire(struct stores *stores, uint64_t now_ms)
{
    bool waiting = false;

    for (struct store **link = &stores->first; *link != NULL;) {
        if (!(*link)->in_use && now_ms >= (*link)->expires_ms) {
            store_drop(link);
        } else {
            waiting |= !(*link)->in_use;
            link = &(*link)->next;
        }
    }
    return waiting;
}

uint64_t stores_bytes(const struct stores *stores)
{
    uint64_t bytes = 0;

    for (const struct store *store = stores->first; store != NULL; store = store->next) {
        bytes += store->memory.size;
    }
    return bytes;
}
