/*
 * The sparsifiers' choices from turn to turn: rhythms of views, warm-up, and positions that all
 * nodes know.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "daemon/sparsify/sparsifier.h"
#include "tests/unit/arrays.h"

static const struct tensor_shape matrix = {.dims = 2, .size = {50, 40}};

static struct sparsifier_turn turn_of(const struct tensor_shape *shape,
    const struct sparsifier_params *params, const struct sparsifier_agreed *agreed, uint64_t number)
{
    return (struct sparsifier_turn){
        .shape = shape, .params = params, .agreed = agreed, .turn = number};
}

static struct sparsifier_choice choose(const char *name, const struct sparsifier_params *params,
    const struct sparsifier_agreed *agreed, uint64_t number)
{
    const struct sparsifier_turn turn = turn_of(&matrix, params, agreed, number);
    struct sparsifier_choice choice;
    sparsifier_find(name)->choose(&turn, &choice);
    return choice;
}

/* Checks one letter per turn: F of every fibre, T of the whole tensor, exact, E by an estimate. */
static void assert_rhythm(const struct sparsifier_params *params,
    const struct sparsifier_agreed *agreed, uint64_t first, const char *rhythm)
{
    for (uint64_t i = 0; rhythm[i] != '\0'; i++) {
        const enum sparsifier_mode mode = choose("adtopk", params, agreed, first + i).mode;
        assert_int_equal(mode, rhythm[i] == 'F'   ? SPARSIFIER_FIBRES
                               : rhythm[i] == 'T' ? SPARSIFIER_TOP
                                                  : SPARSIFIER_RULE);
    }
}

static void test_rhythms(void **state)
{
    const struct sparsifier_agreed agreed = {.real = {0}};
    struct sparsifier_params params = {.density = 0.1};

    (void)state;
    assert_rhythm(&params, &agreed, 0, "FFFFF");
    params.interleave = true;
    assert_rhythm(&params, &agreed, 0, "FTFTFT");
    assert_rhythm(&params, &agreed, 1001, "TFTF");
    params.estimate = true;
    assert_rhythm(&params, &agreed, 0, "FEFEFE");
    params.estimate = false;
    params.fibre_turns = 3;
    params.global_turns = 2;
    assert_int_equal(sparsifier_period(&params), 5);
    assert_rhythm(&params, &agreed, 0, "FFFTTFFFTT");
    params.fibre_turns = params.global_turns = 64;
    assert_int_equal(sparsifier_period(&params), 128);
    assert_rhythm(&params, &agreed, 62, "FFTT");
    assert_rhythm(&params, &agreed, 126, "TTFF");
    params.fibre_turns = params.global_turns = UINT64_MAX; /* more than a policy can say */
    assert_int_equal(sparsifier_period(&params), 128);
}

static void test_last_quarter(void **state)
{
    const struct sparsifier_agreed agreed = {.real = {0}};
    struct sparsifier_params params = {.density = 0.1, .interleave = true, .total_turns = 10};

    (void)state;
    assert_rhythm(&params, &agreed, 0, "FTFTFTFTFFFFFF"); /* the quarter of 10 is 2 */
    params.estimate = true;
    params.total_turns = 16;
    assert_rhythm(&params, &agreed, 8, "FEFEFFFFFF");
    params.total_turns = 1; /* over: a quarter of 1 is 0 */
    assert_rhythm(&params, &agreed, 0, "FFFF");
}

/* ------------------------------------------------------------------ the adaptive share */

/* Observes four turns, each with an update of this mass per entry. */
static void observe_four(const struct sparsifier_params *params, struct sparsifier_agreed *agreed,
    uint64_t first, double fibre, double global)
{
    for (uint64_t i = 0; i < 4; i++) {
        const struct sparsifier_agreed before = *agreed;
        const struct sparsifier_turn turn = turn_of(&matrix, params, &before, first + i);
        const bool fibres = choose("adtopk", params, &before, first + i).mode == SPARSIFIER_FIBRES;
        const struct sparsifier_update update = {
            .count = 50, .sum_abs = 50 * (fibres ? fibre : global)};
        sparsifier_find("adtopk")->observe(&turn, &update, agreed);
    }
}

static void test_adaptive(void **state)
{
    const struct sparsifier_params params = {.density = 0.1, .interleave = true, .adaptive = true};
    struct sparsifier_agreed agreed = {.real = {0}};
    static const struct {
        double fibre, global;
        const char *rhythm;
    } cases[] = {{1, 1, "FFTT"}, {1, 0.1, "FFFT"}, {1, 1000, "FTTT"}, {0, 0, "FTTT"},
        {0, 2, "FTTT"}, {2, 0, "FFFT"}, {1, 1.7, "FTTT"}, {1, 1.6, "FFTT"}, {1, 0.61, "FFTT"},
        {1, 0.59, "FFFT"}, {INFINITY, 1, "FFFT"}, {NAN, 1, "FFFT"}};

    (void)state;
    assert_int_equal(sparsifier_period(&params), 4);
    assert_rhythm(&params, &agreed, 0, "FFTT"); /* before any observation */
    for (uint64_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        observe_four(&params, &agreed, 4 * i, cases[i].fibre, cases[i].global);
        assert_rhythm(&params, &agreed, 4 * i + 4, cases[i].rhythm);
    }
}

