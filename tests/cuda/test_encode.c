/*
 * Lists that the device encodes, against proto/payload_write.c, byte by byte: the frame with its
 * length and CRC, and the values that the receiver will decode. Also when the kernels are killed
 * and repeated.
 *
 * usage: test_encode [SEED ELEMENTS]
 */
#include "kernels/base/partition.h"
#include "proto/payload.h"
#include "tests/cuda/device_code.h"
#include "tests/cuda/placed.h"
#include "tests/cuda/seeds.h"

#include <stdio.h>
#include <string.h>

_Static_assert((int)ENCODE_AUTO == (int)PAYLOAD_INDEX_AUTO, "auto");
_Static_assert((int)ENCODE_RAW == (int)PAYLOAD_INDEX_RAW, "raw");
_Static_assert((int)ENCODE_ROWS == (int)PAYLOAD_INDEX_ROWS, "rows");
_Static_assert((int)ENCODE_DELTA == (int)PAYLOAD_INDEX_DELTA, "delta");
_Static_assert((int)ENCODE_BITMAP == (int)PAYLOAD_INDEX_BITMAP, "bitmap");
_Static_assert((int)ENCODE_RICE_CODES == (int)PAYLOAD_INDEX_RICE, "rice");
_Static_assert((int)ENCODE_HASHMAP == (int)PAYLOAD_INDEX_HASHMAP, "hashmap");
_Static_assert((int)ENCODE_FRAME == PAYLOAD_HEADER_SIZE, "header");
_Static_assert((int)ENCODE_SECTION == PAYLOAD_SECTION_MAX, "section");

enum { LISTS_MOST = 4 };

struct scene {
    struct input input;
    struct payload_writer writer; /* the host's frame */
    struct sparse list[LISTS_MOST];
    struct encode_order order[LISTS_MOST];
    struct encode_found found[LISTS_MOST];
    struct encode_batch batch;
    uint64_t size;
};

/* ------------------------------------------------------------------ drawing */

/* As many entries in each fibre, but for one that may be missing. */
static uint64_t draw_rows(struct input *input, struct encode_order *order, uint32_t *position)
{
    const uint64_t length = order->view.length;
    uint64_t count = 0;
    order->per_fibre = 1 + input_below(input, length);
    for (uint64_t f = 0; f < order->view.fibres; f++) {
        uint64_t wanted = order->per_fibre;
        for (uint64_t i = 0; i < length && wanted > 0; i++) {
            if (input_below(input, length - i) < wanted) {
                position[count++] = (uint32_t)(f * length + i);
                wanted--;
            }
        }
    }
    return input_below(input, 5) == 0 ? count - 1 : count;
}

/* Keeps the entries of a partition. */
static uint64_t draw_part(
    struct input *input, struct encode_order *order, uint32_t *position, uint64_t count)
{
    uint64_t kept = 0;
    order->parts = 1 + (uint32_t)input_below(input, 5);
    order->part = (uint32_t)input_below(input, order->parts);
    for (uint64_t i = 0; i < count; i++) {
        if (partition_of(position[i], order->parts) == order->part) {
            position[kept++] = position[i];
        }
    }
    return kept;
}

static uint64_t draw_positions(
    struct input *input, struct encode_order *order, uint64_t n, uint32_t **position)
{
    uint64_t count;
    if (input_below(input, 3) == 0) {
        *position = input_memory(n * sizeof **position, 0);
        return draw_rows(input, order, *position);
    }
    count = placed_positions(input, n, position);
    if (input_below(input, 3) == 0) {
        /* Some distances of zeros, and then long ones. */
        for (uint64_t i = 0; i < count / 2; i++) {
            (*position)[i] = (uint32_t)i;
        }
    }
    return input_below(input, 2) == 0 ? draw_part(input, order, *position, count) : count;
}

static void draw_order(struct scene *scene, unsigned o, uint64_t most)
{
    static const enum encode_index some[] = {ENCODE_AUTO, ENCODE_AUTO, ENCODE_AUTO, ENCODE_RAW,
        ENCODE_ROWS, ENCODE_DELTA, ENCODE_BITMAP, ENCODE_RICE_CODES, ENCODE_HASHMAP};
    struct input *const input = &scene->input;
    struct encode_order *const order = &scene->order[o];
    struct sparse *const list = &scene->list[o];
    const uint64_t n = input_size(input, most);
    order->view = placed_view(input, n);
    list->count = draw_positions(input, order, n, &list->position);
    list->count = input_below(input, 20) == 0 ? 0 : list->count;
    list->value = placed_values(input, list->count);
    order->index = some[input_below(input, sizeof some / sizeof *some)];
    order->values = (uint32_t)input_below(input, PAYLOAD_VALUE_COUNT);
}

/* ------------------------------------------------------------------ both sides */

