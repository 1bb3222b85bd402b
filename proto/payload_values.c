#include "proto/payload_values.h"

#include <inttypes.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/quantise.h"
#include "proto/bits.h"

/* The wire's numbers are those of the kernels. */
_Static_assert((int)PAYLOAD_VALUE_F32 == (int)QUANTISE_F32, "f32");
_Static_assert((int)PAYLOAD_VALUE_BF16 == (int)QUANTISE_BF16, "bf16");
_Static_assert((int)PAYLOAD_VALUE_F16 == (int)QUANTISE_F16, "f16");
_Static_assert((int)PAYLOAD_VALUE_INT8 == (int)QUANTISE_INT8, "int8");

#define STEP_SIZE 2 /* bytes of a block's step, before its levels */

static uint64_t int8_blocks(uint64_t n)
{
    return n / QUANTISE_BLOCK + (n % QUANTISE_BLOCK != 0);
}

uint64_t payload_values_size(uint64_t n, enum payload_value value)
{
    switch (value) {
    case PAYLOAD_VALUE_BF16:
    case PAYLOAD_VALUE_F16: return 2 * n;
    case PAYLOAD_VALUE_INT8: return n + STEP_SIZE * int8_blocks(n);
    default: return 4 * n;
    }
}

static size_t int8_block(uint64_t n, uint64_t first)
{
    return n - first < QUANTISE_BLOCK ? (size_t)(n - first) : QUANTISE_BLOCK;
}

static void write_int8(uint8_t *to, const float *x, uint64_t n, float *decoded)
{
    int8_t level[QUANTISE_BLOCK];

    for (uint64_t i = 0; i < n; i += QUANTISE_BLOCK) {
        size_t block = int8_block(n, i);
        uint16_t step = quantise_block(x + i, block, level);

        store_u16(to, step);
        memcpy(to + STEP_SIZE, level, block);
        to += STEP_SIZE + block;
        if (decoded != NULL) {
            quantise_decode(step, level, block, decoded + i);
        }
    }
}

void payload_values_write(
    uint8_t *to, const float *x, uint64_t n, enum payload_value value, float *decoded)
{
    switch (value) {
    case PAYLOAD_VALUE_BF16:
        for (uint64_t i = 0; i < n; i++) {
            store_u16(to + 2 * i, convert_to_bf16(x[i]));
        }
        break;
    case PAYLOAD_VALUE_F16:
        for (uint64_t i = 0; i < n; i++) {
            store_u16(to + 2 * i, convert_to_f16(x[i]));
        }
        break;
    case PAYLOAD_VALUE_INT8: write_int8(to, x, n, decoded); return;
    default:
        for (uint64_t i = 0; i < n; i++) {
            store_u32(to + 4 * i, convert_bits(x[i]));
        }
    }
    if (decoded == NULL || (decoded == x && value == PAYLOAD_VALUE_F32)) {
        return;
    }
    if (decoded != x) {
        memcpy(decoded, x, n * sizeof(*x));
    }
    quantise_values(decoded, n, (enum quantisation)value, 0);
}

/* A block's levels are those that its values have, so one of them is the largest. */
static enum adtopk_status check_block(const struct payload_input *input, uint64_t number,
    uint16_t step, const int8_t *level, size_t n, struct error *err)
{
    int most = step > 0 ? QUANTISE_LEVELS : 0;
    int largest = 0;

    if (step > QUANTISE_STEP_MAX) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload section %" PRIu32 ": int8 step 0x%04x of block %" PRIu64 " is over 0x%04x",
            input->section, step, number, QUANTISE_STEP_MAX);
    }
    for (size_t i = 0; i < n; i++) {
        int magnitude = level[i] < 0 ? -level[i] : level[i];

        largest = magnitude > largest ? magnitude : largest;
    }
    return largest == most ? ADTOPK_OK
                           : error_set(err, ADTOPK_ERR_PROTOCOL,
                                 "payload section %" PRIu32
                                 ": the largest int8 level of block %" PRIu64 " is %d, not %d",
                                 input->section, number, largest, most);
}

static enum adtopk_status read_int8(
    const struct payload_input *input, const uint8_t *from, float *x, uint64_t n, struct error *err)
{
    int8_t level[QUANTISE_BLOCK];

    for (uint64_t i = 0; i < n; i += QUANTISE_BLOCK) {
        size_t block = int8_block(n, i);
        uint16_t step = load_u16(from);

        memcpy(level, from + STEP_SIZE, block);
        if (check_block(input, i / QUANTISE_BLOCK, step, level, block, err) != ADTOPK_OK) {
            return ADTOPK_ERR_PROTOCOL;
        }
        quantise_decode(step, level, block, x + i);
        from += STEP_SIZE + block;
    }
    return ADTOPK_OK;
}

static enum adtopk_status read_f16(
    const struct payload_input *input, const uint8_t *from, float *x, uint64_t n, struct error *err)
{
    unsigned infinite = 0;

    for (uint64_t i = 0; i < n; i++) {
        uint16_t bits = load_u16(from + 2 * i);

        infinite |= (bits & 0x7fffu) == 0x7c00u;
        x[i] = convert_f16(bits);
    }
    return infinite == 0
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_PROTOCOL,
                     "payload section %" PRIu32 ": an f16 value is infinite", input->section);
}

enum adtopk_status payload_values_read(
    struct payload_input *input, float *x, uint64_t n, enum payload_value value, struct error *err)
{
    const uint8_t *from = payload_input_take(input, payload_values_size(n, value), "values", err);

    if (from == NULL) {
        return ADTOPK_ERR_PROTOCOL;
    }
    switch (value) {
    case PAYLOAD_VALUE_BF16:
        for (uint64_t i = 0; i < n; i++) {
            x[i] = convert_bf16(load_u16(from + 2 * i));
        }
        return ADTOPK_OK;
    case PAYLOAD_VALUE_F16: return read_f16(input, from, x, n, err);
    case PAYLOAD_VALUE_INT8: return read_int8(input, from, x, n, err);
    default:
        for (uint64_t i = 0; i < n; i++) {
            x[i] = convert_float(load_u32(from + 4 * i));
        }
        return ADTOPK_OK;
    }
}
