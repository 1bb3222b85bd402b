/*
 * READ, SAVE, LOAD, SUMS, CONVERT, CARRY and JOIN on the device against the host's engine, byte by
 * byte, also when they are killed and repeated.
 *
 * usage: test_whole [SEED ELEMENTS]
 */
#include "daemon/engine/engine.h"
#include "kernels/cuda/scratch.h"
#include "kernels/kernels.h"
#include "tests/cuda/device_code.h"
#include "tests/cuda/placed.h"
#include "tests/cuda/seeds.h"

#include <stdio.h>
#include <string.h>

enum { ORDERS = 4, PARTS = 3, EACH = 1 + PARTS, RESIDUALS = ORDERS * EACH, SPARES = INPUT_BLOCKS };
enum { EACH_ORDERS = 6 }; /* of the host's: fill, sums, read, show, save, load */
enum { PLACES = 2 };      /* where a residual is shown */

struct order {
    struct placed *residual; /* what the parts are put into, then the parts */
    unsigned parts;
    uint64_t begin, count; /* what is read of it */
    float factor;
    float *read[2];          /* on the host, on the device */
    float *shown[2][PLACES]; /* the same, of all elements */
    /* The same stretch as it is, and what is loaded in its place. */
    float *saved[2], *loaded;
    struct carry *saved_carry[2], *loaded_carry;
    struct whole_sums sums[2], *chunk;
    const uint64_t *part[PARTS];
    uint64_t salt;
};

struct scene {
    struct input input;
    struct order order[ORDERS];
    struct placed residual[RESIDUALS];
    struct whole_order fill[ORDERS], sum[ORDERS], read[2 * ORDERS], save[ORDERS], load[ORDERS];
    struct whole_batch batch[5]; /* of these tables */
    struct placed_halves halves;
};

/* A residual that becomes another may be in bf16, and so may that one. */
static void order_draw(struct input *input, struct order *order, const struct placed_halves *halves)
{
    const uint64_t n = order->residual[0].numel;
    order->parts = (unsigned)input_below(input, PARTS + 1);
    order->salt = input_next(input);
    for (unsigned r = 0; order->parts == 1 && r < 2; r++) {
        if (input_below(input, 2) == 0) {
            placed_round(input, &order->residual[r], halves);
        }
    }
    order->begin = input_below(input, n) / ENGINE_READ_STEP * ENGINE_READ_STEP;
    order->count = 1 + input_below(input, n - order->begin);
    order->read[0] = input_memory(order->count * sizeof(float), 1);
    order->read[1] = input_memory(order->count * sizeof(float), 2);
    order->factor = input_below(input, 2) == 0 ? 1 : (float)(1 + input_below(input, 9)) / 7;
    for (unsigned s = 0; s < 2; s++) {
        for (unsigned p = 0; p < PLACES; p++) {
            order->shown[s][p] = input_memory(n * sizeof(float), (int)(5 + s));
        }
        order->saved[s] = input_memory(order->count * sizeof(float), 3);
        order->saved_carry[s] = input_memory(chunk_count(order->count) * sizeof(struct carry), 4);
    }
    order->loaded = placed_values(input, order->count);
    order->loaded_carry = (struct carry *)placed_values(
        input, chunk_count(order->count) * sizeof(struct carry) / sizeof(float));
    order->chunk = input_memory(chunk_count(n) * sizeof *order->chunk, 0x99);
    memset(order->sums, 0, sizeof order->sums);
}

static void order_drop(struct order *order)
{
    input_free(order->read[0]);
    input_free(order->read[1]);
    for (unsigned s = 0; s < 2; s++) {
        for (unsigned p = 0; p < PLACES; p++) {
            input_free(order->shown[s][p]);
        }
        input_free(order->saved[s]);
        input_free(order->saved_carry[s]);
    }
    input_free(order->loaded);
    input_free(order->loaded_carry);
    input_free(order->chunk);
}

/* ------------------------------------------------------------------ the host's side */

static bool is_rounded(const struct placed *residual)
{
    return residual->halves != NULL;
}

static struct engine_place host_place(const struct placed *residual)
{
    return is_rounded(residual) ? engine_here(residual->rounded.element)
                                : engine_here(residual->host);
}

