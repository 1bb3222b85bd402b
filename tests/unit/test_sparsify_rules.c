/*
 * The sparsifiers with a rule of their own, value for value against plain implementations. The
 * inputs are random, or break rules. They come in sequences of turns with error feedback, and are
 * repeated.
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
#include "tests/host/survey_read.h"
#include "tests/unit/sparsify_reference.h"

struct rule {
    const char *sparsifier;
    struct sparsifier_params params;
    unsigned turns; /* of a sequence */
};

/* The settings that all turns of a sequence share. */
struct sequence {
    const struct rule *rule;
    const struct sparsifier_ops *ops;
    struct tensor_shape shape;
    struct sparsifier_agreed agreed;
    struct sparsifier_state state;
    struct memory memory;
};

static unsigned compared, skipped;

/* ------------------------------------------------------------------ one turn */

static struct sparsifier_turn turn_of(const struct sequence *s, uint64_t turn)
{
    return (struct sparsifier_turn){.shape = &s->shape,
        .params = &s->rule->params,
        .agreed = &s->agreed,
        .turn = turn,
        .seed = turn * 977 + tensor_numel(&s->shape)};
}

static struct sparsifier_choice choice_of(const struct sequence *s, uint64_t number)
{
    const struct sparsifier_turn turn = turn_of(s, number);
    struct sparsifier_choice choice;
    s->ops->choose(&turn, &choice);
    return choice;
}

/* Selects twice, as a repetition does: same list and same next state. The state before does not
 * change. */
static struct sparse select_turn(
    const struct sequence *s, uint64_t number, const float *x, struct sparsifier_state *next)
{
    const struct sparsifier_turn turn = turn_of(s, number);
    const struct sparsifier_choice choice = choice_of(s, number);
    const struct sparsifier_state before = s->state;
    struct sparsifier_state again = before;
    const uint64_t n = tensor_numel(&s->shape);
    void *scratch = allocate(1, survey_scratch(n));
    struct cpu_survey survey;
    struct sparse out = sparse_make(choice.count);
    struct sparse repeated = sparse_make(choice.count);
    *next = before;
    assert_int_equal(choice.mode, SPARSIFIER_RULE);
    assert_true(choice.count > 0);
    survey_read(&survey, NULL, choice.need, x, n, scratch);
    s->ops->select(&turn, &s->state, &survey.base, next, &out);
    s->ops->select(&turn, &s->state, &survey.base, &again, &repeated);
    assert_memory_equal(&s->state, &before, sizeof before);
    assert_memory_equal(&again, next, sizeof again);
    assert_int_equal(out.count, repeated.count);
    assert_memory_equal(out.position, repeated.position, out.count * sizeof *out.position);
    assert_same_bits(out.value, repeated.value, out.count);
    assert_true(out.count <= choice.count);
    sparse_drop(&repeated);
    free(scratch);
    return out;
}

static void reference_turn(
    struct plain *plain, const struct rule *rule, struct memory *memory, uint64_t random)
{
    const struct sparsifier_params *params = &rule->params;
    if (strcmp(rule->sparsifier, "dgc") == 0) {
        plain_dgc(plain, params->sample, random);
    } else if (strcmp(rule->sparsifier, "gaussiank") == 0) {
        plain_gaussiank(plain);
    } else if (strcmp(rule->sparsifier, "redsync") == 0) {
        plain_redsync(plain);
    } else if (strcmp(rule->sparsifier, "redsync-trim") == 0) {
        plain_redsync_trim(plain);
    } else if (strcmp(rule->sparsifier, "threshold") == 0) {
        plain_threshold(plain, params->threshold);
    } else if (strcmp(rule->sparsifier, "sidco") == 0) {
        plain_sidco(plain, params->fit, memory);
    } else {
        plain_estimate(plain, (int)params->estimate_period, memory);
    }
}

/* ------------------------------------------------------------------ bands */

