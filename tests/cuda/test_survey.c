/*
 * What rules ask of a residual, on the device against kernels/cpu/survey.h, byte by byte, also when
 * the kernels are killed and repeated.
 *
 * usage: test_survey [SEED ELEMENTS]
 */
#include "kernels/cpu/select.h"
#include "kernels/cpu/stats.h"
#include "tests/cuda/device_code.h"
#include "tests/cuda/placed.h"
#include "tests/cuda/seeds.h"
#include "tests/host/survey_read.h"

#include <stdio.h>
#include <string.h>

enum { RESIDUALS = 3, EACH = 2, ORDERS = RESIDUALS * EACH };

struct asked {
    float threshold; /* of the second order */
    uint64_t start, stride, rank;
};

struct scene {
    struct input input;
    struct placed residual[RESIDUALS];
    struct asked asked[RESIDUALS];
    struct stats total[ORDERS];
    float magnitude[RESIDUALS];
    struct survey_order order[ORDERS];
    struct survey_rank ranked[RESIDUALS];
    struct survey_batch batch;
};

/* A magnitude that some elements have. */
static float threshold_draw(struct input *input, const struct placed *residual)
{
    const uint32_t key = select_key(residual->host[input_below(input, residual->numel)]) +
                         (uint32_t)input_below(input, 2);
    return convert_float(key > 0 ? key : 1);
}

static struct asked asked_draw(struct input *input, const struct placed *residual)
{
    struct asked asked = {.threshold = threshold_draw(input, residual),
        .start = input_below(input, residual->numel < 100 ? residual->numel : 100),
        .stride = 1 + input_below(input, 60)};
    asked.rank = 1 + input_below(input, (residual->numel - asked.start - 1) / asked.stride + 1);
    return asked;
}

/* ------------------------------------------------------------------ the device's side */

/* The first of a residual's orders is of all elements, the second of a tail, with its list. */
static void device_order(struct scene *scene, unsigned r, unsigned o)
{
    const struct placed *const residual = &scene->residual[r];
    const uint64_t chunks = chunk_count(residual->numel);
    struct survey_order *const order = &scene->order[r * EACH + o];
    *order = (struct survey_order){.first = scene->batch.chunks,
        .entry = residual->entry,
        .numel = residual->numel,
        .least = o == 0 ? 1 : select_key(scene->asked[r].threshold),
        .chunk = input_memory(chunks * sizeof *order->chunk, 0x77),
        .place = input_memory(chunks * sizeof *order->place, 0x77),
        .total = &scene->total[r * EACH + o]};
    if (o == 1) {
        order->room = residual->numel;
        order->position = input_memory(order->room * sizeof *order->position, 0);
        order->value = input_memory(order->room * sizeof *order->value, 0);
    }
    scene->batch.chunks += chunks;
}

static void scene_device(struct scene *scene)
{
    static launch_kernel *const kernel[] = {
        run_survey_stats, run_survey_total, run_survey_list, run_survey_ranked};
    const void *const parameter[] = {&scene->batch, &scene->batch, &scene->batch, &scene->batch};
    for (unsigned r = 0; r < RESIDUALS; r++) {
        device_order(scene, r, 0);
        device_order(scene, r, 1);
        scene->ranked[r] = (struct survey_rank){.entry = scene->residual[r].entry,
            .numel = scene->residual[r].numel,
            .start = scene->asked[r].start,
            .stride = scene->asked[r].stride,
            .rank = (uint32_t)scene->asked[r].rank,
            .magnitude = &scene->magnitude[r]};
    }
    scene->batch.order = scene->order;
    scene->batch.ranked = scene->ranked;
    scene->batch.orders = ORDERS;
    scene->batch.rankeds = RESIDUALS;
    placed_run(&scene->input, kernel, parameter, 4);
}

/* ------------------------------------------------------------------ comparison */

