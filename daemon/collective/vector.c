/* See vector.h. */
#include "daemon/collective/vector.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/quantise.h"
#include "kernels/kernels.h"

#define ELEMENTS_PER_PART (UINT64_C(1) << 18) /* fewer are not worth a thread's attention */
#define PARTS 64u
#define PIECE 1024u /* elements at a time: 4 KiB, which stay in the cache */

uint64_t vector_total(const struct exchange *exchange)
{
    uint64_t total = 0;

    for (unsigned t = 0; t < exchange->tensors; t++) {
        total += exchange->tensor[t].numel;
    }
    return total;
}

unsigned vector_segments(const struct exchange *exchange, unsigned phases, unsigned share)
{
    uint64_t total = vector_total(exchange);
    uint64_t segment = exchange->segment > 0 ? exchange->segment * share : total;
    uint64_t segments = (total + segment - 1) / segment;
    unsigned most = EXCHANGE_PHASES_MAX / phases;

    return segments < most ? (unsigned)segments : most;
}

/* Totals are at most 2^48, parts 2^10: no overflow. */
struct slice slice_cut(struct slice whole, unsigned part, unsigned parts)
{
    uint64_t length = whole.end - whole.first;

    return (struct slice){
        whole.first + length * part / parts, whole.first + length * (part + 1) / parts};
}

struct slice vector_segment(const struct exchange *exchange, unsigned segment, unsigned segments)
{
    return slice_cut((struct slice){0, vector_total(exchange)}, segment, segments);
}

struct slice slice_overlap(struct slice slice, uint64_t start, uint64_t numel)
{
    uint64_t first = slice.first > start ? slice.first - start : 0;
    uint64_t end = slice.end > start ? slice.end - start : 0;

    first = first < numel ? first : numel;
    end = end < numel ? end : numel;
    return (struct slice){first, end > first ? end : first};
}

void vector_read(const struct exchange *exchange, struct slice slice, float *out)
{
    uint64_t start = 0;

    for (unsigned t = 0; t < exchange->tensors; t++) {
        const struct exchange_tensor *tensor = &exchange->tensor[t];
        struct slice part = slice_overlap(slice, start, tensor->numel);
        start += tensor->numel;
        for (uint64_t i = part.first; i < part.end; i++) {
            *out++ = 0.0f + tensor->acc[i];
        }
    }
}

void vector_add(const struct exchange *exchange, struct slice slice, float *sum)
{
    uint64_t start = 0;

    for (unsigned t = 0; t < exchange->tensors; t++) {
        const struct exchange_tensor *tensor = &exchange->tensor[t];
        struct slice part = slice_overlap(slice, start, tensor->numel);
        start += tensor->numel;
        dense_add(sum, tensor->acc + part.first, part.end - part.first);
        sum += part.end - part.first;
    }
}

/* out = n elements of this node's contribution, rounded as the others' are. */
static void vector_round(const struct exchange *exchange, const float *acc, uint64_t n, float *out)
{
    (void)memcpy(out, acc, n * sizeof(*out));
    quantise_values(out, n, (enum quantisation)exchange->value, 0);
}

void vector_add_rounded(
    const struct exchange *exchange, struct slice slice, float *sum, int16_t *low)
{
    uint64_t start = 0;

    for (unsigned t = 0; t < exchange->tensors; t++) {
        const struct exchange_tensor *tensor = &exchange->tensor[t];
        struct slice part = slice_overlap(slice, start, tensor->numel);
        start += tensor->numel;
        for (uint64_t i = part.first, n; i < part.end; i += n) {
            float x[PIECE];
            n = part.end - i < PIECE ? part.end - i : PIECE;
            vector_round(exchange, tensor->acc + i, n, x);
            if (low == NULL) {
                dense_add(sum, x, n);
            } else {
                rest_sum(sum, x, low, n, (enum quantisation)exchange->value);
                low += n;
            }
            sum += n;
        }
    }
}

void vector_write(const struct exchange *exchange, struct slice slice, const float *sum)
{
    uint64_t start = 0;

    for (unsigned t = 0; t < exchange->tensors; t++) {
        const struct exchange_tensor *tensor = &exchange->tensor[t];
        struct slice part = slice_overlap(slice, start, tensor->numel);
        start += tensor->numel;
        (void)memcpy(tensor->dense + part.first, sum, (part.end - part.first) * sizeof(*sum));
        sum += part.end - part.first;
    }
}

