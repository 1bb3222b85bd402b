/* Frames that the payload's decoder refuses: damage, hostile sections, and sections of another
 * kind. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/crc32c.h"
#include "proto/payload.h"
#include "tests/unit/payload_support.h"

#define LENGTH_AT 8
#define CRC_AT 60

enum { LISTS = PAYLOAD_INDEX_COUNT - PAYLOAD_INDEX_RAW };

/* Its positions below are all in partition 1 of 2, so every encoding can be tried. */
static const struct payload_shape small_shape = {
    .view = {4, 6, 2}, .per_fibre = 2, .max_count = 10, .part = 1, .parts = 2};

/* A frame with every kind of section, small enough to try all damage. */
static void small_frame(struct payload_writer *writer)
{
    static const uint32_t positions[8] = {0, 4, 7, 8, 12, 16, 19, 23};
    static const float values[8] = {1, -2, 3, -4, 5.5f, 0x1.010101p0f, -0.0f, 0x1p-140f};
    struct sparse list = list_make(8);

    list.count = 8;
    memcpy(list.position, positions, sizeof(positions));
    frame_begin(writer);
    for (unsigned i = PAYLOAD_INDEX_RAW; i < PAYLOAD_INDEX_COUNT; i++) {
        memcpy(list.value, values, sizeof(values));
        assert_int_equal(payload_put_list(writer, &small_shape, &list, (enum payload_index)i,
                             (enum payload_value)(i % PAYLOAD_VALUE_COUNT)),
            ADTOPK_OK);
    }
    assert_int_equal(payload_put_dense(writer, values, 8, PAYLOAD_VALUE_BF16, NULL), ADTOPK_OK);
    assert_int_equal(payload_put_bytes(writer, "bytes", 5), ADTOPK_OK);
    payload_end(writer);
    list_free(&list);
}

/* Reads a frame of small_frame(), and checks the lists if it is accepted. */
static enum adtopk_status small_read(const uint8_t *bytes, size_t size, struct error *err)
{
    struct payload_reader reader;
    uint32_t position[10];
    float value[10];
    struct sparse list = {.position = position, .value = value, .capacity = 10};
    const uint8_t *opaque;
    size_t opaque_size;
    enum adtopk_status status = payload_open(&reader, bytes, size, err);

    for (unsigned i = 0; i < LISTS && status == ADTOPK_OK; i++) {
        status = payload_get_list(&reader, &small_shape, &list, err);
        assert_true(status == ADTOPK_OK || list.count == 0);
        for (size_t j = 0; j < list.count; j++) {
            assert_true(position[j] < 24);
            assert_true(j == 0 || position[j] > position[j - 1]);
        }
    }
    if (status == ADTOPK_OK) {
        status = payload_get_dense(&reader, value, 8, err);
    }
    if (status == ADTOPK_OK) {
        status = payload_get_bytes(&reader, 6, &opaque, &opaque_size, err);
        assert_true(
            status != ADTOPK_OK || (opaque_size <= 6 && opaque + opaque_size <= bytes + size));
    }
    return status == ADTOPK_OK ? payload_close(&reader, err) : status;
}

/* Corrects length and CRC after bytes were changed. */
static void repair(uint8_t *bytes, size_t size)
{
    uint32_t crc;

    for (unsigned i = 0; i < 8; i++) {
        bytes[LENGTH_AT + i] = (uint8_t)((uint64_t)size >> 8 * i);
    }
    crc = crc32c_table(0, bytes, CRC_AT);
    crc = crc32c_table(crc, bytes + PAYLOAD_HEADER_SIZE, size - PAYLOAD_HEADER_SIZE);
    for (unsigned i = 0; i < 4; i++) {
        bytes[CRC_AT + i] = (uint8_t)(crc >> 8 * i);
    }
}

/* Reads a copy in a block of its own, so that a sanitizer finds a read behind it. */
static enum adtopk_status read_copy(
    const uint8_t *bytes, size_t size, bool repaired, struct error *err)
{
    uint8_t *copy = need(size);
    enum adtopk_status status;

    memcpy(copy, bytes, size);
    if (repaired) {
        repair(copy, size);
    }
    status = small_read(copy, size, err);
    free(copy);
    return status;
}