/* The lower end of the band that the sparsifier documents; its upper end is the choice's count. */
static void assert_in_band(const struct sequence *s, const struct plain *plain, uint64_t count)
{
    const uint64_t k = plain->k;
    if (plain->nonzeros == 0) {
        assert_true(count == 0 || strcmp(s->rule->sparsifier, "adtopk") == 0);
    } else if (strncmp(s->rule->sparsifier, "redsync", 7) == 0 ||
               strcmp(s->rule->sparsifier, "sidco") == 0) {
        assert_true(count >= 1);
    }
    if (strcmp(s->rule->sparsifier, "redsync") == 0) {
        assert_true(count < 2 * k);
    } else if (strcmp(s->rule->sparsifier, "gaussiank") == 0) {
        assert_true(3 * count <= 4 * k);
    } else if (strcmp(s->rule->sparsifier, "dgc") == 0) {
        assert_true(10 * count <= 13 * k);
    } else if (strcmp(s->rule->sparsifier, "sidco") == 0 ||
               strcmp(s->rule->sparsifier, "adtopk") == 0) {
        assert_true(2 * count <= 3 * k);
    } else {
        assert_true(count <= k);
    }
}

/* ------------------------------------------------------------------ sequences */

/* Number 0 of the seed's random numbers, as splitmix64 defines them. */
static uint64_t first_random(uint64_t seed)
{
    uint64_t x = seed + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Returns whether both agree, or whether rounding decided. */
static bool compare_turn(struct sequence *s, uint64_t number, float *x)
{
    const uint64_t n = tensor_numel(&s->shape);
    struct sparsifier_state next;
    struct sparse out = select_turn(s, number, x, &next);
    struct plain plain;
    plain_open(&plain, x, n, s->rule->params.density);
    reference_turn(&plain, s->rule, &s->memory, first_random(turn_of(s, number).seed));
    assert_in_band(s, &plain, out.count);
    compared++;
    if (!plain.close) {
        if (out.count != plain.count) {

            fail_msg("%s, n %llu, density %g, turn %llu: %zu entries, not %llu",
                s->rule->sparsifier, (unsigned long long)n, s->rule->params.density,
                (unsigned long long)number, out.count, (unsigned long long)plain.count);
        }
        assert_selected(&out, plain.list, plain.count);
    }
    for (size_t i = 0; i < out.count; i++) {
        x[out.position[i]] = 0; /* sent entries leave the residual */
    }
    const bool close = plain.close;
    skipped += close;
    s->state = next;
    plain_close(&plain);
    sparse_drop(&out);
    return !close;
}

static void run_sequence(const struct rule *rule, enum pattern pattern, uint64_t n)
{
    struct sequence s = {.rule = rule,
        .ops = sparsifier_find(rule->sparsifier),
        .shape = {.dims = 2, .size = {1, n}}};
    float *residual = allocate(n, sizeof *residual);
    assert_non_null(s.ops);
    for (uint64_t turn = 0; turn < rule->turns; turn++) {
        float *gradient = pattern_make(pattern, n);
        for (uint64_t i = 0; i < n; i++) {
            residual[i] += gradient[i];
        }
        free(gradient);
        /* Traditional turns of adtopk only: numbered like those of one period. */
        if (!compare_turn(&s, rule->params.interleave ? 2 * turn + 1 : turn, residual)) {
            break;
        }
    }
    free(residual);
}

static const enum pattern patterns[] = {
    RANDOM, QUANTISED, CONSTANT, ASCENDING, DESCENDING, MOSTLY_ZERO, ZERO, HOT_BLOCK, SUBNORMAL};

/* Up to 10^5, less in long sequences: sorting takes its time. */
static uint64_t random_size(unsigned round, unsigned turns)
{
    return round == 0       ? 1 + random_below(300000 / turns)
           : round % 3 == 0 ? 1 + random_below(3000)
                            : 1 + random_below(60);
}

static void run_rule(struct rule rule)
{
    const double densities[] = {0.001, 0.01, 0.05, 0.3, 1};
    for (unsigned p = 0; p < sizeof patterns / sizeof *patterns; p++) {
        for (unsigned round = 0; round < 32; round++) {
            rule.params.density = densities[round % 5];
            run_sequence(&rule, patterns[p], random_size(round, rule.turns));
        }
    }
}

/* At most this percentage of comparisons may end because rounding decides. */
static void check_rule(struct rule rule, unsigned percent)
{
    compared = skipped = 0;
    run_rule(rule);
    assert_true(compared > 500);
    if (100 * skipped > percent * compared) {
        fail_msg("%u of %u comparisons skipped", skipped, compared);
    }
}

static void test_dgc(void **state)
{
    (void)state;
    check_rule((struct rule){"dgc", {.sample = 0.01}, 3}, 0);
    check_rule((struct rule){"dgc", {.sample = 0.2}, 3}, 0);
}

static void test_gaussiank(void **state)
{
    (void)state;
    check_rule((struct rule){"gaussiank", {.density = 0}, 3}, 1);
}

static void test_redsync(void **state)
{
    (void)state;
    check_rule((struct rule){"redsync", {.density = 0}, 3}, 1);
    check_rule((struct rule){"redsync-trim", {.density = 0}, 3}, 1);
}

static void test_threshold(void **state)
{
    (void)state;
    check_rule((struct rule){"threshold", {.threshold = 0}, 3}, 0);
    check_rule((struct rule){"threshold", {.threshold = 0.75}, 3}, 0);
    check_rule((struct rule){"threshold", {.threshold = 0.5}, 3}, 0);
}

static void test_sidco(void **state)
{
    (void)state;
    for (int fit = 0; fit < SIDCO_FITS; fit++) {
        check_rule((struct rule){"sidco", {.fit = (enum sidco_fit)fit}, 12}, 1);
    }
}

static void test_estimate(void **state)
{
    (void)state;
    check_rule(
        (struct rule){"adtopk", {.interleave = true, .estimate = true, .estimate_period = 5}, 40},
        0);
}

/* ------------------------------------------------------------------ traps */

/* Selects from one input, at turn 0 and from the given state. */
static struct sparse select_once(const char *name, struct sparsifier_params params, uint64_t n,
    const float *x, struct sparsifier_state *state)
{
    const struct rule rule = {.sparsifier = name, .params = params};
    const struct sequence s = {.rule = &rule,
        .ops = sparsifier_find(name),
        .shape = {.dims = 2, .size = {1, n}},
        .state = state != NULL ? *state : (struct sparsifier_state){.threshold = 0}};
    struct sparsifier_state next;
    struct sparse out = select_turn(&s, params.interleave ? 1 : 0, x, &next);
    if (state != NULL) {
        *state = next;
    }
    return out;
}

static uint64_t count_once(
    const char *name, struct sparsifier_params params, uint64_t n, const float *x)
{
    struct sparse out = select_once(name, params, n, x, NULL);
    const uint64_t count = out.count;
    sparse_drop(&out);
    return count;
}

static const char *const rules[] = {
    "dgc", "gaussiank", "redsync", "redsync-trim", "sidco", "threshold"};

#define RULES (sizeof rules / sizeof *rules)

/* Whatever the bits of the residual, a selection ends and fits. */
static void test_any_bits(void **state)
{
    (void)state;
    for (int round = 0; round < 600; round++) {
        const uint64_t n = 1 + random_below(round % 30 == 0 ? 20000 : 200);
        float *x = pattern_make(round % 2 == 0 ? ANY_BITS : NOT_FINITE, n);
        for (unsigned r = 0; r < RULES; r++) {
            const struct sparsifier_params params = {.density = (double)(1 + round % 50) / 50,
                .sample = 0.01,
                .fit = (enum sidco_fit)(round % SIDCO_FITS)};
            (void)count_once(rules[r], params, n, x); /* it checks the list against the choice */
        }
        free(x);
    }
}

/* All magnitudes are equal. Some entries must be sent, or the residual would grow for ever. Neither
 * the sign nor the scale of a residual changes the selection. */
static void test_alike(void **state)
{
    (void)state;
    for (unsigned r = 0; r < RULES; r++) {
        for (int fit = 0; fit < SIDCO_FITS; fit++) {
            const struct sparsifier_params params = {
                .density = 0.01, .sample = 0.01, .fit = (enum sidco_fit)fit};
            float x[1000];
            for (uint64_t n = 1; n <= 1000; n += n < 10 ? 1 : 99) {
                for (uint64_t i = 0; i < n; i++) {
                    x[i] = -1e-5f;
                }
                assert_true(count_once(rules[r], params, n, x) > 0);
                for (uint64_t i = 0; i < n; i++) {
                    x[i] = random_below(2) == 0 ? 3e5f : -3e5f;
                }
                assert_true(count_once(rules[r], params, n, x) > 0);
            }
        }
    }
}

static void test_sign_and_scale(void **state)
{
    (void)state;
    for (unsigned r = 0; r + 1 < RULES; r++) { /* all but `threshold` */
        for (unsigned round = 0; round < 60; round++) {
            const uint64_t n = 1 + random_below(2000);
            const struct sparsifier_params params = {
                .density = 0.02, .sample = 0.1, .fit = (enum sidco_fit)(round % SIDCO_FITS)};
            float *x = pattern_make(round % 2 == 0 ? RANDOM : HOT_BLOCK, n);
            struct sparse before = select_once(rules[r], params, n, x, NULL);
            for (uint64_t i = 0; i < n; i++) {
                x[i] *= -0x1p-20f;
            }
            struct sparse after = select_once(rules[r], params, n, x, NULL);
            assert_int_equal(before.count, after.count);
            assert_memory_equal(
                before.position, after.position, before.count * sizeof *before.position);
            sparse_drop(&before);
            sparse_drop(&after);
            free(x);
        }
    }
}

/* If too many entries exceed the threshold, the largest stay, wherever they are, and not the first.
 */
static void test_dgc_cuts_by_magnitude(void **state)
{
    const struct sparsifier_params params = {.density = 0.01, .sample = 0.001};
    unsigned cut = 0;

    (void)state;
    for (uint64_t n = 201; n < 4000; n += 40) {
        float *x = pattern_make(ASCENDING, n);
        struct sparse out = select_once("dgc", params, n, x, NULL);
        for (uint64_t i = 0; i < out.count; i++) {
            assert_int_equal(out.position[i], n - out.count + i);
        }
        cut += out.count == n / 100;
        sparse_drop(&out);
        free(x);
    }
    assert_true(cut > 10);
}

/* A matrix of 1024 columns, one of which has all large elements. An even stride would read all of
 * it, or none. */
static void test_dgc_does_not_run_along_columns(void **state)
{
    const uint64_t n = 1024 * 256;
    const struct sparsifier_params params = {.density = 1.0 / 1024, .sample = 0.1};
    float *x = allocate(n, sizeof *x);

    (void)state;
    for (uint64_t i = 0; i < n; i++) {
        x[i] = random_value() * (i % 1024 == 500 ? 1.0f : 0.01f);
    }
    const uint64_t count = count_once("dgc", params, n, x);
    assert_true(count >= 204 && count <= 332); /* 0.8 and 1.3 times 256 */
    free(x);
}

/* Magnitudes are uniform. At half of the range k/2 to k entries remain, so r has to fall. */
static void test_redsync_moves_the_right_way(void **state)
{
    float *x = pattern_make(ASCENDING, 1000);
    const struct sparsifier_params params = {.density = 0.3};

    (void)state;
    const uint64_t count = count_once("redsync", params, 1000, x);
    assert_true(count > 300 && count < 600);
    free(x);
}

/* 10,000 exponential magnitudes. Every fit starts near k, and the stages reach k. */
static void test_sidco_finds_k(void **state)
{
    const uint64_t n = 10000;
    float *x = allocate(n, sizeof *x);

    (void)state;
    for (uint64_t i = 0; i < n; i++) {
        x[i] = (float)-log(((double)i + 0.5) / (double)n) * (i % 2 == 0 ? 1.0f : -1.0f);
    }
    for (int fit = 0; fit < SIDCO_FITS; fit++) {
        const struct sparsifier_params params = {.density = 0.01, .fit = (enum sidco_fit)fit};
        const uint64_t count = count_once("sidco", params, n, x);
        assert_true(count >= 90 && count <= 110);
    }
    free(x);
}

/* ------------------------------------------------------------------ traps of the estimate */

/* The counts of 60 traditional turns on the magnitudes 1 to 1000, all negative. From turn `from` on
 * they are `factor` times as large. */
static void run_estimate(uint64_t period, int from, double factor, size_t count[60])
{
    const struct sparsifier_params params = {
        .density = 0.01, .interleave = true, .estimate = true, .estimate_period = period};
    struct sparsifier_state kept = {.threshold = 0};
    float x[1000];
    for (int turn = 0; turn < 60; turn++) {
        for (int i = 0; i < 1000; i++) {
            x[i] = (float)(-(i + 1) * (turn < from ? 1 : factor));
        }
        struct sparse out = select_once("adtopk", params, 1000, x, &kept);
        count[turn] = out.count;
        sparse_drop(&out);
    }
}

/* Exact turns select 10 entries, and 9 exceed the threshold in between. An estimate that used the
 * sign, or counted steps instead of traditional turns, would select others. */
static void test_estimate_periods_grow(void **state)
{
    size_t count[60];

    (void)state;
    run_estimate(6, 0, 1, count);
    for (int turn = 0; turn < 60; turn++) {
        /* Exact in the first 15 turns, then 6, 8, 10, 12 turns later: two more each time. */
        const bool exact = turn < 15 || turn == 20 || turn == 28 || turn == 38 || turn == 50;
        assert_int_equal(count[turn], exact ? 10 : 9);
    }
}

/* The change of the threshold decides when the next exact selection is, narrow bands first. Until
 * turn 34 notices it, far too many entries may exceed the threshold: then the 15 largest are sent.
 */
static void test_estimate_bands(void **state)
{
    static const struct {
        double factor;
        int next;
    } cases[] = {{1, 22}, {1.03, 22}, {0.97, 22}, {1.07, 21}, {0.93, 21}, {1.15, 19}, {0.85, 19},
        {1.25, 18}, {0.7, 18}, {10, 18}};
    size_t count[60];

    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        run_estimate(20, 20, cases[i].factor, count);
        for (int turn = 0; turn < 60; turn++) {
            if (turn < 15 || turn == 34 || turn == 34 + cases[i].next) {
                assert_int_equal(count[turn], 10);
            } else if (turn < 20 || (turn > 34 && turn < 34 + cases[i].next)) {
                assert_int_equal(count[turn], 9);
            } else if (turn < 34) {
                assert_true(count[turn] <= 15);
                assert_true(cases[i].factor < 1.05 || count[turn] == 15);
            }
        }
    }
}

