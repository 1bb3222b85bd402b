#include <math.h>
#include <string.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/kernels.h"

/* The ledger's order of summation is part of its definition, so that its doubles do not depend on
 * the compiler or the vector width: element i goes to lane i % LANES of block i / BLOCK, a block's
 * lanes are added as a tree, the blocks one after the other. */
enum { BLOCK = 256, LANES = 8, WORD = 64 };

/* Sign bits of the elements 64 * index and following: the splitmix64 finaliser (Steele, Lea and
 * Flood 2014), one hash for 64 elements. */
static uint64_t ledger_word(uint64_t index)
{
    uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double ledger_sign(uint64_t element)
{
    return (ledger_word(element / WORD) >> (element % WORD)) & 1u ? -1.0 : 1.0;
}

static double ledger_tree(const double lane[LANES])
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* The two sums of one whole block whose first element is number `first`. */
static void ledger_block(const float x[BLOCK], uint64_t first, double sums[2])
{
    double plain[LANES] = {0};
    double hashed[LANES] = {0};
    for (unsigned w = 0; w < BLOCK; w += WORD) {
        const uint64_t word = ledger_word((first + w) / WORD);
        for (unsigned i = 0; i < WORD; i += LANES) {
            const uint32_t signs = (uint32_t)(word >> i) & 0xffu;
            for (unsigned j = 0; j < LANES; j++) {
                const float value = x[w + i + j];
                const uint32_t flip = ((signs >> j) & 1u) << 31;
                plain[j] += (double)value;
                hashed[j] += (double)convert_float(convert_bits(value) ^ flip);
            }
        }
    }
    sums[0] = ledger_tree(plain);
    sums[1] = ledger_tree(hashed);
}

void ledger_sums(const float *x, uint64_t n, double sums[2])
{
    for (uint64_t first = 0; first < n; first += BLOCK) {
        float block[BLOCK] = {0};
        const uint64_t length = n - first < BLOCK ? n - first : BLOCK;
        memcpy(block, x + first, length * sizeof *block);
        double part[2];
        ledger_block(block, first, part);
        sums[0] += part[0];
        sums[1] += part[1];
    }
}

/* sum[i] += gradient[first + i] for i < length. */
static void accumulate_gradient(
    float *sum, const void *gradient, enum dtype dtype, uint64_t first, unsigned length)
{
    if (dtype == DTYPE_F32) {
        const float *g = (const float *)gradient + first;
        for (unsigned i = 0; i < length; i++) {
            sum[i] += g[i];
        }
    } else if (dtype == DTYPE_F16) {
        const uint16_t *g = (const uint16_t *)gradient + first;
        for (unsigned i = 0; i < length; i++) {
            sum[i] += convert_f16(g[i]);
        }
    } else if (dtype == DTYPE_BF16) {
        const uint16_t *g = (const uint16_t *)gradient + first;
        for (unsigned i = 0; i < length; i++) {
            sum[i] += convert_bf16(g[i]);
        }
    }
}

/* Replaces non-finite elements by `neutral` and returns their number. */
static unsigned accumulate_filter(float sum[BLOCK], float neutral)
{
    unsigned left_out = 0;
    for (unsigned i = 0; i < BLOCK; i++) {
        const bool finite = fabsf(sum[i]) < KERNEL_FINITE_LIMIT; /* false for NaN */
        left_out += !finite;
        sum[i] = finite ? sum[i] : neutral;
    }
    return left_out;
}

/* sum = the filtered sum of all gradients at elements first.., zero beyond `length`. */
static unsigned accumulate_block(float sum[BLOCK], const void *const *gradients, unsigned count,
    enum dtype dtype, uint64_t first, unsigned length, float neutral)
{
    memset(sum, 0, BLOCK * sizeof *sum);
    for (unsigned r = 0; r < count; r++) {
        if (gradients[r] != NULL) {
            accumulate_gradient(sum, gradients[r], dtype, first, length);
        }
    }
    return accumulate_filter(sum, neutral);
}

static unsigned accumulate_length(uint64_t n, uint64_t first)
{
    return n - first < BLOCK ? (unsigned)(n - first) : BLOCK;
}

uint64_t accumulate(float *acc, const void *const *gradients, unsigned count, enum dtype dtype,
    uint64_t n, double sums[2])
{
    uint64_t left_out = 0;
    for (uint64_t first = 0; first < n; first += BLOCK) {
        const unsigned length = accumulate_length(n, first);
        float sum[BLOCK];
        /* x + -0.0 is x for every x, -0.0 included: the element keeps its bits. */
        left_out += accumulate_block(sum, gradients, count, dtype, first, length, -0.0f);
        for (unsigned i = 0; i < length; i++) {
            acc[first + i] += sum[i];
        }
        double part[2];
        ledger_block(sum, first, part);
        sums[0] += part[0];
        sums[1] += part[1];
    }
    return left_out;
}

void withdraw(float *acc, const void *const *gradients, unsigned count, enum dtype dtype,
    uint64_t n, double sums[2])
{
    for (uint64_t first = 0; first < n; first += BLOCK) {
        const unsigned length = accumulate_length(n, first);
        float sum[BLOCK];
        /* x - 0.0 is x for every x. */
        (void)accumulate_block(sum, gradients, count, dtype, first, length, 0.0f);
        for (unsigned i = 0; i < length; i++) {
            acc[first + i] -= sum[i];
        }
        double part[2];
        ledger_block(sum, first, part);
        sums[0] -= part[0];
        sums[1] -= part[1];
    }
}