/* An order on one of its residuals. */
static struct engine_order *host_next(
    struct engine_batch *batch, enum engine_kind kind, const struct placed *residual)
{
    struct engine_order *const next = engine_batch_add(batch, kind);
    next->numel = residual->numel;
    next->residual.element = host_place(residual);
    next->residual.rounded = is_rounded(residual);
    return next;
}

/* CONVERT is a fill from one part. */
static void host_fill(struct engine_batch *batch, const struct order *order)
{
    struct engine_order *next;
    if (order->parts == 1) {
        next = host_next(batch, ENGINE_CONVERT, &order->residual[1]);
        next->residual.salt = order->salt;
        next->convert = (struct engine_convert){
            .element = host_place(&order->residual[0]), .rounded = is_rounded(order->residual)};
        return;
    }
    next = host_next(batch, ENGINE_CARRY, order->residual);
    next->carry.momentum = engine_here(order->residual[0].host);
    for (unsigned p = 0; p < order->parts; p++) {
        *engine_batch_part(batch) = (struct engine_part){
            .element = engine_nowhere, .momentum = engine_here(order->residual[1 + p].host)};
    }
}

static void host_read(struct engine_batch *batch, const struct order *order)
{
    struct engine_order *const next = host_next(batch, ENGINE_READ, order->residual);
    next->gather =
        (struct engine_gather){.list = {engine_nowhere, engine_here(order->read[0]), order->count},
            .first = order->begin,
            .factor = order->factor};
}

static void host_show(struct engine_batch *batch, const struct order *order)
{
    struct engine_order *const next = host_next(batch, ENGINE_READ, order->residual);
    next->gather = (struct engine_gather){
        .list = {engine_nowhere, engine_nowhere, next->numel}, .factor = order->factor};
    for (unsigned p = 0; p < PLACES; p++) {
        *engine_batch_part(batch) =
            (struct engine_part){.element = engine_here(order->shown[0][p])};
    }
}

static void host_image(struct engine_batch *batch, enum engine_kind kind, const struct order *order,
    const float *element, const struct carry *carry)
{
    struct engine_order *const next = host_next(batch, kind, order->residual);
    next->image = (struct engine_image){.element = engine_here(element),
        .carry = engine_here(carry),
        .progress = engine_nowhere,
        .first = order->begin,
        .count = order->count};
}

static void host_batch(struct engine_batch *batch, unsigned orders, unsigned parts)
{
    static const struct engine_memory memory = {.journal = NULL};
    if (!engine_batch_init(batch, &memory, orders, parts)) {
        abort();
    }
}

static void host_run(struct engine_batch *batch)
{
    const struct parallel alone = {.threads = 0};
    engine_host.run(NULL, batch, &alone);
}

static void scene_host(struct scene *scene)
{
    struct engine_batch batch;
    host_batch(&batch, EACH_ORDERS * ORDERS, (PARTS + PLACES) * ORDERS);
    for (unsigned o = 0; o < ORDERS; o++) {
        host_fill(&batch, &scene->order[o]);
        (void)host_next(&batch, ENGINE_SUMS, scene->order[o].residual);
        host_read(&batch, &scene->order[o]);
        host_show(&batch, &scene->order[o]);
        host_image(&batch, ENGINE_SAVE, &scene->order[o], scene->order[o].saved[0],
            scene->order[o].saved_carry[0]);
        host_image(&batch, ENGINE_LOAD, &scene->order[o], scene->order[o].loaded,
            scene->order[o].loaded_carry);
    }
    host_run(&batch);
    for (unsigned o = 0; o < ORDERS; o++) {
        const struct engine_result *const result = &batch.result[EACH_ORDERS * o + 1];
        scene->order[o].sums[0] =
            (struct whole_sums){{result->sums[0], result->sums[1]}, result->magnitude};
    }
    engine_batch_free(&batch);
}

/* ------------------------------------------------------------------ the device's side */

