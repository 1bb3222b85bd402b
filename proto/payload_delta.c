/*
 * DELTA and RICE: the encodings of a list's deltas. The delta of an entry is the number of
 * positions between it and the entry before (from -1 for the first of the list). So a run of
 * neighbours has deltas of 0.
 */
#include <inttypes.h>

#include "kernels/base/wide.h"
#include "proto/bits.h"
#include "proto/payload_coding.h"

/* How many parameters below the greatest possible one are tried first. */
#define NEAR 3u

static size_t block_size(size_t count, size_t first)
{
    return count - first < PAYLOAD_DELTA_BLOCK ? count - first : PAYLOAD_DELTA_BLOCK;
}

/* Writes the deltas of a block that begins at entry `first`; returns all of them or-ed. */
WIDE_BODY uint32_t deltas_of(const uint32_t *position, size_t first, size_t block, uint32_t *delta)
{
    const uint32_t *here = position + first;
    uint32_t seen = 0;

    delta[0] = first == 0 ? here[0] : here[0] - here[-1] - 1;
    for (size_t i = 1; i < block; i++) {
        delta[i] = here[i] - here[i - 1] - 1;
    }
    for (size_t i = 0; i < block; i++) {
        seen |= delta[i];
    }
    return seen;
}

/* The greatest parameter that can be the best. Going from k to k + 1 costs one bit per entry, and
 * saves q - q / 2 <= q bits of a quotient q. Below a mean delta of 2^k the quotients add up to
 * fewer than the entries. */
static unsigned rice_limit(uint64_t n, uint64_t count)
{
    unsigned limit = count == 0 ? 0 : bit_width((n - count) / count);

    return limit < PAYLOAD_RICE_MAX ? limit : PAYLOAD_RICE_MAX;
}

/* The bits of all codes with parameters `low` to `high`; returns the bytes of DELTA. */
WIDE_BODY uint64_t scan_body(const uint32_t *position, size_t count, unsigned low, unsigned high,
    uint64_t bits[PAYLOAD_RICE_MAX + 1])
{
    uint32_t delta[PAYLOAD_DELTA_BLOCK];
    uint64_t bytes = 0;

    for (unsigned k = low; k <= high; k++) {
        bits[k] = count * (k + UINT64_C(1));
    }
    for (size_t first = 0; first < count; first += PAYLOAD_DELTA_BLOCK) {
        size_t block = block_size(count, first);
        unsigned width = bit_width(deltas_of(position, first, block, delta));

        bytes += 1 + bit_bytes(block, width);
        for (unsigned k = low; k <= high && k < width; k++) {
            uint32_t sum = 0; /* of the quotients: at most the last position */

            for (size_t i = 0; i < block; i++) {
                sum += delta[i] >> k;
            }
            bits[k] += sum;
        }
    }
    return bytes;
}

WIDE static uint64_t scan_wide(const uint32_t *position, size_t count, unsigned low, unsigned high,
    uint64_t bits[PAYLOAD_RICE_MAX + 1])
{
    return scan_body(position, count, low, high, bits);
}

static uint64_t scan_deltas(const uint32_t *position, size_t count, unsigned low, unsigned high,
    uint64_t bits[PAYLOAD_RICE_MAX + 1])
{
    return wide_is_there() ? scan_wide(position, count, low, high, bits)
                           : scan_body(position, count, low, high, bits);
}

/* Going from k to k + 1 costs one bit per entry, and saves the upper half of each quotient: the
 * larger k is, the less. So a parameter that is better than its neighbours is the best. Only those
 * near the limit are tried, unless the least of them is the best. */
void payload_scan(const uint32_t *position, size_t count, struct payload_scan *scan)
{
    unsigned limit = rice_limit(count == 0 ? 0 : (uint64_t)position[count - 1] + 1, count);
    unsigned low = limit > NEAR ? limit - NEAR : 0;
    uint64_t bits[PAYLOAD_RICE_MAX + 1];

    for (;; low = 0) {
        scan->delta_bytes = scan_deltas(position, count, low, limit, bits);
        scan->rice_parameter = low;
        for (unsigned k = low; k <= limit; k++) {
            scan->rice_parameter = bits[k] < bits[scan->rice_parameter] ? k : scan->rice_parameter;
        }
        scan->rice_bits = bits[scan->rice_parameter];
        if (low == 0 || scan->rice_parameter > low) {
            return;
        }
    }
}

