#include "proto/payload_values.h"

#include <inttypes.h>

#include "kernels/base/convert.h"
#include "kernels/base/packed.h"
#include "kernels/base/quantise.h"
#include "kernels/base/wide.h"
#include "proto/bits.h"

/* The numbers on the wire are those of the kernels. */
_Static_assert((int)PAYLOAD_VALUE_F32 == (int)QUANTISE_F32, "f32");
_Static_assert((int)PAYLOAD_VALUE_BF16 == (int)QUANTISE_BF16, "bf16");
_Static_assert((int)PAYLOAD_VALUE_F16 == (int)QUANTISE_F16, "f16");
_Static_assert((int)PAYLOAD_VALUE_INT8 == (int)QUANTISE_INT8, "int8");
_Static_assert((int)PAYLOAD_VALUE_TWO == (int)QUANTISE_TWO, "two");
_Static_assert((int)PAYLOAD_VALUE_SIGN == (int)QUANTISE_SIGN, "sign");
_Static_assert((int)PAYLOAD_VALUE_INT4 == (int)QUANTISE_INT4, "int4");
_Static_assert((int)PAYLOAD_VALUE_INT3 == (int)QUANTISE_INT3, "int3");

#define SCALE_SIZE 2 /* bytes of a block's step or scale, before its levels or planes */

static uint64_t value_blocks(uint64_t n)
{
    return n / QUANTISE_BLOCK + (n % QUANTISE_BLOCK != 0);
}

/* Bytes of n values of 1 to 4 bits. Only the last block may have a plane of fewer bytes. */
static uint64_t packed_size(uint64_t n, enum quantisation type)
{
    return SCALE_SIZE * packed_scales(type) * value_blocks(n) +
           packed_planes(type) * (n / 8 + (n % 8 != 0));
}

uint64_t payload_values_size(uint64_t n, enum payload_value value)
{
    switch (value) {
    case PAYLOAD_VALUE_BF16:
    case PAYLOAD_VALUE_F16: return 2 * n;
    case PAYLOAD_VALUE_INT8: return n + SCALE_SIZE * value_blocks(n);
    case PAYLOAD_VALUE_F32: return 4 * n;
    default: return packed_size(n, (enum quantisation)value);
    }
}

double payload_value_bits(enum payload_value value)
{
    return 8.0 * (double)payload_values_size(QUANTISE_BLOCK, value) / QUANTISE_BLOCK;
}

static size_t block_at(uint64_t n, uint64_t first)
{
    return n - first < QUANTISE_BLOCK ? (size_t)(n - first) : QUANTISE_BLOCK;
}

static void write_int8(uint8_t *to, const float *x, uint64_t n, float *decoded)
{
    int8_t level[QUANTISE_BLOCK];

    for (uint64_t i = 0; i < n; i += QUANTISE_BLOCK) {
        size_t block = block_at(n, i);
        uint16_t step = quantise_block(x + i, block, QUANTISE_LEVELS, level);

        store_u16(to, step);
        memcpy(to + SCALE_SIZE, level, block);
        to += SCALE_SIZE + block;
        if (decoded != NULL) {
            quantise_decode(step, level, block, decoded + i);
        }
    }
}

/* Planes of so many bytes, which the compiler knows of full blocks. */
static inline uint8_t *write_planes(
    uint8_t *to, const struct packed_block *block, unsigned planes, size_t size)
{
    for (unsigned p = 0; p < planes; p++, to += size) {
        memcpy(to, block->plane[p], size);
    }
    return to;
}

/* Scales come first, then the planes. */
static uint8_t *write_block(
    uint8_t *to, const struct packed_block *block, size_t n, enum quantisation type)
{
    const unsigned planes = packed_planes(type);

    for (unsigned s = 0; s < packed_scales(type); s++, to += SCALE_SIZE) {
        store_u16(to, block->scale[s]);
    }
    return n == QUANTISE_BLOCK ? write_planes(to, block, planes, PACKED_PLANE_SIZE)
                               : write_planes(to, block, planes, (n + 7) / 8);
}