static void device_add(struct scene *scene, struct whole_batch *batch, const struct order *order,
    struct whole_order next)
{
    struct whole_order *const table = (struct whole_order *)(uintptr_t)batch->order;
    next.first = batch->chunks;
    next.entry = order->residual[0].entry;
    next.rounded = is_rounded(&order->residual[0]);
    next.from_rounded = is_rounded(&order->residual[1]);
    next.rounding = rounded_pass(0, order->salt);
    next.carry = scene->halves.carry;
    next.from_carry = scene->halves.carry;
    table[batch->orders++] = next;
    batch->chunks += chunk_count(next.count);
}

static void device_orders(struct scene *scene, struct order *order)
{
    const uint64_t n = order->residual[0].numel;
    for (unsigned p = 0; p < order->parts; p++) {
        order->part[p] = order->residual[1 + p].entry;
    }
    device_add(scene, &scene->batch[0], order,
        (struct whole_order){.count = n, .part = order->part, .parts = order->parts});
    device_add(scene, &scene->batch[1], order,
        (struct whole_order){.count = n, .chunk = order->chunk, .sums = &order->sums[1]});
    device_add(scene, &scene->batch[2], order,
        (struct whole_order){.begin = order->begin / CHUNK,
            .count = order->count,
            .read = order->read[1],
            .factor = order->factor});
    device_add(scene, &scene->batch[2], order,
        (struct whole_order){
            .count = n, .factor = order->factor, .place = order->shown[1], .places = PLACES});
    device_add(scene, &scene->batch[3], order,
        (struct whole_order){.begin = order->begin / CHUNK,
            .count = order->count,
            .image = order->saved[1],
            .image_carry = order->saved_carry[1]});
    device_add(scene, &scene->batch[4], order,
        (struct whole_order){.begin = order->begin / CHUNK,
            .count = order->count,
            .image = order->loaded,
            .image_carry = order->loaded_carry});
}

static void scene_device(struct scene *scene, float *element)
{
    static launch_kernel *const kernel[] = {
        run_whole_fill, run_whole_sums, run_whole_total, run_whole_read, run_whole_save};
    static launch_kernel *const load[] = {run_whole_load};
    const void *const parameter[] = {&scene->batch[0], &scene->batch[1], &scene->batch[1],
        &scene->batch[2], &scene->batch[3], &scene->batch[4]};
    struct whole_order *const table[] = {
        scene->fill, scene->sum, scene->read, scene->save, scene->load};
    for (unsigned b = 0; b < 5; b++) {
        scene->batch[b] =
            (struct whole_batch){.order = table[b], .element = element, .half = scene->halves.half};
    }
    for (unsigned o = 0; o < ORDERS; o++) {
        device_orders(scene, &scene->order[o]);
    }
    placed_run(&scene->input, kernel, parameter, 5);
    placed_run(&scene->input, load, &parameter[5], 1);
}

/* ------------------------------------------------------------------ the cases */

static bool scene_same(const struct scene *scene, const float *element)
{
    bool same = placed_all_same(element, scene->residual, RESIDUALS, EACH);
    for (unsigned o = 0; o < ORDERS; o++) {
        const struct order *const order = &scene->order[o];
        const size_t floats = order->count * sizeof(float);
        for (unsigned p = 0; p < PLACES; p++) {
            same &= memcmp(order->shown[0][p], order->shown[1][p],
                        order->residual[0].numel * sizeof(float)) == 0;
        }
        if (memcmp(order->read[0], order->read[1], floats) != 0 ||
            memcmp(order->saved[0], order->saved[1], floats) != 0 ||
            memcmp(order->saved_carry[0], order->saved_carry[1],
                chunk_count(order->count) * sizeof(struct carry)) != 0 ||
            memcmp(&order->sums[0], &order->sums[1], sizeof order->sums[0]) != 0) {
            (void)fprintf(stderr, "order %u: what was read, saved or summed\n", o);
            same = false;
        }
    }
    return same;
}

