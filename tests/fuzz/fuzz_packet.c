/*
 * Fuzz target: packets of one peer, of unknown nodes and of old connections, into links_receive().
 *
 * The input is a sequence of records: a byte of flags, a byte for the time that passes, a length
 * (two bytes, little-endian) and so many bytes of packet. Flags choose header fields that are
 * corrected first, so that inputs get past the first checks. The CRC is always corrected.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/link/packet.h"
#include "proto/bits.h"
#include "tests/host/seal.h"

#define FUZZ_PEER 1
#define FUZZ_INCARNATION 0x1111U
#define FUZZ_PEER_INCARNATION 0x2222U

enum {
    FUZZ_FRAME = 0x01,      /* magic, version, body size */
    FUZZ_CONNECTION = 0x02, /* node ids and both incarnations */
    FUZZ_NAMED = 0x04,      /* the transport knows the sender */
    FUZZ_BULK = 0x08,   /* the transport says it came on the bulk lane; makes the header agree */
    FUZZ_SEND = 0x10,   /* queue a message of our own first */
    FUZZ_REFUSE = 0x20, /* the transport takes nothing */
    FUZZ_APART = 0x40   /* the body lies apart from the header */
};

struct fuzz {
    struct links *links;
    bool refuse;
    uint64_t challenge; /* of our last HELLO */
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool fuzz_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner)
{
    struct fuzz *fuzz = context;
    uint8_t *bytes = malloc(header_size + body_size);
    struct packet packet;

    (void)peer;
    (void)owner;
    if (bytes == NULL) {
        return false;
    }
    memcpy(bytes, header, header_size);
    if (body_size > 0) {
        memcpy(bytes + header_size, body, body_size);
    }
    if (!packet_decode(&packet, bytes, header_size + body_size) || packet.lane != lane) {
        abort(); /* whatever is received, packets that are sent are correct */
    }
    if (packet.type == PACKET_HELLO) {
        fuzz->challenge = packet.position;
    }
    free(bytes);
    return !fuzz->refuse;
}

static void fuzz_deliver(void *context, uint16_t peer, enum link_lane lane, struct buffer *message)
{
    struct fuzz *fuzz = context;

    (void)links_send(fuzz->links, peer, lane, NULL, message);
    buffer_unref(message);
}

static void fuzz_peer_up(void *context, uint16_t peer, uint64_t incarnation)
{
    (void)context;
    (void)peer;
    if (incarnation == 0) {
        abort();
    }
}

static void fuzz_peer_down(void *context, uint16_t peer)
{
    (void)context;
    (void)peer;
}

/* The packets that make the connection. */
static void fuzz_connect(struct fuzz *fuzz, uint64_t now_us)
{
    struct packet packet = {.type = PACKET_WELCOME,
        .source = FUZZ_PEER,
        .source_incarnation = FUZZ_PEER_INCARNATION,
        .destination_incarnation = FUZZ_INCARNATION,
        .position = fuzz->challenge,
        .credit = LANE_SLOTS};
    uint8_t header[PACKET_HEADER_SIZE];

    packet_encode(&packet, header);
    links_receive(fuzz->links, FUZZ_PEER, LINK_CONTROL, header, sizeof(header), NULL, now_us);
    packet.type = PACKET_ACK;
    packet.position = 0;
    packet.credit = 1000;
    packet_encode(&packet, header);
    links_receive(fuzz->links, FUZZ_PEER, LINK_CONTROL, header, sizeof(header), NULL, now_us);
    if (!links_is_up(fuzz->links, FUZZ_PEER)) {
        abort();
    }
}

