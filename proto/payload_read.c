/* The decoder of payload.h: it trusts nothing. */
#include <inttypes.h>

#include "kernels/base/convert.h"
#include "kernels/base/partition.h"
#include "proto/bits.h"
#include "proto/loss_scale.h"
#include "proto/payload_frame.h"
#include "proto/payload_index.h"
#include "proto/payload_values.h"

static enum adtopk_status payload_read_check_header(
    const uint8_t *bytes, size_t size, struct error *err)
{
    uint64_t length;

    if (size < PAYLOAD_HEADER_SIZE) {
        return error_set(
            err, ADTOPK_ERR_PROTOCOL, "payload header: %zu bytes of %d", size, PAYLOAD_HEADER_SIZE);
    }
    if (memcmp(bytes + AT_MAGIC, PAYLOAD_MAGIC, PAYLOAD_MAGIC_SIZE) != 0) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "payload magic: this is no payload");
    }
    if (load_u16(bytes + AT_VERSION) != PAYLOAD_VERSION) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "payload version: %u, known is %d",
            load_u16(bytes + AT_VERSION), PAYLOAD_VERSION);
    }
    for (unsigned at = AT_RESERVED; at < AT_CRC; at++) {
        if (bytes[at] != 0) {
            return error_set(
                err, ADTOPK_ERR_PROTOCOL, "payload header: reserved byte %u is not zero", at);
        }
    }
    length = load_u64(bytes + AT_LENGTH);
    if (length < size) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload length: %" PRIu64 ", but %zu bytes came", length, size);
    }
    if (load_u32(bytes + AT_SECTIONS) > (length - PAYLOAD_HEADER_SIZE) / PAYLOAD_SECTION_MAX) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload sections: %" PRIu32 " do not fit in %" PRIu64 " bytes",
            load_u32(bytes + AT_SECTIONS), length);
    }
    return ADTOPK_OK;
}

enum adtopk_status payload_peek(
    struct payload_header *header, const void *bytes, size_t size, struct error *err)
{
    const uint8_t *from = bytes;
    enum adtopk_status status = payload_read_check_header(from, size, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    *header = (struct payload_header){
        .run = load_u64(from + AT_RUN),
        .number = load_u64(from + AT_NUMBER),
        .view = load_u32(from + AT_VIEW),
        .bucket = load_u32(from + AT_BUCKET),
        .source = load_u16(from + AT_SOURCE),
        .kind = from[AT_KIND],
        .phase = from[AT_PHASE],
        .flags = from[AT_FLAGS],
        .loss_scale = convert_float(load_u32(from + AT_LOSS_SCALE)),
        .loss_rank = load_u32(from + AT_LOSS_RANK),
        .sections = load_u32(from + AT_SECTIONS),
    };
    return ADTOPK_OK;
}

/* whole: the CRC of all bytes; NULL: it is not known. */
static enum adtopk_status payload_read_open(struct payload_reader *reader, const uint8_t *from,
    size_t size, const uint32_t *whole, struct error *err)
{
    enum adtopk_status status = payload_peek(&reader->header, from, size, err);
    uint32_t crc;

    if (status != ADTOPK_OK) {
        return status;
    }
    if (load_u64(from + AT_LENGTH) != size) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload length: %" PRIu64 ", but %zu bytes came", load_u64(from + AT_LENGTH), size);
    }
    crc = whole != NULL ? frame_crc_exchange(*whole, from, size) : frame_crc(from, size);
    if (load_u32(from + AT_CRC) != crc) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "payload crc: the frame is damaged");
    }
    if (load_u32(from + AT_LOSS_SCALE) != 0 && !loss_scale_is_valid(reader->header.loss_scale)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "payload loss scale: %g is none",
            (double)reader->header.loss_scale);
    }
    reader->next = from + PAYLOAD_HEADER_SIZE;
    reader->end = from + size;
    reader->left = reader->header.sections;
    reader->unpushed = reader->nonfinite = NULL;
    return ADTOPK_OK;
}

enum adtopk_status payload_open(
    struct payload_reader *reader, const void *bytes, size_t size, struct error *err)
{
    return payload_read_open(reader, bytes, size, NULL, err);
}

enum adtopk_status payload_open_known(
    struct payload_reader *reader, const void *bytes, size_t size, uint32_t crc, struct error *err)
{
    return payload_read_open(reader, bytes, size, &crc, err);
}

static uint32_t section_number(const struct payload_reader *reader)
{
    return reader->header.sections - reader->left;
}

