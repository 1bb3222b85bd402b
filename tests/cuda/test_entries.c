/*
 * LEAVE, RETURN and GATHER on the device against the host's engine, byte by byte, also when they
 * are killed and repeated.
 *
 * usage: test_entries [SEED ELEMENTS]
 */
#include "daemon/engine/engine.h"
#include "tests/cuda/device_code.h"
#include "tests/cuda/placed.h"
#include "tests/cuda/seeds.h"

#include <stdio.h>
#include <string.h>

enum { ORDERS = 4, RANKS = 3, EACH = 2 * RANKS, RESIDUALS = ORDERS * EACH };

/* A list that both sides read. */
struct drawn {
    uint32_t *position;
    float *value;
    uint64_t count;
};

struct order {
    struct placed *residual; /* of the ranks, then their velocities */
    unsigned ranks;          /* 0: the first residual has no list of its own */
    bool masks, returns;
    bool rounded; /* the first residual is in bf16: it has only LEAVE */
    struct view view;
    struct drawn list, back, of_rank[RANKS];
    uint8_t *accepted, *taken;
    float *kept, *kept_back;
    float *found[2]; /* of the host, of the device */
    struct entries_rank rank[RANKS];
};

struct scene {
    struct input input;
    struct order order[ORDERS];
    struct placed residual[RESIDUALS];
    struct entries_order leave[ORDERS], back[ORDERS], gather[ORDERS];
    struct entries_batch batch[3]; /* of these tables */
    struct placed_halves halves;
};

/* ------------------------------------------------------------------ drawing */

static struct drawn drawn_list(struct input *input, uint64_t n)
{
    struct drawn list;
    list.count = placed_positions(input, n, &list.position);
    list.value = placed_values(input, list.count);
    return list;
}

/* Some of the entries, with values of their own. */
static struct drawn drawn_some(struct input *input, const struct drawn *of)
{
    struct drawn list = {.position = input_memory(of->count * sizeof(uint32_t), 0),
        .value = placed_values(input, of->count)};
    for (uint64_t i = 0; i < of->count; i++) {
        if (input_below(input, 3) != 0) {
            list.position[list.count++] = of->position[i];
        }
    }
    return list;
}

static void drawn_free(struct drawn *list)
{
    input_free(list->position);
    input_free(list->value);
}

/* Sums of tame values are the same on every processor; a NaN's bits are not. */
static void order_tame(struct order *order)
{
    placed_tame(order->back.value, order->back.count);
    placed_tame(order->kept_back, order->back.count);
    for (unsigned r = 0; r < RANKS; r++) {
        placed_tame(order->of_rank[r].value, order->of_rank[r].count);
    }
    if (order->ranks > 0) {
        placed_tame(order->list.value, order->list.count);
    }
}

static void order_draw(struct input *input, struct order *order)
{
    const uint64_t n = order->residual[0].numel;
    order->ranks = (unsigned)input_below(input, 2) * (1 + (unsigned)input_below(input, RANKS));
    order->rounded = order->ranks == 0 && input_below(input, 3) == 0;
    order->masks = !order->rounded && input_below(input, 2) == 0;
    order->returns = order->ranks == 0 && !order->rounded && input_below(input, 2) == 0;
    order->view = placed_view(input, n);
    order->list = drawn_list(input, n);
    order->back = drawn_list(input, n);
    order->accepted = placed_bits(input, order->list.count);
    order->taken = placed_bits(input, order->back.count);
    order->kept = placed_values(input, order->list.count);
    order->kept_back = placed_values(input, order->back.count);
    for (unsigned r = 0; r < RANKS; r++) {
        order->of_rank[r] = drawn_some(input, &order->list);
    }
    order->found[0] = input_memory(order->back.count * sizeof(float), 0);
    order->found[1] = input_memory(order->back.count * sizeof(float), 1);
    order_tame(order);
}