/* Where the CRC of all bytes is known, a frame is good if its own CRC fits that one. */
static void test_known_crc(void **state)
{
    struct payload_writer writer = {0};
    struct payload_reader reader;
    struct error err = {ADTOPK_OK, ""};
    uint32_t crc;

    (void)state;
    small_frame(&writer);
    crc = payload_crc(writer.bytes, writer.size);
    assert_int_equal(crc, crc32c_table(0, writer.bytes, writer.size));
    assert_int_equal(payload_open_known(&reader, writer.bytes, writer.size, crc, &err), ADTOPK_OK);
    for (unsigned bit = 0; bit < 32; bit++) {
        assert_int_equal(
            payload_open_known(&reader, writer.bytes, writer.size, crc ^ 1u << bit, &err),
            ADTOPK_ERR_PROTOCOL);
        assert_non_null(strstr(err.text, "crc"));
    }
    for (size_t at = 0; at < writer.size; at++) { /* damaged before its packets were sent */
        writer.bytes[at] ^= 1;
        assert_int_equal(payload_open_known(&reader, writer.bytes, writer.size,
                             crc32c(0, writer.bytes, writer.size), NULL),
            ADTOPK_ERR_PROTOCOL);
        writer.bytes[at] ^= 1;
    }
    payload_free(&writer);
}

static void test_truncation(void **state)
{
    struct payload_writer writer = {0};
    struct error err = {ADTOPK_OK, ""};
    uint8_t *longer;

    (void)state;
    small_frame(&writer);
    assert_int_equal(read_copy(writer.bytes, writer.size, false, &err), ADTOPK_OK);
    for (size_t size = 0; size < writer.size; size++) {
        assert_int_equal(read_copy(writer.bytes, size, false, &err), ADTOPK_ERR_PROTOCOL);
        if (size >= PAYLOAD_HEADER_SIZE) {
            assert_int_equal(read_copy(writer.bytes, size, true, &err), ADTOPK_ERR_PROTOCOL);
        }
    }
    longer = need(writer.size + 1);
    memcpy(longer, writer.bytes, writer.size);
    longer[writer.size] = 0;
    assert_int_equal(read_copy(longer, writer.size + 1, false, &err), ADTOPK_ERR_PROTOCOL);
    assert_int_equal(read_copy(longer, writer.size + 1, true, &err), ADTOPK_ERR_PROTOCOL);
    assert_non_null(strstr(err.text, "behind the last section"));
    free(longer);
    payload_free(&writer);
}

static void test_corruption(void **state)
{
    struct payload_writer writer = {0};
    struct error err = {ADTOPK_OK, ""};
    unsigned refused = 0;

    (void)state;
    small_frame(&writer);
    for (size_t at = 0; at < writer.size; at++) {
        for (unsigned flip = 1; flip < 256; flip++) {
            writer.bytes[at] = (uint8_t)(writer.bytes[at] ^ flip);
            assert_int_equal(
                read_copy(writer.bytes, writer.size, false, &err), ADTOPK_ERR_PROTOCOL);
            err.text[0] = '\0';
            if (read_copy(writer.bytes, writer.size, true, &err) != ADTOPK_OK) {
                assert_true(err.text[0] != '\0');
                refused++;
            }
            writer.bytes[at] = (uint8_t)(writer.bytes[at] ^ flip);
        }
    }
    /* A changed count in any section header is found without the CRC. */
    assert_true(refused > (LISTS + 2) * 7 * 255);
    payload_free(&writer);
}

