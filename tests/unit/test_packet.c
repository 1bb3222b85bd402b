/* The packet header: its bytes, and that only headers of a correct sender are accepted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/link/packet.h"
#include "proto/payload.h"
#include "tests/host/seal.h"

#define BODY 5

static const struct packet example = {
    .type = PACKET_DATA,
    .lane = LINK_CONTROL,
    .source = 0x0102,
    .destination = 0x0304,
    .source_incarnation = 0x1112131415161718,
    .destination_incarnation = 0x2122232425262728,
    .position = 0x3132333435363738,
    .acknowledged = {0x4142434445464748, 0x5152535455565758},
    .credit = 0x6162636465666768,
    .message_size = 0x100,
    .offset = 0x80,
    .body = (const uint8_t *)"hello",
    .body_size = BODY,
};

static size_t write_packet(const struct packet *packet, uint8_t *bytes)
{
    packet_encode(packet, bytes);
    if (packet->body_size > 0) {
        memcpy(bytes + PACKET_HEADER_SIZE, packet->body, packet->body_size);
    }
    return PACKET_HEADER_SIZE + packet->body_size;
}

static bool is_accepted(const struct packet *packet)
{
    uint8_t bytes[PACKET_HEADER_SIZE + BODY];
    struct packet decoded;

    return packet_decode(&decoded, bytes, write_packet(packet, bytes));
}

static void test_layout(void **state)
{
    static const uint8_t expected[PACKET_HEADER_SIZE - 4] = {'A', 'D', 'P', 'K', 3, 3, 0, 0, 2, 1,
        4, 3, 5, 0, 0, 0, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0x28, 0x27, 0x26, 0x25,
        0x24, 0x23, 0x22, 0x21, 0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31, 0x48, 0x47, 0x46,
        0x45, 0x44, 0x43, 0x42, 0x41, 0x58, 0x57, 0x56, 0x55, 0x54, 0x53, 0x52, 0x51, 0x68, 0x67,
        0x66, 0x65, 0x64, 0x63, 0x62, 0x61, 0, 1, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0};
    uint8_t bytes[PACKET_HEADER_SIZE + BODY], whole[sizeof(expected) + BODY];
    uint32_t crc;

    (void)state;
    assert_int_equal(write_packet(&example, bytes), sizeof(bytes));
    assert_memory_equal(bytes, expected, sizeof(expected));
    memcpy(whole, expected, sizeof(expected));
    memcpy(whole + sizeof(expected), "hello", BODY);
    crc = crc32c(0, whole, sizeof(whole));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(bytes[sizeof(expected) + (size_t)i], (crc >> (8 * i)) & 0xff);
    }
}

static void test_round_trip(void **state)
{
    uint8_t bytes[PACKET_HEADER_SIZE + BODY];
    struct packet decoded;

    (void)state;
    assert_true(packet_decode(&decoded, bytes, write_packet(&example, bytes)));
    assert_int_equal(decoded.type, example.type);
    assert_int_equal(decoded.lane, example.lane);
    assert_int_equal(decoded.source, example.source);
    assert_int_equal(decoded.destination, example.destination);
    assert_int_equal(decoded.source_incarnation, example.source_incarnation);
    assert_int_equal(decoded.destination_incarnation, example.destination_incarnation);
    assert_int_equal(decoded.position, example.position);
    assert_int_equal(decoded.acknowledged[LINK_CONTROL], example.acknowledged[LINK_CONTROL]);
    assert_int_equal(decoded.acknowledged[LINK_BULK], example.acknowledged[LINK_BULK]);
    assert_int_equal(decoded.credit, example.credit);
    assert_int_equal(decoded.message_size, example.message_size);
    assert_int_equal(decoded.offset, example.offset);
    assert_int_equal(decoded.body_size, BODY);
    assert_ptr_equal(decoded.body, bytes + PACKET_HEADER_SIZE);
}

static void test_every_flipped_bit(void **state)
{
    uint8_t bytes[PACKET_HEADER_SIZE + BODY];
    struct packet packet = example, decoded;

    (void)state;
    for (int lane = 0; lane < LINK_LANES; lane++) {
        size_t size, covered;

        packet.lane = (enum link_lane)lane;
        size = write_packet(&packet, bytes);
        covered = lane == LINK_CONTROL ? size : PACKET_HEADER_SIZE;
        for (size_t bit = 0; bit < 8 * covered; bit++) {
            bytes[bit / 8] ^= (uint8_t)(1U << (bit % 8));
            assert_false(packet_decode(&decoded, bytes, size));
            bytes[bit / 8] ^= (uint8_t)(1U << (bit % 8));
        }
        assert_true(packet_decode(&decoded, bytes, size));
    }
}

static void test_wrong_length(void **state)
{
    uint8_t bytes[PACKET_HEADER_SIZE + BODY];
    struct packet decoded;

    (void)state;
    (void)write_packet(&example, bytes);
    for (size_t size = 0; size < sizeof(bytes); size++) {
        uint8_t *copy = malloc(size + (size == 0)); /* so that a sanitizer sees a read behind it */

        assert_non_null(copy);
        memcpy(copy, bytes, size);
        assert_false(packet_decode(&decoded, copy, size));
        if (packet_seal(copy, size)) {
            assert_false(packet_decode(&decoded, copy, size));
        }
        free(copy);
    }
}