/* Reads the next section's header without moving the reader. */
static enum adtopk_status next_section(
    const struct payload_reader *reader, struct section *section, struct error *err)
{
    uint64_t word;
    unsigned value;

    if (reader->left == 0) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "payload sections: the frame has only %" PRIu32,
            reader->header.sections);
    }
    if (reader->end - reader->next < PAYLOAD_SECTION_MAX) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload section %" PRIu32 ": the frame ends in its header", section_number(reader));
    }
    word = load_u64(reader->next);
    section->index = word & 15u;
    value = word >> 4 & 15u;
    section->count = word >> 8;
    if (section->index != PAYLOAD_INDEX_DENSE && section->index != SECTION_BYTES &&
        !payload_index_is_list(section->index)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload section %" PRIu32 ": unknown index encoding %u", section_number(reader),
            section->index);
    }
    if (value >= (section->index == SECTION_BYTES ? 1 : PAYLOAD_VALUE_COUNT)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload section %" PRIu32 ": unknown value encoding %u", section_number(reader),
            value);
    }
    section->value = (enum payload_value)value;
    return ADTOPK_OK;
}

static enum adtopk_status refuse_kind(
    const struct payload_reader *reader, const char *expected, struct error *err)
{
    return error_set(err, ADTOPK_ERR_PROTOCOL, "payload section %" PRIu32 ": kind is not %s",
        section_number(reader), expected);
}

static enum adtopk_status refuse_count(const struct payload_reader *reader, uint64_t count,
    const char *relation, uint64_t limit, struct error *err)
{
    return error_set(err, ADTOPK_ERR_PROTOCOL,
        "payload section %" PRIu32 ": count %" PRIu64 " %s %" PRIu64, section_number(reader), count,
        relation, limit);
}

/* The reader's place behind the next section's header. */
static struct payload_input section_body(const struct payload_reader *reader)
{
    return (struct payload_input){
        reader->next + PAYLOAD_SECTION_MAX, reader->end, section_number(reader)};
}

/* Fails unless all positions are of the shape's partition. */
static enum adtopk_status check_partition(const struct payload_reader *reader,
    const struct payload_shape *shape, const uint32_t *position, size_t count, struct error *err)
{
    for (size_t i = 0; shape->parts > 1 && i < count; i++) {
        if (partition_of(position[i], shape->parts) != shape->part) {
            return error_set(err, ADTOPK_ERR_PROTOCOL,
                "payload section %" PRIu32 ": position %" PRIu32
                " of entry %zu is not in partition %" PRIu32 " of %" PRIu32,
                section_number(reader), position[i], i, shape->part, shape->parts);
        }
    }
    return ADTOPK_OK;
}

/* Moves the reader behind a section that ends at `end`. */
static void finish_section(struct payload_reader *reader, const uint8_t *end)
{
    reader->next = end;
    reader->left--;
}

bool payload_next_is_dense(const struct payload_reader *reader)
{
    struct section section = {0};

    return next_section(reader, &section, NULL) == ADTOPK_OK &&
           section.index == PAYLOAD_INDEX_DENSE;
}

enum payload_value payload_next_value(const struct payload_reader *reader)
{
    struct section section = {0};

    return next_section(reader, &section, NULL) == ADTOPK_OK ? section.value : PAYLOAD_VALUE_F32;
}

/* A list has at most so many entries. */
static uint64_t list_limit(const struct payload_shape *shape)
{
    uint64_t positions = view_size(&shape->view);

    return shape->max_count < positions ? shape->max_count : positions;
}

/* A limit of how many values fit behind the next section's header, which is there. There are no
 * more entries than these: a short frame asks for little memory and little work. */
static uint64_t values_left(const struct payload_reader *reader, enum payload_value value)
{
    return payload_values_most((uint64_t)(reader->end - reader->next) - PAYLOAD_SECTION_MAX, value);
}

uint64_t payload_next_count(const struct payload_reader *reader, const struct payload_shape *shape)
{
    struct section section = {0};
    uint64_t limit = list_limit(shape), left;

    if (next_section(reader, &section, NULL) != ADTOPK_OK) {
        return 0;
    }
    left = values_left(reader, section.value);
    limit = left < limit ? left : limit;
    return section.count < limit ? section.count : limit;
}

static enum adtopk_status payload_read_check_count(const struct payload_reader *reader,
    const struct payload_shape *shape, const struct section *section, size_t capacity,
    struct error *err)
{
    uint64_t limit = list_limit(shape), left = values_left(reader, section->value);
    uint64_t count = section->count;