/* Reads one section of raw bytes for a tensor of 100 elements. Returns the reader's result. */
static enum adtopk_status read_section(
    const struct payload_shape *shape, const void *section, size_t size, struct error *err)
{
    struct payload_writer writer = {0};
    struct payload_reader reader;
    uint32_t position[100];
    float value[100];
    struct sparse list = {.position = position, .value = value, .capacity = 100};
    enum adtopk_status status;
    uint8_t *frame;

    frame_begin(&writer);
    writer.sections = 1;
    payload_end(&writer);
    frame = need(writer.size + size);
    memcpy(frame, writer.bytes, writer.size);
    memcpy(frame + writer.size, section, size);
    repair(frame, writer.size + size);
    status = payload_open(&reader, frame, PAYLOAD_HEADER_SIZE + size, err);
    if (status == ADTOPK_OK) {
        status = payload_get_list(&reader, shape, &list, err);
    }
    if (status == ADTOPK_OK) {
        status = payload_close(&reader, err);
    }
    free(frame);
    payload_free(&writer);
    return status;
}

struct bad_section {
    const char *says; /* part of the error, or NULL if the section is good */
    uint8_t size;
    uint8_t bytes[40];
};

/* The tensor has 4 fibres of 25. Rows have 2 entries each; at most 50 entries. */
static const struct bad_section bad_sections[] = {
    {"unknown index encoding 0", 8, {0}},
    {"unknown index encoding 8", 8, {8}},
    {"unknown index encoding 14", 8, {14}},
    {"unknown value encoding 8", 8, {0x82}},
    {"unknown value encoding 15", 8, {0xF2}},
    {"unknown value encoding 1", 8, {0x1F}},
    {"kind is not a list", 8, {1}},
    {"kind is not a list", 8, {15}},
    {"count 51 is over 50", 8, {2, 51}},
    {"count 72057594037927935 is over 50", 8, {2, 255, 255, 255, 255, 255, 255, 255}},
    {"raw positions need 4 bytes, 3 are left", 11, {2, 1}},
    {"values need 2 bytes, 1 are left", 13, {0x12, 1}},
    {"position 100 of entry 0", 14, {0x12, 1, 0, 0, 0, 0, 0, 0, 100}},
    {"position 3 of entry 1", 20, {0x12, 2, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 3}},
    {"position 2 of entry 1", 20, {0x12, 2, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2}},
    {NULL, 20, {0x12, 2, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4}},
    {"behind the last section", 21, {0x12, 2, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4}},
    {"7 entries in rows", 40, {0x13, 7}},
    {"count 8 is over what the bytes left can hold, 7", 15, {0x13, 8}},
    {"values need 16 bytes, 15 are left", 28,
        {0x13, 8, 0, 0, 0, 0, 0, 0, 0x20, 0x80, 0x00, 0x02, 0x08}},
    {NULL, 29, {0x13, 8, 0, 0, 0, 0, 0, 0, 0x20, 0x80, 0x00, 0x02, 0x08}},
    {"position 0 of entry 1", 29, {0x13, 8}},
    {"position 25 of entry 1", 29, {0x13, 8, 0, 0, 0, 0, 0, 0, 0x20, 0x83, 0x00, 0x02, 0x08}},
    {"count 1 is over what the bytes left can hold, 0", 8, {0x14, 1}},
    {"delta width 33 is over 32", 10, {0x14, 1, 0, 0, 0, 0, 0, 0, 33}},
    {"deltas need 4 bytes, 3 are left", 12, {0x14, 1, 0, 0, 0, 0, 0, 0, 32}},
    {NULL, 12, {0x14, 1, 0, 0, 0, 0, 0, 0, 2, 3}},
    {"delta width 3 where 2 is enough", 12, {0x14, 1, 0, 0, 0, 0, 0, 0, 3, 3}},
    {"padding bits", 12, {0x14, 1, 0, 0, 0, 0, 0, 0, 2, 7}},
    {"position 127 of entry 0", 12, {0x14, 1, 0, 0, 0, 0, 0, 0, 7, 127}},
    {"position 102 of entry 1", 14, {0x14, 2, 0, 0, 0, 0, 0, 0, 7, 99, 1}},
    {"position 4294967296 of entry 1", 21,
        {0x14, 2, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 255, 255, 255, 255}},
    {"bitmap need 13 bytes, 12 are left", 20, {0x15, 1}},
    {NULL, 23, {0x15, 1, 0, 0, 0, 0, 0, 0, 1}},
    {"count 1 is not the number of bits", 23, {0x15, 1}},
    {"count 1 is not the number of bits", 23, {0x15, 1, 0, 0, 0, 0, 0, 0, 3}},
    {"padding bits", 23, {0x15, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16}},
    {"rice parameter need 1 bytes, 0 are left", 8, {0x16}},
    {"rice parameter 32 is over 31", 12, {0x16, 1, 0, 0, 0, 0, 0, 0, 32, 5}},
    {NULL, 12, {0x16, 1, 0, 0, 0, 0, 0, 0, 1, 5}},
    {"rice parameter 2 where 1 is best", 12, {0x16, 1, 0, 0, 0, 0, 0, 0, 2, 7}},
    {"rice parameter 0 where 1 is best", 12, {0x16, 1, 0, 0, 0, 0, 0, 0, 0, 8}},
    {"padding bits", 12, {0x16, 1, 0, 0, 0, 0, 0, 0, 1, 13}},
    {"rice codes end before that of entry 0", 9, {0x16, 1}},
    {"rice codes end before that of entry 0", 24, {0x16, 1}},
    {"rice codes end before that of entry 1", 24, {0x16, 2, 0, 0, 0, 0, 0, 0, 0, 1}},
    {"position 100 of entry 0", 12, {0x16, 1, 0, 0, 0, 0, 0, 0, 7, 228}},
    {"position 103 of entry 0", 24,
        {0x16, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 128}},
    {NULL, 9, {0x16}},
    {"rice parameter 1 where 0 is best", 9, {0x16, 0, 0, 0, 0, 0, 0, 0, 1}},
    {"bitmap need 13 bytes, 12 are left", 20, {0x17, 1}}, /* not partitioned: a bitmap */
    {NULL, 23, {0x17, 1, 0, 0, 0, 0, 0, 0, 1}},
    {NULL, 14, {0x22, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0xFF, 0x7B}},
    {NULL, 14, {0x22, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0x01, 0x7C}},
    {"an f16 value is infinite", 14, {0x22, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0x7C}},
    {"an f16 value is infinite", 14, {0x22, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0xFC}},
    {"values need 3 bytes, 2 are left", 14, {0x32, 1}},
    {NULL, 15, {0x32, 1}},
    {NULL, 15, {0x32, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0x80, 0x3F, 127}},
    {NULL, 15, {0x32, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0x01, 0x7C, 0x81}},
    {"step 0x7c02 of block 0 is over", 15, {0x32, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 2, 0x7C, 127}},
    {"step 0x8000 of block 0 is over", 15, {0x32, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0x80, 127}},
    {"int8 level of block 0 is 126, not 127", 15,
        {0x32, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0x80, 0x3F, 0x82}},
    {"int8 level of block 0 is 128, not 127", 15,
        {0x32, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0x80, 0x3F, 0x80}},
    {"int8 level of block 0 is 1, not 0", 15, {0x32, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 1}},
    {"values need 6 bytes, 5 are left", 17, {0x42, 1}},
    {NULL, 18, {0x42, 1}},
    {NULL, 18, {0x42, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0x80, 0x3F, 0, 0, 1}},
    {"block 0 of values has a scale that is too large", 18,
        {0x42, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0x80, 0x7F, 0, 0, 1}},
    {"block 0 of values has padding that is not zero", 18,
        {0x42, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0x80, 0x3F, 0, 0, 3}},
    {"block 0 of values has an upper magnitude that no value has", 18,
        {0x42, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0x80, 0x3F, 0x81, 0x3F, 1}},
    {"values need 3 bytes, 2 are left", 14, {0x52, 1}},
    {NULL, 15, {0x52, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0x80, 0x3F, 1}},
    {"block 0 of values has a negative 0", 15, {0x52, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 1}},
    {"values need 6 bytes, 5 are left", 17, {0x62, 1}},
    {NULL, 18, {0x62, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0x80, 0x3F, 0, 1, 1, 1}},
    {"block 0 of values has no value of the largest level", 18,
        {0x62, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0x80, 0x3F, 0, 1, 0, 1}},
    {"values need 5 bytes, 4 are left", 16, {0x72, 1}},
    {NULL, 17, {0x72, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0x80, 0x3F, 1, 1, 1}},
    {"block 0 of values has levels without a step", 17,
        {0x72, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 1, 1, 1}},
};

