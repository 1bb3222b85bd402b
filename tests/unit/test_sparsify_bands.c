/*
 * How many entries the sparsifiers with a rule of their own select, with error feedback, on normal,
 * Laplace, layered and mostly zero gradients, from a residual of zeros and from one that error
 * feedback made stationary: every turn, and on average, in the band that each documents.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/sparsify/sparsifier.h"
#include "tests/bench/perf/data.h"
#include "tests/unit/select_reference.h"

enum { TURNS = 60, SETTLED = 10 };

/* In terms of k: of one turn, and on average once the first turns are over. Where fewer than k
 * entries are not 0, these take the place of k below. */
struct band {
    const char *sparsifier;
    const char *entries; /* as documented */
    enum sidco_fit fit;
    double least, most;
    double mean_least, mean_most;
};

static const struct band bands[] = {
    {"dgc", "0.8 k to 1.3 k; fewer where ten steps down from the sample do not reach them", 0, 0.8,
        1.3, 0.85, 1.15},
    {"gaussiank", "2/3 k to 4/3 k; fewer where five halvings do not reach them", 0, 2.0 / 3,
        4.0 / 3, 2.0 / 3, 4.0 / 3},
    {"redsync", "1 to 2 k - 1, over many turns 0.3 k and more; none of a tensor of zeros", 0, 0, 2,
        0.3, 2},
    {"redsync-trim", "k; fewer where fewer than k magnitudes reach their mean", 0, 0.98, 1, 0.98,
        1},
    {"sidco", "1 to 1.5 k, over many turns 0.6 k and more; none of a tensor of zeros",
        SIDCO_EXPONENTIAL, 0, 1.5, 0.6, 1.5},
    {"sidco", "1 to 1.5 k, over many turns 0.6 k and more; none of a tensor of zeros", SIDCO_PARETO,
        0, 1.5, 0.6, 1.5},
    {"sidco", "1 to 1.5 k, over many turns 0.6 k and more; none of a tensor of zeros", SIDCO_GAMMA,
        0, 1.5, 0.6, 1.5},
    {"threshold", "0 to k", 0, 1, 1, 1, 1},
    {"adtopk", "k of every fibre; else k, with estimate at most 1.5 k", 0, 0.5, 1.5, 0.9, 1.5},
};

struct scene {
    const struct band *band;
    enum distribution distribution;
    double density;
    bool stationary;
    uint64_t n;
    float *base, *gradient, *residual;
    void *scratch;
    struct sparse out;
    struct sparsifier_state state;
};

static uint64_t nonzeros(const struct scene *scene)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < scene->n; i++) {
        count += scene->residual[i] > 0 || scene->residual[i] < 0;
    }
    return count;
}

static void select_turn(struct scene *scene, uint64_t number)
{
    const struct sparsifier_ops *ops = sparsifier_find(scene->band->sparsifier);
    const struct sparsifier_params params = {.density = scene->density,
        .sample = 0.01,
        .fit = scene->band->fit,
        .interleave = true,
        .estimate = true,
        .estimate_period = 5};
    const struct tensor_shape shape = {.dims = 2, .size = {scene->n / 64, 64}};
    const struct sparsifier_agreed agreed = {.number = {0}};
    const struct sparsifier_turn turn = {.shape = &shape,
        .params = &params,
        .agreed = &agreed,
        .turn = 2 * number + 1, /* adtopk: those of the whole tensor */
        .seed = number};
    struct sparsifier_state next = scene->state;
    struct sparsifier_choice choice;
    struct survey survey;
    assert_string_equal(ops->entries, scene->band->entries);
    ops->choose(&turn, &choice);
    assert_true(choice.count <= scene->out.capacity);
    survey_read(&survey, NULL, choice.need, scene->residual, scene->n, scene->scratch);
    ops->select(&turn, &scene->state, &survey, &next, &scene->out);
    scene->state = next;
}

/* Selects and sends; returns the count over k. */
static double run_turn(struct scene *scene, uint64_t number)
{
    const struct band *band = scene->band;
    const double k = floor((double)scene->n * scene->density);
    data_turn(scene->gradient, scene->base, sizeof(float), scene->n, scene->distribution, number);
    for (uint64_t i = 0; i < scene->n; i++) {
        scene->residual[i] += scene->gradient[i];
    }
    const double reachable = fmin(k, (double)nonzeros(scene));
    select_turn(scene, number);
    const double count = (double)scene->out.count;
    if (count < 1 || count + 1 < band->least * reachable || count > band->most * k) {
        fail_msg("%s fit %d, %s, density %g, turn %d: %g entries, k is %g", band->sparsifier,
            (int)band->fit, data_names[scene->distribution], scene->density, (int)number, count, k);
    }
    for (size_t i = 0; i < scene->out.count; i++) {
        scene->residual[scene->out.position[i]] = 0;
    }
    return count / reachable;
}

static void run_scene(struct scene *scene)
{
    const struct band *band = scene->band;
    double sum = 0;
    scene->state = (struct sparsifier_state){.threshold = 0};
    memset(scene->residual, 0, scene->n * sizeof *scene->residual);
    if (scene->stationary) {
        data_residual(
            scene->residual, scene->base, scene->n, scene->distribution, scene->density, true);
    }
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        const double share = run_turn(scene, turn);
        sum += turn >= SETTLED ? share : 0;
    }
    const double mean = sum / (TURNS - SETTLED);
    /* Where fewer than k are not 0, exact turns of an estimate fill up with zeros. */
    const bool zeros = scene->distribution == DATA_MOSTLY_ZERO;
    if (mean + 0.02 < band->mean_least || (mean - 0.02 > band->mean_most && !zeros)) {
        fail_msg("%s fit %d, %s, density %g, %s: %g k on average", band->sparsifier, (int)band->fit,
            data_names[scene->distribution], scene->density,
            scene->stationary ? "stationary" : "from zeros", mean);
    }
}

static void check_density(double density, uint64_t n)
{
    static const enum distribution inputs[] = {
        DATA_NORMAL, DATA_LAPLACE, DATA_LAYERED, DATA_MOSTLY_ZERO};
    struct scene scene = {.density = density,
        .n = n,
        .base = allocate(n, sizeof(float)),
        .gradient = allocate(n, sizeof(float)),
        .residual = allocate(n, sizeof(float)),
        .scratch = allocate(1, survey_scratch(n)),
        .out = sparse_make(n)};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        scene.distribution = inputs[i];
        data_fill(scene.base, n, scene.distribution, 1);
        for (size_t b = 0; b < sizeof bands / sizeof *bands; b++) {
            scene.band = &bands[b];
            scene.stationary = false;
            run_scene(&scene);
            scene.stationary = true;
            run_scene(&scene);
        }
    }
    sparse_drop(&scene.out);
    free(scene.scratch);
    free(scene.residual);
    free(scene.gradient);
    free(scene.base);
}

static void test_dense_tenth(void **state)
{
    (void)state;
    check_density(0.1, 1 << 13);
}

static void test_hundredth(void **state)
{
    (void)state;
    check_density(0.01, 1 << 14);
}

static void test_thousandth(void **state)
{
    (void)state;
    check_density(0.001, 1 << 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense_tenth),
        cmocka_unit_test(test_hundredth),
        cmocka_unit_test(test_thousandth),
    };
    return cmocka_run_group_tests_name("sparsify_bands", tests, NULL, NULL);
}
