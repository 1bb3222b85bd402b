/*
 * Payload sections on a device: lists become the bytes that proto/payload.h describes, with their
 * frame's length and CRC-32C. The bytes are those of proto/payload_write.c.
 *
 * A batch is a frame: its orders are the lists of the sections, in their order. The lists' entries
 * are in blocks of ENCODE_BLOCK, which are numbered through; a warp has a block at a time. The
 * caller has written the frame's header, but for length and CRC. The kernels may be killed and
 * repeated from the start.
 *
 * encode_begin clears what the next ones count. encode_scan looks at the distances between
 * positions. encode_choose takes each list's encoding, and places the sections. encode_quotients
 * and encode_ones find the places of the variable parts of RICE. encode_index and encode_values
 * write, encode_crc and encode_end add the CRC.
 */
#ifndef ADTOPK_KERNELS_ENCODE_H
#define ADTOPK_KERNELS_ENCODE_H

#include <stdint.h>

#include "kernels/base/quantise.h"
#include "kernels/base/view.h"

/* Entries of a block; bytes of the frame's and of a section's header; bytes of a piece of the CRC;
 * parameters of RICE. */
enum {
    ENCODE_BLOCK = 128,
    ENCODE_FRAME = 64,
    ENCODE_SECTION = 8,
    ENCODE_PIECE = 256,
    ENCODE_RICE = 32
};

/* Where the frame's header has its length and its CRC. */
enum { ENCODE_AT_LENGTH = 8, ENCODE_AT_CRC = 60 };

/* The numbers of enum payload_index. */
enum encode_index {
    ENCODE_AUTO = 0,
    ENCODE_RAW = 2,
    ENCODE_ROWS = 3,
    ENCODE_DELTA = 4,
    ENCODE_BITMAP = 5,
    ENCODE_RICE_CODES = 6,
    ENCODE_HASHMAP = 7
};

/* What is found of a list. */
struct encode_found {
    uint32_t quotients[ENCODE_RICE]; /* the sum of all distances, shifted by so many bits */
    uint32_t scattered;              /* entries outside the fibre that ROWS wants them in */
    uint32_t index;                  /* enum encode_index */
    uint32_t rice;                   /* the parameter of RICE */
    uint64_t at;                     /* where the positions begin in the frame */
    uint64_t index_size;             /* their bytes */
};

/* What is found of a block. */
struct encode_block {
    uint32_t width;  /* DELTA: bits of a distance */
    uint32_t ones;   /* RICE: the sum of the quotients of the blocks before, first of this one's */
    uint64_t before; /* DELTA: bytes of the blocks before */
};

struct encode_order {
    uint64_t first;           /* number of its first block in the batch */
    const uint32_t *position; /* ascending, of the view, and of its partition */
    const float *value;
    float *decoded; /* found: the values that the receiver will decode. Not the values themselves: a
                     * block of which some are decoded is another block */
    uint64_t count;
    struct view view;
    uint64_t per_fibre; /* as struct payload_shape has them */
    uint32_t part, parts;
    uint32_t index;  /* enum encode_index. What a list cannot have is AUTO */
    uint32_t values; /* enum quantisation */
    struct encode_found *found;
    struct encode_block *block; /* one per block */
};

/* The parameter of all kernels here. */
struct encode_batch {
    const struct encode_order *order;
    uint32_t orders;
    uint64_t blocks; /* of all orders */
    uint8_t *frame;  /* room for every list as RAW */
    uint64_t *size;  /* found: bytes of the frame */
    uint32_t *piece; /* scratch: one per piece of the CRC, of a frame that fills the room */
};

/* Bytes of `count` values. */
BASE_INLINE uint64_t encode_values_size(uint64_t count, uint32_t values)
{
    const uint64_t blocks = (count + ENCODE_BLOCK - 1) / ENCODE_BLOCK;
    const uint64_t plane = (count + 7) / 8;
    switch (values) {
    case QUANTISE_F32: return 4 * count;
    case QUANTISE_BF16:
    case QUANTISE_F16: return 2 * count;
    case QUANTISE_INT8: return count + 2 * blocks;
    case QUANTISE_TWO: return 2 * plane + 4 * blocks;
    case QUANTISE_SIGN: return plane + 2 * blocks;
    case QUANTISE_INT4: return 4 * plane + 2 * blocks;
    default: return 3 * plane + 2 * blocks;
    }
}

/** Bytes of a frame that fit in any case, for lists that may all be RAW. */
BASE_INLINE uint64_t encode_room(const struct encode_order *order, uint32_t orders)
{
    uint64_t room = ENCODE_FRAME;
    for (uint32_t o = 0; o < orders; o++) {
        const uint64_t dense = (view_size(&order[o].view) + 7) / 8;
        const uint64_t raw = 5 * order[o].count + 1; /* RICE and DELTA where they are asked for */
        room += ENCODE_SECTION + (raw > dense ? raw : dense) +
                encode_values_size(order[o].count, order[o].values);
    }
    return room;
}

#endif
