/*
 * The sparsifiers with a rule of their own, value for value against plain implementations: over
 * random inputs and those that break rules, in sequences of turns with error feedback, repeated.
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
#include "tests/unit/sparsify_reference.h"

struct rule {
    const char *sparsifier;
    struct sparsifier_params params;
    unsigned turns; /* of a sequence */
};

/* What is alike in all turns of a sequence. */
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

/* Selects twice, as a retry does: same list, same next state, and the state before is untouched. */
static struct sparse select_turn(
    const struct sequence *s, uint64_t number, const float *x, struct sparsifier_state *next)
{
    const struct sparsifier_turn turn = turn_of(s, number);
    const struct sparsifier_choice choice = choice_of(s, number);
    const struct sparsifier_state before = s->state;
    struct sparsifier_state again = before;
    const uint64_t n = tensor_numel(&s->shape);
    void *scratch = allocate(1, survey_scratch(n));
    struct survey survey;
    struct sparse out = sparse_make(choice.count);
    struct sparse repeated = sparse_make(choice.count);
    *next = before;
    survey_read(&survey, NULL, x, n, scratch);
    assert_int_equal(choice.mode, SPARSIFIER_RULE);
    s->ops->select(&turn, &s->state, &survey, next, &out);
    s->ops->select(&turn, &s->state, &survey, &again, &repeated);
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

/* Returns whether both agree, or rounding decided. */
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
        x[out.position[i]] = 0; /* what was sent leaves the residual */
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
        /* Traditional turns of adtopk only: number them as one of its period. */
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
    return round % 16 == 0  ? 1 + random_below(300000 / turns)
           : round % 2 == 0 ? 1 + random_below(3000)
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

/* At most so many of a hundred comparisons may end because rounding decides. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dgc),
        cmocka_unit_test(test_gaussiank),
        cmocka_unit_test(test_redsync),
        cmocka_unit_test(test_threshold),
        cmocka_unit_test(test_sidco),
        cmocka_unit_test(test_estimate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
