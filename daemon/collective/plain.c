/*
 * Plain operations: barrier, broadcast, sum of f32. Uncompressed, without residual, one piece of at
 * most CORE_OP_SIZE bytes per round. Every node sends one frame to every other. The frame has a
 * descriptor, by which nodes notice that they call different operations, and the data. A node whose
 * ranks do not take part yet sends a descriptor alone.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/collective/collective.h"
#include "proto/bits.h"

#define DESCRIPTOR_SAME 12 /* bytes that all nodes have alike; behind them is the step */
#define DESCRIPTOR_SIZE 20

static void plain_describe(const struct exchange_op *op, uint8_t descriptor[DESCRIPTOR_SIZE])
{
    store_u32(descriptor, (uint32_t)op->kind);
    store_u32(descriptor + 4, op->root);
    store_u32(descriptor + 8, op->size);
    store_u64(descriptor + 12, op->step);
}

bool plain_peek(const uint8_t *frame, size_t size, struct exchange_op *op)
{
    struct payload_reader reader;
    const uint8_t *data;
    struct error err;
    size_t bytes;

    if (payload_open(&reader, frame, size, &err) != ADTOPK_OK ||
        payload_get_bytes(&reader, SIZE_MAX, &data, &bytes, &err) != ADTOPK_OK ||
        bytes < DESCRIPTOR_SIZE || load_u32(data) >= OP_KIND_COUNT) {
        return false;
    }
    *op = (struct exchange_op){.kind = (enum op_kind)load_u32(data),
        .root = load_u32(data + 4),
        .size = load_u32(data + 8),
        .step = load_u64(data + 12)};
    return true;
}

static unsigned plain_phases(const struct exchange *exchange)
{
    (void)exchange;
    return 1;
}

/* This node's data: the root's bytes, or the sum of the local ranks in their order. */
static void contribute(const struct exchange_op *op, void *out)
{
    (void)memcpy(out, op->input[0], op->size);
    for (unsigned i = 1; op->kind == OP_ALLREDUCE && i < op->inputs; i++) {
        dense_add(out, op->input[i], op->size / sizeof(float));
    }
}

static bool contributes(const struct exchange_op *op)
{
    return op->inputs > 0 &&
           (op->kind == OP_ALLREDUCE || (op->kind == OP_BROADCAST && op->has_root));
}

static enum adtopk_status plain_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    const struct exchange_op *op = exchange->op;
    size_t size = DESCRIPTOR_SIZE + (contributes(op) ? op->size : 0u);
    struct payload_writer *frame = exchange_add_frame(exchange, phase, EXCHANGE_ALL);
    uint8_t *bytes = malloc(size);
    enum adtopk_status status = ADTOPK_ERR_MEMORY;

    if (frame != NULL && bytes != NULL) {
        plain_describe(op, bytes);
        if (contributes(op)) {
            contribute(op, bytes + DESCRIPTOR_SIZE);
        }
        status = payload_put_bytes(frame, bytes, size);
    }
    free(bytes);
    if (status != ADTOPK_OK) {
        return error_set(err, status, "no memory to encode operation %llu",
            (unsigned long long)exchange->header.number);
    }
    payload_end(frame);
    return ADTOPK_OK;
}

/* The data of member m, or NULL with *size 0 if it has none; its descriptor must be ours. */
static enum adtopk_status member_data(
    struct exchange *exchange, unsigned m, const uint8_t **data, size_t *size, struct error *err)
{
    const struct exchange_op *op = exchange->op;
    uint8_t descriptor[DESCRIPTOR_SIZE];
    struct payload_reader reader;

    if (exchange_open(exchange, 0, m, &reader, err) != ADTOPK_OK) {
        return err->code;
    }
    exchange_note(exchange, &reader);
    if (payload_get_bytes(&reader, SIZE_MAX, data, size, err) != ADTOPK_OK ||
        payload_close(&reader, err) != ADTOPK_OK) {
        return exchange_blame(exchange, m, err);
    }
    plain_describe(op, descriptor);
    if (*size < DESCRIPTOR_SIZE || memcmp(*data, descriptor, DESCRIPTOR_SAME) != 0) {
        return error_set(err, ADTOPK_ERR_MISMATCH,
            "the ranks of nodes %u and %u called different operations (kind, root or size) as "
            "number %llu",
            exchange->node[exchange->self], exchange->node[m],
            (unsigned long long)exchange->header.number);
    }
    *data += DESCRIPTOR_SIZE;
    *size -= DESCRIPTOR_SIZE;
    if (*size != 0 && *size != op->size) {
        (void)error_set(
            err, ADTOPK_ERR_PROTOCOL, "%zu bytes of data where %u belong", *size, op->size);
        return exchange_blame(exchange, m, err);
    }
    return ADTOPK_OK;
}

/* Takes one member's data into the result; `first`: nothing is there yet. */
static enum adtopk_status plain_take(
    struct exchange *exchange, unsigned m, bool *first, float *scratch, struct error *err)
{
    struct exchange_op *op = exchange->op;
    const void *data = scratch;
    size_t size = 0;

    if (m == exchange->self) {
        if (contributes(op)) {
            contribute(op, scratch);
            size = op->size;
        }
    } else {
        const uint8_t *bytes;
        if (member_data(exchange, m, &bytes, &size, err) != ADTOPK_OK) {
            return err->code;
        }
        (void)memcpy(scratch, bytes, size); /* frames are not aligned */
    }
    if (size == 0) {
        return ADTOPK_OK; /* it has nothing to contribute */
    }
    if (op->kind == OP_ALLREDUCE && !*first) {
        dense_add(op->result, data, size / sizeof(float));
    } else {
        (void)memcpy(op->result, data, size);
    }
    *first = false;
    return ADTOPK_OK;
}

static enum adtopk_status plain_finish(struct exchange *exchange, struct error *err)
{
    struct exchange_op *op = exchange->op;
    float *scratch = malloc((size_t)op->size + sizeof(float));
    enum adtopk_status status = ADTOPK_OK;
    bool first = true;

    if (scratch == NULL) {
        return error_set(
            err, ADTOPK_ERR_MEMORY, "no memory for an operation of %u bytes", op->size);
    }
    for (unsigned m = 0; status == ADTOPK_OK && m < exchange->members; m++) {
        status = plain_take(exchange, m, &first, scratch, err);
    }
    free(scratch);
    if (status != ADTOPK_OK || !first || op->size == 0 || op->kind == OP_BARRIER) {
        return status;
    }
    return op->kind == OP_BROADCAST
               ? error_set(err, ADTOPK_ERR_PROTOCOL, "no node sent the bytes of broadcast root %u",
                     op->root)
               : error_set(err, ADTOPK_ERR_PROTOCOL, "no node sent data for operation %llu",
                     (unsigned long long)exchange->header.number);
}

const struct collective_ops collective_plain = {
    .name = "plain",
    .phases = plain_phases,
    .expects = exchange_expects_all,
    .produce = plain_produce,
    .finish = plain_finish,
};
