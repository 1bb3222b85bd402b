/*
 * Sparsifiers with a rule, on the engine cuda against that of this processor: the same entries,
 * whatever becomes of the worker. And how often a rule waits for the device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/driver/sides.h"
#include "tests/host/sanitized.h"
#include "tests/unit/arrays.h"

enum { WARM = 20, STEADY = 6 };

struct rule_case {
    const char *name;
    struct sparsifier_params params;
    double questions; /* at most, of a tensor's turn once thresholds are known */
};

static const struct rule_case cases[] = {
    {"dgc", {.sample = 0.01}, 0.5},
    {"gaussiank", {.nesterov = false}, 0.1},
    {"redsync", {.nesterov = false}, 0.1},
    {"redsync-trim", {.nesterov = false}, 0.1},
    {"sidco", {.fit = SIDCO_EXPONENTIAL}, 1.5},
    {"sidco", {.fit = SIDCO_PARETO}, 1.5},
    {"sidco", {.fit = SIDCO_GAMMA}, 1.5},
    {"threshold", {.threshold = 1.5}, 0.1},
    {"adtopk", {.interleave = true, .fibre_turns = 1, .global_turns = 3, .estimate = true}, 0.1},
};

/* What the rule remembers of each tensor. */
static struct sparsifier_state remembered[2][TENSORS];

/* first: of the first tensor. If that differs from the others, all orders can be in one run. */
static void rules_add(unsigned s, const struct rule_case *first, const struct rule_case *others,
    uint64_t stamp, uint64_t turn)
{
    struct side *side = s == 0 ? &sides.host : &sides.cuda;

    for (unsigned t = 0; t < TENSORS; t++) {
        const struct rule_case *rule = t == 0 ? first : others;
        struct engine_add *add;
        struct sparsifier_params params;

        if (first == others) {
            sides_add(side, t, stamp);
        } else {
            sides_add_plain(side, t, stamp, rule->name);
        }
        add = &side->batch.order[side->batch.count - 1].add;
        params = rule->params;
        params.density = 0.04;
        params.beta = add->params.beta;
        params.gamma = add->params.gamma;
        params.momentum = add->params.momentum;
        add->params = params;
        add->sparsifier = sides_sparsifier(rule->name);
        add->shape = (struct tensor_shape){2, {sides.size[t] / 20, 20}};
        add->turn = turn;
        add->seed = stamp + t;
        add->state = remembered[s][t];
    }
}

/* Behind the entries of its list a rule may write anything. */
static void rules_clear(const struct side *side, unsigned t)
{
    const struct engine_list list = sides_selected(side, t);
    const uint64_t room = side->batch.order[t].add.list.count;
    float *value = engine_address(&side->memory, list.value);
    uint32_t *position = engine_address(&side->memory, list.position);

    (void)memset(value + list.count, 0, (room - list.count) * sizeof(*value));
    (void)memset(position + list.count, 0, (room - list.count) * sizeof(*position));
}

/* Guesses are no part of a selection, and may differ. */
static void rules_remember(struct side *side, struct sparsifier_state state[TENSORS])
{
    for (unsigned t = 0; t < TENSORS; t++) {
        struct engine_result *result = &side->batch.result[t];

        state[t] = result->state;
        result->state.threshold = 0;
        side->selected[t] = result->count;
        rules_clear(side, t);
    }
}

static void rules_turn(const struct rule_case *first, const struct rule_case *others,
    uint64_t stamp, uint64_t turn, void (*beside)(void))
{
    for (unsigned r = 0; r < RANKS; r++) {
        for (uint64_t i = 0; i < sides_first(TENSORS); i++) {
            sides.gradient[r][i] = random_value();
        }
    }
    rules_add(0, first, others, stamp, turn);
    rules_add(1, first, others, stamp, turn);
    sides_run(beside);
    rules_remember(&sides.host, remembered[0]);
    rules_remember(&sides.cuda, remembered[1]);
    sides_compare();
    for (unsigned t = 0; t < TENSORS; t++) {
        sides_leave(&sides.host, t);
        sides_leave(&sides.cuda, t);
    }
    sides_run(beside);
    sides_compare();
}

static uint64_t questions(void)
{
    struct device_worker_info info;

    assert_true(device_worker_info(sides.device, 0, &info));
    return info.questions;
}

static void test_same_entries(void **state)
{
    uint64_t stamp = 0;

    (void)state;
    sides_open("late", "", 0, SIDES_MEDIUM);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        uint64_t before = 0;

        (void)memset(remembered, 0, sizeof(remembered));
        for (uint64_t turn = 0; turn < CASES(WARM + STEADY, 2); turn++) {
            before = turn == WARM ? questions() : before;
            rules_turn(&cases[c], &cases[c], ++stamp, turn, NULL);
        }
        if (!SANITIZED) { /* where thresholds are still unknown at the end */
            const double each = (double)(questions() - before) / (TENSORS * STEADY);

            printf("# %s: %.2f questions per tensor and turn\n", cases[c].name, each);
            assert_true(each <= cases[c].questions);
        }
    }
    assert_string_equal(sides.trouble, "");
    sides_close();
}

/* Orders of one run, of which the first asks nothing. */
static void test_beside_others(void **state)
{
    static const struct rule_case top = {"topk", {.nesterov = false}, 0};
    uint64_t stamp = 0;

    (void)state;
    (void)memset(remembered, 0, sizeof(remembered));
    sides_open("late", "", 0, SIDES_MEDIUM);
    for (uint64_t turn = 0; turn < CASES(6, 2); turn++) {
        rules_turn(&top, &cases[1], ++stamp, turn, NULL);
    }
    sides_close();
}

/* The first turns ask most. */
static void test_killed(void **state)
{
    struct device_worker_info info;
    uint64_t stamp = 0;

    (void)state;
    sides_open("chance:5", "", 0, SIDES_MEDIUM);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        (void)memset(remembered, 0, sizeof(remembered));
        for (uint64_t turn = 0; turn < CASES(3, 1); turn++) {
            rules_turn(&cases[c], &cases[c], ++stamp, turn, sides_kill);
        }
    }
    assert_true(device_worker_info(sides.device, 0, &info));
    assert_true(info.starts > CASES(5, 2));
    sides_close();
}

/* No room on the device for what is asked: the order says so, and nothing is selected. */
static void test_no_room(void **state)
{
    (void)state;
    (void)setenv("ADTOPK_TEST_CUDA_MEMORY", "19000000", 1);
    (void)memset(remembered, 0, sizeof(remembered));
    sides_open("late", "", 0, SIDES_LARGE);
    rules_add(1, &cases[0], &cases[0], 1, 0);
    rules_add(0, &cases[0], &cases[0], 1, 0);
    sides_run(NULL);
    assert_int_equal(sides.cuda.batch.result[TENSORS - 1].status, ADTOPK_ERR_MEMORY);
    assert_int_equal(sides.cuda.batch.result[TENSORS - 1].count, 0);
    assert_int_equal(sides.cuda.batch.result[1].status, ADTOPK_OK);
    assert_int_equal(sides.cuda.batch.result[1].count, sides.host.batch.result[1].count);
    sides_close();
    (void)unsetenv("ADTOPK_TEST_CUDA_MEMORY");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_entries),
        cmocka_unit_test(test_beside_others),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_no_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
