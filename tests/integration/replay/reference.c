#include "tests/integration/replay/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/integration/replay/tape.h"

/* Elements first, first + stride, ... of a tensor. */
struct fibre {
    uint64_t first, stride, length;
};

void reference_init(struct reference *reference, enum reference_rule rule, double density,
    int dense, unsigned dims, const uint64_t *shape)
{
    *reference = (struct reference){
        .rule = rule, .density = density, .dense = dense, .dims = dims, .numel = 1};
    for (unsigned d = 0; d < dims; d++) {
        reference->shape[d] = shape[d];
        reference->numel *= shape[d];
    }
    for (unsigned node = 0; node < REFERENCE_NODES; node++) {
        reference->residual[node] = tape_need(reference->numel, sizeof(float));
    }
    reference->taken = tape_need(reference->numel, 1);
    reference->update = tape_need(reference->numel, sizeof(float));
    reference->in_list = tape_need(reference->numel, 1);
    reference->pushed = tape_need(reference->numel, sizeof(double));
    reference->applied = tape_need(reference->numel, sizeof(double));
    reference->scratch = tape_need(reference->numel, sizeof(uint32_t));
}

void reference_free(struct reference *reference)
{
    for (unsigned node = 0; node < REFERENCE_NODES; node++) {
        free(reference->residual[node]);
    }
    free(reference->taken);
    free(reference->update);
    free(reference->in_list);
    free(reference->pushed);
    free(reference->applied);
    free(reference->scratch);
}

/* ------------------------------------------------------------------ selecting */

/* Bits of magnitudes are in the order of the magnitudes. */
static uint32_t reference_magnitude(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits & UINT32_C(0x7fffffff);
}

/* The k-th largest of n numbers, k from 1; moves them. */
static uint32_t reference_nth(uint32_t *x, uint64_t n, uint64_t k)
{
    uint64_t low = 0, high = n;

    while (high - low > 1) {
        const uint32_t pivot = x[low + (high - low) / 2];
        uint64_t above = low, below = high, i = low;
        while (i < below) { /* the larger first, then the equal, then the smaller */
            const uint32_t one = x[i];
            if (one > pivot) {
                x[i++] = x[above];
                x[above++] = one;
            } else if (one < pivot) {
                x[i] = x[--below];
                x[below] = one;
            } else {
                i++;
            }
        }
        if (k <= above) {
            high = above;
        } else if (k > below) {
            low = below;
        } else {
            return pivot;
        }
    }
    return x[low];
}

/* Marks the k largest magnitudes of a fibre. */
static void reference_take(
    struct reference *reference, const float *acc, struct fibre fibre, uint64_t k)
{
    uint32_t *scratch = reference->scratch, least;
    uint64_t equal = k, marked = 0, larger = 0;

    for (uint64_t i = 0; i < fibre.length; i++) {
        scratch[i] = reference_magnitude(acc[fibre.first + i * fibre.stride]);
    }
    least = reference_nth(scratch, fibre.length, k);
    for (uint64_t i = 0; i < fibre.length; i++) {
        equal -= reference_magnitude(acc[fibre.first + i * fibre.stride]) > least ? 1 : 0;
    }
    for (uint64_t i = 0; i < fibre.length; i++) {
        const uint64_t at = fibre.first + i * fibre.stride;
        const uint32_t magnitude = reference_magnitude(acc[at]);
        const int tie = magnitude == least && equal > 0;
        equal -= tie ? 1 : 0;
        reference->taken[at] = magnitude > least || tie;
        marked += reference->taken[at];
        larger += magnitude >= least;
    }
    if (marked != k || larger < k) {
        (void)fprintf(stderr, "the reference selected %llu of %llu\n", (unsigned long long)marked,
            (unsigned long long)k);
        exit(1);
    }
}

/* Whatever is taken is larger than all that is not, or as large and before it. */
static void reference_check(const struct reference *reference, const float *acc, struct fibre fibre)
{
    uint32_t least = UINT32_MAX, most = 0;
    uint64_t last = 0, first = fibre.length;

    for (uint64_t i = 0; i < fibre.length; i++) {
        const uint64_t at = fibre.first + i * fibre.stride;
        const uint32_t magnitude = reference_magnitude(acc[at]);
        if (reference->taken[at] && magnitude <= least) {
            least = magnitude;
            last = i;
        } else if (!reference->taken[at] && (first == fibre.length || magnitude > most)) {
            most = magnitude;
            first = i;
        }
    }
    if (first < fibre.length && (most > least || (most == least && first < last))) {
        (void)fprintf(stderr, "the reference selected wrongly\n");
        exit(1);
    }
}

