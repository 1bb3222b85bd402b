#include "attention.h"

#include <math.h>
#include <string.h>

#include "../common/exponential.h"
#include "../common/gemm.h"

/* One head of one example. Its queries, keys and values lie in rows of `stride` numbers. */
struct head {
    size_t context;
    size_t width; /* of the head */
    size_t stride;
    float factor; /* of the scores: 1 / sqrt(width) */
    const float *queries;
    const float *keys;
    const float *values;
};

static struct head attention_head(
    const struct attention_sizes *sizes, const float *qkv, size_t number)
{
    const size_t width = sizes->width / sizes->heads;
    const float *queries = qkv + number * width;
    return (struct head){.context = sizes->context,
        .width = width,
        .stride = 3 * sizes->width,
        .factor = 1 / sqrtf((float)width),
        .queries = queries,
        .keys = queries + sizes->width,
        .values = queries + 2 * sizes->width};
}

size_t attention_room(const struct attention_sizes *sizes)
{
    return sizes->context * (sizes->context + sizes->width / sizes->heads);
}

/* scores[i][j] of j <= i become probabilities, the others 0. */
static void attention_softmax(size_t context, float factor, float *scores)
{
    for (size_t i = 0; i < context; i++) {
        float *p = scores + i * context, largest = p[0], sum = 0;
        for (size_t j = 1; j <= i; j++) {
            largest = p[j] > largest ? p[j] : largest;
        }
        for (size_t j = 0; j <= i; j++) {
            p[j] = exponential((p[j] - largest) * factor);
        }
        for (size_t j = 0; j <= i; j++) {
            sum += p[j];
        }
        for (size_t j = 0; j <= i; j++) {
            p[j] /= sum;
        }
        memset(p + i + 1, 0, (context - i - 1) * sizeof *p);
    }
}

/* Turns the gradient of the probabilities into that of the products of queries and keys, in place.
 * A probability of 0 passes no gradient. */
static void attention_softmax_backward(
    size_t context, float factor, const float *probabilities, float *gradient)
{
    for (size_t i = 0; i < context; i++) {
        const float *p = probabilities + i * context;
        float *d = gradient + i * context, along = 0;
        for (size_t j = 0; j <= i; j++) {
            along += p[j] * d[j];
        }
        for (size_t j = 0; j <= i; j++) {
            d[j] = p[j] * (d[j] - along) * factor;
        }
        memset(d + i + 1, 0, (context - i - 1) * sizeof *d);
    }
}

/* Writes A B, with A [context][context] and B [context][width], to rows of `stride` numbers. */
static void attention_product(const struct head *head, struct gemm_matrix a, struct gemm_matrix b,
    float *piece, float *to, size_t stride)
{
    memset(piece, 0, head->context * head->width * sizeof *piece);
    gemm_add(head->context, head->width, head->context, a, b, piece);
    for (size_t i = 0; i < head->context; i++) {
        memcpy(to + i * stride, piece + i * head->width, head->width * sizeof *piece);
    }
}

void attention_forward(const struct attention_sizes *sizes, const float *qkv, float *room,
    float *probabilities, float *mixed)
{
    const size_t context = sizes->context;
    for (size_t h = 0; h < sizes->heads; h++) {
        const struct head head = attention_head(sizes, qkv, h);
        float *scores = probabilities + h * context * context;
        memset(scores, 0, context * context * sizeof *scores);
        gemm_add(context, context, head.width, (struct gemm_matrix){head.queries, head.stride, 1},
            (struct gemm_matrix){head.keys, 1, head.stride}, scores);
        attention_softmax(context, head.factor, scores);
        attention_product(&head, (struct gemm_matrix){scores, context, 1},
            (struct gemm_matrix){head.values, head.stride, 1}, room, mixed + h * head.width,
            sizes->width);
    }
}

void attention_backward(const struct attention_sizes *sizes, const float *qkv,
    const float *probabilities, const float *d_mixed, float *room, float *d_qkv)
{
    const size_t context = sizes->context;
    float *scores = room, *piece = room + context * context;
    for (size_t h = 0; h < sizes->heads; h++) {
        const struct head head = attention_head(sizes, qkv, h);
        const float *p = probabilities + h * context * context;
        const struct gemm_matrix d_out = {d_mixed + h * head.width, sizes->width, 1};
        float *d_queries = d_qkv + h * head.width;

        attention_product(&head, (struct gemm_matrix){p, 1, context}, d_out, piece,
            d_queries + 2 * sizes->width, head.stride);
        memset(scores, 0, context * context * sizeof *scores);
        gemm_add(context, context, head.width, d_out,
            (struct gemm_matrix){head.values, 1, head.stride}, scores);
        attention_softmax_backward(context, head.factor, p, scores);
        attention_product(&head, (struct gemm_matrix){scores, context, 1},
            (struct gemm_matrix){head.keys, head.stride, 1}, piece, d_queries, head.stride);
        attention_product(&head, (struct gemm_matrix){scores, 1, context},
            (struct gemm_matrix){head.queries, head.stride, 1}, piece, d_queries + sizes->width,
            head.stride);
    }
}