static bool whole_case(uint64_t seed, uint64_t most)
{
    struct scene *const scene = input_memory(sizeof *scene, 0);
    scene->input.state = seed;
    placed_sizes(&scene->input, scene->residual, RESIDUALS, EACH, most);
    float *const element = placed_draw(&scene->input, scene->residual, RESIDUALS);
    scene->halves = placed_halves(scene->residual, RESIDUALS);
    for (unsigned o = 0; o < ORDERS; o++) {
        scene->order[o].residual = &scene->residual[o * EACH];
        order_draw(&scene->input, &scene->order[o], &scene->halves);
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
    seeds_try(whole_case, 1, 300, 8000);
}

static void test_large(void **state)
{
    (void)state;
    seeds_try(whole_case, 1000, 10, 400000);
}

/* ------------------------------------------------------------------ joining */

static void join_host(const struct placed *residual, unsigned parts)
{
    struct progress *const progress = input_memory(progress_size(residual[0].numel), 0);
    struct engine_batch batch;
    host_batch(&batch, 1, PARTS);
    struct engine_order *const order = engine_batch_add(&batch, ENGINE_JOIN);
    order->numel = residual[0].numel;
    order->residual.element = engine_here(residual[0].host);
    order->residual.momentum = engine_nowhere;
    order->residual.progress = engine_here(progress);
    order->stamp = 1;
    order->dtype = DTYPE_F32;
    for (unsigned p = 0; p < parts; p++) {
        *engine_batch_part(&batch) = (struct engine_part){
            .element = engine_here(residual[1 + p].host), .momentum = engine_nowhere};
    }
    host_run(&batch);
    engine_batch_free(&batch);
    input_free(progress);
}

/* What the device reads and writes beside the residuals. */
struct join {
    struct add_steps steps;
    const uint64_t *part[PARTS];
    double ledger[2];
    struct add_before before;
    struct add_result result;
    uint32_t spare[SPARES];
    struct whole_order zero[PARTS];
    struct add_tensor tensor;
};

static void join_tables(struct join *join, const struct placed *residual, unsigned parts)
{
    const uint64_t n = residual[0].numel;
    join->tensor = (struct add_tensor){.entry = residual[0].entry,
        .joined = join->part,
        .gradients = parts,
        .dtype = DTYPE_F32,
        .numel = n,
        .mode = ADD_NOTHING,
        .stamp = 1,
        .ledger = {.input = join->ledger},
        .before = &join->before,
        .result = &join->result};
    join->tensor.scratch = input_memory(scratch_size(&join->tensor), 0xab);
    for (unsigned s = 0; s < SPARES; s++) {
        join->spare[s] = slot_of(residual[EACH].entry[s]);
    }
    for (uint64_t c = 0; c < chunk_count(n); c++) {
        residual[0].entry[c] = slot_entry(0, slot_of(residual[0].entry[c]));
    }
    for (unsigned p = 0; p < parts; p++) {
        join->part[p] = residual[1 + p].entry;
        join->zero[p] = (struct whole_order){
            .first = p * chunk_count(n), .count = n, .entry = residual[1 + p].entry};
    }
}

/* The sum of the parts is added, then they become zeros. Spare slots are those behind the drawn
 * residuals: the last one gives its own. */
static void join_device(
    struct input *input, struct placed *residual, unsigned parts, float *element)
{
    static launch_kernel *const kernel[] = {
        run_add_begin, run_add_stream, run_add_finish, run_whole_fill};
    const uint64_t chunks = chunk_count(residual[0].numel);
    const uint64_t slots = RESIDUALS * (chunks + SPARES);
    struct join *const join = input_memory(sizeof *join, 0);
    const struct whole_batch zeros = {
        .order = join->zero, .orders = parts, .chunks = parts * chunks, .element = element};
    const struct add_batch batch = {.tensor = &join->tensor,
        .tensors = 1,
        .chunks = (uint32_t)chunks,
        .steps = &join->steps,
        .slots = {.element = element,
            .record = input_memory(slots * sizeof(struct slot_record), 0),
            .spare = join->spare,
            .owner = input_memory(slots * sizeof(uint64_t), 0),
            .entries = residual[0].entry}};
    const void *const parameter[] = {&batch, &batch, &batch, &zeros};
    join_tables(join, residual, parts);
    for (unsigned k = 0; k < 4; k++) {
        const struct launch how = input_launch(input);
        launch(&how, kernel[k], parameter[k]);
    }
    input_free(batch.slots.record);
    input_free(batch.slots.owner);
    input_free(join->tensor.scratch);
    input_free(join);
}

static bool join_case(uint64_t seed, uint64_t most)
{
    struct input input = {seed};
    struct placed residual[EACH + 1] = {{0}};
    const unsigned parts = (unsigned)input_below(&input, PARTS + 1);
    bool same = true;
    residual[0].numel = input_size(&input, most);
    for (unsigned r = 1; r < EACH; r++) {
        residual[r].numel = residual[0].numel;
    }
    residual[EACH].numel = SPARES * CHUNK;
    float *const element = placed_draw(&input, residual, EACH + 1);
    join_host(residual, parts);
    join_device(&input, residual, parts, element);
    for (unsigned r = 0; r < EACH; r++) {
        same = placed_same(element, &residual[r]) && same;
    }
    placed_drop(element, residual, EACH + 1);
    return same;
}

static void test_join(void **state)
{
    (void)state;
    seeds_try(join_case, 1, 100, 20000);
}

/* ------------------------------------------------------------------ progress */

/* Of a residual, or of one that is loaded with its image. */
struct passed {
    struct placed residual;
    struct whole_order order;
    struct add_before before;
};

static void passed_draw(struct input *input, struct passed *passed, struct slot_record *record)
{
    const uint64_t chunks = chunk_count(passed->residual.numel);
    for (uint64_t c = 0; c < chunks; c++) {
        const uint32_t slot = slot_of(passed->residual.entry[c]);
        record[slot] = (struct slot_record){.sums = {(double)input_next(input), 1},
            .lost = {2, (double)input_next(input)},
            .nonfinite = input_next(input)};
        passed->residual.entry[c] = slot_entry((uint32_t)input_next(input), slot);
    }
    passed->before = (struct add_before){.sums = {(double)input_next(input), 3},
        .lost = {4, (double)input_next(input)},
        .stamp = input_next(input)};
}

static void passed_move(
    struct input *input, const struct passed *passed, bool loads, float *element)
{
    static launch_kernel *const kernel[] = {run_whole_save, run_whole_load};
    const struct whole_batch batch = {.order = &passed->order,
        .orders = 1,
        .chunks = chunk_count(passed->order.count),
        .element = element};
    const void *const parameter = &batch;
    placed_run(input, &kernel[loads], &parameter, 1);
}

/* Both have the same progress, in slots of their own. */
static bool passed_same(const struct passed *passed, const struct slot_record *record)
{
    bool same = memcmp(&passed[0].before, &passed[1].before, sizeof passed[0].before) == 0;
    for (uint64_t c = 0; c < chunk_count(passed[0].residual.numel); c++) {
        const uint64_t one = passed[0].residual.entry[c], other = passed[1].residual.entry[c];
        same = same && one >> 32 == other >> 32 && slot_of(one) != slot_of(other) &&
               memcmp(&record[slot_of(one)], &record[slot_of(other)], sizeof *record) == 0;
    }
    return same;
}

static bool progress_case(uint64_t seed, uint64_t most)
{
    struct input input = {seed};
    struct placed residual[2] = {{0}};
    struct passed *const passed = input_memory(2 * sizeof *passed, 0); /* kernels read it */
    residual[0].numel = residual[1].numel = input_size(&input, most);
    const uint64_t n = residual[0].numel;
    struct whole_progress *const image = input_memory(progress_size(n), 0x5a);
    float *const element = placed_draw(&input, residual, 2), *copy = input_memory(n * 4, 0x77);
    struct slot_record *const record = input_memory(placed_slots(residual, 2) * sizeof *record, 0);
    for (unsigned r = 0; r < 2; r++) {
        passed[r].residual = residual[r];
        passed_draw(&input, &passed[r], record);
        passed[r].order = (struct whole_order){.count = n,
            .entry = residual[r].entry,
            .image = copy,
            .image_progress = image,
            .record = record,
            .before = &passed[r].before};
    }
    passed_move(&input, &passed[0], false, element);
    passed_move(&input, &passed[1], true, element);
    const bool same = passed_same(passed, record);
    placed_drop(element, residual, 2);
    input_free(passed);
    input_free(record);
    input_free(image);
    input_free(copy);
    return same;
}

static void test_progress(void **state)
{
    (void)state;
    seeds_try(progress_case, 1, 100, 20000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_progress),
    };
    if (argc == 3) {
        return whole_case(strtoull(argv[1], NULL, 0), strtoull(argv[2], NULL, 0)) ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
