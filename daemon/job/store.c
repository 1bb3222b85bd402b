#include "daemon/job/store.h"

#include <assert.h>

static_assert(offsetof(struct store_header, magic) == 0 &&
                  offsetof(struct store_header, version) == sizeof(uint64_t),
    "they are where every release looks for them");

#define ALIGNMENT 64u

static uint64_t records_size(uint32_t tensors)
{
    uint64_t size = sizeof(struct store_header) + (uint64_t)tensors * sizeof(struct store_tensor);

    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

uint64_t store_size(uint32_t tensors, uint64_t floats)
{
    return records_size(tensors) + floats * sizeof(float);
}

float *store_slots(struct store_header *store)
{
    return (float *)(void *)((uint8_t *)store + records_size(store->tensors));
}

void store_count_step(struct store_header *store, bool withdrawn, bool due)
{
    uint64_t now = store->steps_done, next = now + 1;

    store->step_status[next % 2] =
        (withdrawn ? ADTOPK_NONFINITE : ADTOPK_OK) | (due ? STORE_DUE : 0);
    store->steps_withdrawn[next % 2] = store->steps_withdrawn[now % 2] + (withdrawn ? 1 : 0);
    store->grown[next % 2] = views_grow_at(&store->views, next) ? store->ops_done + 1 : 0;
    store_publish64(&store->steps_done, next);
}

void store_count_op(struct store_header *store, uint32_t size)
{
    uint64_t next = store->ops_done + 1;

    store->op_size[next % 2] = size;
    store_publish64(&store->ops_done, next);
}

enum adtopk_status store_check(const struct store_header *store, uint64_t run, struct error *err)
{
    char fault[STORE_FAULT_SIZE];

    if (!store_is_known(store->magic, store->version, fault)) {
        return error_set(err, ADTOPK_ERR_LOST, "the store of this job %s", fault);
    }
    if (store->run != run) {
        return error_set(err, ADTOPK_ERR_LOST, "the store of this job is of another run");
    }
    if (!views_fit(&store->views)) {
        return error_set(err, ADTOPK_ERR_LOST,
            "the store of this job is damaged: a view in it has nodes that it cannot have");
    }
    return ADTOPK_OK;
}

enum adtopk_status store_open(struct store_header *store, bool existing, uint64_t run,
    uint64_t digest, uint32_t tensors, struct error *err)
{
    if (!existing) {
        store->version = STORE_VERSION;
        store->run = run;
        store->digest = digest;
        store->tensors = tensors;
        store_publish64(&store->magic, STORE_MAGIC);
        return ADTOPK_OK;
    }
    if (store_check(store, run, err) != ADTOPK_OK) {
        return err->code;
    }
    if (store->tensors != tensors || store->digest != digest) {
        return error_set(err, ADTOPK_ERR_MISMATCH,
            "the job was started with other tensors, another policy or other ranks on this node");
    }
    return ADTOPK_OK;
}
