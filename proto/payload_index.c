#include "proto/payload_index.h"

#include <assert.h>
#include <inttypes.h>

#include "proto/bits.h"

#define IMPOSSIBLE UINT64_MAX

struct index_coding {
    uint64_t (*bound)(const struct payload_shape *shape, uint64_t count);
    /* NULL where the bound is exact and every list of this count fits. */
    uint64_t (*size)(const struct payload_shape *shape, const struct sparse *list);
    void (*write)(const struct payload_shape *shape, const struct sparse *list, uint8_t *out);
    enum adtopk_status (*read)(const struct payload_shape *shape, struct payload_input *input,
        uint32_t *position, size_t count, struct error *err);
};

/* Hands out `bytes` of the input, or NULL with an error that names the field they were for. */
static const uint8_t *input_take(
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

static enum adtopk_status refuse_position(
    const struct payload_input *input, size_t entry, uint64_t position, struct error *err)
{
    return error_set(err, ADTOPK_ERR_PROTOCOL,
        "payload section %" PRIu32 ": position %" PRIu64
        " of entry %zu is outside its tensor or not above the one before",
        input->section, position, entry);
}

static enum adtopk_status refuse_padding(const struct payload_input *input, struct error *err)
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

static void raw_write(const struct payload_shape *shape, const struct sparse *list, uint8_t *out)
{
    (void)shape;
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

    bytes = input_take(input, raw_bound(shape, count), "raw positions", err);
    if (bytes == NULL) {
        return ADTOPK_ERR_PROTOCOL;
    }
    for (size_t i = 0; i < count; i++) {
        position[i] = load_u32(bytes + 4 * i);
        if (position[i] < lowest || position[i] >= n) {
            return refuse_position(input, i, position[i], err);
        }
        lowest = (uint64_t)position[i] + 1;
    }
    return ADTOPK_OK;
}

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
        return IMPOSSIBLE;
    }
    return bit_bytes(count, rows_width(shape));
}

static uint64_t rows_size(const struct payload_shape *shape, const struct sparse *list)
{
    uint64_t bytes = rows_bound(shape, list->count);
    uint64_t per_fibre = rows_per_fibre(shape);
    size_t i = 0;

    if (bytes == IMPOSSIBLE || list->count == 0) {
        return bytes;
    }
    for (uint64_t fibre = 0; fibre < shape->view.fibres; fibre++) {
        uint64_t base = fibre * shape->view.length;

        /* Positions ascend, so it is enough that the fibre holds its first and its last entry. */
        if (list->position[i] < base ||
            list->position[i + per_fibre - 1] >= base + shape->view.length) {
            return IMPOSSIBLE;
        }
        i += per_fibre;
    }
    return bytes;
}

static void rows_write(const struct payload_shape *shape, const struct sparse *list, uint8_t *out)
{
    struct bit_writer writer = {.next = out};
    uint64_t per_fibre = rows_per_fibre(shape);
    unsigned width = rows_width(shape);
    size_t i = 0;

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

    if (size == IMPOSSIBLE) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload section %" PRIu32 ": %zu entries in rows, but the tensor has %" PRIu64
            " fibres with %" PRIu64 " entries each",
            input->section, count, shape->view.fibres, shape->per_fibre);
    }
    reader.next = input_take(input, size, "row positions", err);
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
                return refuse_position(input, i, base + inside, err);
            }
            position[i] = (uint32_t)(base + inside);
            lowest = inside + 1;
        }
    }
    return bit_padding_is_zero(&reader) ? ADTOPK_OK : refuse_padding(input, err);
}

/* DELTA: blocks of entries, each one byte of width and then that many bits an entry: how many
 * positions lie between the entry and the one before (from -1 for the first of the list). */

static size_t delta_block(size_t count, size_t first)
{
    return count - first < PAYLOAD_DELTA_BLOCK ? count - first : PAYLOAD_DELTA_BLOCK;
}