/* DELTA: blocks of entries, each one byte of width and then that many bits per entry. */

static uint64_t delta_bytes(uint64_t count, unsigned width)
{
    uint64_t blocks = (count + PAYLOAD_DELTA_BLOCK - 1) / PAYLOAD_DELTA_BLOCK;

    /* A full block is a whole number of bytes, so only the last one is padded. */
    return blocks + bit_bytes(count, width);
}

static uint64_t delta_bound(const struct payload_shape *shape, uint64_t count)
{
    uint64_t n = view_size(&shape->view);

    return count > n ? PAYLOAD_IMPOSSIBLE : delta_bytes(count, bit_width(n - count));
}

static uint64_t delta_size(
    const struct payload_shape *shape, const struct sparse *list, const struct payload_scan *scan)
{
    (void)shape;
    (void)list;
    return scan->delta_bytes;
}

static void delta_write(const struct payload_shape *shape, const struct sparse *list,
    const struct payload_scan *scan, uint8_t *out)
{
    uint32_t delta[PAYLOAD_DELTA_BLOCK];

    (void)shape;
    (void)scan;
    for (size_t first = 0; first < list->count; first += PAYLOAD_DELTA_BLOCK) {
        size_t block = block_size(list->count, first);
        unsigned width = bit_width(deltas_of(list->position, first, block, delta));
        struct bit_writer writer = {.next = out + 1};

        *out = (uint8_t)width;
        for (size_t i = 0; i < block; i++) {
            bit_put(&writer, delta[i], width);
        }
        bit_finish(&writer);
        out = writer.next;
    }
}

/* Reads the block that begins at entry `first`. *lowest is the position that a delta of 0 means:
 * for the block's first entry, and on return for the entry behind the block. */
static enum adtopk_status delta_read_block(struct payload_input *input, uint64_t n,
    uint64_t *lowest, uint32_t *position, size_t first, size_t block, struct error *err)
{
    struct bit_reader reader = {0};
    const uint8_t *width;
    uint32_t seen = 0;

    width = payload_input_take(input, 1, "delta widths", err);
    if (width == NULL) {
        return ADTOPK_ERR_PROTOCOL;
    }
    if (*width > 32) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload section %" PRIu32 ": delta width %u is over 32", input->section, *width);
    }
    reader.next = payload_input_take(input, bit_bytes(block, *width), "deltas", err);
    if (reader.next == NULL) {
        return ADTOPK_ERR_PROTOCOL;
    }
    reader.end = input->next;
    for (size_t i = first; i < first + block; i++) {
        uint32_t delta = bit_get(&reader, *width);
        uint64_t here = *lowest + delta;

        if (here >= n) {
            return payload_refuse_position(input, i, here, err);
        }
        seen |= delta;
        position[i] = (uint32_t)here;
        *lowest = here + 1;
    }
    if (bit_width(seen) != *width) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload section %" PRIu32 ": delta width %u where %u is enough", input->section,
            *width, bit_width(seen));
    }
    return bit_padding_is_zero(&reader) ? ADTOPK_OK : payload_refuse_padding(input, err);
}

static enum adtopk_status delta_read(const struct payload_shape *shape, struct payload_input *input,
    uint32_t *position, size_t count, struct error *err)
{
    uint64_t n = view_size(&shape->view);
    uint64_t lowest = 0;

    for (size_t first = 0; first < count; first += PAYLOAD_DELTA_BLOCK) {
        enum adtopk_status status =
            delta_read_block(input, n, &lowest, position, first, block_size(count, first), err);

        if (status != ADTOPK_OK) {
            return status;
        }
    }
    return ADTOPK_OK;
}

const struct index_coding payload_coding_delta = {.scanned = true,
    .bound = delta_bound,
    .size = delta_size,
    .write = delta_write,
    .read = delta_read};

/* RICE: one byte of parameter k, then the lowest k bits of each delta. Then for each its quotient
 * delta >> k, as that many zeros and a one. All is one stream of bits. */

static uint64_t rice_bytes(uint64_t bits)
{
    return 1 + bit_bytes(bits, 1);
}

static uint64_t rice_bound(const struct payload_shape *shape, uint64_t count)
{
    uint64_t n = view_size(&shape->view);
    uint64_t least = 0;

    for (unsigned k = 0; count <= n && k <= rice_limit(n, count); k++) {
        uint64_t bits = count * (k + UINT64_C(1)) + ((n - count) >> k);

        least = k == 0 || bits < least ? bits : least;
    }
    return count > n ? PAYLOAD_IMPOSSIBLE : rice_bytes(count == 0 ? 0 : least);
}

