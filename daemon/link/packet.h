/*
 * The packet: what links put on the wire. A fixed header, little-endian, then the body.
 *
 *   bytes  field
 *    0- 3  magic "ADPK"
 *    4     version
 *    5     type
 *    6     lane
 *    7     slot: which of the messages that are partly sent this is a part of; 0 in all but DATA of
 *          the bulk lane
 *    8- 9  source node
 *   10-11  destination node
 *   12-15  bytes of body
 *   16-23  source incarnation
 *   24-31  destination incarnation; 0 in HELLO and SEED
 *   32-39  position in the lane's stream; in HELLO and WELCOME the challenge; in ACK the
 *          microseconds since the sender last heard from the destination; not used in SEED
 *   40-47  acknowledged position of the control lane
 *   48-55  acknowledged position of the bulk lane
 *   56-63  credit: the bulk lane's position up to which the receiver may send; not used in HELLO
 *          and WELCOME
 *   64-71  bytes of the message that the body is a part of; in an empty part, the bytes that were
 *          sent of its message: if the message was announced as longer, this part cancels it
 *   72-79  where in the message the body lies
 *   80-83  CRC-32C of bytes 0-79 and of the body
 *
 * The body of a bulk packet is part of a payload frame, which has a CRC of its own. But a frame is
 * routed by its header before that CRC is checked. So a damaged packet must not get that far.
 */
#ifndef ADTOPK_PACKET_H
#define ADTOPK_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/link/link.h"

/*   2  bulk messages have slots
 *   3  a transport may carry the body apart from the header (../transport/parts.h) */
#ifndef PACKET_VERSION /* tests build a daemon of another release */
#define PACKET_VERSION 3
#endif
#define PACKET_HEADER_SIZE 84
#define PACKET_TYPE_AT 5
#define PACKET_LANE_AT 6 /* for transports, which hand packets on by lane */
#define PACKET_SLOT_AT 7
#define PACKET_SOURCE_AT 8 /* for transports that know the sender better than the header does */

#define LANE_SLOTS 64 /* of the bulk lane */

_Static_assert(PACKET_HEADER_SIZE <= LINK_HEADER_MAX, "transports reserve LINK_HEADER_MAX");

enum packet_type {
    PACKET_HELLO = 1, /* asks for the peer's identity and whether it is alive; carries a
                       * challenge */
    PACKET_WELCOME,   /* the answer, with that challenge */
    PACKET_DATA,      /* a part of a message */
    PACKET_ACK,       /* acknowledgements and credit only; also the heartbeat */
    PACKET_SEED,      /* of no connection: who the nodes are (../seed); links count it as stale */
    PACKET_TYPE_END
};

struct packet {
    enum packet_type type;
    enum link_lane lane;
    unsigned slot; /* below LANE_SLOTS */
    uint16_t source, destination;
    uint64_t source_incarnation, destination_incarnation;
    uint64_t position; /* challenge in HELLO and WELCOME, silence in ACK */
    uint64_t acknowledged[LINK_LANES];
    uint64_t credit;
    uint64_t message_size, offset;
    const uint8_t *body; /* NULL if it has no bytes */
    uint32_t body_size;
    uint32_t body_crc; /* of a received body of at least BUFFER_KNOWN_MIN bytes */
    /* Sent: the buffer of which the body is a part. Received: one that has the body and nothing
     * else. NULL: there is none. */
    struct buffer *owner;
};

/**
 * Positions that a part takes in its lane's stream: its bytes, and one more for the end of the
 * message, so that empty messages have a place too.
 */
uint64_t packet_span(const struct packet *packet);

/** Whether the CRC of a body that is to be sent is known, so that nobody has to read it. */
bool packet_is_known(const struct packet *packet);

/** Writes the header of `packet`, CRC included. */
void packet_encode(const struct packet *packet, uint8_t header[PACKET_HEADER_SIZE]);

/**
 * Reads a packet; the body stays where it is. False if anything is not as a correct sender would
 * have written it: then `packet` is undefined.
 */
bool packet_decode(struct packet *packet, const uint8_t *bytes, size_t size);

/** The same for a header of so many bytes and a body that lies elsewhere. */
bool packet_decode_apart(
    struct packet *packet, const uint8_t *header, size_t size, struct buffer *body);

#endif