/* max(1, floor(length density)); a product just below a whole number is that number. */
static uint64_t reference_share(const struct reference *reference, uint64_t length)
{
    const double share = floor((double)length * reference->density * (1 + 1e-12));

    return share < 1 ? 1 : (uint64_t)share;
}

static void reference_select_fibre(
    struct reference *reference, const float *acc, struct fibre fibre)
{
    reference_take(reference, acc, fibre, reference_share(reference, fibre.length));
    reference_check(reference, acc, fibre);
}

/* Chunks of 4,096 elements, or of the largest divisor of the size from 256 to that. */
static uint64_t reference_chunk(uint64_t numel)
{
    for (uint64_t chunk = 4096; chunk >= 256; chunk--) {
        if (numel % chunk == 0) {
            return chunk;
        }
    }
    return numel;
}

static void reference_select(struct reference *reference, const float *acc)
{
    const uint64_t *shape = reference->shape;
    const unsigned axis = reference->rule == RULE_LONGEST && shape[0] > shape[1] ? 0 : 1;
    uint64_t inner = 1;

    if (reference->rule == RULE_TOPK || reference->turn % 2 == 1) {
        reference_select_fibre(reference, acc, (struct fibre){0, 1, reference->numel});
        return;
    }
    if (reference->rule == RULE_ROW || reference->rule == RULE_CHUNK) {
        const uint64_t row = reference->rule == RULE_ROW ? reference->numel / shape[0]
                                                         : reference_chunk(reference->numel);
        for (uint64_t f = 0; f < reference->numel / row; f++) {
            reference_select_fibre(reference, acc, (struct fibre){f * row, 1, row});
        }
        return;
    }
    for (unsigned d = axis + 1; d < reference->dims; d++) {
        inner *= shape[d];
    }
    for (uint64_t f = 0; f < reference->numel / shape[axis]; f++) {
        const struct fibre fibre = {
            f / inner * inner * shape[axis] + f % inner, inner, shape[axis]};
        reference_select_fibre(reference, acc, fibre);
    }
}

/* ------------------------------------------------------------------ a step */

/* To 8 bits of precision, to the nearest, ties to even. */
static float reference_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & UINT32_C(0xffff0000);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void reference_contribute(struct reference *reference, unsigned node)
{
    float *acc = reference->residual[node];

    if (reference->dense) {
        memset(reference->taken, 1, reference->numel);
    } else {
        reference_select(reference, acc);
    }
    for (uint64_t i = 0; i < reference->numel; i++) {
        if (reference->taken[i]) {
            const float sent = reference->dense ? acc[i] : reference_bf16(acc[i]);
            reference->update[i] += sent;
            reference->in_list[i] = 1;
            acc[i] -= sent;
        }
    }
}

void reference_step(struct reference *reference, const float *const gradient[REFERENCE_RANKS])
{
    memset(reference->update, 0, reference->numel * sizeof(float));
    memset(reference->in_list, 0, reference->numel);
    for (unsigned node = 0; node < REFERENCE_NODES; node++) {
        const float *first = gradient[2 * node], *second = gradient[2 * node + 1];
        for (uint64_t i = 0; i < reference->numel; i++) {
            reference->residual[node][i] += first[i] + second[i];
            reference->pushed[i] += (double)first[i] + (double)second[i];
        }
        reference_contribute(reference, node);
    }
    for (uint64_t i = 0; i < reference->numel; i++) {
        reference->update[i] *= 1.0f / REFERENCE_RANKS;
        reference->applied[i] += (double)reference->update[i] * REFERENCE_RANKS;
    }
    reference->turn++;
}

double reference_loss(const struct reference *reference)
{
    double worst = 0, most = 0;

    for (uint64_t i = 0; i < reference->numel; i++) {
        double left = 0;
        for (unsigned node = 0; node < REFERENCE_NODES; node++) {
            left += (double)reference->residual[node][i];
        }
        worst = fmax(worst, fabs(reference->pushed[i] - reference->applied[i] - left));
        most = fmax(most, fabs(reference->pushed[i]));
    }
    return most > 0 ? worst / most : worst;
}