static void write_packed(
    uint8_t *to, const float *x, uint64_t n, enum quantisation type, float *decoded)
{
    const struct packed_ops *ops = packed_best();
    struct packed_block packed;

    for (uint64_t i = 0; i < n; i += QUANTISE_BLOCK) {
        const size_t block = block_at(n, i);

        packed_encode(ops, x + i, block, type, &packed);
        to = write_block(to, &packed, block, type);
        if (decoded != NULL) {
            packed_decode(ops, &packed, block, type, decoded + i);
        }
    }
}

/* ------------------------------------------------------------------ f32, bf16, f16 */

WIDE_BODY void write_body(uint8_t *to, const float *x, uint64_t n, enum payload_value value)
{
    for (uint64_t i = 0; value == PAYLOAD_VALUE_F32 && i < n; i++) {
        store_u32(to + 4 * i, convert_bits(x[i]));
    }
    for (uint64_t i = 0; value == PAYLOAD_VALUE_BF16 && i < n; i++) {
        store_u16(to + 2 * i, convert_to_bf16(x[i]));
    }
    for (uint64_t i = 0; value == PAYLOAD_VALUE_F16 && i < n; i++) {
        store_u16(to + 2 * i, convert_to_f16(x[i]));
    }
}

WIDE static void write_wide(uint8_t *to, const float *x, uint64_t n, enum payload_value value)
{
    write_body(to, x, n, value);
}

static void write_plain(uint8_t *to, const float *x, uint64_t n, enum payload_value value)
{
    write_body(to, x, n, value);
}

/* Reads values or, if `adds`, adds them. Returns false if an f16 is infinite. */
WIDE_BODY bool read_body(
    const uint8_t *from, float *x, uint64_t n, enum payload_value value, bool adds)
{
    unsigned infinite = 0;

    for (uint64_t i = 0; value == PAYLOAD_VALUE_F32 && i < n; i++) {
        const float y = convert_float(load_u32(from + 4 * i));
        x[i] = adds ? x[i] + y : y;
    }
    for (uint64_t i = 0; value == PAYLOAD_VALUE_BF16 && i < n; i++) {
        const float y = convert_bf16(load_u16(from + 2 * i));
        x[i] = adds ? x[i] + y : y;
    }
    for (uint64_t i = 0; value == PAYLOAD_VALUE_F16 && i < n; i++) {
        const uint16_t bits = load_u16(from + 2 * i);
        const float y = convert_f16(bits);
        infinite |= (bits & 0x7fffu) == 0x7c00u;
        x[i] = adds ? x[i] + y : y;
    }
    return infinite == 0;
}

WIDE static bool read_wide(
    const uint8_t *from, float *x, uint64_t n, enum payload_value value, bool adds)
{
    return adds ? read_body(from, x, n, value, true) : read_body(from, x, n, value, false);
}

static bool read_plain(
    const uint8_t *from, float *x, uint64_t n, enum payload_value value, bool adds)
{
    return adds ? read_body(from, x, n, value, true) : read_body(from, x, n, value, false);
}

static enum adtopk_status read_values(uint32_t section, const uint8_t *from, float *x, uint64_t n,
    enum payload_value value, bool adds, struct error *err)
{
    return (wide_is_there() ? read_wide : read_plain)(from, x, n, value, adds)
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_PROTOCOL,
                     "payload section %" PRIu32 ": an f16 value is infinite", section);
}

/* ------------------------------------------------------------------ all types */

void payload_values_write(
    uint8_t *to, const float *x, uint64_t n, enum payload_value value, float *decoded)
{
    switch (value) {
    case PAYLOAD_VALUE_INT8: write_int8(to, x, n, decoded); return;
    default: write_packed(to, x, n, (enum quantisation)value, decoded); return;
    case PAYLOAD_VALUE_F32:
    case PAYLOAD_VALUE_BF16:
    case PAYLOAD_VALUE_F16: (wide_is_there() ? write_wide : write_plain)(to, x, n, value);
    }
    if (decoded == NULL || (decoded == x && value == PAYLOAD_VALUE_F32)) {
        return;
    }
    if (decoded != x) {
        memcpy(decoded, x, n * sizeof(*x));
    }
    quantise_values(decoded, n, (enum quantisation)value, 0);
}