    if (count > limit) {
        return refuse_count(reader, count, "is over", limit, err);
    }
    if (count > left) {
        return refuse_count(reader, count, "is over what the bytes left can hold,", left, err);
    }
    return count <= capacity ? ADTOPK_OK : refuse_count(reader, count, "is over", capacity, err);
}

enum adtopk_status payload_get_list(struct payload_reader *reader,
    const struct payload_shape *shape, struct sparse *list, struct error *err)
{
    struct payload_input input;
    struct section section = {0};
    enum adtopk_status status = next_section(reader, &section, err);

    list->count = 0;
    if (status != ADTOPK_OK) {
        return status;
    }
    if (!payload_index_is_list(section.index)) {
        return refuse_kind(reader, "a list", err);
    }
    if (payload_read_check_count(reader, shape, &section, list->capacity, err) != ADTOPK_OK) {
        return ADTOPK_ERR_PROTOCOL;
    }
    input = section_body(reader);
    status = payload_index_read((enum payload_index)section.index, shape, &input, list->position,
        (size_t)section.count, err);
    if (status == ADTOPK_OK) {
        status = check_partition(reader, shape, list->position, (size_t)section.count, err);
    }
    if (status == ADTOPK_OK) {
        status = payload_values_read(&input, list->value, section.count, section.value, err);
    }
    if (status == ADTOPK_OK) {
        list->count = (size_t)section.count;
        finish_section(reader, input.next);
    }
    return status;
}

/* Reads the header of the next section, which must be dense and of n elements. */
static enum adtopk_status dense_section(
    const struct payload_reader *reader, uint64_t n, struct section *section, struct error *err)
{
    enum adtopk_status status = next_section(reader, section, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    if (section->index != PAYLOAD_INDEX_DENSE) {
        return refuse_kind(reader, "dense", err);
    }
    return section->count == n ? ADTOPK_OK : refuse_count(reader, section->count, "is not", n, err);
}

enum adtopk_status payload_get_dense(
    struct payload_reader *reader, float *x, uint64_t n, struct error *err)
{
    struct payload_input input;
    struct section section = {0};
    enum adtopk_status status = dense_section(reader, n, &section, err);

    if (status == ADTOPK_OK) {
        input = section_body(reader);
        status = payload_values_read(&input, x, n, section.value, err);
    }
    if (status == ADTOPK_OK) {
        finish_section(reader, input.next);
    }
    return status;
}

enum adtopk_status payload_find_dense(
    struct payload_reader *reader, uint64_t n, struct payload_dense *dense, struct error *err)
{
    struct payload_input input;
    struct section section = {0};

    if (dense_section(reader, n, &section, err) != ADTOPK_OK) {
        return err->code;
    }
    if (payload_value_is_blocked(section.value)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload section %" PRIu32 ": values of type %d are not summed", section_number(reader),
            (int)section.value);
    }
    input = section_body(reader);
    *dense = (struct payload_dense){.value = section.value, .section = section_number(reader)};
    dense->bytes = payload_input_take(&input, payload_values_size(n, section.value), "values", err);
    if (dense->bytes == NULL) {
        return ADTOPK_ERR_PROTOCOL;
    }
    finish_section(reader, input.next);
    return ADTOPK_OK;
}

enum adtopk_status payload_add_dense(
    const struct payload_dense *dense, uint64_t first, float *sum, uint64_t n, struct error *err)
{
    return payload_values_add(dense, first, sum, n, err);
}

enum adtopk_status payload_get_bytes(struct payload_reader *reader, size_t max,
    const uint8_t **bytes, size_t *size, struct error *err)
{
    struct payload_input input;
    const uint8_t *body;
    struct section section = {0};
    enum adtopk_status status = next_section(reader, &section, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    if (section.index != SECTION_BYTES) {
        return refuse_kind(reader, "bytes", err);
    }
    if (section.count > max) {
        return refuse_count(reader, section.count, "is over", max, err);
    }
    input = section_body(reader);
    body = payload_input_take(&input, section.count, "bytes", err);
    if (body == NULL) {
        return ADTOPK_ERR_PROTOCOL;
    }
    *bytes = body;
    *size = (size_t)section.count;
    finish_section(reader, input.next);
    return ADTOPK_OK;
}

enum adtopk_status payload_close(const struct payload_reader *reader, struct error *err)
{
    if (reader->left > 0) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload sections: %" PRIu32 " of %" PRIu32 " were not read", reader->left,
            reader->header.sections);
    }
    if (reader->next != reader->end) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload length: %zu bytes behind the last section",
            (size_t)(reader->end - reader->next));
    }
    return ADTOPK_OK;
}