/* The same tensor, with a list of partition 1 of 3: positions 2, 4, 8, 11, ... 33 of them. */
static const struct bad_section bad_partitions[] = {
    {NULL, 14, {0x12, 1, 0, 0, 0, 0, 0, 0, 2}},
    {"position 3 of entry 0 is not in partition 1 of 3", 14, {0x12, 1, 0, 0, 0, 0, 0, 0, 3}},
    {"position 5 of entry 1 is not in partition 1 of 3", 20,
        {0x12, 2, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 5}},
    {"position 0 of entry 0 is not in partition", 12, {0x16, 1, 0, 0, 0, 0, 0, 0, 0, 1}},
    {"bitmap need 5 bytes, 4 are left", 12, {0x17, 1}},
    {NULL, 15, {0x17, 1, 0, 0, 0, 0, 0, 0, 1}},
    {NULL, 17, {0x17, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 1}},
    {"count 1 is not the number of bits", 15, {0x17, 1, 0, 0, 0, 0, 0, 0, 3}},
    {"count 2 is not the number of bits", 17, {0x17, 2, 0, 0, 0, 0, 0, 0, 4}},
    {"padding bits", 15, {0x17, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}},
    {"padding bits", 15, {0x17, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 128}},
};

static void check_sections(
    const struct payload_shape *shape, const struct bad_section *sections, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct bad_section *bad = &sections[i];
        struct error err = {ADTOPK_OK, "accepted"};
        enum adtopk_status status = read_section(shape, bad->bytes, bad->size, &err);

        if (bad->says == NULL ? status != ADTOPK_OK
                              : status != ADTOPK_ERR_PROTOCOL || !strstr(err.text, bad->says)) {
            fail_msg("section %zu: wanted \"%s\", got \"%s\"", i,
                bad->says == NULL ? "no error" : bad->says, err.text);
        }
    }
}