static void device_order(struct scene *scene, unsigned o)
{
    struct encode_order *const order = &scene->order[o];
    const struct sparse *const list = &scene->list[o];
    const uint64_t blocks = (list->count + ENCODE_BLOCK - 1) / ENCODE_BLOCK;
    order->first = scene->batch.blocks;
    order->position = list->position;
    order->value = memcpy(
        input_memory(list->count * sizeof(float), 0), list->value, list->count * sizeof(float));
    order->decoded = input_memory(list->count * sizeof(float), 0);
    order->count = list->count;
    order->found = &scene->found[o];
    order->block = input_memory(blocks * sizeof *order->block, 0x44);
    scene->batch.blocks += blocks;
}

static void host_put(struct scene *scene, unsigned o)
{
    const struct encode_order *const order = &scene->order[o];
    const struct payload_shape shape = {.view = order->view,
        .per_fibre = order->per_fibre,
        .max_count = UINT32_MAX,
        .part = order->part,
        .parts = order->parts};
    if (payload_put_list(&scene->writer, &shape, &scene->list[o], (enum payload_index)order->index,
            (enum payload_value)order->values) != ADTOPK_OK) {
        abort();
    }
}

/* The device gets the header that the host has written, without length and CRC. */
static void scene_device(struct scene *scene)
{
    static launch_kernel *const kernel[] = {
#define ENCODE_RUN(name, type) run_##name,
        CUDA_ENCODE(ENCODE_RUN)
#undef ENCODE_RUN
    };
    enum { KERNELS = sizeof kernel / sizeof *kernel };
    const void *parameter[KERNELS];
    const uint64_t room = encode_room(scene->order, scene->batch.orders);
    for (unsigned k = 0; k < KERNELS; k++) {
        parameter[k] = &scene->batch;
    }
    scene->batch.order = scene->order;
    scene->batch.size = &scene->size;
    scene->batch.frame = input_memory(room, 0x33);
    scene->batch.piece = input_memory((room / ENCODE_PIECE + 1) * sizeof(uint32_t), 0x33);
    memcpy(scene->batch.frame, scene->writer.bytes, ENCODE_FRAME);
    memset(scene->batch.frame + ENCODE_AT_LENGTH, 0, sizeof(uint64_t));
    memset(scene->batch.frame + ENCODE_AT_CRC, 0, sizeof(uint32_t));
    placed_run(&scene->input, kernel, parameter, KERNELS);
}

static bool scene_same(const struct scene *scene)
{
    bool same = scene->size == scene->writer.size &&
                memcmp(scene->batch.frame, scene->writer.bytes, scene->size) == 0;
    for (unsigned o = 0; o < scene->batch.orders; o++) {
        const struct encode_order *const order = &scene->order[o];
        same =
            same && memcmp(order->decoded, scene->list[o].value, order->count * sizeof(float)) == 0;
    }
    for (unsigned o = 0; o < scene->batch.orders && !same; o++) {
        const struct encode_order *const order = &scene->order[o];
        (void)fprintf(stderr,
            "list %u: %llu entries, index %u as %u, values %u, size %llu of %zu\n", o,
            (unsigned long long)order->count, order->index, order->found->index, order->values,
            (unsigned long long)scene->size, scene->writer.size);
    }
    return same;
}

static void scene_drop(struct scene *scene)
{
    for (unsigned o = 0; o < scene->batch.orders; o++) {
        input_free(scene->list[o].position);
        input_free(scene->list[o].value);
        input_free((void *)(uintptr_t)scene->order[o].value);
        input_free(scene->order[o].decoded);
        input_free(scene->order[o].block);
    }
    input_free(scene->batch.frame);
    input_free(scene->batch.piece);
    payload_free(&scene->writer);
}

static bool encode_case(uint64_t seed, uint64_t most)
{
    const struct payload_header header = {.run = seed, .number = 7, .loss_scale = 3};
    struct scene *const scene = input_memory(sizeof *scene, 0);
    scene->input.state = seed;
    scene->batch.orders = 1 + (uint32_t)input_below(&scene->input, LISTS_MOST);
    if (payload_begin(&scene->writer, &header) != ADTOPK_OK) {
        abort();
    }
    for (unsigned o = 0; o < scene->batch.orders; o++) {
        draw_order(scene, o, most);
        device_order(scene, o);
        host_put(scene, o);
    }
    payload_end(&scene->writer);
    scene_device(scene);
    const bool same = scene_same(scene);
    scene_drop(scene);
    input_free(scene);
    return same;
}

static void test_small(void **state)
{
    (void)state;
    seeds_try(encode_case, 1, 400, 3000);
}

static void test_large(void **state)
{
    (void)state;
    seeds_try(encode_case, 1000, 20, 200000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_large),
    };
    if (argc == 3) {
        return encode_case(strtoull(argv[1], NULL, 0), strtoull(argv[2], NULL, 0)) ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
