/* The payload format: round trips through every encoding, and their sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/crc32c.h"
#include "proto/payload.h"
#include "tests/unit/payload_lists.h"
#include "tests/unit/values_reference.h"

static struct sparse list_copy(const struct sparse *list)
{
    struct sparse copy = list_make(list->count);

    memcpy(copy.position, list->position, list->count * sizeof(uint32_t));
    memcpy(copy.value, list->value, list->count * sizeof(float));
    copy.count = list->count;
    return copy;
}

static struct sparse random_rows(struct payload_shape *shape, uint64_t per_fibre, uint64_t *seed)
{
    struct sparse list = list_make(shape->view.fibres * per_fibre);

    shape->per_fibre = per_fibre;
    for (uint64_t fibre = 0; fibre < shape->view.fibres; fibre++) {
        list_sample(&list, fibre * shape->view.length, shape->view.length, per_fibre, seed);
    }
    return list;
}

static void assert_same_bits(const float *a, const float *b, size_t n)
{
    if (n > 0) {
        assert_memory_equal(a, b, n * sizeof(*a));
    }
}

/* Sends a list through a frame of its own, and returns the frame's size. */
static size_t round_trip(const struct payload_shape *shape, const struct sparse *sent,
    enum payload_index index, enum payload_value value, enum payload_index *chosen)
{
    struct payload_writer writer = {0};
    struct payload_reader reader;
    struct sparse fed_back = list_copy(sent);
    struct sparse got = list_make(shape->max_count);
    float *wanted = need(sent->count * sizeof(*wanted));
    struct error err = {ADTOPK_OK, ""};
    size_t size;

    frame_begin(&writer);
    assert_int_equal(payload_put_list(&writer, shape, &fed_back, index, value), ADTOPK_OK);
    payload_end(&writer);
    size = writer.size;
    *chosen = (enum payload_index)(writer.bytes[PAYLOAD_HEADER_SIZE] & 15);
    frame_open(&reader, &writer);
    assert_false(payload_next_is_dense(&reader));
    if (payload_get_list(&reader, shape, &got, &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(payload_close(&reader, &err), ADTOPK_OK);
    assert_int_equal(got.count, sent->count);
    if (sent->count > 0) {
        assert_memory_equal(got.position, sent->position, sent->count * sizeof(uint32_t));
    }
    assert_same_bits(got.value, fed_back.value, sent->count);
    if (index == PAYLOAD_INDEX_RAW || sent->count < 1000) { /* the reference is slow */
        reference_values(sent->value, sent->count, value, wanted);
        assert_same_bits(got.value, wanted, sent->count);
    }
    free(wanted);
    list_free(&fed_back);
    list_free(&got);
    payload_free(&writer);
    return size;
}

/* Sends a list through all encodings. AUTO takes the smallest, the first of equals, within its
 * bound. It takes rows if these are at most 2% larger. */
static void check_encodings(const struct payload_shape *shape, const struct sparse *list)
{
    for (unsigned v = 0; v < PAYLOAD_VALUE_COUNT; v++) {
        enum payload_value value = (enum payload_value)v;
        enum payload_index best = PAYLOAD_INDEX_AUTO;
        size_t smallest = SIZE_MAX, rows = SIZE_MAX;
        enum payload_index chosen;
        size_t size;

        for (unsigned i = PAYLOAD_INDEX_RAW; i < PAYLOAD_INDEX_COUNT; i++) {
            size = round_trip(shape, list, (enum payload_index)i, value, &chosen);
            assert_true(chosen == i || i == PAYLOAD_INDEX_ROWS);
            if (chosen == i && size < smallest) {
                best = chosen;
                smallest = size;
            }
            rows = chosen == PAYLOAD_INDEX_ROWS ? size : rows;
        }
        if ((double)(rows - PAYLOAD_HEADER_SIZE) <=
            1.02 * (double)(smallest - PAYLOAD_HEADER_SIZE) + 1e-9) {
            best = PAYLOAD_INDEX_ROWS;
            smallest = rows;
        }
        size = round_trip(shape, list, PAYLOAD_INDEX_AUTO, value, &chosen);
        assert_int_equal(size, smallest);
        assert_int_equal(chosen, best);
        assert_true(size - PAYLOAD_HEADER_SIZE <= payload_list_bound(shape, list->count, value));
    }
}

static void test_crc_vectors(void **state)
{
    static uint8_t bytes[20000];
    uint64_t seed = 7;

    (void)state;
    assert_int_equal(crc32c(0, "123456789", 9), 0xE3069283u);
    assert_int_equal(crc32c_table(0, "123456789", 9), 0xE3069283u);
    assert_int_equal(crc32c(0, "", 0), 0);
    memset(bytes, 0, 32); /* the vectors of RFC 3720, B.4 */
    assert_int_equal(crc32c(0, bytes, 32), 0x8A9136AAu);
    assert_int_equal(crc32c_table(0, bytes, 32), 0x8A9136AAu);
    memset(bytes, 0xFF, 32);
    assert_int_equal(crc32c(0, bytes, 32), 0x62A8AB43u);
    assert_int_equal(crc32c_table(0, bytes, 32), 0x62A8AB43u);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)random_next(&seed);
    }
    for (size_t size = 0; size < 300; size++) {
        uint32_t whole = crc32c_table(0, bytes, size);
        size_t cut = size / 3;

        assert_int_equal(crc32c(0, bytes, size), whole);
        assert_int_equal(crc32c(crc32c(0, bytes, cut), bytes + cut, size - cut), whole);
        assert_int_equal(
            crc32c_join(crc32c(0, bytes, cut), crc32c(0, bytes + cut, size - cut), size - cut),
            whole);
    }
    for (size_t cut = 0; cut < sizeof(bytes); cut += 777) {
        assert_int_equal(crc32c_join(crc32c(0, bytes, cut),
                             crc32c(0, bytes + cut, sizeof(bytes) - cut), sizeof(bytes) - cut),
            crc32c(0, bytes, sizeof(bytes)));
    }
    for (size_t i = 0; i < 200; i++) { /* long ones are folded, or summed in streams */
        size_t from = random_below(&seed, sizeof(bytes) / 2);
        size_t size = random_below(&seed, sizeof(bytes) - from + 1);

        const uint32_t plain = crc32c_table((uint32_t)i, bytes + from, size);

        assert_int_equal(crc32c((uint32_t)i, bytes + from, size), plain);
        assert_int_equal(crc32c_streams((uint32_t)i, bytes + from, size), plain);
    }
}

