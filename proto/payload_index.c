#include "proto/payload_index.h"

#include <inttypes.h>

#include "proto/bits.h"
#include "proto/payload_coding.h"

const uint8_t *payload_input_take(
    struct payload_input *input, uint64_t bytes, const char *field, struct error *err)
{
    const uint8_t *taken = input->next;
    size_t left = (size_t)(input->end - input->next);

    if (bytes > left) {
        error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload section %" PRIu32 ": %s need %" PRIu64 " bytes, %zu are left", input->section,
            field, bytes, left);
        return NULL;
    }
    input->next += bytes;
    return taken;
}

enum adtopk_status payload_refuse_position(
    const struct payload_input *input, size_t entry, uint64_t position, struct error *err)
{
    return error_set(err, ADTOPK_ERR_PROTOCOL,
        "payload section %" PRIu32 ": position %" PRIu64
        " of entry %zu is outside its tensor or not above the one before",
        input->section, position, entry);
}

enum adtopk_status payload_refuse_padding(const struct payload_input *input, struct error *err)
{
    return error_set(err, ADTOPK_ERR_PROTOCOL,
        "payload section %" PRIu32 ": padding bits behind the positions are not zero",
        input->section);
}

/* RAW: u32 positions. */

static uint64_t raw_bound(const struct payload_shape *shape, uint64_t count)
{
    (void)shape;
    return count * 4;
}

static void raw_write(const struct payload_shape *shape, const struct sparse *list,
    const struct payload_scan *scan, uint8_t *out)
{
    (void)shape;
    (void)scan;
    for (size_t i = 0; i < list->count; i++) {
        store_u32(out + 4 * i, list->position[i]);
    }
}

static enum adtopk_status raw_read(const struct payload_shape *shape, struct payload_input *input,
    uint32_t *position, size_t count, struct error *err)
{
    uint64_t n = view_size(&shape->view);
    uint64_t lowest = 0; /* that the next position may have */
    const uint8_t *bytes;

    bytes = payload_input_take(input, raw_bound(shape, count), "raw positions", err);
    if (bytes == NULL) {
        return ADTOPK_ERR_PROTOCOL;
    }
    for (size_t i = 0; i < count; i++) {
        position[i] = load_u32(bytes + 4 * i);
        if (position[i] < lowest || position[i] >= n) {
            return payload_refuse_position(input, i, position[i], err);
        }
        lowest = (uint64_t)position[i] + 1;
    }
    return ADTOPK_OK;
}

static const struct index_coding coding_raw = {
    .bound = raw_bound, .write = raw_write, .read = raw_read};

/* ROWS: a fixed count a fibre; positions inside the fibre, bit-packed over the whole section. */

static uint64_t rows_per_fibre(const struct payload_shape *shape)
{
    return shape->per_fibre < shape->view.length ? shape->per_fibre : shape->view.length;
}

static unsigned rows_width(const struct payload_shape *shape)
{
    return shape->view.length == 0 ? 0 : bit_width(shape->view.length - 1);
}

static uint64_t rows_bound(const struct payload_shape *shape, uint64_t count)
{
    if (shape->per_fibre == 0 || count != shape->view.fibres * rows_per_fibre(shape)) {
        return PAYLOAD_IMPOSSIBLE;
    }
    return bit_bytes(count, rows_width(shape));
}

static uint64_t rows_size(
    const struct payload_shape *shape, const struct sparse *list, const struct payload_scan *scan)
{
    uint64_t bytes = rows_bound(shape, list->count);
    uint64_t per_fibre = rows_per_fibre(shape);
    size_t i = 0;

    (void)scan;
    if (bytes == PAYLOAD_IMPOSSIBLE || list->count == 0) {
        return bytes;
    }
    for (uint64_t fibre = 0; fibre < shape->view.fibres; fibre++) {
        uint64_t base = fibre * shape->view.length;

        /* Positions ascend, so it is enough that the fibre holds its first and its last entry. */
        if (list->position[i] < base ||
            list->position[i + per_fibre - 1] >= base + shape->view.length) {
            return PAYLOAD_IMPOSSIBLE;
        }
        i += per_fibre;
    }
    return bytes;
}

