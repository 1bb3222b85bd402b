/*
 * Sums of lists on the device against kernels/cpu/merge.h, byte by byte, also when they are killed
 * and repeated.
 *
 * usage: test_merge [SEED ELEMENTS]
 */
#include "kernels/kernels.h"
#include "tests/cuda/device_code.h"
#include "tests/cuda/placed.h"
#include "tests/cuda/seeds.h"

#include <stdio.h>
#include <string.h>

enum { ORDERS = 3, LISTS_MOST = 5 };

struct order {
    uint64_t positions;
    unsigned lists;
    float scale;
    bool listed, dense;
    struct sparse list[LISTS_MOST];
    struct entries entries[LISTS_MOST];
    struct sparse sum[2]; /* on the host, on the device */
    float *whole[2];
    uint64_t count;
};

struct scene {
    struct input input;
    struct order order[ORDERS];
    struct merge_order device[ORDERS];
    struct merge_batch batch;
};

static void order_draw(struct input *input, struct order *order, uint64_t most)
{
    static const float some[] = {1, 0.25f, 0.3f, -1};
    order->positions = input_size(input, most);
    order->lists = (unsigned)input_below(input, LISTS_MOST + 1);
    order->scale = some[input_below(input, sizeof some / sizeof *some)];
    order->dense = input_below(input, 2) == 0;
    order->listed = !order->dense || input_below(input, 2) == 0;
    for (unsigned l = 0; l < order->lists; l++) {
        struct sparse *const list = &order->list[l];
        list->count = placed_positions(input, order->positions, &list->position);
        list->value = placed_values(input, list->count);
        placed_tame(list->value, list->count);
        order->entries[l] = (struct entries){list->position, list->value, list->count};
    }
    for (unsigned side = 0; side < 2; side++) {
        order->sum[side] =
            (struct sparse){.position = input_memory(order->positions * sizeof(uint32_t), 0),
                .value = input_memory(order->positions * sizeof(float), 0),
                .capacity = order->positions};
        order->whole[side] = input_memory(order->positions * sizeof(float), 0x12);
    }
}

static void host_sum(struct order *order)
{
    const struct parallel alone = {.threads = 0};
    size_t cursor[LISTS_MOST];
    struct merge merge = {.list = order->list,
        .lists = order->lists,
        .positions = order->positions,
        .scale = order->scale,
        .out = order->listed ? &order->sum[0] : NULL,
        .dense = order->dense ? order->whole[0] : NULL,
        .cursor = cursor,
        .parts = 1};
    merge_run(&merge, &alone);
}

static void scene_device(struct scene *scene)
{
    static launch_kernel *const kernel[] = {run_merge_count, run_merge_place, run_merge_write};
    const void *const parameter[] = {&scene->batch, &scene->batch, &scene->batch};
    for (unsigned o = 0; o < ORDERS; o++) {
        struct order *const order = &scene->order[o];
        const uint64_t windows = merge_windows(order->positions);
        scene->device[o] = (struct merge_order){.first = scene->batch.windows,
            .list = order->entries,
            .lists = order->lists,
            .positions = order->positions,
            .scale = order->scale,
            .place = input_memory(windows * sizeof(uint32_t), 0x21),
            .count = &order->count,
            .position = order->listed ? order->sum[1].position : NULL,
            .value = order->sum[1].value,
            .dense = order->dense ? order->whole[1] : NULL};
        scene->batch.windows += windows;
    }
    scene->batch.order = scene->device;
    scene->batch.orders = ORDERS;
    placed_run(&scene->input, kernel, parameter, 3);
}

static bool order_same(const struct order *order)
{
    const struct sparse *const sum = order->sum;
    const uint64_t n = order->positions;
    return (!order->listed ||
               (sum[0].count == order->count &&
                   memcmp(sum[0].position, sum[1].position, order->count * sizeof(uint32_t)) == 0 &&
                   memcmp(sum[0].value, sum[1].value, order->count * sizeof(float)) == 0)) &&
           memcmp(order->whole[0], order->whole[1], n * sizeof(float)) == 0;
}

static void order_drop(struct order *order)
{
    for (unsigned l = 0; l < order->lists; l++) {
        input_free(order->list[l].position);
        input_free(order->list[l].value);
    }
    for (unsigned side = 0; side < 2; side++) {
        input_free(order->sum[side].position);
        input_free(order->sum[side].value);
        input_free(order->whole[side]);
    }
}

static bool merge_case(uint64_t seed, uint64_t most)
{
    struct scene *const scene = input_memory(sizeof *scene, 0);
    scene->input.state = seed;
    bool same = true;
    for (unsigned o = 0; o < ORDERS; o++) {
        order_draw(&scene->input, &scene->order[o], most / ORDERS);
        host_sum(&scene->order[o]);
    }
    scene_device(scene);
    for (unsigned o = 0; o < ORDERS; o++) {
        if (!order_same(&scene->order[o])) {
            (void)fprintf(stderr, "order %u: %u lists of %llu positions\n", o,
                scene->order[o].lists, (unsigned long long)scene->order[o].positions);
            same = false;
        }
        order_drop(&scene->order[o]);
        input_free(scene->device[o].place);
    }
    input_free(scene);
    return same;
}

static void test_small(void **state)
{
    (void)state;
    seeds_try(merge_case, 1, 100, 9000);
}

static void test_large(void **state)
{
    (void)state;
    seeds_try(merge_case, 1000, 5, 200000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_large),
    };
    if (argc == 3) {
        return merge_case(strtoull(argv[1], NULL, 0), strtoull(argv[2], NULL, 0)) ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