static uint64_t rice_size(
    const struct payload_shape *shape, const struct sparse *list, const struct payload_scan *scan)
{
    (void)shape;
    (void)list;
    return rice_bytes(scan->rice_bits);
}

/* A stream of bits that is stored by whole bytes; `held` has fewer than 8 bits behind a flush. */
struct rice_stream {
    uint8_t *next, *end;
    uint64_t held;
    unsigned bits; /* under 64 */
};

#define RICE_FIELD 56u /* bits that can be held besides those that a flush leaves */

static inline void rice_flush(struct rice_stream *stream)
{
    const unsigned bytes = stream->bits / 8;

    if (stream->end - stream->next >= 8) {
        store_u64(stream->next, stream->held);
    } else {
        for (unsigned i = 0; i < bytes; i++) {
            stream->next[i] = (uint8_t)(stream->held >> 8 * i);
        }
    }
    stream->next += bytes;
    stream->held >>= 8 * bytes;
    stream->bits %= 8;
}

/* The k lowest bits of each delta, k > 0; as many as fit are stored at once. */
static void rice_write_low(struct rice_stream *stream, const struct sparse *list, unsigned k)
{
    const uint32_t low = (UINT32_C(1) << k) - 1, *position = list->position;
    const size_t each = RICE_FIELD / k;
    struct rice_stream to = *stream;
    uint32_t lowest = 0; /* the position that a delta of 0 means; after the last it is not used */

    for (size_t i = 0; i < list->count;) {
        const size_t end = list->count - i < each ? list->count : i + each;

        for (; i < end; i++, to.bits += k) {
            to.held |= (uint64_t)((position[i] - lowest) & low) << to.bits;
            lowest = position[i] + 1;
        }
        rice_flush(&to);
    }
    *stream = to;
}

/* As many zeros as each quotient says, and a one. */
static void rice_write_quotients(struct rice_stream *stream, const struct sparse *list, unsigned k)
{
    const uint32_t *position = list->position;
    struct rice_stream to = *stream;
    uint32_t lowest = 0;

    for (size_t i = 0; i < list->count; i++) {
        uint32_t quotient = (position[i] - lowest) >> k;

        if (quotient >= RICE_FIELD - to.bits) {
            rice_flush(&to);
            for (; quotient >= RICE_FIELD - 8; quotient -= RICE_FIELD - 8) {
                to.bits += RICE_FIELD - 8;
                rice_flush(&to);
            }
        }
        to.bits += quotient;
        to.held |= UINT64_C(1) << to.bits++;
        lowest = position[i] + 1;
    }
    *stream = to;
}

static void rice_write(const struct payload_shape *shape, const struct sparse *list,
    const struct payload_scan *scan, uint8_t *out)
{
    struct rice_stream stream = {.next = out + 1, .end = out + rice_bytes(scan->rice_bits)};

    (void)shape;
    *out = (uint8_t)scan->rice_parameter;
    if (scan->rice_parameter > 0) {
        rice_write_low(&stream, list, scan->rice_parameter);
    }
    rice_write_quotients(&stream, list, scan->rice_parameter);
    stream.bits += 7; /* the last byte's unused bits are zero */
    rice_flush(&stream);
}

/* The codes of a list, and how far they are read. */
struct rice_codes {
    const uint8_t *bytes;
    size_t size; /* no list of this length takes more, and no more are left */
    unsigned k;
};

/* The low bits of each code; those behind the end are zero. Reads as many at once as surely lie in
 * a word of 64 bits. */
static void rice_read_low(const struct rice_codes *codes, uint32_t *low, size_t count)
{
    const unsigned k = codes->k, each = k > 0 ? 57 / k : 64;
    const uint64_t mask = (UINT64_C(1) << k) - 1;
    uint64_t at = 0;
    size_t i = 0;

    for (; i + each <= count && at / 8 + 8 <= codes->size; at += (uint64_t)each * k) {
        uint64_t word = load_u64(codes->bytes + at / 8) >> at % 8;

        for (const size_t end = i + each; i < end; i++, word >>= k) {
            low[i] = (uint32_t)(word & mask);
        }
    }
    for (; i < count; i++, at += k) {
        low[i] = bit_field(codes->bytes, codes->size, at, k);
    }
}

