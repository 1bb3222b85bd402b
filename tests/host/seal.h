/* Packets that somebody forged, with a CRC that is right. */
#ifndef ADTOPK_TESTS_HOST_SEAL_H
#define ADTOPK_TESTS_HOST_SEAL_H

#include "daemon/link/packet.h"
#include "proto/bits.h"
#include "proto/payload.h"

/* Makes the CRC of a packet right, whatever its other bytes are. False if it is shorter than a
 * header. */
static inline bool packet_seal(uint8_t *bytes, size_t size)
{
    const size_t at = PACKET_HEADER_SIZE - 4;

    if (size < PACKET_HEADER_SIZE) {
        return false;
    }
    store_u32(bytes + at,
        crc32c(crc32c(0, bytes, at), bytes + PACKET_HEADER_SIZE, size - PACKET_HEADER_SIZE));
    return true;
}

#endif
