/*
 * UPDATE and NARROW on the device against the host's engine, byte by byte, also when they are
 * killed and repeated; and SUMMED against a loop and the host's NARROW.
 *
 * usage: test_update [SEED ELEMENTS]
 */
#include "daemon/engine/engine.h"
#include "tests/cuda/device_code.h"
#include "tests/cuda/placed.h"
#include "tests/cuda/seeds.h"

#include <stdio.h>
#include <string.h>

enum { ORDERS = 5, SIDES = 2, HOST = 0, DEVICE = 1 };

/* What an order writes, on one side. The list's values are what NARROW reads. */
struct shown {
    float *dense, *value, *widened;
    uint32_t *index, *again; /* the list's elements, and those that NARROW writes */
    uint32_t counted[2];     /* of UPDATE, and of NARROW */
    uint16_t *half;
};

struct order {
    uint64_t numel, count;
    struct view view;
    enum dtype dtype;
    bool has_dense, has_list, in_place, narrows, by_list;
    uint32_t *position;
    float *value;
    struct shown shown[SIDES];
};

struct scene {
    struct input input;
    struct order order[ORDERS];
    struct update_order update[ORDERS], narrow[ORDERS];
    struct update_batch batch[2]; /* of these tables */
};

/* ------------------------------------------------------------------ drawing */

/* With `in_place`, elements take the place of the list's positions. */
static struct shown shown_make(const struct order *order)
{
    struct shown shown = {.dense = input_memory(order->numel * sizeof(float), 0x77),
        .value = input_memory(order->count * sizeof(float), 0x77),
        .widened = input_memory(order->count * sizeof(float), 0x77),
        .index = input_memory(order->count * sizeof(uint32_t), 0x77),
        .again = input_memory(order->count * sizeof(uint32_t), 0x77),
        .half = input_memory(order->numel * sizeof(uint16_t), 0x77)};
    if (order->in_place) {
        memcpy(shown.index, order->position, order->count * sizeof(uint32_t));
    }
    return shown;
}

static void order_draw(struct input *input, struct order *order, uint64_t most)
{
    order->numel = input_size(input, most);
    order->view = placed_view(input, order->numel);
    order->count = placed_positions(input, order->numel, &order->position);
    order->value = placed_values(input, order->count);
    order->dtype = input_below(input, 2) == 0 ? DTYPE_BF16 : DTYPE_F16;
    order->has_dense = input_below(input, 3) != 0;
    order->has_list = !order->has_dense || input_below(input, 2) == 0;
    order->in_place = input_below(input, 2) == 0;
    order->narrows = input_below(input, 2) == 0;
    order->by_list = order->has_list && (!order->has_dense || input_below(input, 2) == 0);
    for (unsigned side = 0; side < SIDES; side++) {
        order->shown[side] = shown_make(order);
    }
}

static void order_drop(struct order *order)
{
    for (unsigned side = 0; side < SIDES; side++) {
        input_free(order->shown[side].dense);
        input_free(order->shown[side].value);
        input_free(order->shown[side].widened);
        input_free(order->shown[side].index);
        input_free(order->shown[side].again);
        input_free(order->shown[side].half);
    }
    input_free(order->position);
    input_free(order->value);
}

/* The positions that UPDATE reads. A pass that is repeated reads them where they do not change. */
static uint32_t *order_positions(const struct order *order, const struct shown *shown, bool once)
{
    return order->in_place && once ? shown->index : order->position;
}

/* ------------------------------------------------------------------ the two sides */

static void host_update(struct engine_batch *batch, const struct order *order)
{
    const struct shown *const shown = &order->shown[HOST];
    const struct engine_list list = {
        engine_here(order_positions(order, shown, true)), engine_here(order->value), order->count};
    struct engine_order *const next = engine_batch_add(batch, ENGINE_UPDATE);
    next->numel = order->numel;
    next->update = (struct engine_update){.view = order->view,
        .list = list,
        .index = engine_here(order->has_list ? shown->index : NULL),
        .value = engine_here(order->has_list ? shown->value : NULL),
        .dense = engine_here(order->has_dense ? shown->dense : NULL)};
}

static void host_narrow(struct engine_batch *batch, const struct order *order)
{
    const struct shown *const shown = &order->shown[HOST];
    struct engine_order *const next = engine_batch_add(batch, ENGINE_NARROW);
    next->numel = order->numel;
    next->dtype = order->dtype;
    next->narrow =
        (struct engine_narrow){.dense = engine_here(order->by_list ? NULL : shown->dense),
            .index = engine_here(shown->index),
            .value = engine_here(shown->value),
            .count = order->by_list ? order->count : 0,
            .half = engine_here(shown->half),
            .shown = engine_here(order->by_list ? shown->widened : NULL)};
}