enum adtopk_status vector_send(struct exchange *exchange, unsigned phase, unsigned to,
    const float *x, uint64_t n, enum payload_value value, struct error *err)
{
    struct payload_writer *frame = exchange_add_frame(exchange, phase, to);
    enum adtopk_status status = frame != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;

    if (status == ADTOPK_OK && n > 0) {
        status = payload_put_dense(frame, x, n, value, NULL);
    }
    if (status != ADTOPK_OK) {
        return exchange_no_memory(exchange, "encode", err);
    }
    payload_end(frame);
    return ADTOPK_OK;
}

enum adtopk_status vector_receive(struct exchange *exchange, unsigned phase, unsigned from,
    float *x, uint64_t n, enum payload_value *value, struct error *err)
{
    struct payload_reader reader;

    if (exchange_open(exchange, phase, from, &reader, err) != ADTOPK_OK) {
        return err->code;
    }
    *value = payload_next_value(&reader);
    if ((n > 0 && payload_get_dense(&reader, x, n, err) != ADTOPK_OK) ||
        payload_close(&reader, err) != ADTOPK_OK) {
        return exchange_blame(exchange, from, err);
    }
    exchange_note(exchange, &reader);
    return ADTOPK_OK;
}

float *vector_alloc(const struct exchange *exchange, uint64_t n, struct error *err)
{
    float *x = malloc((size_t)n * sizeof(*x) + 1);

    if (x == NULL) {
        (void)exchange_no_memory(exchange, "sum", err);
    }
    return x;
}

enum adtopk_status vector_reserve(const struct exchange *exchange, struct payload_writer *frame,
    struct slice slice, enum payload_value value)
{
    uint64_t bytes = 0, start = 0;

    for (unsigned t = 0; t < exchange->tensors; t++) {
        struct slice part = slice_overlap(slice, start, exchange->tensor[t].numel);
        start += exchange->tensor[t].numel;
        bytes += part.end > part.first ? payload_dense_size(part.end - part.first, value) : 0;
    }
    return payload_reserve(frame, bytes);
}

enum adtopk_status vector_put(
    const struct exchange *exchange, struct payload_writer *frame, struct slice slice)
{
    enum adtopk_status status = vector_reserve(exchange, frame, slice, exchange->value);
    uint64_t start = 0;

    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        const struct exchange_tensor *tensor = &exchange->tensor[t];
        struct slice part = slice_overlap(slice, start, tensor->numel);
        start += tensor->numel;
        if (part.end > part.first) {
            status = payload_put_dense(
                frame, tensor->acc + part.first, part.end - part.first, exchange->value, NULL);
        }
    }
    if (status == ADTOPK_OK) {
        payload_end(frame);
    }
    return status;
}

/* ------------------------------------------------------------------ the sum of a slice */