/* A block's levels must be those that its values give, so one of them must be the largest. */
static enum adtopk_status check_block(const struct payload_input *input, uint64_t number,
    uint16_t step, const int8_t *level, size_t n, struct error *err)
{
    int most = step > 0 ? QUANTISE_LEVELS : 0;
    int largest = 0;

    if (step > quantise_step_max(QUANTISE_LEVELS)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload section %" PRIu32 ": int8 step 0x%04x of block %" PRIu64 " is over 0x%04x",
            input->section, step, number, quantise_step_max(QUANTISE_LEVELS));
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
        size_t block = block_at(n, i);
        uint16_t step = load_u16(from);

        memcpy(level, from + SCALE_SIZE, block);
        if (check_block(input, i / QUANTISE_BLOCK, step, level, block, err) != ADTOPK_OK) {
            return ADTOPK_ERR_PROTOCOL;
        }
        quantise_decode(step, level, block, x + i);
        from += SCALE_SIZE + block;
    }
    return ADTOPK_OK;
}

static inline const uint8_t *read_planes(
    const uint8_t *from, struct packed_block *block, unsigned planes, size_t size)
{
    for (unsigned p = 0; p < planes; p++, from += size) {
        memcpy(block->plane[p], from, size);
    }
    return from;
}

/* Of a block that is not full, the rest of the planes is 0. */
static const uint8_t *read_block(
    const uint8_t *from, struct packed_block *block, size_t n, enum quantisation type)
{
    const unsigned planes = packed_planes(type);

    for (unsigned s = 0; s < packed_scales(type); s++, from += SCALE_SIZE) {
        block->scale[s] = load_u16(from);
    }
    if (n == QUANTISE_BLOCK) {
        return read_planes(from, block, planes, PACKED_PLANE_SIZE);
    }
    memset(block->plane, 0, sizeof(block->plane));
    return read_planes(from, block, planes, (n + 7) / 8);
}

static enum adtopk_status read_packed(const struct payload_input *input, const uint8_t *from,
    float *x, uint64_t n, enum quantisation type, struct error *err)
{
    const struct packed_ops *ops = packed_best();
    struct packed_block packed;

    for (uint64_t i = 0; i < n; i += QUANTISE_BLOCK) {
        const size_t block = block_at(n, i);
        const char *fault;

        from = read_block(from, &packed, block, type);
        fault = packed_fault(&packed, block, type);
        if (fault != NULL) {
            return error_set(err, ADTOPK_ERR_PROTOCOL,
                "payload section %" PRIu32 ": block %" PRIu64 " of values has %s", input->section,
                i / QUANTISE_BLOCK, fault);
        }
        packed_decode(ops, &packed, block, type, x + i);
    }
    return ADTOPK_OK;
}

uint64_t payload_values_most(uint64_t bytes, enum payload_value value)
{
    const enum quantisation type = (enum quantisation)value;

    return packed_is(type) ? bytes / packed_planes(type) * 8 : bytes;
}

enum adtopk_status payload_values_read(
    struct payload_input *input, float *x, uint64_t n, enum payload_value value, struct error *err)
{
    const uint8_t *from = payload_input_take(input, payload_values_size(n, value), "values", err);

    if (from == NULL) {
        return ADTOPK_ERR_PROTOCOL;
    }
    switch (value) {
    case PAYLOAD_VALUE_INT8: return read_int8(input, from, x, n, err);
    default: return read_packed(input, from, x, n, (enum quantisation)value, err);
    case PAYLOAD_VALUE_F32:
    case PAYLOAD_VALUE_BF16:
    case PAYLOAD_VALUE_F16: return read_values(input->section, from, x, n, value, false, err);
    }
}

enum adtopk_status payload_values_add(
    const struct payload_dense *dense, uint64_t first, float *sum, uint64_t n, struct error *err)
{
    const uint8_t *from = dense->bytes + payload_values_size(first, dense->value);

    return read_values(dense->section, from, sum, n, dense->value, true, err);
}