static void test_header(void **state)
{
    struct payload_writer writer = {0};
    struct payload_header peeked;
    struct payload_reader reader;
    struct error err;

    (void)state;
    frame_begin(&writer);
    payload_end(&writer);
    assert_int_equal(writer.size, PAYLOAD_HEADER_SIZE);
    frame_open(&reader, &writer);
    assert_int_equal(payload_peek(&peeked, writer.bytes, writer.size, &err), ADTOPK_OK);
    for (int i = 0; i < 2; i++) {
        const struct payload_header *got = i == 0 ? &reader.header : &peeked;

        assert_true(got->run == some_header.run && got->number == some_header.number);
        assert_true(got->view == some_header.view && got->bucket == some_header.bucket);
        assert_true(got->source == some_header.source && got->kind == some_header.kind);
        assert_true(got->phase == some_header.phase && got->flags == some_header.flags);
        assert_true(got->loss_scale == some_header.loss_scale);
        assert_true(got->loss_rank == some_header.loss_rank);
        assert_int_equal(got->sections, 0);
    }
    assert_false(payload_next_is_dense(&reader));
    assert_int_equal(payload_close(&reader, &err), ADTOPK_OK);
    payload_free(&writer);
    assert_null(writer.bytes);
}

static void test_random_lists(void **state)
{
    static const uint64_t sizes[] = {
        0, 1, 2, 7, 8, 9, 63, 64, 65, 127, 128, 129, 1000, 4096, 30011, 100000};
    uint64_t seed = 1;

    (void)state;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        uint64_t n = sizes[s];
        uint64_t takes[] = {0, n > 0, n / 1000, n / 100, n / 5, n - n / 20, n};

        for (size_t t = 0; t < sizeof(takes) / sizeof(takes[0]); t++) {
            struct payload_shape shape = shape_of(1, n, 1);
            struct sparse list = list_make(takes[t]);

            list_sample(&list, 0, n, takes[t], &seed);
            check_encodings(&shape, &list);
            list_free(&list);
        }
    }
}