enum adtopk_status vector_sum_open(struct vector_sum *sum, struct exchange *exchange,
    unsigned phase, struct slice slice, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    *sum = (struct vector_sum){.exchange = exchange,
        .reader = calloc(exchange->members, sizeof(*sum->reader)),
        .dense = calloc(exchange->members, sizeof(*sum->dense)),
        .slice = slice};
    if (sum->reader == NULL || sum->dense == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    for (unsigned m = 0; status == ADTOPK_OK && m < exchange->members; m++) {
        if (m != exchange->self) {
            status = exchange_open(exchange, phase, m, &sum->reader[m], err);
        }
        if (m != exchange->self && status == ADTOPK_OK) {
            exchange_note(exchange, &sum->reader[m]);
        }
    }
    return status;
}

void vector_sum_free(struct vector_sum *sum)
{
    free(sum->reader);
    free(sum->dense);
    *sum = (struct vector_sum){.exchange = NULL};
}

/* Adds this node's contribution to a piece. */
static void vector_add_own(
    const struct exchange *exchange, const float *acc, uint64_t n, float *sum)
{
    float x[PIECE];

    if (exchange->value == PAYLOAD_VALUE_F32) {
        dense_add(sum, acc, n);
    } else {
        vector_round(exchange, acc, n, x);
        dense_add(sum, x, n);
    }
}

/* Adds all members' contributions to 0 (vector_read() says why). acc: this node's. */
static enum adtopk_status vector_add_piece(const struct vector_sum *sum, const float *acc,
    const struct vector_piece *piece, struct error *err)
{
    const struct exchange *exchange = sum->exchange;

    (void)memset(piece->sum, 0, piece->n * sizeof(*piece->sum));
    for (unsigned m = 0; m < exchange->members; m++) {
        if (m == exchange->self) {
            vector_add_own(exchange, acc, piece->n, piece->sum);
        } else if (payload_add_dense(&sum->dense[m], piece->first, piece->sum, piece->n, err) !=
                   ADTOPK_OK) {
            return exchange_blame(exchange, m, err);
        }
    }
    return ADTOPK_OK;
}

/* Finds the others' contributions to n elements of the next tensor. */
static enum adtopk_status vector_find_parts(
    const struct vector_sum *sum, uint64_t n, struct error *err)
{
    const struct exchange *exchange = sum->exchange;

    for (unsigned m = 0; m < exchange->members; m++) {
        if (m != exchange->self &&
            payload_find_dense(&sum->reader[m], n, &sum->dense[m], err) != ADTOPK_OK) {
            return exchange_blame(exchange, m, err);
        }
    }
    return ADTOPK_OK;
}

/* Sums a tensor's part of the slice. start: the tensor's first element in the vector. */
static enum adtopk_status vector_sum_tensor(const struct vector_sum *sum,
    const struct exchange_tensor *tensor, uint64_t start, vector_finish_piece *finish,
    void *context, struct error *err)
{
    const struct slice part = slice_overlap(sum->slice, start, tensor->numel);
    struct vector_piece piece = {.length = part.end - part.first};
    enum adtopk_status status =
        piece.length > 0 ? vector_find_parts(sum, piece.length, err) : ADTOPK_OK;

    for (; status == ADTOPK_OK && piece.first < piece.length; piece.first += piece.n) {
        const uint64_t element = part.first + piece.first, left = piece.length - piece.first;
        piece.sum = tensor->dense + element;
        piece.n = left < PIECE ? left : PIECE;
        piece.at = start + element;
        status = vector_add_piece(sum, tensor->acc + element, &piece, err);
        if (status == ADTOPK_OK && finish(context, &piece) != ADTOPK_OK) {
            status = exchange_no_memory(sum->exchange, "encode", err);
        }
    }
    return status;
}

enum adtopk_status vector_sum_run(
    struct vector_sum *sum, vector_finish_piece *finish, void *context, struct error *err)
{
    const struct exchange *exchange = sum->exchange;
    enum adtopk_status status = ADTOPK_OK;
    uint64_t start = 0;

    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        status = vector_sum_tensor(sum, &exchange->tensor[t], start, finish, context, err);
        start += exchange->tensor[t].numel;
    }
    for (unsigned m = 0; status == ADTOPK_OK && m < exchange->members; m++) {
        if (m != exchange->self && payload_close(&sum->reader[m], err) != ADTOPK_OK) {
            status = exchange_blame(exchange, m, err);
        }
    }
    return status;
}

struct finishing {
    const struct exchange *exchange;
    const struct exchange_tensor *tensor;
    float factor;
    unsigned parts;
};

static void finish_part(void *arg, unsigned p, unsigned thread)
{
    const struct finishing *finishing = arg;
    const struct exchange *exchange = finishing->exchange;
    const struct exchange_tensor *tensor = finishing->tensor;
    struct slice part = slice_cut((struct slice){0, tensor->numel}, p, finishing->parts);
    uint64_t n = part.end - part.first;

    (void)thread;
    if (exchange->members == 1) {
        vector_round(exchange, tensor->acc + part.first, n, tensor->dense + part.first);
    }
    dense_scale(tensor->dense + part.first, n, finishing->factor);
}

void vector_finish(const struct exchange *exchange, float factor)
{
    for (unsigned t = 0; t < exchange->tensors; t++) {
        const struct exchange_tensor *tensor = &exchange->tensor[t];
        if (tensor->summed) {
            continue;
        }
        struct finishing finishing = {.exchange = exchange,
            .tensor = tensor,
            .factor = factor,
            .parts = parallel_parts(&exchange->parallel, tensor->numel, ELEMENTS_PER_PART, PARTS)};
        parallel_for(&exchange->parallel, finish_part, &finishing, finishing.parts);
    }
}
