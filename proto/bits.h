/*
 * Little-endian loads and stores at any alignment, and streams of bit fields.
 *
 * A bit stream fills each byte from its lowest bit up, so a field of w bits is the next w bits of
 * one long little-endian number. The last byte's unused bits are zero.
 */
#ifndef ADTOPK_BITS_H
#define ADTOPK_BITS_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t load_u16(const uint8_t *from)
{
    uint16_t word;

    memcpy(&word, from, sizeof(word));
    return le16toh(word);
}

static inline uint32_t load_u32(const uint8_t *from)
{
    uint32_t word;

    memcpy(&word, from, sizeof(word));
    return le32toh(word);
}

static inline uint64_t load_u64(const uint8_t *from)
{
    uint64_t word;

    memcpy(&word, from, sizeof(word));
    return le64toh(word);
}

/** The first `size` bytes, at most 8, as a number. */
static inline uint64_t load_part_u64(const uint8_t *from, size_t size)
{
    uint64_t word = 0;

    if (size >= 8) {
        return load_u64(from);
    }
    for (size_t i = 0; i < size; i++) {
        word |= (uint64_t)from[i] << 8 * i;
    }
    return word;
}

static inline void store_u16(uint8_t *to, uint16_t value)
{
    value = htole16(value);
    memcpy(to, &value, sizeof(value));
}

static inline void store_u32(uint8_t *to, uint32_t value)
{
    value = htole32(value);
    memcpy(to, &value, sizeof(value));
}

static inline void store_u64(uint8_t *to, uint64_t value)
{
    value = htole64(value);
    memcpy(to, &value, sizeof(value));
}

/** Bits needed to write `value`; 0 for 0. */
static inline unsigned bit_width(uint64_t value)
{
    return value == 0 ? 0 : 64 - (unsigned)__builtin_clzll(value);
}

/** Bytes that `count` fields of `width` (0..32) bits take; needs count < 2^58. */
static inline uint64_t bit_bytes(uint64_t count, unsigned width)
{
    return (count * width + 7) / 8;
}

/** The `width` (0..32) bits from bit `at` on of a stream of `size` bytes. Bits behind the end are
 * zero. */
static inline uint32_t bit_field(const uint8_t *bytes, size_t size, uint64_t at, unsigned width)
{
    uint64_t byte = at / 8;
    uint64_t word = byte < size ? load_part_u64(bytes + byte, size - (size_t)byte) : 0;

    return (uint32_t)(word >> at % 8 & ((UINT64_C(1) << width) - 1));
}

struct bit_writer {
    uint8_t *next;
    uint64_t held; /* bits not stored yet, lowest first */
    unsigned bits; /* how many; under 32 between two calls */
};

/** Appends the lowest `width` (0..32) bits of a value that has no others. */
static inline void bit_put(struct bit_writer *writer, uint32_t value, unsigned width)
{
    writer->held |= (uint64_t)value << writer->bits;
    writer->bits += width;
    if (writer->bits >= 32) {
        store_u32(writer->next, (uint32_t)writer->held);
        writer->next += 4;
        writer->held >>= 32;
        writer->bits -= 32;
    }
}

/** Stores the last bytes; the stream has then taken bit_bytes() bytes. */
static inline void bit_finish(struct bit_writer *writer)
{
    for (unsigned done = 0; done < writer->bits; done += 8) {
        *writer->next++ = (uint8_t)(writer->held >> done);
    }
    writer->held = 0;
    writer->bits = 0;
}

struct bit_reader {
    const uint8_t *next;
    const uint8_t *end;
    uint64_t held;
    unsigned bits;
};

/** The next `width` (0..32) bits. The caller has checked that bit_bytes() bytes are there. */
static inline uint32_t bit_get(struct bit_reader *reader, unsigned width)
{
    uint32_t value;

    if (reader->bits < width && reader->end - reader->next >= 4) {
        reader->held |= (uint64_t)load_u32(reader->next) << reader->bits;
        reader->next += 4;
        reader->bits += 32;
    }
    while (reader->bits < width && reader->next < reader->end) {
        reader->held |= (uint64_t)*reader->next++ << reader->bits;
        reader->bits += 8;
    }
    value = (uint32_t)(reader->held & ((UINT64_C(1) << width) - 1));
    reader->held >>= width;
    reader->bits -= width;
    return value;
}

/** True if the rest of a stream that was read to its end is zero, as it has to be. */
static inline bool bit_padding_is_zero(const struct bit_reader *reader)
{
    return reader->held == 0;
}

#endif
