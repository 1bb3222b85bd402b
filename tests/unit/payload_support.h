/*
 * Code that the tests of the payload share. Include it after cmocka.h. Every failure fails the
 * test.
 */
#ifndef ADTOPK_TEST_PAYLOAD_SUPPORT_H
#define ADTOPK_TEST_PAYLOAD_SUPPORT_H

#include <stdlib.h>

#include "proto/payload.h"

static const struct payload_header some_header = {
    .run = UINT64_C(0x0123456789ABCDEF),
    .number = UINT64_C(0xFEDCBA9876543210),
    .view = 0x89ABCDEFu,
    .bucket = 0x76543210u,
    .source = 0xA55Au,
    .kind = 0x12,
    .phase = 0x34,
    .flags = PAYLOAD_FLAG_NONFINITE,
    .loss_scale = 0x1.23456p-7f,
    .loss_rank = 0x98765432u,
};

static inline void *need(size_t size)
{
    void *memory = malloc(size > 0 ? size : 1);

    assert_non_null(memory);
    return memory;
}

static inline struct sparse list_make(size_t capacity)
{
    return (struct sparse){
        .position = need(capacity * sizeof(uint32_t)),
        .value = need(capacity * sizeof(float)),
        .capacity = capacity,
    };
}

static inline void list_free(struct sparse *list)
{
    free(list->position);
    free(list->value);
}

static inline struct payload_shape shape_of(uint64_t fibres, uint64_t length, uint64_t stride)
{
    struct payload_shape shape = {.view = {fibres, length, stride}};

    shape.max_count = fibres * length;
    return shape;
}

static inline void frame_begin(struct payload_writer *writer)
{
    assert_int_equal(payload_begin(writer, &some_header), ADTOPK_OK);
}

static inline void frame_open(struct payload_reader *reader, const struct payload_writer *writer)
{
    struct error err = {ADTOPK_OK, ""};

    if (payload_open(reader, writer->bytes, writer->size, &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
}

#endif
