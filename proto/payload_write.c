/* The encoder of payload.h. */
#include <assert.h>
#include <stdlib.h>

#include "kernels/base/convert.h"
#include "proto/bits.h"
#include "proto/payload_frame.h"
#include "proto/payload_index.h"
#include "proto/payload_values.h"

/* Makes room for `size` more bytes and returns where they begin, or NULL. */
static uint8_t *writer_extend(struct payload_writer *writer, uint64_t size)
{
    uint8_t *bytes;
    size_t needed;

    if (__builtin_add_overflow(writer->size, size, &needed)) {
        return NULL;
    }
    if (needed > writer->capacity) {
        size_t capacity = needed;

        if (writer->capacity <= SIZE_MAX / 2 && needed < writer->capacity * 2) {
            capacity = writer->capacity * 2;
        }
        bytes = realloc(writer->bytes, capacity);
        if (bytes == NULL) {
            return NULL;
        }
        writer->bytes = bytes;
        writer->capacity = capacity;
    }
    bytes = writer->bytes + writer->size;
    writer->size = needed;
    return bytes;
}

enum adtopk_status payload_reserve(struct payload_writer *writer, uint64_t bytes)
{
    const size_t size = writer->size;
    const bool room = writer_extend(writer, bytes) != NULL;

    writer->size = size;
    return room ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
}

/* Appends a section's header and room for its body, and returns the body, or NULL. */
static uint8_t *writer_add_section(
    struct payload_writer *writer, const struct section *section, uint64_t body)
{
    uint8_t *bytes;

    if (writer->sections == UINT32_MAX || section->count > SECTION_COUNT_MAX ||
        body > UINT64_MAX - PAYLOAD_SECTION_MAX) {
        return NULL;
    }
    bytes = writer_extend(writer, PAYLOAD_SECTION_MAX + body);
    if (bytes == NULL) {
        return NULL;
    }
    store_u64(bytes, section->index | (uint64_t)section->value << 4 | section->count << 8);
    writer->sections++;
    return bytes + PAYLOAD_SECTION_MAX;
}

enum adtopk_status payload_begin(struct payload_writer *writer, const struct payload_header *header)
{
    uint8_t *bytes;

    writer->size = 0;
    writer->sections = 0;
    writer->values = 0;
    bytes = writer_extend(writer, PAYLOAD_HEADER_SIZE);
    if (bytes == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    memset(bytes, 0, PAYLOAD_HEADER_SIZE);
    memcpy(bytes + AT_MAGIC, PAYLOAD_MAGIC, PAYLOAD_MAGIC_SIZE);
    store_u16(bytes + AT_VERSION, PAYLOAD_VERSION);
    bytes[AT_KIND] = header->kind;
    bytes[AT_PHASE] = header->phase;
    store_u64(bytes + AT_RUN, header->run);
    store_u64(bytes + AT_NUMBER, header->number);
    store_u32(bytes + AT_VIEW, header->view);
    store_u32(bytes + AT_BUCKET, header->bucket);
    store_u16(bytes + AT_SOURCE, header->source);
    bytes[AT_FLAGS] = header->flags;
    store_u32(bytes + AT_LOSS_SCALE, convert_bits(header->loss_scale));
    store_u32(bytes + AT_LOSS_RANK, header->loss_rank);
    return ADTOPK_OK;
}

/* Whether a section with rows is small enough to be taken for its speed. */
static bool rows_will_do(uint64_t rows, uint64_t smallest, uint64_t values)
{
    uint64_t rest = PAYLOAD_SECTION_MAX + values;

    return rows != UINT64_MAX && (rows + rest) * 50 <= (smallest + rest) * 51;
}

/* The encoding that AUTO takes if positions need `sizes` bytes, by encoding (UINT64_MAX: not
 * possible); the first in the enum's order of equals. */
static enum payload_index choose_index(
    const uint64_t sizes[PAYLOAD_INDEX_COUNT], uint64_t count, enum payload_value value)
{
    enum payload_index best = PAYLOAD_INDEX_RAW;

    for (unsigned index = 0; index < PAYLOAD_INDEX_COUNT; index++) {
        if (payload_index_is_list(index) && sizes[index] < sizes[best]) {
            best = (enum payload_index)index;
        }
    }
    return rows_will_do(sizes[PAYLOAD_INDEX_ROWS], sizes[best], payload_values_size(count, value))
               ? PAYLOAD_INDEX_ROWS
               : best;
}

static enum payload_index smallest_index(const struct payload_shape *shape,
    const struct sparse *list, enum payload_value value, const struct payload_scan *scan,
    uint64_t *size)
{
    uint64_t sizes[PAYLOAD_INDEX_COUNT];
    enum payload_index best;

    for (unsigned i = 0; i < PAYLOAD_INDEX_COUNT; i++) {
        sizes[i] = payload_index_is_list(i)
                       ? payload_index_size((enum payload_index)i, shape, list, scan)
                       : UINT64_MAX;
    }
    best = choose_index(sizes, list->count, value);
    *size = sizes[best];
    return best;
}

/* The requested encoding, or the smallest if that one cannot take the list. Scans the list if that
 * helps. */
static enum payload_index settle_index(enum payload_index wanted, const struct payload_shape *shape,
    const struct sparse *list, enum payload_value value, struct payload_scan *scan, uint64_t *size)
{
    if (payload_index_is_list(wanted) && !payload_index_is_scanned(wanted)) {
        *size = payload_index_size(wanted, shape, list, scan);
        if (*size != UINT64_MAX) {
            return wanted;
        }
        wanted = PAYLOAD_INDEX_AUTO;
    }
    payload_scan(list->position, list->count, scan);
    if (!payload_index_is_list(wanted)) {
        return smallest_index(shape, list, value, scan, size);
    }
    *size = payload_index_size(wanted, shape, list, scan);
    return wanted;
}

/* A list as a DENSE section: zeros where it has no entry. */
static enum adtopk_status put_list_densely(struct payload_writer *writer, const struct view *view,
    struct sparse *list, enum payload_value value)
{
    uint64_t n = view_size(view);
    float *x = calloc(n > 0 ? n : 1, sizeof(*x));
    enum adtopk_status status;

