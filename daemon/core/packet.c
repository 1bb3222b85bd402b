#include "daemon/core/packet.h"

#include <string.h>

#include "proto/payload.h"

#define PACKET_CRC_AT (PACKET_HEADER_SIZE - 4)

static const uint8_t packet_magic[4] = {'A', 'D', 'P', 'K'};

static void packet_put(uint8_t *to, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) {
        to[i] = (uint8_t)(value >> (8 * i));
    }
}

static uint64_t packet_get(const uint8_t *from, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes; i++) {
        value |= (uint64_t)from[i] << (8 * i);
    }
    return value;
}

static uint32_t packet_crc(const uint8_t *header, const uint8_t *body, size_t body_size)
{
    uint32_t crc = crc32c(0, header, PACKET_CRC_AT);

    return body_size > 0 ? crc32c(crc, body, body_size) : crc;
}

uint64_t packet_span(const struct packet *packet)
{
    bool last = packet->offset + packet->body_size == packet->message_size;

    return packet->body_size + (last ? 1U : 0U);
}

void packet_encode(const struct packet *packet, uint8_t header[PACKET_HEADER_SIZE])
{
    memcpy(header, packet_magic, sizeof(packet_magic));
    header[4] = PACKET_VERSION;
    header[5] = (uint8_t)packet->type;
    header[PACKET_LANE_AT] = (uint8_t)packet->lane;
    header[PACKET_SLOT_AT] = (uint8_t)packet->slot;
    packet_put(header + 8, packet->source, 2);
    packet_put(header + 10, packet->destination, 2);
    packet_put(header + 12, packet->body_size, 4);
    packet_put(header + 16, packet->source_incarnation, 8);
    packet_put(header + 24, packet->destination_incarnation, 8);
    packet_put(header + 32, packet->position, 8);
    packet_put(header + 40, packet->acknowledged[LINK_CONTROL], 8);
    packet_put(header + 48, packet->acknowledged[LINK_BULK], 8);
    packet_put(header + 56, packet->credit, 8);
    packet_put(header + 64, packet->message_size, 8);
    packet_put(header + 72, packet->offset, 8);
    packet_put(header + PACKET_CRC_AT, packet_crc(header, packet->body, packet->body_size), 4);
}

/* A part lies inside its message, takes at least one position and ends before the stream does. */
static bool packet_part_is_valid(const struct packet *packet)
{
    return packet->offset <= packet->message_size &&
           packet->body_size <= packet->message_size - packet->offset && packet_span(packet) > 0 &&
           packet->position <= UINT64_MAX - packet_span(packet);
}

static bool packet_is_valid(const struct packet *packet)
{
    if (packet->source_incarnation == 0 || (packet->lane != LINK_BULK && packet->slot != 0)) {
        return false;
    }
    if (packet->type == PACKET_DATA) {
        return packet->destination_incarnation != 0 && packet_part_is_valid(packet);
    }
    if (packet->lane != LINK_CONTROL || packet->body_size != 0 || packet->message_size != 0 ||
        packet->offset != 0) {
        return false;
    }
    return (packet->type == PACKET_HELLO) == (packet->destination_incarnation == 0);
}

bool packet_decode(struct packet *packet, const uint8_t *bytes, size_t size)
{
    if (size < PACKET_HEADER_SIZE || memcmp(bytes, packet_magic, sizeof(packet_magic)) != 0 ||
        bytes[4] != PACKET_VERSION || bytes[5] == 0 || bytes[5] >= PACKET_TYPE_END ||
        bytes[PACKET_LANE_AT] >= LINK_LANES || bytes[PACKET_SLOT_AT] >= LANE_SLOTS ||
        packet_get(bytes + 12, 4) != size - PACKET_HEADER_SIZE) {
        return false;
    }
    *packet = (struct packet){
        .type = (enum packet_type)bytes[5],
        .lane = (enum link_lane)bytes[PACKET_LANE_AT],
        .slot = bytes[PACKET_SLOT_AT],
        .source = (uint16_t)packet_get(bytes + 8, 2),
        .destination = (uint16_t)packet_get(bytes + 10, 2),
        .source_incarnation = packet_get(bytes + 16, 8),
        .destination_incarnation = packet_get(bytes + 24, 8),
        .position = packet_get(bytes + 32, 8),
        .acknowledged = {packet_get(bytes + 40, 8), packet_get(bytes + 48, 8)},
        .credit = packet_get(bytes + 56, 8),
        .message_size = packet_get(bytes + 64, 8),
        .offset = packet_get(bytes + 72, 8),
        .body = size > PACKET_HEADER_SIZE ? bytes + PACKET_HEADER_SIZE : NULL,
        .body_size = (uint32_t)(size - PACKET_HEADER_SIZE),
    };
    return packet_get(bytes + PACKET_CRC_AT, 4) ==
               packet_crc(bytes, packet->body, packet->body_size) &&
           packet_is_valid(packet);
}

bool packet_seal(uint8_t *bytes, size_t size)
{
    if (size < PACKET_HEADER_SIZE) {
        return false;
    }
    packet_put(bytes + PACKET_CRC_AT,
        packet_crc(bytes, bytes + PACKET_HEADER_SIZE, size - PACKET_HEADER_SIZE), 4);
    return true;
}
