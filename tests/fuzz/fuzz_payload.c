/*
 * Fuzzes the payload decoder, and the encoder with the decoded lists. Every list is written again
 * in all possible ways, also where memory runs out, and must come back.
 *
 * The input is a prefix with the receiver's registered shape, and then a frame's sections. The
 * target makes the frame's header, with the right length and CRC, so that the section decoders are
 * reached. One mode takes the rest of the input as a whole frame to reach the header's checks.
 *
 * Prefix: mode (bit 0), parts (3 bits) and part (4 bits); sections, reader operations (2 bits per
 * section), fibres (2), length (2), shift of the length, stride, per_fibre, max_count (2). Integers
 * are little-endian.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/partition.h"
#include "kernels/base/quantise.h"
#include "proto/payload.h"

#define PREFIX_SIZE 12
#define DENSE_LIMIT 65536 /* elements that a dense section may have here */
#define AGAIN_LIMIT                                                                                \
    2048 /* largest tensor for encodings that take bytes or bits for every                         \
          * element */

enum { MODE_SECTIONS, MODE_FRAME, MODE_COUNT };
enum { READ_LIST, READ_DENSE, READ_BYTES, READ_AS_SENT };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(condition) check((condition), #condition, __LINE__)

static void check(bool holds, const char *condition, int line)
{
    if (!holds) {
        fprintf(stderr, "fuzz_payload.c:%d: %s does not hold\n", line, condition);
        abort();
    }
}

static void *need(size_t size)
{
    void *memory = malloc(size > 0 ? size : 1);

    CHECK(memory != NULL);
    return memory;
}

static struct sparse list_make(size_t capacity)
{
    return (struct sparse){
        .position = need(capacity * sizeof(uint32_t)),
        .value = need(capacity * sizeof(float)),
        .capacity = capacity,
    };
}

static void list_free(struct sparse *list)
{
    free(list->position);
    free(list->value);
}

static struct payload_shape read_shape(const uint8_t *prefix)
{
    struct payload_shape shape = {.parts = prefix[0] >> 1 & 7};
    uint64_t length = (uint64_t)(prefix[5] | prefix[6] << 8) << prefix[7] % 17;

    shape.view.fibres = (uint64_t)(prefix[3] | prefix[4] << 8);
    if (shape.view.fibres > 0 && length > VIEW_MAX_ELEMENTS / shape.view.fibres) {
        length = VIEW_MAX_ELEMENTS / shape.view.fibres;
    }
    shape.view.length = length;
    /* The stride divides the fibres, as in every real view. */
    shape.view.stride = 1u + prefix[8] % 4u;
    if (shape.view.fibres % shape.view.stride != 0) {
        shape.view.stride = 1;
    }
    shape.part = shape.parts > 0 ? (uint32_t)(prefix[0] >> 4) % shape.parts : 0;
    shape.per_fibre = prefix[9];
    shape.max_count = (uint64_t)(prefix[10] | prefix[11] << 8);
    return shape;
}

static bool same_value(float a, float b)
{
    return memcmp(&a, &b, sizeof(a)) == 0;
}

static void check_list(const struct payload_shape *shape, const struct sparse *list)
{
    CHECK(list->count <= shape->max_count);
    for (size_t i = 0; i < list->count; i++) {
        CHECK(list->position[i] < view_size(&shape->view));
        CHECK(i == 0 || list->position[i] > list->position[i - 1]);
        CHECK(shape->parts < 2 || partition_of(list->position[i], shape->parts) == shape->part);
    }
}

static bool has_nan(const float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (isnan(x[i])) {
            return true;
        }
    }
    return false;
}

/* Encodes a decoded list and decodes it again: it must come back. If the encoding is that of the
 * `size` bytes `sent` (not NULL), its bytes must be these. Returns the size of the section. `list`
 * takes the rounding, which changes nothing but the payload of a NaN. */