    if (x == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    for (size_t i = 0; i < list->count; i++) {
        x[view_element(view, list->position[i])] = list->value[i];
    }
    status = payload_put_dense(writer, x, n, value, x);
    for (size_t i = 0; i < list->count; i++) {
        list->value[i] = x[view_element(view, list->position[i])];
    }
    free(x);
    return status;
}

enum adtopk_status payload_put_list(struct payload_writer *writer,
    const struct payload_shape *shape, struct sparse *list, enum payload_index index,
    enum payload_value value)
{
    struct section section = {.value = value, .count = list->count};
    struct payload_scan scan = {0};
    uint64_t size;
    uint8_t *body;

    assert(view_size(&shape->view) <= VIEW_MAX_ELEMENTS);
    assert(list->count == 0 || list->position[list->count - 1] < view_size(&shape->view));
    if (index == PAYLOAD_INDEX_DENSE) {
        assert(value != PAYLOAD_VALUE_SIGN);
        return put_list_densely(writer, &shape->view, list, value);
    }
    index = settle_index(index, shape, list, value, &scan, &size);
    section.index = index;
    body = writer_add_section(writer, &section, size + payload_values_size(list->count, value));
    if (body == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    payload_index_write(index, shape, list, &scan, body);
    payload_values_write(body + size, list->value, list->count, value, list->value);
    writer->values += list->count;
    return ADTOPK_OK;
}

enum adtopk_status payload_make_room(
    struct payload_writer *writer, uint64_t n, enum payload_value value, struct payload_room *room)
{
    struct section section = {PAYLOAD_INDEX_DENSE, value, n};

    *room = (struct payload_room){.value = value};
    if (n <= SECTION_COUNT_MAX) {
        room->bytes = writer_add_section(writer, &section, payload_values_size(n, value));
    }
    if (room->bytes == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    writer->values += n;
    return ADTOPK_OK;
}

enum adtopk_status payload_put_dense(struct payload_writer *writer, const float *x, uint64_t n,
    enum payload_value value, float *decoded)
{
    struct payload_room room;

    if (payload_make_room(writer, n, value, &room) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    payload_values_write(room.bytes, x, n, value, decoded);
    return ADTOPK_OK;
}

void payload_fill_room(const struct payload_room *room, uint64_t first, const float *x, uint64_t n)
{
    assert(!payload_value_is_blocked(room->value));
    payload_values_write(
        room->bytes + payload_values_size(first, room->value), x, n, room->value, NULL);
}

enum adtopk_status payload_put_bytes(struct payload_writer *writer, const void *bytes, size_t size)
{
    struct section section = {.index = SECTION_BYTES, .count = size};
    uint8_t *body = writer_add_section(writer, &section, size);

    if (body == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    if (size > 0) {
        memcpy(body, bytes, size);
    }
    return ADTOPK_OK;
}

void payload_end(struct payload_writer *writer)
{
    assert(writer->size >= PAYLOAD_HEADER_SIZE);
    store_u64(writer->bytes + AT_LENGTH, writer->size);
    store_u32(writer->bytes + AT_SECTIONS, writer->sections);
    store_u32(writer->bytes + AT_CRC, frame_crc(writer->bytes, writer->size));
}

uint32_t payload_crc(const void *bytes, size_t size)
{
    const uint8_t *frame = bytes;

    return frame_crc_exchange(load_u32(frame + AT_CRC), frame, size);
}

void payload_free(struct payload_writer *writer)
{
    free(writer->bytes);
    *writer = (struct payload_writer){0};
}

static size_t section_size(uint64_t index_size, uint64_t count, enum payload_value value)
{
    uint64_t size;

    if (count > SECTION_COUNT_MAX ||
        __builtin_add_overflow(index_size, payload_values_size(count, value), &size) ||
        __builtin_add_overflow(size, PAYLOAD_SECTION_MAX, &size) || size > SIZE_MAX) {
        return SIZE_MAX;
    }
    return (size_t)size;
}

size_t payload_list_bound(
    const struct payload_shape *shape, uint64_t count, enum payload_value value)
{
    uint64_t n = view_size(&shape->view);
    uint64_t sizes[PAYLOAD_INDEX_COUNT];

    count = count < n ? count : n;
    for (unsigned i = 0; i < PAYLOAD_INDEX_COUNT; i++) {
        sizes[i] = payload_index_is_list(i)
                       ? payload_index_bound((enum payload_index)i, shape, count)
                       : UINT64_MAX;
    }
    return section_size(sizes[choose_index(sizes, count, value)], count, value);
}

size_t payload_dense_size(uint64_t n, enum payload_value value)
{
    return section_size(0, n, value);
}
