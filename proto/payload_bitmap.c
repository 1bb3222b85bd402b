/*
 * BITMAP and HASHMAP: one bit for each position that an entry could have. HASHMAP only has bits for
 * the positions of one partition, in the order of its slots (kernels/base/partition.h). Where the
 * tensor is not partitioned, slots are positions and both encodings have the same bytes.
 */
#include <assert.h>
#include <inttypes.h>

#include "kernels/base/partition.h"
#include "proto/bits.h"
#include "proto/payload_coding.h"

/* What the bits stand for. */
struct bit_space {
    uint64_t bits;
    uint32_t part;
    uint32_t parts; /* 1: bit b is position b */
};

static struct bit_space bitmap_space(const struct payload_shape *shape)
{
    return (struct bit_space){view_size(&shape->view), 0, 1};
}

static struct bit_space hashmap_space(const struct payload_shape *shape)
{
    struct bit_space space = {view_size(&shape->view), shape->part, shape->parts};

    if (shape->parts <= 1) {
        return bitmap_space(shape);
    }
    space.bits = partition_size(space.bits, space.part, space.parts);
    return space;
}

static uint64_t space_bound(const struct bit_space *space, uint64_t count)
{
    return count > space->bits ? PAYLOAD_IMPOSSIBLE : bit_bytes(space->bits, 1);
}

static void space_write(const struct bit_space *space, const struct sparse *list, uint8_t *out)
{
    memset(out, 0, bit_bytes(space->bits, 1));
    for (size_t i = 0; i < list->count; i++) {
        uint64_t bit = partition_slot(list->position[i], space->parts);

        assert(bit < space->bits);
        out[bit / 8] = (uint8_t)(out[bit / 8] | 1u << bit % 8);
    }
}

static enum adtopk_status refuse_bitmap(
    const struct payload_input *input, size_t count, struct error *err)
{
    return error_set(err, ADTOPK_ERR_PROTOCOL,
        "payload section %" PRIu32 ": count %zu is not the number of bits in the bitmap",
        input->section, count);
}

static enum adtopk_status space_read(const struct bit_space *space, struct payload_input *input,
    uint32_t *position, size_t count, struct error *err)
{
    uint64_t size = bit_bytes(space->bits, 1);
    const uint8_t *bytes;
    size_t found = 0;

    bytes = payload_input_take(input, size, "bitmap", err);
    if (bytes == NULL) {
        return ADTOPK_ERR_PROTOCOL;
    }
    for (uint64_t at = 0; at < size; at += 8) {
        uint64_t word = load_part_u64(bytes + at, size - at);

        for (; word != 0; word &= word - 1) {
            uint64_t bit = at * 8 + (unsigned)__builtin_ctzll(word);

            if (bit >= space->bits) {
                return payload_refuse_padding(input, err);
            }
            if (found == count) {
                return refuse_bitmap(input, count, err);
            }
            position[found++] =
                (uint32_t)(space->parts == 1 ? bit
                                             : partition_position(bit, space->part, space->parts));
        }
    }
    return found == count ? ADTOPK_OK : refuse_bitmap(input, count, err);
}

static uint64_t bitmap_bound(const struct payload_shape *shape, uint64_t count)
{
    struct bit_space space = bitmap_space(shape);

    return space_bound(&space, count);
}

static void bitmap_write(const struct payload_shape *shape, const struct sparse *list,
    const struct payload_scan *scan, uint8_t *out)
{
    struct bit_space space = bitmap_space(shape);

    (void)scan;
    space_write(&space, list, out);
}

static enum adtopk_status bitmap_read(const struct payload_shape *shape,
    struct payload_input *input, uint32_t *position, size_t count, struct error *err)
{
    struct bit_space space = bitmap_space(shape);

    return space_read(&space, input, position, count, err);
}

const struct index_coding payload_coding_bitmap = {
    .bound = bitmap_bound, .write = bitmap_write, .read = bitmap_read};

static uint64_t hashmap_bound(const struct payload_shape *shape, uint64_t count)
{
    struct bit_space space = hashmap_space(shape);

    return space_bound(&space, count);
}

static void hashmap_write(const struct payload_shape *shape, const struct sparse *list,
    const struct payload_scan *scan, uint8_t *out)
{
    struct bit_space space = hashmap_space(shape);

    (void)scan;
    space_write(&space, list, out);
}

static enum adtopk_status hashmap_read(const struct payload_shape *shape,
    struct payload_input *input, uint32_t *position, size_t count, struct error *err)
{
    struct bit_space space = hashmap_space(shape);

    return space_read(&space, input, position, count, err);
}

const struct index_coding payload_coding_hashmap = {
    .bound = hashmap_bound, .write = hashmap_write, .read = hashmap_read};