static void rows_write(const struct payload_shape *shape, const struct sparse *list,
    const struct payload_scan *scan, uint8_t *out)
{
    struct bit_writer writer = {.next = out};
    uint64_t per_fibre = rows_per_fibre(shape);
    unsigned width = rows_width(shape);
    size_t i = 0;

    (void)scan;
    while (i < list->count) {
        uint64_t base = i / per_fibre * shape->view.length;

        for (uint64_t j = 0; j < per_fibre; j++, i++) {
            bit_put(&writer, (uint32_t)(list->position[i] - base), width);
        }
    }
    bit_finish(&writer);
}

static enum adtopk_status rows_read(const struct payload_shape *shape, struct payload_input *input,
    uint32_t *position, size_t count, struct error *err)
{
    uint64_t size = rows_bound(shape, count);
    uint64_t per_fibre = rows_per_fibre(shape);
    uint64_t length = shape->view.length;
    unsigned width = rows_width(shape);
    struct bit_reader reader = {0};
    size_t i = 0;

    if (size == PAYLOAD_IMPOSSIBLE) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload section %" PRIu32 ": %zu entries in rows, but the tensor has %" PRIu64
            " fibres with %" PRIu64 " entries each",
            input->section, count, shape->view.fibres, shape->per_fibre);
    }
    reader.next = payload_input_take(input, size, "row positions", err);
    if (reader.next == NULL) {
        return ADTOPK_ERR_PROTOCOL;
    }
    reader.end = input->next;
    while (i < count) {
        uint64_t base = i / per_fibre * length;
        uint64_t lowest = 0;

        for (uint64_t j = 0; j < per_fibre; j++, i++) {
            uint64_t inside = bit_get(&reader, width);

            if (inside < lowest || inside >= length) {
                return payload_refuse_position(input, i, base + inside, err);
            }
            position[i] = (uint32_t)(base + inside);
            lowest = inside + 1;
        }
    }
    return bit_padding_is_zero(&reader) ? ADTOPK_OK : payload_refuse_padding(input, err);
}

static const struct index_coding coding_rows = {
    .bound = rows_bound, .size = rows_size, .write = rows_write, .read = rows_read};

static const struct index_coding *const codings[PAYLOAD_INDEX_COUNT] = {
    [PAYLOAD_INDEX_RAW] = &coding_raw,
    [PAYLOAD_INDEX_ROWS] = &coding_rows,
    [PAYLOAD_INDEX_DELTA] = &payload_coding_delta,
    [PAYLOAD_INDEX_BITMAP] = &payload_coding_bitmap,
    [PAYLOAD_INDEX_RICE] = &payload_coding_rice,
    [PAYLOAD_INDEX_HASHMAP] = &payload_coding_hashmap,
};

bool payload_index_is_list(unsigned index)
{
    return index < PAYLOAD_INDEX_COUNT && codings[index] != NULL;
}

bool payload_index_is_scanned(enum payload_index index)
{
    return codings[index]->scanned;
}

uint64_t payload_index_bound(
    enum payload_index index, const struct payload_shape *shape, uint64_t count)
{
    return codings[index]->bound(shape, count);
}

uint64_t payload_index_size(enum payload_index index, const struct payload_shape *shape,
    const struct sparse *list, const struct payload_scan *scan)
{
    const struct index_coding *coding = codings[index];

    return coding->size != NULL ? coding->size(shape, list, scan)
                                : coding->bound(shape, list->count);
}

void payload_index_write(enum payload_index index, const struct payload_shape *shape,
    const struct sparse *list, const struct payload_scan *scan, uint8_t *out)
{
    codings[index]->write(shape, list, scan, out);
}

enum adtopk_status payload_index_read(enum payload_index index, const struct payload_shape *shape,
    struct payload_input *input, uint32_t *position, size_t count, struct error *err)
{
    return codings[index]->read(shape, input, position, count, err);
}