static void test_random_rows(void **state)
{
    static const uint64_t lengths[] = {1, 2, 3, 31, 32, 33, 256, 257};
    uint64_t seed = 2;

    (void)state;
    for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
        uint64_t length = lengths[l];
        uint64_t takes[] = {1, length / 16 + 1, length};

        for (size_t t = 0; t < sizeof(takes) / sizeof(takes[0]); t++) {
            struct payload_shape shape = shape_of(12, length, 1 + 3 * (t % 2));
            struct sparse list = random_rows(&shape, takes[t], &seed);
            enum payload_index chosen;

            check_encodings(&shape, &list);
            (void)round_trip(&shape, &list, PAYLOAD_INDEX_ROWS, PAYLOAD_VALUE_F32, &chosen);
            assert_int_equal(chosen, PAYLOAD_INDEX_ROWS);
            list_free(&list);
        }
    }
}

/* A list that lacks the promised count in a fibre takes another encoding, without an error. */
static void test_rows_fallback(void **state)
{
    struct payload_shape shape = shape_of(4, 10, 1);
    struct sparse list = list_make(8);
    static const uint32_t uneven[8] = {0, 1, 2, 13, 24, 25, 36, 37};
    enum payload_index chosen;

    (void)state;
    shape.per_fibre = 2;
    memcpy(list.position, uneven, sizeof(uneven));
    memset(list.value, 0, 8 * sizeof(float));
    list.count = 8;
    (void)round_trip(&shape, &list, PAYLOAD_INDEX_ROWS, PAYLOAD_VALUE_F32, &chosen);
    assert_int_not_equal(chosen, PAYLOAD_INDEX_ROWS);
    list.count = 7;
    (void)round_trip(&shape, &list, PAYLOAD_INDEX_ROWS, PAYLOAD_VALUE_F32, &chosen);
    assert_int_not_equal(chosen, PAYLOAD_INDEX_ROWS);
    list_free(&list);
}

/* The widest possible positions, and a run that costs nothing. */
static void test_extreme_positions(void **state)
{
    struct payload_shape shape = shape_of(1, VIEW_MAX_ELEMENTS, 1);
    struct sparse list = list_make(300);
    uint64_t seed = 3;
    enum payload_index chosen;
    size_t size;

    (void)state;
    shape.max_count = list.capacity;
    list_push(&list, 0, &seed);
    list_push(&list, UINT32_MAX - 1, &seed);
    (void)round_trip(&shape, &list, PAYLOAD_INDEX_DELTA, PAYLOAD_VALUE_F32, &chosen);
    assert_int_equal(chosen, PAYLOAD_INDEX_DELTA);
    (void)round_trip(&shape, &list, PAYLOAD_INDEX_RAW, PAYLOAD_VALUE_F32, &chosen);
    list.count = 0;
    for (uint64_t i = 0; i < 300; i++) {
        list_push(&list, i, &seed);
    }
    size = round_trip(&shape, &list, PAYLOAD_INDEX_AUTO, PAYLOAD_VALUE_BF16, &chosen);
    assert_int_equal(chosen, PAYLOAD_INDEX_DELTA); /* Rice takes a bit each */
    assert_int_equal(size, PAYLOAD_HEADER_SIZE + PAYLOAD_SECTION_MAX + 3 + 300 * 2);
    list_free(&list);
}