static size_t check_round_trip(const struct payload_shape *shape, struct sparse *list,
    enum payload_index index, enum payload_value value, const uint8_t *sent)
{
    struct payload_header header = {.sections = 0};
    struct payload_writer writer = {0};
    struct payload_reader reader;
    struct sparse again = list_make(list->count);
    bool compared = sent != NULL && !has_nan(list->value, list->count);
    size_t size;

    CHECK(payload_begin(&writer, &header) == ADTOPK_OK);
    CHECK(payload_put_list(&writer, shape, list, index, value) == ADTOPK_OK);
    payload_end(&writer);
    size = writer.size - PAYLOAD_HEADER_SIZE;
    CHECK(!compared || memcmp(writer.bytes + PAYLOAD_HEADER_SIZE, sent, size) == 0);
    CHECK(payload_open(&reader, writer.bytes, writer.size, NULL) == ADTOPK_OK);
    CHECK(payload_get_list(&reader, shape, &again, NULL) == ADTOPK_OK);
    CHECK(payload_close(&reader, NULL) == ADTOPK_OK);
    CHECK(again.count == list->count);
    for (size_t i = 0; i < list->count; i++) {
        CHECK(again.position[i] == list->position[i]);
        CHECK(same_value(again.value[i], list->value[i]));
    }
    list_free(&again);
    payload_free(&writer);
    return size;
}

/* ------------------------------------------------------------------ writing lists again */

/* The payload's writer allocates with these two, which the linker puts before the allocator's. */
static unsigned allocations_left = UINT32_MAX;

void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *pointer, size_t size);

static bool memory_is_left(void)
{
    allocations_left -= allocations_left > 0 ? 1 : 0;
    return allocations_left > 0;
}

void *__wrap_calloc(size_t count, size_t size)
{
    return memory_is_left() ? __real_calloc(count, size) : NULL;
}

void *__wrap_realloc(void *pointer, size_t size)
{
    return memory_is_left() ? __real_realloc(pointer, size) : NULL;
}

/* A list that was read, twice: as its sections have it, and as the dense section has it. */
struct again {
    const struct payload_shape *shape;
    enum payload_value value;
    bool small; /* at most AGAIN_LIMIT elements */
    bool dense; /* and the values can be 0 */
    struct sparse list;
    struct sparse densely;
};

static struct sparse list_copy(const struct sparse *list)
{
    struct sparse copy = list_make(list->count);

    memcpy(copy.position, list->position, list->count * sizeof(*copy.position));
    memcpy(copy.value, list->value, list->count * sizeof(*copy.value));
    copy.count = list->count;
    return copy;
}

static bool again_has(const struct again *again, unsigned index)
{
    bool bits = index == PAYLOAD_INDEX_BITMAP || index == PAYLOAD_INDEX_HASHMAP;

    return index != PAYLOAD_INDEX_DENSE && (again->small || !bits);
}

static enum adtopk_status again_write(struct again *again, struct payload_writer *writer)
{
    struct payload_header header = {.run = 1};
    enum adtopk_status status = payload_begin(writer, &header);

    for (unsigned i = 0; status == ADTOPK_OK && i < PAYLOAD_INDEX_COUNT; i++) {
        if (again_has(again, i)) {
            status = payload_put_list(
                writer, again->shape, &again->list, (enum payload_index)i, again->value);
        }
    }
    if (status == ADTOPK_OK && again->dense) {
        status = payload_put_list(
            writer, again->shape, &again->densely, PAYLOAD_INDEX_DENSE, again->value);
    }
    if (status == ADTOPK_OK) {
        status =
            payload_put_dense(writer, again->list.value, again->list.count, again->value, NULL);
    }
    if (status == ADTOPK_OK) {
        status = payload_put_bytes(writer, again->list.position, again->list.count);
    }
    if (status == ADTOPK_OK) {
        CHECK(payload_put_bytes(writer, &header, SIZE_MAX) == ADTOPK_ERR_MEMORY);
        payload_end(writer);
    }
    return status;
}

