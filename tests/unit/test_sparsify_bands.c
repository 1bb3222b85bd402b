/*
 * How many entries the sparsifiers with a rule of their own select. Each documents a band
 * (`entries`, README.md of daemon/sparsify). The band must hold on any input: thousands of random
 * ones and inputs that break rules.
 *
 * It must also hold with error feedback, in every turn and on average. The gradients are normal,
 * Laplace, layered and mostly zero. The residual begins with zeros, or is one that error feedback
 * made stationary.
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
#include "tests/host/survey_read.h"
#include "tests/unit/sparsify_reference.h"

enum { TURNS = 60, SETTLED = 10 };

static unsigned checked, skipped;

/* Whether a count is in the band that a rule promises for the input. */
typedef bool band_check(struct plain *plain, uint64_t count);

/* Averages are relative to k, once the first turns are over. If fewer than k entries are not 0,
 * their number takes the place of k. */
struct band {
    const char *sparsifier;
    const char *entries; /* as documented */
    enum sidco_fit fit;
    band_check *check;
    double mean_least, mean_most;
};

/* Whether the count is at most this, and not 0 if some entry is not 0. */
static bool is_some(const struct plain *plain, uint64_t count, uint64_t most)
{
    return count <= most && count <= plain->n && (count > 0 || plain->nonzeros == 0);
}

static bool dgc_holds(struct plain *plain, uint64_t count)
{
    const bool few = 10 * count < 8 * plain->k && count < plain->n;
    return is_some(plain, count, 13 * plain->k / 10) &&
           (!few || plain->sorted[count] <= plain->sorted[0] / 9);
}

static bool gaussiank_holds(struct plain *plain, uint64_t count)
{
    const bool few = 3 * count < 2 * plain->k;
    return 3 * count <= 4 * plain->k &&
           (!few || count == plain_count(plain, plain_gaussian(plain) / 32));
}

static bool redsync_holds(struct plain *plain, uint64_t count)
{
    const uint64_t k = plain->k;
    const uint64_t most = 2 * k - 1 < plain->n ? 2 * k - 1 : plain->n;
    uint64_t few = most; /* how many reach the lowest threshold that at most k reach */
    bool met = false;
    for (int eighths = 7; eighths > 0; eighths--) {
        const uint64_t reached = plain_count(plain, between(plain, eighths / 8.0));
        met = met || (reached > k && reached < 2 * k);
        few = reached <= k ? reached : few;
    }
    return is_some(plain, count, most) && (met ? count > k : count == few || count == most);
}

static bool redsync_trim_holds(struct plain *plain, uint64_t count)
{
    const uint64_t reached = plain_count(plain, between(plain, 0));
    return count == (reached < plain->k ? reached : plain->k);
}

static bool sidco_holds(struct plain *plain, uint64_t count)
{
    return is_some(plain, count, 3 * plain->k / 2) &&
           (plain->nonzeros > plain->k || count == plain->nonzeros);
}

static bool threshold_holds(struct plain *plain, uint64_t count)
{
    return count == (plain->nonzeros < plain->k ? plain->nonzeros : plain->k);
}

static bool adtopk_holds(struct plain *plain, uint64_t count)
{
    return 2 * count <= 3 * plain->k;
}

#define SIDCO                                                                                      \
    "1 to 1.5 k; about k if the entries have the fitted distribution; over many turns at least "   \
    "0.6 k while stages remain"

static const struct band bands[] = {
    {"dgc", "0.8 k to 1.3 k; fewer only where all others are below 1/9 of the largest", 0,
        dgc_holds, 0.85, 1.15},
    {"gaussiank", "2/3 k to 4/3 k; fewer only where no others reach 1/32 of the first threshold", 0,
        gaussiank_holds, 2.0 / 3, 4.0 / 3},
    {"redsync",
        "k + 1 to 2 k - 1 if one of seven thresholds, at eighths from mean to maximum, gives that; "
        "otherwise 1 to k, or 2 k - 1",
        0, redsync_holds, 0, 2},
    {"redsync-trim", "k; fewer where fewer than k magnitudes reach their mean", 0,
        redsync_trim_holds, 0.98, 1},
    {"sidco", SIDCO, SIDCO_EXPONENTIAL, sidco_holds, 0.6, 1.5},
    {"sidco", SIDCO, SIDCO_PARETO, sidco_holds, 0.6, 1.5},
    {"sidco", SIDCO, SIDCO_GAMMA, sidco_holds, 0.6, 1.5},
    {"threshold", "0 to k", 0, threshold_holds, 1, 1},
    {"adtopk", "k of every fibre; in turns of the whole tensor k, with estimate at most 1.5 k", 0,
        adtopk_holds, 0.9, 1.5},
};

