/*
 * The payload: one framed format for every sparsifier and collective.
 *
 * A frame is a fixed header, one section per tensor, and nothing else. Integers are little-endian.
 * The header's CRC-32C covers the whole frame. The layout, byte by byte, is in proto/README.md.
 *
 * The decoder trusts nothing: every count is checked against what the receiver registered before
 * a byte is written, and the first violation ends the decoding with an error that names the field.
 */
#ifndef ADTOPK_PAYLOAD_H
#define ADTOPK_PAYLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/sparse.h"
#include "kernels/base/view.h"
#include "proto/error.h"

#define PAYLOAD_VERSION 1
#define PAYLOAD_HEADER_SIZE 64
#define PAYLOAD_SECTION_MAX 8 /* bytes of header of one tensor's section, at most */

enum payload_index {
    PAYLOAD_INDEX_AUTO = 0, /* encoder only: the smallest for this list */
    PAYLOAD_INDEX_DENSE,    /* no positions: every element, in memory order */
    PAYLOAD_INDEX_RAW,      /* u32 positions */
    PAYLOAD_INDEX_ROWS,     /* fixed count a fibre, ceil(log2 length) bits a position in it */
    PAYLOAD_INDEX_DELTA,    /* deltas, one bit width per block of 128 entries */
    PAYLOAD_INDEX_BITMAP,   /* one bit a position */
    PAYLOAD_INDEX_RICE,     /* deltas in Rice codes, one parameter a list */
    PAYLOAD_INDEX_HASHMAP,  /* one bit a position of the shape's partition */
    PAYLOAD_INDEX_COUNT
};

/* The numbers of both enums are on the wire: append only. */
enum payload_value {
    PAYLOAD_VALUE_F32 = 0,
    PAYLOAD_VALUE_BF16 = 1,
    PAYLOAD_VALUE_F16 = 2,  /* saturates at 65504 */
    PAYLOAD_VALUE_INT8 = 3, /* levels, in blocks of 128 values with one step each */
    PAYLOAD_VALUE_TWO = 4,  /* from here on packed blocks of 128 values (kernels/base/packed.h) */
    PAYLOAD_VALUE_SIGN = 5,
    PAYLOAD_VALUE_INT4 = 6,
    PAYLOAD_VALUE_INT3 = 7,
    PAYLOAD_VALUE_COUNT
};

/** Whether values are encoded in blocks. Such a list cannot be cut into parts: its values depend on
 * where the blocks begin. */
static inline bool payload_value_is_blocked(enum payload_value value)
{
    return value >= PAYLOAD_VALUE_INT8 && value < PAYLOAD_VALUE_COUNT;
}

/** Bits of a value in a full block, with its share of the scales. */
double payload_value_bits(enum payload_value value);

/* What a frame is about; `kind` and `phase` belong to the core and its collectives. */
struct payload_header {
    uint64_t run;    /* the number that the nodes agreed on when the run began */
    uint64_t number; /* the step, or the number of a plain operation */
    uint32_t view;
    uint32_t bucket;
    uint16_t source; /* node id */
    uint8_t kind;
    uint8_t phase;
    uint8_t flags;
    float loss_scale; /* of the step, as far as the sender knows; 0: it knows of no push */
    uint32_t
        loss_rank;     /* a rank that pushed with it; in a copy: ranks over which a mean is taken */
    uint32_t sections; /* tensors in the frame */
};

/* With either flag a section of opaque bytes comes first, a bit for each of the bucket's tensors;
 * with both there are two, in this order. A copy of a round has the second flag without a section:
 * its step is to be withdrawn. */
#define PAYLOAD_FLAG_UNPUSHED 0x02u  /* no rank is known to have pushed the tensor */
#define PAYLOAD_FLAG_NONFINITE 0x01u /* a gradient of the tensor has NaN or Inf */

/* What both sides know of a section's tensor before they look at its bytes. */
struct payload_shape {
    struct view view;
    uint64_t per_fibre; /* entries in every fibre if fixed (allows ROWS), else 0 */
    uint64_t max_count; /* entries a list may hold at most; a decoder refuses more */
    uint32_t part;  /* the list only has positions of this partition (kernels/base/partition.h) */
    uint32_t parts; /* of so many, part < parts; 0 or 1: of the whole tensor */
};

/* Grows a frame in memory that it allocates itself. Zero-initialised it is empty. */
struct payload_writer {
    uint8_t *bytes;
    size_t size;
    size_t capacity;
    uint32_t sections;
    uint64_t values; /* in its lists and dense sections */
};

/** A DENSE section of a frame, whose elements are written piece by piece. */
struct payload_room {
    uint8_t *bytes; /* valid until another section is added */
    enum payload_value value;
};

/** Begins a frame (a reused writer keeps its memory). All writer functions return ADTOPK_OK or
 * ADTOPK_ERR_MEMORY; after an error only payload_begin and payload_free may be called. */
enum adtopk_status payload_begin(
    struct payload_writer *writer, const struct payload_header *header);

/**
 * Appends a sparse list, whose positions must be ascending and inside the view (and its partition).
 *
 * `index` AUTO takes the smallest list encoding that the shape allows (ROWS needs per_fibre). But
 * ROWS is decoded fastest, so AUTO takes it wherever its section is at most 2 % larger. A list that
 * does not have per_fibre entries in every fibre is written as with AUTO, even if
 * `index` is ROWS. DENSE
 * writes all elements, 0 where the list has none, for payload_get_dense(). It does not go with
 * SIGN, which has no 0. AUTO never takes DENSE, because a dense section forgets which elements were
 * selected.
 *
 * The values in `list` are replaced by those that the receiver will decode, so that the caller can
 * feed the rounding back. F32 does not change them; the others round them as
 * quantise_values() does, int8 to the nearest. Values that quantise_values() made are sent
 * unchanged.
 */