/* Within four turns nothing changes. An empty update counts as no mass. Any state gives a rhythm.
 */
static void test_adaptive_within_a_period(void **state)
{
    const struct sparsifier_params params = {.density = 0.1, .interleave = true, .adaptive = true};
    struct sparsifier_params plain = params;
    struct sparsifier_agreed agreed = {.real = {0}}, strange = {.number = {UINT32_MAX, 7}};
    struct sparsifier_turn turn = turn_of(&matrix, &params, &agreed, 0);
    const struct sparsifier_update much = {.count = 1, .sum_abs = 1e9}, none = {.count = 0};

    (void)state;
    for (turn.turn = 0; turn.turn < 3; turn.turn++) {
        sparsifier_find("adtopk")->observe(&turn, &much, &agreed);
        assert_rhythm(&params, &agreed, 0, "FFTT");
    }
    sparsifier_find("adtopk")->observe(&turn, &none, &agreed);
    assert_rhythm(&params, &agreed, 4, "FFFT");
    assert_rhythm(&params, &strange, 0, "FFTT");
    assert_true(sparsifier_find("adtopk")->observes(&params));
    plain.adaptive = false;
    assert_false(sparsifier_find("adtopk")->observes(&plain));
    plain = params;
    plain.interleave = false;
    assert_false(sparsifier_find("adtopk")->observes(&plain));
}

/* ------------------------------------------------------------------ warm-up */

static void test_warm_up(void **state)
{
    const struct sparsifier_params params = {
        .density = 0.001, .warmup_epochs = 5, .epoch_turns = 10};
    static const double percent[] = {31.6, 10, 3.16, 1, 0.316, 0.1, 0.1};

    (void)state;
    for (uint64_t turn = 0; turn < 70; turn++) {
        const double density = sparsifier_density(&params, turn);
        assert_true(fabs(density * 100 / percent[turn / 10] - 1) < 0.002);
        assert_true(fabs(density - fmax(pow(0.001, (double)(turn / 10 + 1) / 6), 0.001)) < 1e-15);
    }
    assert_true(sparsifier_density(&params, UINT64_MAX) == 0.001);
}

static void test_warm_up_never_rises(void **state)
{
    (void)state;
    for (int i = 0; i < 300; i++) {
        const struct sparsifier_params params = {.density = pow(10, -6 * (double)i / 300),
            .warmup_epochs = random_below(101),
            .epoch_turns = random_below(3)};
        double before = 1;
        for (uint64_t turn = 0; turn < 250; turn++) {
            const double density = sparsifier_density(&params, turn);
            assert_true(density <= before && density >= params.density);
            before = density;
        }
    }
}

/* ------------------------------------------------------------------ the contract of choose() */

static struct sparsifier_params random_params(void)
{
    return (struct sparsifier_params){.density = pow(10, -3 * (double)random_below(1000) / 1000),
        .warmup_epochs = random_below(4),
        .epoch_turns = random_below(6),
        .fibres = (enum fibres)random_below(FIBRES_COUNT),
        .interleave = random_below(3) > 0,
        .fibre_turns = random_below(9),
        .global_turns = random_below(9),
        .adaptive = random_below(3) == 0,
        .total_turns = random_below(3) == 0 ? random_below(40) : 0,
        .estimate = random_below(2) == 0};
}

/* The first period has every mode that ever occurs, and the largest count. */
static void check_period(const char *name, const struct sparsifier_params *params)
{
    const unsigned period = sparsifier_period(params);
    unsigned modes = 0;
    uint64_t most = 0;
    assert_true(period >= 1 && period <= 128);
    for (uint64_t turn = 0; turn < 200; turn++) {
        const struct sparsifier_agreed agreed = {.number = {(uint32_t)(turn / 4 % 5)}};
        const struct sparsifier_agreed first = {.real = {0}};
        const struct sparsifier_choice choice =
            choose(name, params, turn < period ? &first : &agreed, turn);
        assert_true(choice.count <= tensor_numel(&matrix));
        assert_int_equal(view_size(&choice.view), tensor_numel(&matrix));
        assert_int_equal(choice.per_fibre > 0, choice.mode == SPARSIFIER_FIBRES);
        if (turn < period) {
            modes |= 1u << choice.mode;
            most = choice.count > most ? choice.count : most;
        }
        assert_true((modes >> choice.mode & 1) == 1);
        assert_true(choice.count <= most);
    }
}