static void test_bad_sections(void **state)
{
    struct payload_shape shape = shape_of(4, 25, 1);
    const struct bad_section *good_rows = bad_sections;

    (void)state;
    while (good_rows->says != NULL || good_rows->bytes[0] != 0x13) {
        good_rows++;
    }
    shape.per_fibre = 2;
    shape.max_count = 50;
    check_sections(&shape, bad_sections, sizeof(bad_sections) / sizeof(bad_sections[0]));
    shape.part = 1;
    shape.parts = 3;
    check_sections(&shape, bad_partitions, sizeof(bad_partitions) / sizeof(bad_partitions[0]));
    shape.parts = 0;
    shape.per_fibre = 0; /* then rows are no encoding of this tensor */
    assert_int_equal(read_section(&shape, good_rows->bytes, 29, NULL), ADTOPK_ERR_PROTOCOL);
}

#define SECTION_COUNT ((UINT64_C(1) << 56) - 1) /* the greatest that has room */

/* A frame with one section whose body is zeros. The caller corrects its CRC. */
static void frame_of_section(uint8_t *frame, size_t size, uint8_t encodings, uint64_t count)
{
    struct payload_writer writer = {0};

    frame_begin(&writer);
    writer.sections = 1;
    payload_end(&writer);
    memset(frame, 0, size);
    memcpy(frame, writer.bytes, PAYLOAD_HEADER_SIZE);
    frame[PAYLOAD_HEADER_SIZE] = encodings;
    for (unsigned i = 0; i < 7; i++) {
        frame[PAYLOAD_HEADER_SIZE + 1 + i] = (uint8_t)(count >> 8 * i);
    }
    payload_free(&writer);
}