enum adtopk_status payload_put_list(struct payload_writer *writer,
    const struct payload_shape *shape, struct sparse *list, enum payload_index index,
    enum payload_value value);

/** Appends n dense elements, rounded in the same way. `decoded` (which may be x itself, or NULL)
 * gets the values that the receiver will decode. */
enum adtopk_status payload_put_dense(struct payload_writer *writer, const float *x, uint64_t n,
    enum payload_value value, float *decoded);

/** Appends a DENSE section of n elements in f32, bf16 or f16, whose values are still to be written:
 * each once, in any order, before the next section is begun. */
enum adtopk_status payload_make_room(
    struct payload_writer *writer, uint64_t n, enum payload_value value, struct payload_room *room);

/** Writes elements first..first + n - 1 of the section, rounded as by payload_put_dense(). */
void payload_fill_room(const struct payload_room *room, uint64_t first, const float *x, uint64_t n);

/** Makes room for so many bytes of sections, so that adding them moves nothing. */
enum adtopk_status payload_reserve(struct payload_writer *writer, uint64_t bytes);

/** Appends opaque bytes (a plain operation's data). */
enum adtopk_status payload_put_bytes(struct payload_writer *writer, const void *bytes, size_t size);

/** Fills in section count, length and CRC. The frame is writer->bytes, writer->size long. */
void payload_end(struct payload_writer *writer);

/** crc32c() of all bytes of a frame, its own CRC included, as that one tells it. The frame is not
 * read again, so this is not a check. */
uint32_t payload_crc(const void *bytes, size_t size);

void payload_free(struct payload_writer *writer);

/** Bytes that put_list with AUTO takes for `count` entries of this shape in the worst case,
 * including the section header; and those that put_dense takes. For planning, without a list. If
 * count is per_fibre in every fibre, the list is assumed to have that form. */
size_t payload_list_bound(
    const struct payload_shape *shape, uint64_t count, enum payload_value value);
size_t payload_dense_size(uint64_t n, enum payload_value value);

/* Reads a frame that stays in its place: `bytes` must outlive the reader. All errors of the reader
 * are ADTOPK_ERR_PROTOCOL with a text that names the section and the field. A section that was
 * refused is not passed, and its list is empty. Reentrant. */
struct payload_reader {
    struct payload_header header;
    const uint8_t *next;
    const uint8_t *end;
    uint32_t left; /* sections not read yet */
    /* For exchange_open(): the bits of both flags, or NULL. */
    const uint8_t *unpushed, *nonfinite;
};

/** Checks magic, version, length and CRC, and fills reader->header. */
enum adtopk_status payload_open(
    struct payload_reader *reader, const void *bytes, size_t size, struct error *err);

/** The same where crc32c() of all bytes is known already: they are not read again. */
enum adtopk_status payload_open_known(
    struct payload_reader *reader, const void *bytes, size_t size, uint32_t crc, struct error *err);

/** Reads only the header, without the CRC pass, to route a frame before its body is read. `bytes`
 * may be only the frame's beginning, at least the header. */
enum adtopk_status payload_peek(
    struct payload_header *header, const void *bytes, size_t size, struct error *err);

/** True if the next section is DENSE (and false at the end of the frame). */
bool payload_next_is_dense(const struct payload_reader *reader);

/** How the values of the next section are encoded; F32 at the end of the frame. */
enum payload_value payload_next_value(const struct payload_reader *reader);

/** How many entries the next section claims to have, but at most what the shape allows and the
 * frame's bytes can hold. That is enough capacity for payload_get_list(). 0 at the end of the
 * frame. */
uint64_t payload_next_count(const struct payload_reader *reader, const struct payload_shape *shape);

/** Decodes the next section into a list with capacity for shape->max_count entries, or
 * payload_next_count(). A DENSE section is refused here. */
enum adtopk_status payload_get_list(struct payload_reader *reader,
    const struct payload_shape *shape, struct sparse *list, struct error *err);

/** Decodes the next section, which must be DENSE and of exactly n elements, into x. */
enum adtopk_status payload_get_dense(
    struct payload_reader *reader, float *x, uint64_t n, struct error *err);

/** A DENSE section inside a frame, whose elements are read piece by piece. */
struct payload_dense {
    const uint8_t *bytes;
    enum payload_value value;
    uint32_t section; /* its number */
};

/** Finds the values of the next section, which must be DENSE and of exactly n elements in f32, bf16
 * or f16, and goes on to the section behind it. */
enum adtopk_status payload_find_dense(
    struct payload_reader *reader, uint64_t n, struct payload_dense *dense, struct error *err);

/** Adds elements first..first + n - 1 of the section to `sum`, which has the first of them. */
enum adtopk_status payload_add_dense(
    const struct payload_dense *dense, uint64_t first, float *sum, uint64_t n, struct error *err);

/** The next section's opaque bytes, which lie inside the frame; at most `max` of them. */
enum adtopk_status payload_get_bytes(struct payload_reader *reader, size_t max,
    const uint8_t **bytes, size_t *size, struct error *err);

/** Fails unless every section was read and nothing lies behind the last one. */
enum adtopk_status payload_close(const struct payload_reader *reader, struct error *err);

/** CRC-32C (Castagnoli), continuing from `crc` (0 to begin). */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t size);

/** The CRC of two pieces, one behind the other, from the CRC of each and the size of the second. It
 * reads no bytes. */
uint32_t crc32c_join(uint32_t first, uint32_t second, uint64_t second_size);

#endif