static void test_period(void **state)
{
    (void)state;
    for (unsigned s = 0; sparsifier_table[s] != NULL; s++) {
        for (int i = 0; i < 200; i++) {
            const struct sparsifier_params params = random_params();
            check_period(sparsifier_table[s]->name, &params);
        }
    }
}

/* Operations and modes fit together, and everything is documented. */
static void test_operations(void **state)
{
    const struct sparsifier_agreed agreed = {.real = {0}};
    const struct sparsifier_params params = {.density = 0.1, .interleave = true, .estimate = true};

    (void)state;
    for (unsigned s = 0; sparsifier_table[s] != NULL; s++) {
        const struct sparsifier_ops *ops = sparsifier_table[s];
        const enum sparsifier_mode mode = choose(ops->name, &params, &agreed, 1).mode;
        assert_int_equal(ops->select != NULL, mode == SPARSIFIER_RULE);
        assert_int_equal(ops->known != NULL, mode == SPARSIFIER_KNOWN);
        assert_true(strlen(ops->help) > 0 && strlen(ops->entries) > 0 && strlen(ops->source) > 0);
    }
}

/* ------------------------------------------------------------------ random-k */

static struct sparse known(uint64_t n, double density, uint64_t seed)
{
    const struct tensor_shape shape = {.dims = 2, .size = {1, n}};
    const struct sparsifier_params params = {.density = density};
    const struct sparsifier_agreed agreed = {.real = {0}};
    struct sparsifier_turn turn = turn_of(&shape, &params, &agreed, 3);
    struct sparsifier_choice choice;
    turn.seed = seed;
    sparsifier_find("randomk")->choose(&turn, &choice);
    assert_int_equal(choice.mode, SPARSIFIER_KNOWN);
    struct sparse out = sparse_make(choice.count);
    sparsifier_find("randomk")->known(&turn, &out);
    assert_int_equal(out.count, choice.count);
    return out;
}

static void test_known_positions(void **state)
{
    (void)state;
    for (int round = 0; round < 2000; round++) {
        const uint64_t n = 1 + random_below(round % 50 == 0 ? 100000 : 300);
        const uint64_t seed = random_next();
        struct sparse out = known(n, (double)(1 + random_below(100)) / 100, seed);
        for (uint64_t i = 0; i < out.count; i++) {
            assert_true(out.position[i] >= i * n / out.count);
            assert_true(out.position[i] < (i + 1) * n / out.count); /* sorted, distinct, inside */
        }
        sparse_drop(&out);
    }
    struct sparse all = known(1000, 1.0, 7);
    for (uint32_t i = 0; i < 1000; i++) {
        assert_int_equal(all.position[i], i);
    }
    sparse_drop(&all);
    /* The largest tensor: nothing overflows. */
    struct sparse few = known(UINT32_MAX, 1e-6, 99);
    assert_int_equal(few.count, 4294);
    for (uint64_t i = 0; i < few.count; i++) {
        assert_true(few.position[i] >= i * UINT32_MAX / 4294);
        assert_true(few.position[i] < (i + 1) * UINT32_MAX / 4294);
    }
    sparse_drop(&few);
}

/* The same seed gives the same positions, and another seed gives others. Over many seeds every
 * position comes about equally often: within five standard deviations of a fair draw. */
static void test_known_is_fair(void **state)
{
    unsigned times[100] = {0};
    struct sparse one = known(100000, 0.01, 1), same = known(100000, 0.01, 1);
    struct sparse other = known(100000, 0.01, 2);
    unsigned equal = 0;

    (void)state;
    assert_memory_equal(one.position, same.position, one.count * sizeof *one.position);
    for (uint64_t i = 0; i < one.count; i++) {
        equal += one.position[i] == other.position[i];
    }
    assert_true(equal < 40); /* of 1000, a hundredth of which are equal by chance */
    sparse_drop(&one);
    sparse_drop(&same);
    sparse_drop(&other);
    for (uint64_t seed = 0; seed < 20000; seed++) {
        struct sparse out = known(100, 0.1, seed);
        for (uint64_t i = 0; i < out.count; i++) {
            times[out.position[i]]++;
        }
        sparse_drop(&out);
    }
    for (unsigned i = 0; i < 100; i++) {
        assert_true(fabs(times[i] - 2000.0) < 5 * sqrt(20000 * 0.1 * 0.9));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rhythms),
        cmocka_unit_test(test_last_quarter),
        cmocka_unit_test(test_adaptive),
        cmocka_unit_test(test_adaptive_within_a_period),
        cmocka_unit_test(test_warm_up),
        cmocka_unit_test(test_warm_up_never_rises),
        cmocka_unit_test(test_period),
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_known_positions),
        cmocka_unit_test(test_known_is_fair),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
