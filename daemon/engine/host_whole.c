/*
 * Orders on all elements of a residual: reading, saving and loading, sums for the ledger, and
 * handing over to the next policy.
 */
#include <assert.h>
#include <string.h>

#include "daemon/engine/host.h"

/* Reads the stretch into one place. */
static void whole_read(const struct host *host, float *out)
{
    const struct engine_gather *order = &host->order->gather;
    const struct rounded rounded = host_rounded(host);
    const uint64_t count = order->list.count;

    if (rounded.element != NULL) {
        rounded_to_part(&rounded, order->first, count, out);
    } else if (host_residual(host) != NULL) {
        (void)memcpy(out, host_residual(host) + order->first, count * sizeof(float));
    } else {
        (void)memset(out, 0, count * sizeof(float));
    }
    for (uint64_t i = 0; order->factor != 1 && i < count; i++) {
        out[i] *= order->factor;
    }
}

enum adtopk_status host_order_read(const struct host *host)
{
    const struct engine_gather *order = &host->order->gather;

    assert(order->first % ENGINE_READ_STEP == 0 &&
           order->list.count <= host->order->numel - order->first);
    for (unsigned p = 0; p < host->order->parts; p++) {
        whole_read(host, host_at(host, host->part[p].element));
    }
    if (host->order->parts == 0) {
        whole_read(host, host_at(host, order->list.value));
    }
    return ADTOPK_OK;
}

static void whole_move(bool loads, void *residual, void *image, size_t size)
{
    if (image != NULL) {
        (void)memcpy(loads ? residual : image, loads ? image : residual, size);
    }
}

/* SAVE and LOAD. */
static enum adtopk_status whole_image(const struct host *host, bool loads)
{
    const struct engine_image *order = &host->order->image;
    const struct rounded rounded = host_rounded(host);
    void *element = host_at(host, order->element);

    assert(
        order->first % ENGINE_READ_STEP == 0 && order->count <= host->order->numel - order->first);
    if (engine_is_there(order->progress)) {
        assert(order->count == host->order->numel);
        whole_move(loads, host_at(host, host->order->residual.progress),
            host_at(host, order->progress), progress_size(host->order->numel));
    }
    if (rounded.element == NULL) {
        whole_move(
            loads, host_residual(host) + order->first, element, order->count * sizeof(float));
        return ADTOPK_OK;
    }
    whole_move(
        loads, rounded.element + order->first, element, order->count * sizeof(*rounded.element));
    whole_move(loads, &rounded.carry[order->first / CHUNK], host_at(host, order->carry),
        chunk_count(order->count) * sizeof(struct carry));
    return ADTOPK_OK;
}

enum adtopk_status host_order_save(const struct host *host)
{
    return whole_image(host, false);
}

enum adtopk_status host_order_load(const struct host *host)
{
    return whole_image(host, true);
}

enum adtopk_status host_order_sums(const struct host *host)
{
    const float *residual = host_residual(host);
    uint64_t numel = host->order->numel;
    struct rounded rounded = host_rounded(host);

    if (residual != NULL) {
        ledger_sums(residual, numel, host->result->sums);
    } else {
        rounded_sums(&rounded, numel, host->result->sums);
    }
    for (uint64_t first = 0; first < numel; first += CHUNK) {
        const unsigned length = numel - first < CHUNK ? (unsigned)(numel - first) : CHUNK;
        float chunk[CHUNK];
        if (residual == NULL) {
            rounded_read(&rounded, first, length, chunk);
        }
        host->result->magnitude +=
            ledger_magnitude(residual != NULL ? residual + first : chunk, length);
    }
    return ADTOPK_OK;
}

enum adtopk_status host_order_convert(const struct host *host)
{
    const struct engine_convert *order = &host->order->convert;
    uint64_t numel = host->order->numel;
    void *to = host_at(host, order->element);
    struct rounded rounded = host_rounded(host);

    if (rounded.element != NULL && order->rounded) {
        (void)memcpy(to, rounded.element, rounded_size(numel));
    } else if (rounded.element != NULL) {
        rounded_to(&rounded, numel, to);
    } else if (order->rounded) {
        rounded = rounded_at(to, numel);
        rounded.salt = host->order->residual.salt;
        rounded_from(&rounded, host_residual(host), numel);
    } else {
        (void)memcpy(to, host_residual(host), numel * sizeof(float));
    }
    return ADTOPK_OK;
}

enum adtopk_status host_order_carry(const struct host *host)
{
    uint64_t numel = host->order->numel;
    float *to = host_at(host, host->order->carry.momentum);

    if (host->order->parts == 0) {
        /* A change that was called off left some values. */
        (void)memset(to, 0, numel * sizeof(*to));
        return ADTOPK_OK;
    }
    (void)memcpy(to, host_at(host, host->part[0].momentum), numel * sizeof(*to));
    for (unsigned r = 1; r < host->order->parts; r++) {
        const float *from = host_at(host, host->part[r].momentum);
        for (uint64_t i = 0; i < numel; i++) {
            to[i] += from[i];
        }
    }
    return ADTOPK_OK;
}