static void check_promise(const struct payload_shape *shape, unsigned index,
    enum payload_value value_type, uint64_t count, size_t body)
{
    const size_t each = value_type == PAYLOAD_VALUE_SIGN ? 8 : 1;
    uint8_t frame[PAYLOAD_HEADER_SIZE + PAYLOAD_SECTION_MAX + 64];
    size_t size = PAYLOAD_HEADER_SIZE + PAYLOAD_SECTION_MAX + body;
    struct payload_reader reader;
    uint32_t position = 7;
    float value = 8;
    struct sparse list = {&position, &value, 0, SIZE_MAX};
    struct error err = {ADTOPK_OK, ""};

    frame_of_section(frame, size, (uint8_t)(value_type << 4 | index), count);
    repair(frame, size);
    assert_int_equal(payload_open(&reader, frame, size, &err), ADTOPK_OK);
    assert_true(payload_next_count(&reader, shape) <= each * body);
    assert_int_equal(payload_get_list(&reader, shape, &list, &err), ADTOPK_ERR_PROTOCOL);
    assert_non_null(strstr(err.text, "payload section 0: count "));
    assert_true(list.count == 0 && position == 7 && value > 7);
}

/* A few bytes promise many entries of a huge tensor. The reader needs no memory for that and writes
 * nothing. Rows of fibres of one element take no bytes for positions that would show the lie. Nor
 * does a Rice code whose bits are all still to come. */
static void test_promises(void **state)
{
    static const uint64_t counts[] = {
        65, 1000000, UINT32_MAX, UINT64_C(1) << 32, SECTION_COUNT / 8};
    struct payload_shape shape = shape_of(UINT32_MAX, 1, 1);

    (void)state;
    shape.per_fibre = 1;
    for (unsigned index = PAYLOAD_INDEX_RAW; index < PAYLOAD_INDEX_COUNT; index++) {
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            for (size_t size = 0; size <= 64; size++) {
                check_promise(&shape, index, PAYLOAD_VALUE_INT8, counts[i], size);
                check_promise(&shape, index, PAYLOAD_VALUE_SIGN, 8 * counts[i], size);
            }
        }
    }
}

/* Positions that end at the frame's end: a block of deltas with an entry missing, and rows. */
static void test_missing_positions(void **state)
{
    enum { BODY = PAYLOAD_HEADER_SIZE + PAYLOAD_SECTION_MAX };
    struct payload_shape shape = shape_of(2, 2000, 1);
    struct payload_reader reader;
    uint8_t frame[BODY + 129];
    struct sparse list = list_make(129);
    struct error err = {ADTOPK_OK, ""};

    (void)state;
    frame_of_section(frame, sizeof(frame), 0x14, 129);
    frame[BODY] = 8;
    frame[sizeof(frame) - 1] = 0x80;
    repair(frame, sizeof(frame));
    assert_int_equal(payload_open(&reader, frame, sizeof(frame), &err), ADTOPK_OK);
    assert_int_equal(payload_get_list(&reader, &shape, &list, &err), ADTOPK_ERR_PROTOCOL);
    assert_string_equal(err.text, "payload section 0: delta widths need 1 bytes, 0 are left");
    shape.per_fibre = 1;
    frame_of_section(frame, BODY + 2, 0x13, 2);
    repair(frame, BODY + 2);
    assert_int_equal(payload_open(&reader, frame, BODY + 2, &err), ADTOPK_OK);
    assert_int_equal(payload_get_list(&reader, &shape, &list, &err), ADTOPK_ERR_PROTOCOL);
    assert_string_equal(err.text, "payload section 0: row positions need 3 bytes, 2 are left");
    list_free(&list);
}

/* Sets one byte of a good frame's header. The CRC is checked last, so the error names the field. */
static void assert_header_refused(size_t at, uint8_t byte, const char *says)
{
    struct payload_writer writer = {0};
    struct payload_reader reader;
    struct error err = {ADTOPK_OK, ""};
    uint64_t size;

    small_frame(&writer);
    size = writer.size;
    writer.bytes[at] = byte;
    assert_int_equal(payload_open(&reader, writer.bytes, size, &err), ADTOPK_ERR_PROTOCOL);
    if (strstr(err.text, says) == NULL) {
        fail_msg("byte %zu: wanted \"%s\", got \"%s\"", at, says, err.text);
    }
    payload_free(&writer);
}