static void again_read_dense(const struct again *again, struct payload_reader *reader)
{
    const struct sparse *list = &again->densely;
    uint64_t n = view_size(&again->shape->view);
    float *x = need(n * sizeof(*x));

    CHECK(payload_next_is_dense(reader));
    CHECK((uint64_t)(reader->end - reader->next) > payload_dense_size(n, again->value));
    CHECK(payload_get_dense(reader, x, n, NULL) == ADTOPK_OK);
    for (size_t i = 0; i < list->count; i++) {
        float *element = &x[view_element(&again->shape->view, list->position[i])];

        CHECK(same_value(*element, list->value[i]));
        *element = 0;
    }
    for (uint64_t i = 0; i < n; i++) {
        CHECK(same_value(x[i], 0));
    }
    free(x);
}

static void again_read(const struct again *again, const struct payload_writer *writer)
{
    struct payload_reader reader;
    struct sparse got = list_make(again->list.count);
    size_t count = again->list.count, size;
    const uint8_t *bytes;

    CHECK(payload_open(&reader, writer->bytes, writer->size, NULL) == ADTOPK_OK);
    for (unsigned i = 0; i < PAYLOAD_INDEX_COUNT; i++) {
        if (again_has(again, i)) {
            CHECK(payload_next_count(&reader, again->shape) == count);
            CHECK(payload_get_list(&reader, again->shape, &got, NULL) == ADTOPK_OK);
            CHECK(got.count == count);
            CHECK(memcmp(got.position, again->list.position, count * sizeof(uint32_t)) == 0);
            CHECK(memcmp(got.value, again->list.value, count * sizeof(float)) == 0);
        }
    }
    if (again->dense) {
        again_read_dense(again, &reader);
    }
    CHECK(payload_get_dense(&reader, got.value, count, NULL) == ADTOPK_OK);
    CHECK(memcmp(got.value, again->list.value, count * sizeof(float)) == 0);
    CHECK(payload_get_bytes(&reader, count, &bytes, &size, NULL) == ADTOPK_OK);
    CHECK(size == count && memcmp(bytes, again->list.position, count) == 0);
    CHECK(payload_close(&reader, NULL) == ADTOPK_OK);
    list_free(&got);
}

/* Writes a list in every way with these values, which it is rounded to first: that changes nothing
 * more. The first attempts find less and less memory missing, and say so. */
static void check_again(
    const struct payload_shape *shape, const struct sparse *list, enum payload_value value)
{
    struct again again = {.shape = shape,
        .value = value,
        .small = view_size(&shape->view) <= AGAIN_LIMIT,
        .dense = view_size(&shape->view) <= AGAIN_LIMIT && value != PAYLOAD_VALUE_SIGN,
        .list = list_copy(list),
        .densely = list_copy(list)};
    struct sparse rounded;
    enum adtopk_status status = ADTOPK_ERR_MEMORY;

    quantise_values(again.list.value, list->count, (enum quantisation)value, list->count);
    rounded = list_copy(&again.list);
    for (unsigned allowed = 1; status != ADTOPK_OK; allowed++) {
        struct payload_writer writer = {0};

        allocations_left = allowed;
        status = again_write(&again, &writer);
        allocations_left = UINT32_MAX;
        CHECK(status == ADTOPK_OK || status == ADTOPK_ERR_MEMORY);
        if (status == ADTOPK_OK) {
            again_read(&again, &writer);
        }
        payload_free(&writer);
    }
    CHECK(memcmp(again.list.value, rounded.value, list->count * sizeof(float)) == 0);
    list_free(&rounded);
    list_free(&again.list);
    list_free(&again.densely);
}

/* ------------------------------------------------------------------ reading */

