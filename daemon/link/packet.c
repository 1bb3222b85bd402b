#include "daemon/link/packet.h"

#include <string.h>

#include "proto/bits.h"
#include "proto/payload.h"

#define PACKET_CRC_AT (PACKET_HEADER_SIZE - 4)

static const uint8_t packet_magic[4] = {'A', 'D', 'P', 'K'};

static uint32_t packet_crc(const uint8_t *header, const uint8_t *body, size_t body_size)
{
    uint32_t crc = crc32c(0, header, PACKET_CRC_AT);

    return body_size > 0 ? crc32c(crc, body, body_size) : crc;
}

/* The same if the CRC of the body is known. */
static uint32_t packet_crc_joined(const uint8_t *header, uint32_t body_crc, size_t body_size)
{
    return crc32c_join(crc32c(0, header, PACKET_CRC_AT), body_crc, body_size);
}

bool packet_is_known(const struct packet *packet)
{
    return packet->owner != NULL && packet->owner->known &&
           packet->body_size == packet->owner->size;
}

/* Compares the CRC. That of a long body is kept, for the message of which it is a part. */
static bool packet_is_intact(struct packet *packet, const uint8_t *header)
{
    uint32_t crc;

    if (packet->body_size < BUFFER_KNOWN_MIN) {
        crc = packet_crc(header, packet->body, packet->body_size);
    } else {
        packet->body_crc = crc32c(0, packet->body, packet->body_size);
        crc = packet_crc_joined(header, packet->body_crc, packet->body_size);
    }
    return load_u32(header + PACKET_CRC_AT) == crc;
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
    header[PACKET_TYPE_AT] = (uint8_t)packet->type;
    header[PACKET_LANE_AT] = (uint8_t)packet->lane;
    header[PACKET_SLOT_AT] = (uint8_t)packet->slot;
    store_u16(header + 8, packet->source);
    store_u16(header + 10, packet->destination);
    store_u32(header + 12, packet->body_size);
    store_u64(header + 16, packet->source_incarnation);
    store_u64(header + 24, packet->destination_incarnation);
    store_u64(header + 32, packet->position);
    store_u64(header + 40, packet->acknowledged[LINK_CONTROL]);
    store_u64(header + 48, packet->acknowledged[LINK_BULK]);
    store_u64(header + 56, packet->credit);
    store_u64(header + 64, packet->message_size);
    store_u64(header + 72, packet->offset);
    store_u32(header + PACKET_CRC_AT,
        packet_is_known(packet) ? packet_crc_joined(header, packet->owner->crc, packet->body_size)
                                : packet_crc(header, packet->body, packet->body_size));
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
    if (packet->lane != LINK_CONTROL || packet->message_size != packet->body_size ||
        packet->offset != 0) {
        return false;
    }
    if (packet->type == PACKET_SEED) {
        return packet->body_size != 0 && packet->destination_incarnation == 0;
    }
    if (packet->body_size != 0) {
        return false;
    }
    return (packet->type == PACKET_HELLO) == (packet->destination_incarnation == 0);
}

static bool packet_read(
    struct packet *packet, const uint8_t *bytes, const uint8_t *body, size_t body_size)
{
    if (memcmp(bytes, packet_magic, sizeof(packet_magic)) != 0 || bytes[4] != PACKET_VERSION ||
        bytes[PACKET_TYPE_AT] == 0 || bytes[PACKET_TYPE_AT] >= PACKET_TYPE_END ||
        bytes[PACKET_LANE_AT] >= LINK_LANES || bytes[PACKET_SLOT_AT] >= LANE_SLOTS ||
        load_u32(bytes + 12) != body_size) {
        return false;
    }
    *packet = (struct packet){
        .type = (enum packet_type)bytes[PACKET_TYPE_AT],
        .lane = (enum link_lane)bytes[PACKET_LANE_AT],
        .slot = bytes[PACKET_SLOT_AT],
        .source = load_u16(bytes + 8),
        .destination = load_u16(bytes + 10),
        .source_incarnation = load_u64(bytes + 16),
        .destination_incarnation = load_u64(bytes + 24),
        .position = load_u64(bytes + 32),
        .acknowledged = {load_u64(bytes + 40), load_u64(bytes + 48)},
        .credit = load_u64(bytes + 56),
        .message_size = load_u64(bytes + 64),
        .offset = load_u64(bytes + 72),
        .body = body_size > 0 ? body : NULL,
        .body_size = (uint32_t)body_size,
    };
    return packet_is_intact(packet, bytes) && packet_is_valid(packet);
}

bool packet_decode(struct packet *packet, const uint8_t *bytes, size_t size)
{
    return size >= PACKET_HEADER_SIZE &&
           packet_read(packet, bytes, bytes + PACKET_HEADER_SIZE, size - PACKET_HEADER_SIZE);
}

bool packet_decode_apart(
    struct packet *packet, const uint8_t *header, size_t size, struct buffer *body)
{
    if (size != PACKET_HEADER_SIZE || !packet_read(packet, header, body->bytes, body->size)) {
        return false;
    }
    packet->owner = body;
    return true;
}