static void test_dense(void **state)
{
    uint64_t seed = 5;

    (void)state;
    for (uint64_t n = 0; n < 700; n += 1 + n / 2) {
        for (unsigned v = 0; v < PAYLOAD_VALUE_COUNT; v++) {
            enum payload_value value = (enum payload_value)v;
            struct payload_writer writer = {0};
            struct payload_reader reader;
            struct sparse x = list_make(n);
            float *decoded = need(n * sizeof(float));
            float *got = need(n * sizeof(float));
            float *wanted = need(n * sizeof(float));
            struct error err;

            list_sample(&x, 0, n, n, &seed);
            frame_begin(&writer);
            assert_int_equal(payload_put_dense(&writer, x.value, n, value, decoded), ADTOPK_OK);
            assert_int_equal(writer.size, PAYLOAD_HEADER_SIZE + payload_dense_size(n, value));
            payload_end(&writer);
            frame_open(&reader, &writer);
            assert_true(payload_next_is_dense(&reader));
            assert_int_equal(payload_get_dense(&reader, got, n + 1, &err), ADTOPK_ERR_PROTOCOL);
            assert_non_null(strstr(err.text, "count"));
            assert_int_equal(payload_get_dense(&reader, got, n, &err), ADTOPK_OK);
            assert_int_equal(payload_close(&reader, &err), ADTOPK_OK);
            assert_same_bits(got, decoded, n);
            reference_values(x.value, n, value, wanted);
            assert_same_bits(got, wanted, n);
            free(wanted);
            list_free(&x);
            free(decoded);
            free(got);
            payload_free(&writer);
        }
    }
}

/* Writes x as a section in pieces, from its end, between two others, and ends the frame. */
static void put_pieces(
    struct payload_writer *writer, const float *x, uint64_t n, enum payload_value value)
{
    const uint64_t middle = n / 3;
    struct payload_room room;

    frame_begin(writer);
    assert_int_equal(payload_put_bytes(writer, "abc", 3), ADTOPK_OK);
    assert_int_equal(payload_reserve(writer, payload_dense_size(n, value) + 64), ADTOPK_OK);
    assert_int_equal(payload_make_room(writer, n, value, &room), ADTOPK_OK);
    payload_fill_room(&room, middle, x + middle, n - middle);
    payload_fill_room(&room, 0, x, middle);
    assert_int_equal(payload_put_bytes(writer, "de", 2), ADTOPK_OK);
    payload_end(writer);
}

/* Adds the section in pieces to sums that are there, and passes the other two. */
static void add_pieces(const struct payload_writer *writer, float *sum, uint64_t n)
{
    const uint64_t middle = n / 2;
    const uint8_t *bytes;
    struct payload_dense dense;
    struct payload_reader reader;
    struct error err;
    size_t size;

    frame_open(&reader, writer);
    assert_int_equal(payload_find_dense(&reader, n, &dense, &err), ADTOPK_ERR_PROTOCOL);
    assert_int_equal(payload_get_bytes(&reader, 3, &bytes, &size, &err), ADTOPK_OK);
    assert_int_equal(payload_find_dense(&reader, n + 1, &dense, &err), ADTOPK_ERR_PROTOCOL);
    assert_non_null(strstr(err.text, "count"));
    assert_int_equal(payload_find_dense(&reader, n, &dense, &err), ADTOPK_OK);
    assert_int_equal(payload_get_bytes(&reader, 2, &bytes, &size, &err), ADTOPK_OK);
    assert_memory_equal(bytes, "de", 2);
    assert_int_equal(payload_close(&reader, &err), ADTOPK_OK);
    assert_int_equal(payload_add_dense(&dense, middle, sum + middle, n - middle, &err), ADTOPK_OK);
    assert_int_equal(payload_add_dense(&dense, 0, sum, middle, &err), ADTOPK_OK);
}

/* A section that is written and added in pieces has the values of one that is written at once. */
static void test_dense_pieces(void **state)
{
    static const enum payload_value values[] = {
        PAYLOAD_VALUE_F32, PAYLOAD_VALUE_BF16, PAYLOAD_VALUE_F16};
    uint64_t seed = 7;

    (void)state;
    for (uint64_t n = 0; n < 700; n += 1 + n / 2) {
        for (unsigned v = 0; v < 3; v++) {
            struct payload_writer writer = {0};
            struct sparse x = list_make(n);
            float *sum = need(n * sizeof(float));
            float *wanted = need(n * sizeof(float));

            list_sample(&x, 0, n, n, &seed);
            reference_values(x.value, n, values[v], wanted);
            for (uint64_t i = 0; i < n; i++) {
                sum[i] = (float)i - 5;
                wanted[i] = sum[i] + wanted[i];
            }
            put_pieces(&writer, x.value, n, values[v]);
            add_pieces(&writer, sum, n);
            assert_same_bits(sum, wanted, n);
            list_free(&x);
            free(sum);
            free(wanted);
            payload_free(&writer);
        }
    }
}