/* A value takes a bit at least: no more of them can be there, and need memory. */
static size_t at_most(uint64_t count, const struct payload_reader *reader)
{
    size_t left = (size_t)(reader->end - reader->next) * 8;

    return count < left ? (size_t)count : left;
}

static enum adtopk_status read_list(
    struct payload_reader *reader, const struct payload_shape *shape, struct error *err)
{
    uint64_t count = payload_next_count(reader, shape);
    struct sparse list = list_make(count);
    const uint8_t *begin = reader->next;
    enum adtopk_status status = payload_get_list(reader, shape, &list, err);

    if (status == ADTOPK_OK) {
        enum payload_index index = (enum payload_index)(*begin & 15);
        enum payload_value value = (enum payload_value)(*begin >> 4);
        size_t sent = (size_t)(reader->next - begin), again;

        CHECK(list.count == count);
        check_list(shape, &list);
        /* One list has one encoding of a kind, and AUTO is larger by at most 2 %. */
        CHECK(check_round_trip(shape, &list, index, value, begin) == sent);
        again = check_round_trip(shape, &list, PAYLOAD_INDEX_AUTO, value, NULL);
        CHECK(again <= sent * 51 / 50);
        CHECK(again <= payload_list_bound(shape, count, value) || shape->per_fibre > 0);
        /* Takes most of the time: for some inputs, so that three times as many are tried. */
        if (sent % 8 == 0) {
            check_again(shape, &list, (enum payload_value)((value + count) % PAYLOAD_VALUE_COUNT));
        }
    } else {
        CHECK(list.count == 0);
        CHECK(reader->next == begin);
    }
    list_free(&list);
    return status;
}

/* Encodes the list that was decoded from these bytes: they must come back. */
static void check_dense(const float *x, uint64_t n, const uint8_t *sent, size_t size)
{
    struct payload_header header = {.sections = 0};
    struct payload_writer writer = {0};
    float *decoded = need(n * sizeof(*decoded));

    CHECK(payload_dense_size(n, (enum payload_value)(*sent >> 4)) == size);
    CHECK(payload_dense_size(UINT64_MAX - n, (enum payload_value)(*sent >> 4)) == SIZE_MAX);
    CHECK(payload_begin(&writer, &header) == ADTOPK_OK);
    CHECK(payload_put_dense(&writer, x, UINT64_MAX, PAYLOAD_VALUE_F32, NULL) == ADTOPK_ERR_MEMORY);
    CHECK(payload_put_dense(&writer, x, n, (enum payload_value)(*sent >> 4), decoded) == ADTOPK_OK);
    CHECK(writer.size - PAYLOAD_HEADER_SIZE == size);
    CHECK(has_nan(x, n) || memcmp(decoded, x, n * sizeof(*x)) == 0);
    CHECK(has_nan(x, n) || memcmp(writer.bytes + PAYLOAD_HEADER_SIZE, sent, size) == 0);
    payload_free(&writer);
    free(decoded);
}

/* A section that is read in pieces has the elements x of one that is read at once. reader: before
 * the section. */
static void check_pieces(struct payload_reader reader, const float *x, uint64_t n)
{
    const bool blocked = payload_value_is_blocked(payload_next_value(&reader));
    struct payload_dense dense;
    float *sum;

    CHECK((payload_find_dense(&reader, n, &dense, NULL) == ADTOPK_OK) == !blocked);
    if (blocked) {
        return;
    }
    sum = need(n * sizeof(*sum));
    for (uint64_t i = 0; i < n; i++) {
        sum[i] = 0;
    }
    CHECK(payload_add_dense(&dense, n / 2, sum + n / 2, n - n / 2, NULL) == ADTOPK_OK);
    CHECK(payload_add_dense(&dense, 0, sum, n / 2, NULL) == ADTOPK_OK);
    for (uint64_t i = 0; i < n; i++) {
        CHECK(sum[i] == x[i] || (isnan(sum[i]) && isnan(x[i])));
    }
    free(sum);
}