static bool same_list(const struct survey_order *order, struct survey *survey, float threshold)
{
    struct sparse list = {.position = input_memory(order->numel * sizeof(uint32_t), 0),
        .value = input_memory(order->numel * sizeof(float), 0),
        .capacity = order->numel};
    survey_take(survey, threshold, order->numel, &list);
    const bool same =
        list.count == order->total->count &&
        memcmp(list.position, order->position, list.count * sizeof *list.position) == 0 &&
        memcmp(list.value, order->value, list.count * sizeof *list.value) == 0;
    input_free(list.position);
    input_free(list.value);
    return same;
}

static bool same_stats(const struct survey_stats *expected, const struct stats *found)
{
    const struct survey_stats stats = survey_describe(expected->n, SURVEY_ALL, found);
    return stats.zeros == expected->zeros && memcmp(&stats.sum, &expected->sum, 8) == 0 &&
           memcmp(&stats.sum_abs, &expected->sum_abs, 8) == 0 &&
           memcmp(&stats.sum_squares, &expected->sum_squares, 8) == 0 &&
           memcmp(&stats.sum_log, &expected->sum_log, 8) == 0 &&
           memcmp(&stats.most, &expected->most, 4) == 0;
}

static bool same_tail(const struct survey_tail *tail, const struct stats *found)
{
    const float least = found->count > 0 ? convert_float(found->least) : 0;
    return tail->count == found->count && memcmp(&tail->sum_abs, &found->sum_abs, 8) == 0 &&
           memcmp(&tail->sum_squares, &found->sum_squares, 8) == 0 &&
           memcmp(&tail->least, &least, 4) == 0;
}

static const char *differs(struct scene *scene, unsigned r, void *scratch)
{
    const struct asked *const asked = &scene->asked[r];
    const struct placed *const residual = &scene->residual[r];
    struct cpu_survey cpu;
    survey_read(&cpu, NULL, SURVEY_ALL, residual->host, residual->numel, scratch);
    struct survey *const survey = &cpu.base;
    const struct survey_tail tail = survey_tail(survey, asked->threshold, true);
    const float ranked = survey_ranked(survey, asked->start, asked->stride, asked->rank);
    return !same_stats(&survey->stats, &scene->total[r * EACH])                ? "statistics"
           : !same_tail(&tail, &scene->total[r * EACH + 1])                    ? "tail"
           : memcmp(&ranked, &scene->magnitude[r], sizeof ranked) != 0         ? "rank"
           : !same_list(&scene->order[r * EACH + 1], survey, asked->threshold) ? "list"
                                                                               : NULL;
}

static bool scene_same(struct scene *scene)
{
    bool same = true;
    for (unsigned r = 0; r < RESIDUALS; r++) {
        void *const scratch = input_memory(survey_scratch(scene->residual[r].numel), 0);
        const char *const what = differs(scene, r, scratch);
        if (what != NULL) {
            (void)fprintf(stderr, "residual %u: %s\n", r, what);
            same = false;
        }
        input_free(scratch);
    }
    return same;
}

static bool survey_case(uint64_t seed, uint64_t most)
{
    struct scene *const scene = input_memory(sizeof *scene, 0);
    scene->input.state = seed;
    placed_sizes(&scene->input, scene->residual, RESIDUALS, 1, most);
    scene->batch.slots.element = placed_draw(&scene->input, scene->residual, RESIDUALS);
    for (unsigned r = 0; r < RESIDUALS; r++) {
        scene->asked[r] = asked_draw(&scene->input, &scene->residual[r]);
    }
    scene_device(scene);
    const bool same = scene_same(scene);
    for (unsigned o = 0; o < ORDERS; o++) {
        input_free(scene->order[o].chunk);
        input_free(scene->order[o].place);
        input_free(scene->order[o].position);
        input_free(scene->order[o].value);
    }
    placed_drop(scene->batch.slots.element, scene->residual, RESIDUALS);
    input_free(scene);
    return same;
}

static void test_small(void **state)
{
    (void)state;
    seeds_try(survey_case, 1, 200, 8000);
}

static void test_large(void **state)
{
    (void)state;
    seeds_try(survey_case, 1000, 6, 300000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_large),
    };
    if (argc == 3) {
        return survey_case(strtoull(argv[1], NULL, 0), strtoull(argv[2], NULL, 0)) ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