static void test_impossible_parts(void **state)
{
    struct packet packet = example;

    (void)state;
    assert_true(is_accepted(&packet));
    packet.offset = 0x100 - BODY; /* the last part */
    assert_true(is_accepted(&packet));
    packet.offset++;
    assert_false(is_accepted(&packet));
    packet.offset = UINT64_MAX - 2; /* offset + size wraps round */
    assert_false(is_accepted(&packet));
    packet = example;
    packet.body_size = 0; /* an empty part */
    assert_false(is_accepted(&packet));
    packet.offset = packet.message_size; /* only the end */
    assert_true(is_accepted(&packet));
    packet = example;
    packet.position = UINT64_MAX - BODY;
    assert_true(is_accepted(&packet));
    packet.position++; /* the stream's end */
    assert_false(is_accepted(&packet));
}

static void test_impossible_types(void **state)
{
    struct packet packet = {.type = PACKET_HELLO, .source_incarnation = 1};

    (void)state;
    assert_true(is_accepted(&packet));
    packet.source_incarnation = 0;
    assert_false(is_accepted(&packet));
    packet = (struct packet){
        .type = PACKET_HELLO, .source_incarnation = 1, .destination_incarnation = 1};
    assert_false(is_accepted(&packet)); /* a HELLO names no destination */
    for (int type = PACKET_WELCOME; type <= PACKET_ACK; type++) {
        packet.type = (enum packet_type)type;
        packet.destination_incarnation = 2;
        assert_true(is_accepted(&packet));
        packet.destination_incarnation = 0; /* all other packets name one */
        assert_false(is_accepted(&packet));
    }
    packet = (struct packet){.type = PACKET_TYPE_END, .source_incarnation = 1};
    assert_false(is_accepted(&packet));
    packet = example;
    packet.type = PACKET_ACK; /* with a body */
    assert_false(is_accepted(&packet));
    packet.body_size = 0; /* of a message */
    assert_false(is_accepted(&packet));
    packet.message_size = packet.offset = 0;
    assert_true(is_accepted(&packet));
    packet.lane = LINK_BULK;
    assert_false(is_accepted(&packet));
    packet = example;
    packet.type = PACKET_SEED; /* its body is a whole message, and of no connection */
    assert_false(is_accepted(&packet));
    packet.lane = LINK_CONTROL;
    packet.slot = 0;
    packet.destination_incarnation = packet.offset = 0;
    packet.message_size = packet.body_size;
    assert_true(is_accepted(&packet));
    packet.message_size++;
    assert_false(is_accepted(&packet));
    packet.message_size = packet.body_size = 0;
    assert_false(is_accepted(&packet));
}

/* Where the CRC of a body is known, the header is the same as if it had been read. The receiver
 * keeps that CRC. */
static void test_known_body(void **state)
{
    struct buffer *body = buffer_new(BUFFER_KNOWN_MIN);
    uint8_t header[PACKET_HEADER_SIZE], read[PACKET_HEADER_SIZE];
    struct packet packet = example, decoded;

    (void)state;
    assert_non_null(body);
    for (size_t i = 0; i < body->size; i++) {
        body->bytes[i] = (uint8_t)(i * 167 >> 3);
    }
    packet.lane = LINK_BULK;
    packet.body = body->bytes;
    packet.body_size = (uint32_t)body->size;
    packet.message_size = body->size;
    packet.offset = 0;
    packet_encode(&packet, read);
    packet.owner = body;
    body->known = true;
    body->crc = crc32c(0, body->bytes, body->size);
    packet_encode(&packet, header);
    assert_memory_equal(header, read, sizeof(header));
    assert_true(packet_decode_apart(&decoded, header, sizeof(header), body));
    assert_int_equal(decoded.body_crc, body->crc);
    assert_ptr_equal(decoded.owner, body);
    assert_false(packet_decode_apart(&decoded, header, sizeof(header) - 1, body));
    body->bytes[body->size / 2] ^= 1;
    assert_false(packet_decode_apart(&decoded, header, sizeof(header), body));
    buffer_unref(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_every_flipped_bit),
        cmocka_unit_test(test_wrong_length),
        cmocka_unit_test(test_impossible_parts),
        cmocka_unit_test(test_impossible_types),
        cmocka_unit_test(test_known_body),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
