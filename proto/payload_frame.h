/*
 * The bytes of a frame's header and of a section's header; README.md draws them. Internal to proto.
 */
#ifndef ADTOPK_PAYLOAD_FRAME_H
#define ADTOPK_PAYLOAD_FRAME_H

#include "proto/payload.h"

/* Offsets in the frame's header. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 4,
    AT_KIND = 6,
    AT_PHASE = 7,
    AT_LENGTH = 8,
    AT_RUN = 16,
    AT_NUMBER = 24,
    AT_VIEW = 32,
    AT_BUCKET = 36,
    AT_SECTIONS = 40,
    AT_SOURCE = 44,
    AT_FLAGS = 46,
    AT_LOSS_SCALE = 47,
    AT_LOSS_RANK = 51,
    AT_RESERVED = 55,
    AT_CRC = 60,
};

#define PAYLOAD_MAGIC "ADTK" /* without its end of string */
#define PAYLOAD_MAGIC_SIZE 4

/* A section's header is one u64: index encoding in bits 0..3, value encoding in bits 4..7, and
 * above them the count of entries, elements or bytes. */
#define SECTION_COUNT_MAX ((UINT64_C(1) << 56) - 1)
#define SECTION_BYTES 15u /* in the place of the index encoding: opaque bytes */

struct section {
    unsigned index; /* enum payload_index or SECTION_BYTES */
    enum payload_value value;
    uint64_t count;
};

/* The CRC covers every byte of the frame but its own four. */
static inline uint32_t frame_crc(const uint8_t *bytes, size_t size)
{
    uint32_t crc = crc32c(0, bytes, AT_CRC);

    return crc32c(crc, bytes + PAYLOAD_HEADER_SIZE, size - PAYLOAD_HEADER_SIZE);
}

/* From the CRC of all bytes to that of all but these four, or back: the two differ by what the four
 * add, moved forward by the bytes behind them. */
static inline uint32_t frame_crc_exchange(uint32_t crc, const uint8_t *bytes, size_t size)
{
    const uint32_t without = crc32c(0, bytes, AT_CRC);
    const uint32_t with = crc32c(without, bytes + AT_CRC, PAYLOAD_HEADER_SIZE - AT_CRC);

    return crc32c_join(with ^ without, crc, size - PAYLOAD_HEADER_SIZE);
}

#endif