/* A list of a strided view, written densely, lies in memory order. */
static void test_list_as_dense(void **state)
{
    struct payload_shape shape = shape_of(6, 5, 3);
    struct payload_writer writer = {0};
    struct payload_reader reader;
    uint64_t seed = 6;
    struct sparse list = random_rows(&shape, 2, &seed);
    struct sparse fed_back = list_copy(&list);
    float x[30] = {0}, wanted[30], got[30];
    struct error err;

    (void)state;
    for (size_t i = 0; i < list.count; i++) {
        uint64_t fibre = list.position[i] / 5;

        x[fibre / 3 * 15 + fibre % 3 + list.position[i] % 5 * 3] = list.value[i];
    }
    for (unsigned v = 0; v < PAYLOAD_VALUE_COUNT; v++) {
        if (v == PAYLOAD_VALUE_SIGN) {
            continue; /* it has no 0 */
        }
        memcpy(fed_back.value, list.value, list.count * sizeof(float));
        frame_begin(&writer);
        assert_int_equal(payload_put_list(&writer, &shape, &fed_back, PAYLOAD_INDEX_DENSE,
                             (enum payload_value)v),
            ADTOPK_OK);
        payload_end(&writer);
        frame_open(&reader, &writer);
        assert_int_equal(payload_get_dense(&reader, got, 30, &err), ADTOPK_OK);
        reference_values(x, 30, v, wanted);
        assert_same_bits(got, wanted, 30);
        for (size_t i = 0; i < list.count; i++) {
            uint64_t element = view_element(&shape.view, list.position[i]);

            assert_same_bits(&fed_back.value[i], &wanted[element], 1);
        }
    }
    list_free(&list);
    list_free(&fed_back);
    payload_free(&writer);
}

static void test_sizes_do_not_overflow(void **state)
{
    struct payload_writer writer = {0};
    float x = 1;

    (void)state;
    assert_true(payload_dense_size(UINT64_MAX, PAYLOAD_VALUE_F32) == SIZE_MAX);
    assert_int_equal(payload_dense_size(3, PAYLOAD_VALUE_BF16), 8 + 6);
    assert_int_equal(payload_dense_size(3, PAYLOAD_VALUE_F16), 8 + 6);
    assert_int_equal(payload_dense_size(128, PAYLOAD_VALUE_INT8), 8 + 2 + 128);
    assert_int_equal(payload_dense_size(129, PAYLOAD_VALUE_INT8), 8 + 2 + 128 + 2 + 1);
    assert_int_equal(payload_dense_size(129, PAYLOAD_VALUE_TWO), 8 + 4 + 32 + 4 + 2);
    assert_int_equal(payload_dense_size(129, PAYLOAD_VALUE_SIGN), 8 + 2 + 16 + 2 + 1);
    assert_int_equal(payload_dense_size(129, PAYLOAD_VALUE_INT4), 8 + 2 + 64 + 2 + 4);
    assert_int_equal(payload_dense_size(129, PAYLOAD_VALUE_INT3), 8 + 2 + 48 + 2 + 3);
    frame_begin(&writer);
    assert_int_equal(
        payload_put_dense(&writer, &x, UINT64_MAX / 2, PAYLOAD_VALUE_F32, NULL), ADTOPK_ERR_MEMORY);
    assert_int_equal(payload_put_bytes(&writer, &x, SIZE_MAX), ADTOPK_ERR_MEMORY);
    payload_free(&writer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc_vectors),
        cmocka_unit_test(test_header),
        cmocka_unit_test(test_random_lists),
        cmocka_unit_test(test_random_rows),
        cmocka_unit_test(test_rows_fallback),
        cmocka_unit_test(test_extreme_positions),
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_dense_pieces),
        cmocka_unit_test(test_list_as_dense),
        cmocka_unit_test(test_sizes_do_not_overflow),
    };

    return cmocka_run_group_tests_name("payload", tests, NULL, NULL);
}