static void test_bad_headers(void **state)
{
    struct payload_writer writer = {0};
    struct payload_header header;
    struct error err;

    (void)state;
    assert_header_refused(0, 'a', "magic");
    assert_header_refused(4, 2, "version: 2");
    assert_header_refused(LENGTH_AT, 0, "length");
    assert_header_refused(LENGTH_AT + 7, 255, "length");
    assert_header_refused(43, 255, "sections");
    assert_header_refused(55, 1, "reserved byte 55");
    assert_header_refused(59, 1, "reserved byte 59");
    assert_header_refused(CRC_AT, 0, "crc");
    small_frame(&writer);
    assert_int_equal(payload_peek(&header, writer.bytes, PAYLOAD_HEADER_SIZE, &err), ADTOPK_OK);
    assert_int_equal(header.sections, LISTS + 2);
    assert_int_equal(
        payload_peek(&header, writer.bytes, PAYLOAD_HEADER_SIZE - 1, &err), ADTOPK_ERR_PROTOCOL);
    payload_free(&writer);
}

/* An invalid loss scale is refused; 0 means none. */
static void test_bad_loss_scale(void **state)
{
    static const float bad[] = {-1, -0.0f, NAN, INFINITY, 0x1p-127f, 0x1p127f, 0x1.000002p126f};

    (void)state;
    for (size_t i = 0; i <= sizeof(bad) / sizeof(bad[0]); i++) {
        struct payload_header header = some_header;
        struct payload_writer writer = {0};
        struct payload_reader reader;
        struct error err = {ADTOPK_OK, ""};
        bool refused = i < sizeof(bad) / sizeof(bad[0]);

        header.loss_scale = refused ? bad[i] : 0;
        assert_int_equal(payload_begin(&writer, &header), ADTOPK_OK);
        payload_end(&writer);
        assert_int_equal(payload_open(&reader, writer.bytes, writer.size, &err),
            refused ? ADTOPK_ERR_PROTOCOL : ADTOPK_OK);
        assert_true(!refused || strstr(err.text, "loss scale") != NULL);
        payload_free(&writer);
    }
}

/* The readers of other kinds refuse a section of one kind, and do not move. */
static void test_kinds_are_kept_apart(void **state)
{
    struct payload_shape shape = shape_of(1, 4, 1);
    struct payload_writer writer = {0};
    struct payload_reader reader;
    struct sparse list = list_make(4);
    const float x[4] = {1, 2, 3, 4};
    float got[4];
    const uint8_t *bytes;
    size_t size;
    struct error err;

    (void)state;
    list.position[0] = 2;
    list.value[0] = 1.5f;
    list.count = 1;
    frame_begin(&writer);
    assert_int_equal(payload_put_bytes(&writer, "abcd", 4), ADTOPK_OK);
    assert_int_equal(payload_put_bytes(&writer, NULL, 0), ADTOPK_OK);
    assert_int_equal(payload_put_dense(&writer, x, 4, PAYLOAD_VALUE_F32, NULL), ADTOPK_OK);
    assert_int_equal(
        payload_put_list(&writer, &shape, &list, PAYLOAD_INDEX_RAW, PAYLOAD_VALUE_F32), ADTOPK_OK);
    payload_end(&writer);
    frame_open(&reader, &writer);
    assert_int_equal(payload_get_list(&reader, &shape, &list, &err), ADTOPK_ERR_PROTOCOL);
    assert_int_equal(payload_get_dense(&reader, got, 4, &err), ADTOPK_ERR_PROTOCOL);
    assert_int_equal(payload_get_bytes(&reader, 3, &bytes, &size, &err), ADTOPK_ERR_PROTOCOL);
    assert_string_equal(err.text, "payload section 0: count 4 is over 3");
    assert_int_equal(payload_get_bytes(&reader, 4, &bytes, &size, &err), ADTOPK_OK);
    assert_int_equal(size, 4);
    assert_memory_equal(bytes, "abcd", 4);
    assert_int_equal(payload_get_bytes(&reader, 0, &bytes, &size, &err), ADTOPK_OK);
    assert_int_equal(size, 0);
    assert_int_equal(payload_get_list(&reader, &shape, &list, &err), ADTOPK_ERR_PROTOCOL);
    assert_int_equal(payload_get_bytes(&reader, 99, &bytes, &size, &err), ADTOPK_ERR_PROTOCOL);
    assert_int_equal(payload_get_dense(&reader, got, 4, &err), ADTOPK_OK);
    assert_int_equal(payload_get_dense(&reader, got, 4, &err), ADTOPK_ERR_PROTOCOL);
    assert_int_equal(payload_get_bytes(&reader, 99, &bytes, &size, &err), ADTOPK_ERR_PROTOCOL);
    assert_int_equal(payload_close(&reader, &err), ADTOPK_ERR_PROTOCOL);
    assert_int_equal(payload_get_list(&reader, &shape, &list, &err), ADTOPK_OK);
    assert_int_equal(payload_close(&reader, &err), ADTOPK_OK);
    assert_int_equal(payload_get_list(&reader, &shape, &list, &err), ADTOPK_ERR_PROTOCOL);
    list_free(&list);
    payload_free(&writer);
}