enum { BANDS = sizeof bands / sizeof *bands };

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

static void select_turn(struct scene *scene, uint64_t number)
{
    const struct sparsifier_ops *ops = sparsifier_find(scene->band->sparsifier);
    const struct sparsifier_params params = {.density = scene->density,
        .sample = 0.01,
        .fit = scene->band->fit,
        .interleave = true,
        .estimate = true,
        .estimate_period = 5};
    const struct tensor_shape shape = {.dims = 2, .size = {1, scene->n}};
    const struct sparsifier_agreed agreed = {.number = {0}};
    const struct sparsifier_turn turn = {.shape = &shape,
        .params = &params,
        .agreed = &agreed,
        .turn = 2 * number + 1, /* adtopk: turns of the whole tensor */
        .seed = number};
    struct sparsifier_state next = scene->state;
    struct sparsifier_choice choice;
    struct cpu_survey survey;
    assert_string_equal(ops->entries, scene->band->entries);
    ops->choose(&turn, &choice);
    assert_true(choice.count <= scene->out.capacity);
    survey_read(&survey, NULL, choice.need, scene->residual, scene->n, scene->scratch);
    ops->select(&turn, &scene->state, &survey.base, &next, &scene->out);
    scene->state = next;
}

/* Selects and sends. Returns the count divided by k. */
static double run_turn(struct scene *scene, uint64_t number)
{
    const double k = floor((double)scene->n * scene->density);
    uint64_t nonzeros = 0;
    data_turn(scene->gradient, scene->base, sizeof(float), scene->n, scene->distribution, number);
    for (uint64_t i = 0; i < scene->n; i++) {
        scene->residual[i] += scene->gradient[i];
        nonzeros += scene->residual[i] > 0 || scene->residual[i] < 0;
    }
    select_turn(scene, number);
    assert_true(scene->out.count > 0);
    for (size_t i = 0; i < scene->out.count; i++) {
        scene->residual[scene->out.position[i]] = 0;
    }
    return (double)scene->out.count / fmin(k, (double)nonzeros);
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
    /* If fewer than k entries are not 0, exact turns of an estimate add zeros. */
    const bool zeros = scene->distribution == DATA_MOSTLY_ZERO;
    if (mean + 0.02 < band->mean_least || (mean - 0.02 > band->mean_most && !zeros)) {
        fail_msg("%s fit %d, %s, density %g, %s: %g k on average", band->sparsifier, (int)band->fit,
            data_names[scene->distribution], scene->density,
            scene->stationary ? "stationary" : "from zeros", mean);
    }
}

static struct scene scene_make(uint64_t n, double density)
{
    return (struct scene){.density = density,
        .n = n,
        .base = allocate(n, sizeof(float)),
        .gradient = allocate(n, sizeof(float)),
        .residual = allocate(n, sizeof(float)),
        .scratch = allocate(1, survey_scratch(n)),
        .out = sparse_make(n)};
}

static void scene_drop(struct scene *scene)
{
    sparse_drop(&scene->out);
    free(scene->scratch);
    free(scene->residual);
    free(scene->gradient);
    free(scene->base);
}

static void check_density(double density, uint64_t n)
{
    static const enum distribution inputs[] = {
        DATA_NORMAL, DATA_LAPLACE, DATA_LAYERED, DATA_MOSTLY_ZERO};
    struct scene scene = scene_make(n, density);
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        scene.distribution = inputs[i];
        data_fill(scene.base, n, scene.distribution, 1);
        for (size_t b = 0; b < BANDS; b++) {
            scene.band = &bands[b];
            scene.stationary = false;
            run_scene(&scene);
            scene.stationary = true;
            run_scene(&scene);
        }
    }
    scene_drop(&scene);
}

/* ------------------------------------------------------------------ any input */

/* Checks the selection from an input in its first turn. Checks also later turns, as many as sidco
 * needs to change its stages. */