static void scene_host(struct scene *scene)
{
    static const struct engine_memory memory = {.journal = NULL};
    const struct parallel alone = {.threads = 0};
    struct engine_batch batch;
    if (!engine_batch_init(&batch, &memory, 2 * ORDERS, 0)) {
        abort();
    }
    for (unsigned o = 0; o < ORDERS; o++) {
        host_update(&batch, &scene->order[o]);
        if (scene->order[o].narrows) {
            host_narrow(&batch, &scene->order[o]);
        }
    }
    engine_host.run(NULL, &batch, &alone);
    engine_batch_free(&batch);
}

static void device_add(
    struct update_batch *batch, const struct order *order, struct update_order next)
{
    struct update_order *const table = (struct update_order *)(uintptr_t)batch->order;
    next.first = batch->entries;
    next.first_element = batch->elements;
    next.numel = order->numel;
    table[batch->orders++] = next;
    batch->entries += next.list.count;
    batch->elements += order->numel;
}

static void device_update(struct update_batch *batch, struct order *order, bool once)
{
    struct shown *const shown = &order->shown[DEVICE];
    device_add(batch, order,
        (struct update_order){.view = order->view,
            .list = {order_positions(order, shown, once), order->value, order->count},
            .dense = order->has_dense ? shown->dense : NULL,
            .index = order->has_list ? shown->index : NULL,
            .value = order->has_list ? shown->value : NULL,
            .counted = &shown->counted[0],
            .count = (uint32_t)order->count});
}

static void device_narrow(struct update_batch *batch, struct order *order)
{
    struct shown *const shown = &order->shown[DEVICE];
    struct update_order next = {.view = {.fibres = 1, .length = order->numel, .stride = 1},
        .half = shown->half,
        .counted = &shown->counted[1],
        .count = UPDATE_NO_LIST,
        .dtype = order->dtype};
    if (order->by_list) {
        next.index = shown->again;
        next.list = (struct entries){shown->index, shown->value, order->count};
        next.shown = shown->widened;
    } else {
        next.dense = shown->dense;
    }
    device_add(batch, order, next);
}

static void scene_device(struct scene *scene)
{
    static launch_kernel *const kernel[] = {
        run_update_elements, run_update_entries, run_update_elements, run_update_entries};
    const void *const parameter[] = {
        &scene->batch[0], &scene->batch[0], &scene->batch[1], &scene->batch[1]};
    const bool once = input_below(&scene->input, 2) == 0;
    scene->batch[0].order = scene->update;
    scene->batch[1].order = scene->narrow;
    for (unsigned o = 0; o < ORDERS; o++) {
        device_update(&scene->batch[0], &scene->order[o], once);
        if (scene->order[o].narrows) {
            device_narrow(&scene->batch[1], &scene->order[o]);
        }
    }
    if (!once) {
        placed_run(&scene->input, kernel, parameter, 4);
        return;
    }
    for (unsigned k = 0; k < 4; k++) {
        const struct launch how = input_launch(&scene->input);
        launch(&how, kernel[k], parameter[k]);
    }
}

/* ------------------------------------------------------------------ the cases */

/* What SHOW writes beside: the count of the list, and its elements in 16 bits. */
static bool order_lists(const struct order *order, const struct shown *device)
{
    const bool again = order->narrows && order->by_list;
    return device->counted[0] == order->count &&
           device->counted[1] == (order->narrows ? UPDATE_NO_LIST : 0) &&
           (!again || memcmp(device->again, device->index, order->count * sizeof(uint32_t)) == 0);
}

static bool order_same(const struct order *order)
{
    const struct shown *const host = &order->shown[HOST], *const device = &order->shown[DEVICE];
    if (!order_lists(order, device)) {
        return false;
    }
    return memcmp(host->dense, device->dense, order->numel * sizeof(float)) == 0 &&
           memcmp(host->half, device->half, order->numel * sizeof(uint16_t)) == 0 &&
           memcmp(host->index, device->index, order->count * sizeof(uint32_t)) == 0 &&
           memcmp(host->value, device->value, order->count * sizeof(float)) == 0 &&
           memcmp(host->widened, device->widened, order->count * sizeof(float)) == 0;
}

static bool update_case(uint64_t seed, uint64_t most)
{
    struct scene *const scene = input_memory(sizeof *scene, 0);
    scene->input.state = seed;
    bool same = true;
    for (unsigned o = 0; o < ORDERS; o++) {
        order_draw(&scene->input, &scene->order[o], most / ORDERS);
    }
    scene_host(scene);
    scene_device(scene);
    for (unsigned o = 0; o < ORDERS; o++) {
        if (!order_same(&scene->order[o])) {
            (void)fprintf(stderr, "order %u\n", o);
            same = false;
        }
        order_drop(&scene->order[o]);
    }
    input_free(scene);
    return same;
}

