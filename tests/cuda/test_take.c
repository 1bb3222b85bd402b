/*
 * TAKE on the device against the host's engine, byte by byte, also when it is killed and repeated:
 * residuals, records and sums.
 *
 * usage: test_take [SEED ELEMENTS]
 */
#include "daemon/engine/engine.h"
#include "kernels/cuda/scratch.h"
#include "kernels/kernels.h"
#include "tests/cuda/device_code.h"
#include "tests/cuda/placed.h"
#include "tests/cuda/seeds.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TENSORS = 4, STAMP = 9, RESTS = 2 };

/* Rests on both sides: of sums, then of what ranks see. */
struct drawn {
    float *rounded, *exact;
    int16_t *low;
    uint64_t first, count;
    float unscale, shrink;
};

struct tensor {
    struct drawn rest[RESTS];
    struct add_take take;
    struct add_before before;
    struct add_result result;
    enum dtype dtype;
    struct progress *progress;
    double sums[2]; /* the host's */
    void *scratch;
};

struct scene {
    struct input input;
    struct placed residual[TENSORS];
    struct tensor tensor[TENSORS];
    struct add_tensor device[TENSORS];
    struct add_batch batch;
    uint32_t found;
    struct add_steps steps;
    double none[2]; /* the ledger before */
};

/* ------------------------------------------------------------------ drawing */

static float draw_factor(struct input *input)
{
    static const float some[] = {1, 1, 4, 0.125f, 3, 0.3f, 0x1p-20f};
    return some[input_below(input, sizeof some / sizeof *some)];
}

static struct drawn rest_draw(struct input *input, uint64_t n, bool of_sums)
{
    struct drawn rest = {.first = input_below(input, n),
        .unscale = draw_factor(input),
        .shrink = draw_factor(input)};
    rest.count = input_below(input, n - rest.first + 1);
    if (of_sums) {
        rest.low = input_memory(rest.count * sizeof *rest.low, 0);
        input_fill(input, INPUT_BITS, DTYPE_BF16, rest.count, rest.low);
    }
    if (of_sums && input_below(input, 2) == 0) {
        rest.rounded = placed_values(input, rest.count);
    } else if (!of_sums) {
        rest.exact = placed_values(input, rest.count);
    }
    return rest;
}

static struct drawn rest_none(void)
{
    return (struct drawn){.count = 0};
}

/* Some elements that do not fit: the same on both sides. No residual has a NaN, but one that was
 * sent would leave 0. One that stays would get other bits on a GPU than on a processor. */
static void scene_spoil(struct scene *scene, struct placed *residual, bool sent)
{
    const float some[] = {INFINITY, -INFINITY, sent ? NAN : 1, 0x1.8p120f, -0x1.fp127f, 0x1p-149f};
    const uint64_t times = input_below(&scene->input, 3) * input_below(&scene->input, 20);
    for (uint64_t t = 0; t < times; t++) {
        const uint64_t i = input_below(&scene->input, residual->numel);
        const float value = some[input_below(&scene->input, sizeof some / sizeof *some)];
        const uint64_t slot = slot_of(residual->entry[i / CHUNK]);
        residual->host[i] = value;
        scene->batch.slots.element[slot * CHUNK + i % CHUNK] = value;
    }
}

static void tensor_draw(struct scene *scene, unsigned t)
{
    struct input *const input = &scene->input;
    struct tensor *const tensor = &scene->tensor[t];
    const uint64_t n = scene->residual[t].numel;
    tensor->take.values = (uint32_t)input_below(input, 3);
    tensor->take.nothing = input_below(input, 4) == 0;
    tensor->dtype = (enum dtype)input_below(input, DTYPE_COUNT);
    tensor->rest[0] = input_below(input, 2) == 0 ? rest_draw(input, n, true) : rest_none();
    tensor->rest[1] = input_below(input, 2) == 0 ? rest_draw(input, n, false) : rest_none();
    tensor->progress = input_memory(progress_size(n), 0);
    scene_spoil(scene, &scene->residual[t], tensor->take.nothing == 0);
}

static void tensor_drop(struct tensor *tensor)
{
    for (unsigned r = 0; r < RESTS; r++) {
        input_free(tensor->rest[r].rounded);
        input_free(tensor->rest[r].exact);
        input_free(tensor->rest[r].low);
    }
    input_free(tensor->progress);
    input_free(tensor->scratch);
}

/* ------------------------------------------------------------------ the host's side */

static struct engine_rest host_rest(const struct drawn *rest)
{
    return (struct engine_rest){.rounded = engine_here(rest->rounded),
        .low = engine_here(rest->low),
        .exact = engine_here(rest->exact),
        .first = rest->first,
        .count = rest->count,
        .unscale = rest->unscale,
        .shrink = rest->shrink};
}

static void host_take(struct engine_batch *batch, const struct scene *scene, unsigned t)
{
    const struct tensor *const tensor = &scene->tensor[t];
    struct engine_order *const order = engine_batch_add(batch, ENGINE_TAKE);
    order->numel = scene->residual[t].numel;
    order->dtype = tensor->dtype;
    order->stamp = STAMP;
    order->residual.element = engine_here(scene->residual[t].host);
    order->residual.progress = engine_here(tensor->progress);
    order->residual.rounded = false;
    order->take = (struct engine_take_out){.values = (enum quantisation)tensor->take.values,
        .nothing = tensor->take.nothing != 0,
        .sums = host_rest(&tensor->rest[0]),
        .update = host_rest(&tensor->rest[1])};
}