static void order_drop(struct order *order)
{
    drawn_free(&order->list);
    drawn_free(&order->back);
    for (unsigned r = 0; r < RANKS; r++) {
        drawn_free(&order->of_rank[r]);
    }
    input_free(order->accepted);
    input_free(order->taken);
    input_free(order->kept);
    input_free(order->kept_back);
    input_free(order->found[0]);
    input_free(order->found[1]);
}

/* ------------------------------------------------------------------ the host's side */

static struct engine_list host_list(const struct drawn *list)
{
    return (struct engine_list){engine_here(list->position), engine_here(list->value), list->count};
}

static struct engine_place host_velocity(const struct order *order, unsigned rank)
{
    return engine_here(order->residual[RANKS + rank].host);
}

static struct engine_order *host_next(
    struct engine_batch *batch, enum engine_kind kind, const struct order *order)
{
    struct engine_order *const next = engine_batch_add(batch, kind);
    next->numel = order->residual[0].numel;
    next->residual = (struct engine_residual){
        .element = order->rounded ? engine_here(order->residual[0].rounded.element)
                                  : engine_here(order->residual[0].host),
        .rounded = order->rounded,
        .momentum = host_velocity(order, 0)};
    return next;
}

static void host_leave(struct engine_batch *batch, const struct order *order)
{
    host_next(batch, ENGINE_LEAVE, order)->leave = (struct engine_leave){.view = order->view,
        .sent = host_list(&order->list),
        .accepted = engine_here(order->accepted),
        .before = engine_here(order->kept),
        .masks = order->masks};
    for (unsigned r = 0; r < order->ranks; r++) {
        *engine_batch_part(batch) =
            (struct engine_part){.element = engine_here(order->residual[r].host),
                .momentum = host_velocity(order, r),
                .list = host_list(&order->of_rank[r])};
    }
}

static void host_return(struct engine_batch *batch, const struct order *order)
{
    host_next(batch, ENGINE_RETURN, order)->back = (struct engine_return){.view = order->view,
        .list = host_list(&order->back),
        .taken = engine_here(order->taken),
        .before = engine_here(order->kept_back),
        .sent = host_list(&order->list),
        .own = host_list(&order->of_rank[0]),
        .accepted = engine_here(order->accepted)};
}

static void host_gather(struct engine_batch *batch, const struct order *order)
{
    struct engine_list list = host_list(&order->back);
    list.value = engine_here(order->found[0]);
    host_next(batch, ENGINE_GATHER, order)->gather =
        (struct engine_gather){.view = order->view, .list = list};
}

static void scene_host(struct scene *scene)
{
    static const struct engine_memory memory = {.journal = NULL};
    const struct parallel alone = {.threads = 0};
    struct engine_batch batch;
    if (!engine_batch_init(&batch, &memory, 3 * ORDERS, RANKS * ORDERS)) {
        abort();
    }
    for (unsigned o = 0; o < ORDERS; o++) {
        host_leave(&batch, &scene->order[o]);
        if (scene->order[o].returns) {
            host_return(&batch, &scene->order[o]);
        }
        if (!scene->order[o].rounded) {
            host_gather(&batch, &scene->order[o]);
        }
    }
    engine_host.run(NULL, &batch, &alone);
    engine_batch_free(&batch);
}

/* ------------------------------------------------------------------ the device's side */

static struct entries device_list(const struct drawn *list)
{
    return (struct entries){list->position, list->value, list->count};
}

static const uint64_t *device_velocity(const struct order *order, unsigned rank)
{
    return order->masks ? order->residual[RANKS + rank].entry : NULL;
}

/* The next order of a batch. */
static void device_add(struct entries_batch *batch, struct entries_order next)
{
    struct entries_order *const table = (struct entries_order *)(uintptr_t)batch->order;
    next.first = batch->entries;
    table[batch->orders++] = next;
    batch->entries += next.list.count;
}