/* However the threshold changes, exact selections are at least five turns apart. */
static void test_estimate_period_ends(void **state)
{
    const struct sparsifier_params params = {
        .density = 0.01, .interleave = true, .estimate = true, .estimate_period = 5};
    struct sparsifier_state kept = {.threshold = 0};
    float x[1000];

    (void)state;
    for (int turn = 0; turn < 60; turn++) {
        for (int i = 0; i < 1000; i++) {
            x[i] = (float)((i + 1) * (turn / 5 % 2 == 0 ? 1 : 3));
        }
        struct sparse out = select_once("adtopk", params, 1000, x, &kept);
        const bool exact = turn < 15 || turn % 5 == 4;
        assert_true(exact == (out.count == 10));
        sparse_drop(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dgc),
        cmocka_unit_test(test_gaussiank),
        cmocka_unit_test(test_redsync),
        cmocka_unit_test(test_threshold),
        cmocka_unit_test(test_sidco),
        cmocka_unit_test(test_estimate),
        cmocka_unit_test(test_any_bits),
        cmocka_unit_test(test_alike),
        cmocka_unit_test(test_sign_and_scale),
        cmocka_unit_test(test_dgc_cuts_by_magnitude),
        cmocka_unit_test(test_dgc_does_not_run_along_columns),
        cmocka_unit_test(test_redsync_moves_the_right_way),
        cmocka_unit_test(test_sidco_finds_k),
        cmocka_unit_test(test_estimate_periods_grow),
        cmocka_unit_test(test_estimate_bands),
        cmocka_unit_test(test_estimate_period_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