static void fuzz_repair(uint8_t *packet, size_t size, unsigned flags)
{
    if (size < PACKET_HEADER_SIZE) {
        return;
    }
    if ((flags & FUZZ_FRAME) != 0) {
        memcpy(packet, "ADPK", 4);
        packet[4] = PACKET_VERSION;
        packet[PACKET_LANE_AT] = (flags & FUZZ_BULK) != 0 ? LINK_BULK : LINK_CONTROL;
        packet[PACKET_SLOT_AT] &= (flags & FUZZ_BULK) != 0 ? LANE_SLOTS - 1 : 0;
        store_u32(packet + 12, (uint32_t)(size - PACKET_HEADER_SIZE));
    }
    if ((flags & FUZZ_CONNECTION) != 0) {
        store_u16(packet + 8, FUZZ_PEER);
        store_u16(packet + 10, 0);
        store_u64(packet + 16, FUZZ_PEER_INCARNATION);
        store_u64(packet + 24, FUZZ_INCARNATION);
    }
    (void)packet_seal(packet, size);
}

static void fuzz_receive(
    struct fuzz *fuzz, unsigned flags, const uint8_t *packet, size_t size, uint64_t now_us)
{
    const bool apart = (flags & FUZZ_APART) != 0 && size > PACKET_HEADER_SIZE;
    struct buffer *body = apart ? buffer_new(size - PACKET_HEADER_SIZE) : NULL;

    if (body != NULL) {
        memcpy(body->bytes, packet + PACKET_HEADER_SIZE, body->size);
        size = PACKET_HEADER_SIZE;
    }
    links_receive(fuzz->links, (flags & FUZZ_NAMED) != 0 ? FUZZ_PEER : UINT16_MAX,
        (flags & FUZZ_BULK) != 0 ? LINK_BULK : LINK_CONTROL, packet, size, body, now_us);
    buffer_unref(body);
}

/* One record; the bytes of packet are copied to where a sanitizer sees their end. */
static void fuzz_record(
    struct fuzz *fuzz, unsigned flags, const uint8_t *bytes, size_t size, uint64_t now_us)
{
    uint8_t *packet = malloc(size + (size == 0));
    struct buffer *message = buffer_new(flags * 10);

    if (packet != NULL && message != NULL) {
        memcpy(packet, bytes, size);
        fuzz_repair(packet, size, flags);
        memset(message->bytes, 0, message->size);
        fuzz->refuse = (flags & FUZZ_REFUSE) != 0;
        if ((flags & FUZZ_SEND) != 0) {
            const struct share_class class = {
                .job = flags & 3, .weight = flags, .place = flags ^ size};

            (void)links_send(fuzz->links, FUZZ_PEER, (enum link_lane)(flags & 1), &class, message);
        }
        fuzz_receive(fuzz, flags, packet, size, now_us);
        if (links_deadline(fuzz->links) <= now_us) {
            links_tick(fuzz->links, now_us);
        }
    }
    buffer_unref(message);
    free(packet);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz fuzz = {0};
    const struct links_ops ops = {.transmit = fuzz_transmit,
        .deliver = fuzz_deliver,
        .peer_up = fuzz_peer_up,
        .peer_down = fuzz_peer_down};
    const struct links_config config = {.self = 0,
        .incarnation = FUZZ_INCARNATION,
        .part_size = 100,
        .window = 1000,
        .max_control_message = 500,
        .max_bulk_message = 5000,
        .heartbeat_us = 1000000,
        .timeout_us = 5000000,
        .resend_us = 100000};
    uint64_t now_us = 1000000;
    size_t at = 0;

    fuzz.links = links_create(&config, &ops, &fuzz);
    if (fuzz.links == NULL || links_add_peer(fuzz.links, FUZZ_PEER, now_us) != ADTOPK_OK) {
        links_destroy(fuzz.links);
        return 0;
    }
    links_tick(fuzz.links, now_us);
    fuzz_connect(&fuzz, now_us);
    while (size - at >= 4) {
        unsigned flags = data[at];
        size_t length = data[at + 2] + 256U * data[at + 3];

        now_us += UINT64_C(1) << (data[at + 1] % 24); /* up to 8 s */
        at += 4;
        length = length < size - at ? length : size - at;
        fuzz_record(&fuzz, flags, data + at, length, now_us);
        at += length;
    }
    links_destroy(fuzz.links);
    return 0;
}