static void scene_host(struct scene *scene)
{
    static const struct engine_memory memory = {.journal = NULL};
    const struct parallel alone = {.threads = 0};
    struct engine_batch batch;
    if (!engine_batch_init(&batch, &memory, TENSORS, 0)) {
        abort();
    }
    for (unsigned t = 0; t < TENSORS; t++) {
        host_take(&batch, scene, t);
    }
    engine_host.run(NULL, &batch, &alone);
    for (unsigned t = 0; t < TENSORS; t++) {
        memcpy(scene->tensor[t].sums, batch.result[t].sums, sizeof scene->tensor[t].sums);
    }
    engine_batch_free(&batch);
}

/* ------------------------------------------------------------------ the device's side */

static struct add_rest device_rest(const struct drawn *rest)
{
    return (struct add_rest){.rounded = rest->rounded,
        .low = rest->low,
        .exact = rest->exact,
        .first = rest->first,
        .count = rest->count,
        .unscale = rest->unscale,
        .shrink = rest->shrink};
}

static void device_take(struct scene *scene, unsigned t)
{
    struct tensor *const tensor = &scene->tensor[t];
    tensor->take.rest[0] = device_rest(&tensor->rest[0]);
    tensor->take.rest[1] = device_rest(&tensor->rest[1]);
    scene->device[t] = (struct add_tensor){.entry = scene->residual[t].entry,
        .take = &tensor->take,
        .dtype = tensor->dtype,
        .numel = scene->residual[t].numel,
        .stamp = STAMP,
        .first = scene->batch.chunks,
        .mode = ADD_NOTHING,
        .ledger = {.input = scene->none},
        .before = &tensor->before,
        .result = &tensor->result};
    tensor->scratch = input_memory(scratch_size(&scene->device[t]), 0xab);
    scene->device[t].scratch = tensor->scratch;
    scene->batch.chunks += (uint32_t)chunk_count(scene->residual[t].numel);
}

static void scene_slots(struct scene *scene)
{
    struct slots *const slots = &scene->batch.slots;
    slots->count = (uint32_t)placed_slots(scene->residual, TENSORS);
    slots->record = input_memory(slots->count * sizeof *slots->record, 0x66);
    slots->owner = input_memory(slots->count * sizeof *slots->owner, 0);
    slots->spare = input_memory(PLACED_SPARES * sizeof *slots->spare, 0xff);
    slots->entries = scene->residual[0].entry;
    slots->first = 1;
    slots->spares = PLACED_SPARES;
    slots->found = &scene->found;
    for (unsigned t = 0; t < TENSORS; t++) {
        for (uint64_t c = 0; c < chunk_count(scene->residual[t].numel); c++) {
            const uint64_t *const entry = &scene->residual[t].entry[c];
            slots->owner[slot_of(*entry)] = slot_owner(slots, entry);
        }
    }
}

static void scene_device(struct scene *scene)
{
    static launch_kernel *const kernel[] = {
        run_slots_begin, run_slots_spare, run_add_begin, run_take_stream, run_add_finish};
    const struct add_batch *const batch = &scene->batch;
    const void *const parameter[] = {batch, batch, batch, batch, batch};
    scene->batch.tensor = scene->device;
    scene->batch.tensors = TENSORS;
    scene->batch.steps = &scene->steps;
    scene_slots(scene);
    for (unsigned t = 0; t < TENSORS; t++) {
        device_take(scene, t);
    }
    placed_run(&scene->input, kernel, parameter, 5);
}

/* ------------------------------------------------------------------ the cases */

static bool tensor_same(const struct scene *scene, unsigned t)
{
    const struct placed *const residual = &scene->residual[t];
    const struct tensor *const tensor = &scene->tensor[t];
    const double sums[2] = {-tensor->result.sums[0], -tensor->result.sums[1]};
    bool same = placed_same(scene->batch.slots.element, residual) &&
                memcmp(sums, tensor->sums, sizeof sums) == 0 && tensor->result.fault.found == 0;
    for (uint64_t c = 0; c < chunk_count(residual->numel); c++) {
        const struct chunk_record *const host = &tensor->progress->chunk[c];
        const struct slot_record *const device =
            &scene->batch.slots.record[slot_of(residual->entry[c])];
        same = same && memcmp(device->sums, host->sums, sizeof host->sums) == 0 &&
               device->nonfinite == host->nonfinite && residual->entry[c] >> 32 == STAMP;
    }
    return same;
}

static bool take_case(uint64_t seed, uint64_t most)
{
    struct scene *const scene = input_memory(sizeof *scene, 0);
    scene->input.state = seed;
    bool same = true;
    for (unsigned t = 0; t < TENSORS; t++) {
        scene->residual[t].numel = input_size(&scene->input, most / TENSORS);
    }
    scene->batch.slots.element = placed_draw(&scene->input, scene->residual, TENSORS);
    for (unsigned t = 0; t < TENSORS; t++) {
        tensor_draw(scene, t);
    }
    scene_host(scene);
    scene_device(scene);
    for (unsigned t = 0; t < TENSORS; t++) {
        if (!tensor_same(scene, t)) {
            (void)fprintf(stderr, "tensor %u\n", t);
            same = false;
        }
        tensor_drop(&scene->tensor[t]);
    }
    input_free(scene->batch.slots.record);
    input_free(scene->batch.slots.owner);
    input_free(scene->batch.slots.spare);
    placed_drop(scene->batch.slots.element, scene->residual, TENSORS);
    input_free(scene);
    return same;
}

static void test_small(void **state)
{
    (void)state;
    seeds_try(take_case, 1, 200, 8000);
}

static void test_large(void **state)
{
    (void)state;
    seeds_try(take_case, 1000, 8, 400000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_large),
    };
    if (argc == 3) {
        return take_case(strtoull(argv[1], NULL, 0), strtoull(argv[2], NULL, 0)) ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
