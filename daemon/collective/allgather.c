/*
 * Sparse all-gather: every node sends its list to every other, and each forms the sum itself, in
 * the order of the nodes. One phase; k(P-1) entries received a node, so it suits small P.
 */
#include <stdlib.h>

#include "daemon/collective/collective.h"

static unsigned allgather_phases(const struct exchange *exchange)
{
    (void)exchange;
    return 1;
}

static bool allgather_expects(const struct exchange *exchange, unsigned phase, unsigned from)
{
    (void)phase;
    return from != exchange->self;
}

static enum adtopk_status allgather_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    struct payload_writer *frame = exchange_add_frame(exchange, phase, EXCHANGE_ALL);
    enum adtopk_status status = frame != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;

    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        struct exchange_tensor *tensor = &exchange->tensor[t];
        status = payload_put_list(
            frame, &tensor->shape, &tensor->sent, exchange->index, exchange->value);
    }
    if (status != ADTOPK_OK) {
        return error_set(err, status, "no memory to encode bucket %u", exchange->header.bucket);
    }
    payload_end(frame);
    return ADTOPK_OK;
}

static enum adtopk_status sparse_alloc(struct sparse *list, uint64_t capacity)
{
    list->capacity = capacity;
    list->count = 0;
    list->position = malloc((size_t)capacity * sizeof(uint32_t) + 1);
    list->value = malloc((size_t)capacity * sizeof(float) + 1);
    return list->position != NULL && list->value != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
}

static void sparse_release(struct sparse *list)
{
    free(list->position);
    free(list->value);
}

/* Where a node's share depends on its ranks, no list alone is too long, but all together may be
 * longer than the update can get. The node that sent most is to blame. */
static enum adtopk_status too_many(
    struct exchange *exchange, unsigned most, uint64_t capacity, struct error *err)
{
    (void)error_set(err, ADTOPK_ERR_PROTOCOL,
        "with the entries it sent there are more than the %llu that the ranks may select",
        (unsigned long long)capacity);
    return exchange_blame(exchange, most, err);
}

/* Folds the members' lists of tensor t: ((c0 + c1) + c2) + ... The sums go to `spare` and the
 * update by turns, so that the last one is where it belongs. */
static enum adtopk_status fold(struct exchange *exchange, unsigned t,
    struct payload_reader *readers, struct sparse *spare, struct sparse *received,
    struct error *err)
{
    struct exchange_tensor *tensor = &exchange->tensor[t];
    bool odd = exchange->members % 2 != 0;
    struct sparse *sum = odd ? spare : &tensor->update, *next = odd ? &tensor->update : spare;
    uint64_t total = 0, longest = 0;
    unsigned most = 0;

    sum->count = 0;
    for (unsigned m = 0; m < exchange->members; m++) {
        const struct sparse *list = &tensor->sent;
        struct sparse *swap = sum;
        if (m != exchange->self) {
            if (payload_get_list(&readers[m], &tensor->shape, received, err) != ADTOPK_OK) {
                return exchange_blame(exchange, m, err);
            }
            list = received;
            most = list->count >= longest ? m : most;
            longest = list->count >= longest ? list->count : longest;
        }
        total += list->count;
        if (total > tensor->update.capacity && tensor->update.capacity < tensor->numel) {
            return too_many(exchange, most, tensor->update.capacity, err);
        }
        sparse_add(sum, list, next);
        sum = next;
        next = swap;
    }
    for (size_t i = 0; i < sum->count; i++) {
        sum->value[i] *= exchange->scale;
    }
    return ADTOPK_OK;
}

static enum adtopk_status finish_tensor(
    struct exchange *exchange, unsigned t, struct payload_reader *readers, struct error *err)
{
    const struct exchange_tensor *tensor = &exchange->tensor[t];
    struct sparse spare = {0}, received = {0};
    enum adtopk_status status = sparse_alloc(&spare, tensor->update.capacity);

    if (status == ADTOPK_OK) {
        status = sparse_alloc(&received, tensor->shape.max_count);
    }
    if (status != ADTOPK_OK) {
        (void)error_set(err, status, "no memory to sum bucket %u", exchange->header.bucket);
    } else {
        status = fold(exchange, t, readers, &spare, &received, err);
    }
    sparse_release(&spare);
    sparse_release(&received);
    return status;
}

static enum adtopk_status allgather_finish(struct exchange *exchange, struct error *err)
{
    struct payload_reader *readers = calloc(exchange->members, sizeof(*readers));
    enum adtopk_status status = ADTOPK_OK;

    if (readers == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for %u readers", exchange->members);
    }
    for (unsigned m = 0; status == ADTOPK_OK && m < exchange->members; m++) {
        if (m != exchange->self) {
            status = exchange_open(exchange, 0, m, &readers[m], err);
        }
    }
    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        status = finish_tensor(exchange, t, readers, err);
    }
    for (unsigned m = 0; status == ADTOPK_OK && m < exchange->members; m++) {
        if (m != exchange->self && payload_close(&readers[m], err) != ADTOPK_OK) {
            status = exchange_blame(exchange, m, err);
        }
    }
    free(readers);
    return status;
}

const struct collective_ops collective_allgather = {
    .name = "allgather",
    .dense = false,
    .phases = allgather_phases,
    .expects = allgather_expects,
    .produce = allgather_produce,
    .finish = allgather_finish,
    .accepts = NULL,
};