static enum adtopk_status read_dense(
    struct payload_reader *reader, const struct payload_shape *shape, struct error *err)
{
    uint64_t n = view_size(&shape->view);
    const uint8_t *begin = reader->next;
    const struct payload_reader before = *reader;
    enum adtopk_status status;
    float *x;

    n = n < DENSE_LIMIT ? n : DENSE_LIMIT;
    x = need(at_most(n, reader) * sizeof(*x));
    status = payload_get_dense(reader, x, n, err);
    if (status == ADTOPK_OK) {
        check_dense(x, n, begin, (size_t)(reader->next - begin));
        check_pieces(before, x, n);
    }
    free(x);
    return status;
}

static enum adtopk_status read_bytes(
    struct payload_reader *reader, const struct payload_shape *shape, struct error *err)
{
    const uint8_t *bytes;
    size_t size;
    enum adtopk_status status = payload_get_bytes(reader, shape->max_count, &bytes, &size, err);

    if (status == ADTOPK_OK) {
        CHECK(size <= shape->max_count);
        CHECK(bytes + size == reader->next && reader->next <= reader->end);
    }
    return status;
}

static void read_frame(
    const uint8_t *bytes, size_t size, const struct payload_shape *shape, unsigned operations)
{
    const uint8_t *rest;
    size_t rest_size;
    struct payload_reader reader = {.left = 0};
    struct error err = {ADTOPK_OK, ""};
    enum adtopk_status status = payload_open(&reader, bytes, size, &err);

    while (status == ADTOPK_OK && reader.left > 0) {
        unsigned operation = operations & 3;

        operations = operations >> 2 | (operations & 3) << 6;
        if (operation == READ_AS_SENT) {
            operation = payload_next_is_dense(&reader) ? READ_DENSE : READ_LIST;
        }
        if (operation == READ_LIST) {
            status = read_list(&reader, shape, &err);
        } else if (operation == READ_DENSE) {
            status = read_dense(&reader, shape, &err);
        } else {
            status = read_bytes(&reader, shape, &err);
        }
    }
    if (status == ADTOPK_OK) {
        CHECK(payload_get_bytes(&reader, size, &rest, &rest_size, NULL) != ADTOPK_OK);
        CHECK(payload_next_count(&reader, shape) == 0);
        status = payload_close(&reader, &err);
    } else if (reader.left > 0) {
        CHECK(payload_close(&reader, &err) == status);
    }
    CHECK(status == ADTOPK_OK || (err.code == status && err.text[0] != '\0'));
}

/* A frame in a block of exactly its size, so that a sanitizer sees the first byte read behind. */
static void read_sections(const uint8_t *body, size_t size, uint8_t sections,
    const struct payload_shape *shape, unsigned operations)
{
    struct payload_header header = {.run = 1, .number = 2, .source = 3};
    size_t frame = PAYLOAD_HEADER_SIZE + size;
    struct payload_writer writer = {.bytes = need(frame), .capacity = frame};

    CHECK(payload_begin(&writer, &header) == ADTOPK_OK);
    memcpy(writer.bytes + PAYLOAD_HEADER_SIZE, body, size);
    writer.size = frame;
    writer.sections = sections;
    payload_end(&writer);
    read_frame(writer.bytes, writer.size, shape, operations);
    payload_free(&writer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct payload_shape shape;
    struct payload_header header;

    if (size < PREFIX_SIZE) {
        return 0;
    }
    shape = read_shape(data);
    if (data[0] % MODE_COUNT == MODE_FRAME) {
        (void)payload_peek(&header, data + PREFIX_SIZE, size - PREFIX_SIZE, NULL);
        read_frame(data + PREFIX_SIZE, size - PREFIX_SIZE, &shape, data[2]);
    } else {
        read_sections(data + PREFIX_SIZE, size - PREFIX_SIZE, data[1], &shape, data[2]);
    }
    return 0;
}