/* A writer begins again in the same memory. */
static void test_writer_is_reused(void **state)
{
    struct payload_writer writer = {0};
    struct error err;
    size_t size;

    (void)state;
    small_frame(&writer);
    size = writer.size;
    small_frame(&writer);
    assert_int_equal(writer.size, size);
    assert_int_equal(small_read(writer.bytes, writer.size, &err), ADTOPK_OK);
    payload_free(&writer);
}

/* Sections that are read in pieces: blocks of values are refused, and infinite values once they are
 * read. */
static void test_refuses_pieces(void **state)
{
    struct payload_writer writer = {0};
    struct payload_reader reader;
    struct payload_dense dense;
    struct payload_room room;
    const float x[3] = {1, 2, 3};
    float sum[3] = {0};
    struct error err;

    (void)state;
    frame_begin(&writer);
    assert_int_equal(payload_put_dense(&writer, x, 3, PAYLOAD_VALUE_INT8, NULL), ADTOPK_OK);
    assert_int_equal(payload_make_room(&writer, 3, PAYLOAD_VALUE_F16, &room), ADTOPK_OK);
    payload_fill_room(&room, 0, x, 3);
    room.bytes[4] = 0x00;
    room.bytes[5] = 0xfc;
    payload_end(&writer);
    frame_open(&reader, &writer);
    assert_int_equal(payload_find_dense(&reader, 3, &dense, &err), ADTOPK_ERR_PROTOCOL);
    assert_string_equal(err.text, "payload section 0: values of type 3 are not summed");
    assert_int_equal(payload_get_dense(&reader, sum, 3, &err), ADTOPK_OK);
    assert_int_equal(payload_find_dense(&reader, 3, &dense, &err), ADTOPK_OK);
    assert_int_equal(payload_add_dense(&dense, 0, sum, 2, &err), ADTOPK_OK);
    assert_int_equal(payload_add_dense(&dense, 2, sum, 1, &err), ADTOPK_ERR_PROTOCOL);
    assert_string_equal(err.text, "payload section 1: an f16 value is infinite");
    payload_free(&writer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_crc),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_corruption),
        cmocka_unit_test(test_bad_sections),
        cmocka_unit_test(test_promises),
        cmocka_unit_test(test_missing_positions),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_bad_loss_scale),
        cmocka_unit_test(test_kinds_are_kept_apart),
        cmocka_unit_test(test_refuses_pieces),
        cmocka_unit_test(test_writer_is_reused),
    };

    return cmocka_run_group_tests_name("payload_refuse", tests, NULL, NULL);
}