static uint64_t delta_bytes(uint64_t count, unsigned width)
{
    uint64_t blocks = (count + PAYLOAD_DELTA_BLOCK - 1) / PAYLOAD_DELTA_BLOCK;

    /* A full block is a whole number of bytes, so only the last one is padded. */
    return blocks + bit_bytes(count, width);
}

static uint64_t delta_bound(const struct payload_shape *shape, uint64_t count)
{
    uint64_t n = view_size(&shape->view);

    return count > n ? IMPOSSIBLE : delta_bytes(count, bit_width(n - count));
}

static uint32_t delta_of(const struct sparse *list, size_t i)
{
    return i == 0 ? list->position[0] : list->position[i] - list->position[i - 1] - 1;
}

static unsigned delta_width(const struct sparse *list, size_t first, size_t count)
{
    uint32_t seen = 0;

    for (size_t i = first; i < first + count; i++) {
        seen |= delta_of(list, i);
    }
    return bit_width(seen);
}

static uint64_t delta_size(const struct payload_shape *shape, const struct sparse *list)
{
    uint64_t size = 0;

    (void)shape;
    for (size_t i = 0; i < list->count; i += PAYLOAD_DELTA_BLOCK) {
        size_t block = delta_block(list->count, i);

        size += 1 + bit_bytes(block, delta_width(list, i, block));
    }
    return size;
}

static void delta_write(const struct payload_shape *shape, const struct sparse *list, uint8_t *out)
{
    (void)shape;
    for (size_t first = 0; first < list->count; first += PAYLOAD_DELTA_BLOCK) {
        size_t block = delta_block(list->count, first);
        unsigned width = delta_width(list, first, block);
        struct bit_writer writer = {.next = out + 1};

        *out = (uint8_t)width;
        for (size_t i = first; i < first + block; i++) {
            bit_put(&writer, delta_of(list, i), width);
        }
        bit_finish(&writer);
        out = writer.next;
    }
}

/* Reads the block that begins at entry `first`; *lowest is the position that a delta of 0 means,
 * for the block's first entry and on return for the entry behind it. */
static enum adtopk_status delta_read_block(struct payload_input *input, uint64_t n,
    uint64_t *lowest, uint32_t *position, size_t first, size_t block, struct error *err)
{
    struct bit_reader reader = {0};
    const uint8_t *width;
    uint32_t seen = 0;

    width = input_take(input, 1, "delta widths", err);
    if (width == NULL) {
        return ADTOPK_ERR_PROTOCOL;
    }
    if (*width > 32) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload section %" PRIu32 ": delta width %u is over 32", input->section, *width);
    }
    reader.next = input_take(input, bit_bytes(block, *width), "deltas", err);
    if (reader.next == NULL) {
        return ADTOPK_ERR_PROTOCOL;
    }
    reader.end = input->next;
    for (size_t i = first; i < first + block; i++) {
        uint32_t delta = bit_get(&reader, *width);
        uint64_t here = *lowest + delta;

        if (here >= n) {
            return refuse_position(input, i, here, err);
        }
        seen |= delta;
        position[i] = (uint32_t)here;
        *lowest = here + 1;
    }
    if (bit_width(seen) != *width) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "payload section %" PRIu32 ": delta width %u where %u is enough", input->section,
            *width, bit_width(seen));
    }
    return bit_padding_is_zero(&reader) ? ADTOPK_OK : refuse_padding(input, err);
}

static enum adtopk_status delta_read(const struct payload_shape *shape, struct payload_input *input,
    uint32_t *position, size_t count, struct error *err)
{
    uint64_t n = view_size(&shape->view);
    uint64_t lowest = 0;

    for (size_t first = 0; first < count; first += PAYLOAD_DELTA_BLOCK) {
        enum adtopk_status status =
            delta_read_block(input, n, &lowest, position, first, delta_block(count, first), err);

        if (status != ADTOPK_OK) {
            return status;
        }
    }
    return ADTOPK_OK;
}