/* Reads the positions; *end is the bit behind the last code. The quotients' ones tell how long all
 * quotients up to an entry are together, and the rest is a sum of low bits. Positions ascend, so
 * the last of each word tells whether all are inside. */
static enum adtopk_status rice_read_codes(const struct payload_input *input, uint64_t n,
    const struct rice_codes *codes, uint32_t *position, size_t count, uint64_t *end,
    struct error *err)
{
    const unsigned k = codes->k;
    const uint64_t begin = (uint64_t)count * k;   /* of the quotients */
    const uint64_t step = 1 - (UINT64_C(1) << k); /* an entry's one is a position, but no zero */
    uint64_t sum = 0, here = 0, last = 0;
    size_t i = 0;

    rice_read_low(codes, position, count);
    for (size_t at = begin / 8; i < count && at < codes->size; at += 8) {
        uint64_t word = load_part_u64(codes->bytes + at, codes->size - at);
        const uint64_t first = at * UINT64_C(8) - begin; /* may be just below 0 */

        word &= at == begin / 8 ? ~UINT64_C(0) << begin % 8 : ~UINT64_C(0);
        for (; word != 0 && i < count; word &= word - 1, i++, sum += step) {
            last = first + (unsigned)__builtin_ctzll(word);
            sum += position[i];
            here = (last << k) + sum;
            position[i] = (uint32_t)here;
        }
        if (here >= n && i > 0) {
            return payload_refuse_position(input, i - 1, here, err);
        }
    }
    *end = count > 0 ? begin + last + 1 : 0;
    return i == count ? ADTOPK_OK
                      : error_set(err, ADTOPK_ERR_PROTOCOL,
                            "payload section %" PRIu32 ": rice codes end before that of entry %zu",
                            input->section, i);
}

/* Whether the encoder would have taken another, better parameter. It looks at the two parameters
 * beside k. bits: the size of all codes. */
static enum adtopk_status rice_check(const struct payload_input *input, unsigned k,
    const uint32_t *position, size_t count, uint64_t bits, struct error *err)
{
    const unsigned low = k > 0 ? k - 1 : 0, high = k < PAYLOAD_RICE_MAX ? k + 1 : k;
    uint64_t beside[PAYLOAD_RICE_MAX + 1];
    struct payload_scan scan;

    (void)scan_deltas(position, count, low, high, beside);
    if ((k == 0 || beside[low] > bits) && (k == PAYLOAD_RICE_MAX || bits <= beside[high])) {
        return ADTOPK_OK;
    }
    payload_scan(position, count, &scan);
    return error_set(err, ADTOPK_ERR_PROTOCOL,
        "payload section %" PRIu32 ": rice parameter %u where %u is best", input->section, k,
        scan.rice_parameter);
}

static enum adtopk_status rice_read(const struct payload_shape *shape, struct payload_input *input,
    uint32_t *position, size_t count, struct error *err)
{
    uint64_t n = view_size(&shape->view);
    const uint8_t *k = payload_input_take(input, 1, "rice parameter", err);
    struct rice_codes codes;
    uint64_t most, end = 0;

    if (k == NULL) {
        return ADTOPK_ERR_PROTOCOL;
    }
    if (*k > PAYLOAD_RICE_MAX) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload section %" PRIu32 ": rice parameter %u is over %d", input->section, *k,
            PAYLOAD_RICE_MAX);
    }
    most = bit_bytes(count * (*k + UINT64_C(1)) + (n >> *k), 1);
    codes = (struct rice_codes){input->next, (size_t)(input->end - input->next), *k};
    codes.size = codes.size < most ? codes.size : (size_t)most;
    if (rice_read_codes(input, n, &codes, position, count, &end, err) != ADTOPK_OK ||
        rice_check(input, *k, position, count, end, err) != ADTOPK_OK) {
        return ADTOPK_ERR_PROTOCOL;
    }
    if (end % 8 != 0 && codes.bytes[end / 8] >> end % 8 != 0) {
        return payload_refuse_padding(input, err);
    }
    input->next += bit_bytes(end, 1);
    return ADTOPK_OK;
}

const struct index_coding payload_coding_rice = {.scanned = true,
    .bound = rice_bound,
    .size = rice_size,
    .write = rice_write,
    .read = rice_read};