/* ------------------------------------------------------------------ sums */

/* A sum of all nodes, on both sides. Two ranks see it. */
struct total {
    uint64_t numel;
    enum dtype dtype;
    bool half;
    float *sum, *expected; /* of the device, and what it becomes */
    uint16_t *narrow;      /* that in 16 bits */
    void *place[2];
    uint32_t *counted[2]; /* a word for the second one only */
};

static void total_draw(struct input *input, struct total *total, uint64_t most)
{
    total->numel = input_size(input, most);
    total->dtype = input_below(input, 2) == 0 ? DTYPE_BF16 : DTYPE_F16;
    total->half = input_below(input, 2) == 0;
    total->sum = placed_values(input, total->numel);
    placed_tame(total->sum, total->numel);
    total->expected = input_memory(total->numel * sizeof(float), 0);
    total->narrow = input_memory(total->numel * sizeof(uint16_t), 0);
    for (unsigned p = 0; p < 2; p++) {
        total->place[p] = input_memory(total->numel * sizeof(float), 0x77);
    }
    total->counted[1] = input_memory(sizeof **total->counted, 0x77);
    for (uint64_t i = 0; i < total->numel; i += 7) {
        total->sum[i] = -0.0f;
    }
}

static void total_drop(struct total *total)
{
    input_free(total->sum);
    input_free(total->expected);
    input_free(total->narrow);
    input_free(total->place[0]);
    input_free(total->place[1]);
    input_free(total->counted[1]);
}

static void totals_host(struct total *total, float factor)
{
    static const struct engine_memory memory = {.journal = NULL};
    const struct parallel alone = {.threads = 0};
    struct engine_batch batch;
    if (!engine_batch_init(&batch, &memory, ORDERS, 0)) {
        abort();
    }
    for (unsigned o = 0; o < ORDERS; o++) {
        struct engine_order *const next = engine_batch_add(&batch, ENGINE_NARROW);
        for (uint64_t i = 0; i < total[o].numel; i++) {
            total[o].expected[i] = (0.0f + total[o].sum[i]) * factor;
        }
        next->numel = total[o].numel;
        next->dtype = total[o].dtype;
        next->narrow = (struct engine_narrow){.dense = engine_here(total[o].expected),
            .half = engine_here(total[o].narrow),
            .index = engine_nowhere,
            .value = engine_nowhere,
            .shown = engine_nowhere};
    }
    engine_host.run(NULL, &batch, &alone);
    engine_batch_free(&batch);
}

static void totals_device(struct input *input, struct total *total, float factor)
{
    struct update_sum *const order = input_memory(ORDERS * sizeof *order, 0);
    struct update_sums batch = {.order = order, .orders = ORDERS};
    for (unsigned o = 0; o < ORDERS; o++) {
        order[o] = (struct update_sum){.first = batch.elements,
            .sum = total[o].sum,
            .factor = factor,
            .dtype = total[o].dtype,
            .half = total[o].half,
            .places = 2,
            .shown = total[o].place,
            .counted = total[o].counted};
        batch.elements += total[o].numel;
    }
    const struct launch how = input_launch(input);
    launch(&how, run_update_summed, &batch);
    input_free(order);
}

static bool total_same(const struct total *total)
{
    const void *const shown = total->half ? (const void *)total->narrow : total->expected;
    const size_t size = total->numel * (total->half ? sizeof(uint16_t) : sizeof(float));
    return memcmp(total->sum, total->expected, total->numel * sizeof(float)) == 0 &&
           memcmp(total->place[0], shown, size) == 0 && memcmp(total->place[1], shown, size) == 0 &&
           *total->counted[1] == UPDATE_NO_LIST;
}

static bool sums_case(uint64_t seed, uint64_t most)
{
    struct total *const total = input_memory(ORDERS * sizeof *total, 0);
    struct input input = {.state = seed};
    const float factor = input_below(&input, 2) == 0 ? 1.0f / 3 : 1;
    bool same = true;
    for (unsigned o = 0; o < ORDERS; o++) {
        total_draw(&input, &total[o], most / ORDERS);
    }
    totals_host(total, factor);
    totals_device(&input, total, factor);
    for (unsigned o = 0; o < ORDERS; o++) {
        same = total_same(&total[o]) && same;
        total_drop(&total[o]);
    }
    input_free(total);
    return same;
}

static void test_sums(void **state)
{
    (void)state;
    seeds_try(sums_case, 1, 100, 8000);
}

static void test_small(void **state)
{
    (void)state;
    seeds_try(update_case, 1, 300, 8000);
}

static void test_large(void **state)
{
    (void)state;
    seeds_try(update_case, 1000, 10, 400000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_sums),
    };
    if (argc == 3) {
        return update_case(strtoull(argv[1], NULL, 0), strtoull(argv[2], NULL, 0)) ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
