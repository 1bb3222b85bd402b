/*
 * The rounding of residuals in bf16, which kernels/cpu/rounded.h defines: the parts that device
 * code calls too.
 */
#ifndef ADTOPK_KERNELS_BASE_ROUNDED_H
#define ADTOPK_KERNELS_BASE_ROUNDED_H

#include "kernels/base/convert.h"
#include "kernels/base/ledger.h"

/* What rounding cut off a chunk of a bf16 residual, by the ledger's sign and lane. */
struct carry {
    float of[2][LEDGER_LANES];
};

/* The golden ratio, of 2^32. */
#define ROUNDED_STEP 0x9e3779b9u

/** What the seeds of a pass are made of. */
BASE_INLINE uint64_t rounded_pass(uint64_t stamp, uint64_t salt)
{
    return ledger_hash(stamp + ledger_hash(salt));
}

/** The seed of a chunk in a pass. */
BASE_INLINE uint64_t rounded_chunk(uint64_t pass, uint64_t chunk)
{
    return ledger_hash(pass + chunk);
}

/** The hash of a word of a chunk with this seed. */
BASE_INLINE uint32_t rounded_word(uint64_t seed, uint32_t word)
{
    return (uint32_t)ledger_hash(seed + word);
}

/** The random number, of 16 bits, of a word's element. */
BASE_INLINE uint32_t rounded_random(uint32_t word, uint32_t element)
{
    return (word + element * ROUNDED_STEP) >> 16;
}

/* Rounds one element, and returns its bits; selects instead of branches, so that loops vectorise.
 * Adding a random number to the low bits rounds up the more often, the closer they are to the next
 * bf16, whatever the sign. It would make zeros of NaNs. */
BASE_INLINE uint16_t rounded_element(float *x, float *e, uint32_t random)
{
    const float exact = *x + *e;
    const uint32_t bits = convert_bits(exact);
    const int number = (bits & 0x7f800000u) != 0x7f800000u;
    const uint32_t half = (bits + convert_select(number, random, 0)) >> 16;
    const int finite = (half & 0x7f80u) != 0x7f80u;
    *x = convert_float(half << 16);
    *e = convert_float(convert_select(finite, convert_bits(exact - *x), 0));
    return (uint16_t)half;
}

/** An element of a chunk in f32. x: what it is in bf16. Among the first two vectors each takes the
 * error with which the next pass would begin. A lane without elements has no error, but the first
 * element takes its 0. */
BASE_INLINE float rounded_wide(
    const struct carry *carry, uint64_t chunk, uint32_t length, uint32_t element, float x)
{
    const uint32_t vector = element / LEDGER_LANES;
    const uint32_t sign = (uint32_t)(ledger_word_signs(chunk) & 1u) ^ (vector & 1u);
    if (vector > 1) {
        return x;
    }
    x += carry->of[sign][element % LEDGER_LANES];
    return element == 0 && length < 2 * LEDGER_LANES ? x + 0.0f : x;
}

#endif