static void device_leave(struct entries_batch *batch, struct order *order)
{
    struct entries_order next = {.entry = order->residual[0].entry,
        .velocity = device_velocity(order, 0),
        .rounded = order->rounded,
        .rank = order->rank,
        .ranks = order->ranks,
        .view = order->view,
        .list = device_list(&order->list),
        .chosen = order->accepted,
        .kept = order->kept};
    for (unsigned r = 0; r < order->ranks; r++) {
        order->rank[r] = (struct entries_rank){
            order->residual[r].entry, device_velocity(order, r), device_list(&order->of_rank[r])};
    }
    device_add(batch, next);
}

static void device_return(struct entries_batch *batch, const struct order *order)
{
    device_add(batch, (struct entries_order){.entry = order->residual[0].entry,
                          .view = order->view,
                          .list = device_list(&order->back),
                          .chosen = order->taken,
                          .kept = order->kept_back,
                          .sent = device_list(&order->list),
                          .own = device_list(&order->of_rank[0]),
                          .accepted = order->accepted});
}

static void device_gather(struct entries_batch *batch, const struct order *order)
{
    device_add(batch, (struct entries_order){.entry = order->residual[0].entry,
                          .view = order->view,
                          .list = device_list(&order->back),
                          .found = order->found[1]});
}

static void scene_device(struct scene *scene, float *element)
{
    static launch_kernel *const kernel[] = {
        run_entries_leave, run_entries_return, run_entries_gather};
    const void *const parameter[] = {&scene->batch[0], &scene->batch[1], &scene->batch[2]};
    scene->batch[0] = (struct entries_batch){
        .order = scene->leave, .element = element, .half = scene->halves.half};
    scene->batch[1] = (struct entries_batch){.order = scene->back, .element = element};
    scene->batch[2] = (struct entries_batch){.order = scene->gather, .element = element};
    for (unsigned o = 0; o < ORDERS; o++) {
        device_leave(&scene->batch[0], &scene->order[o]);
        if (scene->order[o].returns) {
            device_return(&scene->batch[1], &scene->order[o]);
        }
        if (!scene->order[o].rounded) {
            device_gather(&scene->batch[2], &scene->order[o]);
        }
    }
    placed_run(&scene->input, kernel, parameter, 3);
}

/* ------------------------------------------------------------------ the cases */

static bool scene_same(const struct scene *scene, const float *element)
{
    bool same = placed_all_same(element, scene->residual, RESIDUALS, EACH);
    for (unsigned o = 0; o < ORDERS; o++) {
        const struct order *const order = &scene->order[o];
        if (!order->rounded &&
            memcmp(order->found[0], order->found[1], order->back.count * sizeof(float)) != 0) {
            (void)fprintf(stderr, "order %u: what was read\n", o);
            same = false;
        }
    }
    return same;
}

static bool entries_case(uint64_t seed, uint64_t most)
{
    struct scene *const scene = input_memory(sizeof *scene, 0);
    scene->input.state = seed;
    placed_sizes(&scene->input, scene->residual, RESIDUALS, EACH, most);
    float *const element = placed_draw(&scene->input, scene->residual, RESIDUALS);
    scene->halves = placed_halves(scene->residual, RESIDUALS);
    for (unsigned o = 0; o < ORDERS; o++) {
        scene->order[o].residual = &scene->residual[o * EACH];
        order_draw(&scene->input, &scene->order[o]);
        if (scene->order[o].rounded) {
            placed_round(&scene->input, scene->order[o].residual, &scene->halves);
        }
    }
    scene_host(scene);
    scene_device(scene, element);
    const bool same = scene_same(scene, element);
    for (unsigned o = 0; o < ORDERS; o++) {
        order_drop(&scene->order[o]);
    }
    placed_drop(element, scene->residual, RESIDUALS);
    input_free(scene->halves.half);
    input_free(scene->halves.carry);
    input_free(scene);
    return same;
}

static void test_small(void **state)
{
    (void)state;
    seeds_try(entries_case, 1, 300, 8000);
}

static void test_large(void **state)
{
    (void)state;
    seeds_try(entries_case, 1000, 10, 400000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_large),
    };
    if (argc == 3) {
        return entries_case(strtoull(argv[1], NULL, 0), strtoull(argv[2], NULL, 0)) ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