/* BITMAP: one bit a position. */

static uint64_t bitmap_bound(const struct payload_shape *shape, uint64_t count)
{
    uint64_t n = view_size(&shape->view);

    return count > n ? IMPOSSIBLE : bit_bytes(n, 1);
}

static void bitmap_write(const struct payload_shape *shape, const struct sparse *list, uint8_t *out)
{
    uint64_t n = view_size(&shape->view);

    memset(out, 0, bit_bytes(n, 1));
    for (size_t i = 0; i < list->count; i++) {
        uint32_t position = list->position[i];

        assert(position < n);
        out[position / 8] = (uint8_t)(out[position / 8] | 1u << position % 8);
    }
}

static enum adtopk_status refuse_bitmap(
    const struct payload_input *input, size_t count, struct error *err)
{
    return error_set(err, ADTOPK_ERR_PROTOCOL,
        "payload section %" PRIu32 ": count %zu is not the number of bits in the bitmap",
        input->section, count);
}

static uint64_t bitmap_word(const uint8_t *bytes, uint64_t left)
{
    uint64_t word = 0;

    if (left >= 8) {
        return load_u64(bytes);
    }
    for (uint64_t i = 0; i < left; i++) {
        word |= (uint64_t)bytes[i] << 8 * i;
    }
    return word;
}

static enum adtopk_status bitmap_read(const struct payload_shape *shape,
    struct payload_input *input, uint32_t *position, size_t count, struct error *err)
{
    uint64_t n = view_size(&shape->view);
    uint64_t size = bit_bytes(n, 1);
    const uint8_t *bytes;
    size_t found = 0;

    bytes = input_take(input, size, "bitmap", err);
    if (bytes == NULL) {
        return ADTOPK_ERR_PROTOCOL;
    }
    for (uint64_t at = 0; at < size; at += 8) {
        for (uint64_t word = bitmap_word(bytes + at, size - at); word != 0; word &= word - 1) {
            uint64_t here = at * 8 + (unsigned)__builtin_ctzll(word);

            if (here >= n) {
                return refuse_padding(input, err);
            }
            if (found == count) {
                return refuse_bitmap(input, count, err);
            }
            position[found++] = (uint32_t)here;
        }
    }
    return found == count ? ADTOPK_OK : refuse_bitmap(input, count, err);
}

static const struct index_coding codings[PAYLOAD_INDEX_COUNT] = {
    [PAYLOAD_INDEX_RAW] = {.bound = raw_bound, .write = raw_write, .read = raw_read},
    [PAYLOAD_INDEX_ROWS] = {.bound = rows_bound,
        .size = rows_size,
        .write = rows_write,
        .read = rows_read},
    [PAYLOAD_INDEX_DELTA] = {.bound = delta_bound,
        .size = delta_size,
        .write = delta_write,
        .read = delta_read},
    [PAYLOAD_INDEX_BITMAP] = {.bound = bitmap_bound, .write = bitmap_write, .read = bitmap_read},
};

bool payload_index_is_list(unsigned index)
{
    return index < PAYLOAD_INDEX_COUNT && codings[index].read != NULL;
}

uint64_t payload_index_bound(
    enum payload_index index, const struct payload_shape *shape, uint64_t count)
{
    return codings[index].bound(shape, count);
}

uint64_t payload_index_size(
    enum payload_index index, const struct payload_shape *shape, const struct sparse *list)
{
    const struct index_coding *coding = &codings[index];

    return coding->size != NULL ? coding->size(shape, list) : coding->bound(shape, list->count);
}

void payload_index_write(enum payload_index index, const struct payload_shape *shape,
    const struct sparse *list, uint8_t *out)
{
    codings[index].write(shape, list, out);
}

enum adtopk_status payload_index_read(enum payload_index index, const struct payload_shape *shape,
    struct payload_input *input, uint32_t *position, size_t count, struct error *err)
{
    return codings[index].read(shape, input, position, count, err);
}