static void check_bands(struct scene *scene, struct plain *plain)
{
    for (size_t b = 0; b < BANDS; b++) {
        scene->band = &bands[b];
        scene->state = (struct sparsifier_state){.threshold = 0};
        const uint64_t turns = scene->band->check == sidco_holds ? 1 + random_below(12) : 1;
        for (uint64_t turn = 0; turn < turns; turn++) {
            select_turn(scene, turn);
        }
        plain->close = false;
        const bool holds = scene->band->check(plain, scene->out.count);
        checked++;
        skipped += plain->close; /* rounding decides which entries reach a threshold */
        if (!holds && !plain->close) {
            fail_msg("%s fit %d, %s, n %llu, density %g: %zu entries, k is %llu",
                scene->band->sparsifier, (int)scene->band->fit, data_names[scene->distribution],
                (unsigned long long)scene->n, scene->density, scene->out.count,
                (unsigned long long)plain->k);
        }
    }
}

static void check_input(enum distribution distribution, uint64_t n)
{
    static const double densities[] = {0.0001, 0.001, 0.01, 0.1, 1};
    struct scene scene = scene_make(n, densities[random_below(5)]);
    struct plain plain;
    scene.distribution = distribution;
    data_fill(scene.residual, n, distribution, random_next());
    if (random_below(4) == 0) { /* both signs, and a mean that is not 0 */
        for (uint64_t i = 0; i < n; i++) {
            scene.residual[i] = 0.25f - scene.residual[i];
        }
    }
    plain_open(&plain, scene.residual, n, scene.density);
    check_bands(&scene, &plain);
    plain_close(&plain);
    scene_drop(&scene);
}

static void test_any_input(void **state)
{
    (void)state;
    checked = skipped = 0;
    for (int d = 0; d < DATA_COUNT; d++) {
        for (int round = 0; round < 60; round++) {
            check_input((enum distribution)d, (uint64_t)pow(10, (double)random_below(500) / 100));
        }
        check_input((enum distribution)d, 100000);
    }
    assert_true(checked > 4000);
    if (100 * skipped > checked) {
        fail_msg("%u of %u cases skipped", skipped, checked);
    }
}

/* A tensor without elements is not sparsified. */
static void test_empty(void **state)
{
    (void)state;
    for (size_t b = 0; b < BANDS; b++) {
        const struct sparsifier_params params = {.density = 0.01, .sample = 0.01};
        const struct tensor_shape shape = {.dims = 2, .size = {0, 64}};
        const struct sparsifier_agreed agreed = {.number = {0}};
        const struct sparsifier_turn turn = {
            .shape = &shape, .params = &params, .agreed = &agreed, .turn = b};
        struct sparsifier_choice choice;
        sparsifier_find(bands[b].sparsifier)->choose(&turn, &choice);
        assert_int_equal(choice.mode, SPARSIFIER_DENSE);
    }
}

/* All of sidco's fits have exponential magnitudes among their distributions, and the generalised
 * Pareto also has uniform ones. So a single stage selects k entries in every turn. Only chance and
 * the errors of the sample's moments change that. */
static void check_fitted(enum distribution distribution, enum sidco_fit fit, double density)
{
    struct scene scene = scene_make(100000, density);
    const double k = density * (double)scene.n;
    for (size_t b = 0; b < BANDS; b++) {
        scene.band = bands[b].check == sidco_holds && bands[b].fit == fit ? &bands[b] : scene.band;
    }
    for (uint64_t turn = 0; turn < 12; turn++) {
        data_fill(scene.residual, scene.n, distribution, random_next());
        select_turn(&scene, turn);
        const double count = (double)scene.out.count;
        if (count < 0.8 * k || count > 1.2 * k) {
            fail_msg("%s fit %d, density %g: %g entries", data_names[distribution], (int)fit,
                density, count);
        }
    }
    scene_drop(&scene);
}

static void test_fitted(void **state)
{
    static const double densities[] = {0.2, 0.05, 0.01};
    (void)state;
    for (size_t d = 0; d < sizeof densities / sizeof *densities; d++) {
        for (int fit = 0; fit < SIDCO_FITS; fit++) {
            check_fitted(DATA_LAPLACE, (enum sidco_fit)fit, densities[d]);
        }
        check_fitted(DATA_SORTED, SIDCO_PARETO, densities[d]);
    }
}

/* ------------------------------------------------------------------ error feedback */

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
        cmocka_unit_test(test_any_input),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_fitted),
        cmocka_unit_test(test_dense_tenth),
        cmocka_unit_test(test_hundredth),
        cmocka_unit_test(test_thousandth),
    };
    return cmocka_run_group_tests_name("sparsify_bands", tests, NULL, NULL);
}
