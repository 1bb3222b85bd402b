/*
 * Other parties' effects on a planner: they refuse its proposals, withdraw them, or set their own
 * plans.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/planner/planner_record.h"
#include "planner_game.h"

/* Refused proposals end, and the planner makes none of them twice. */
static void test_refused(void **state)
{
    char text[40][CHOICES_TEXT_SIZE];
    struct world world;
    struct game game;
    unsigned proposals = 0;

    (void)state;
    world_init(&world, LSTM, WORLD_AT_ONCE, 0, 5);
    world_link(&world, 0.5);
    game_begin(&game, &world);
    game_fix(&world, CHOICE_DENSE, 4 << 20, &game.plan);
    for (unsigned s = 1; s <= 400; s++) {
        (void)world_step(&world, &game.plan, &game.estimates);
        planner_decide(game.planner, &game.estimates, &game.plan, &game.decision);
        if (game.decision.change) {
            assert_true(proposals < 40);
            assert_true(choices_print(game.decision.plan, text[proposals]));
            for (unsigned i = 0; i < proposals; i++) {
                assert_string_not_equal(text[i], text[proposals]);
            }
            proposals++;
        }
    }
    assert_in_range(proposals, 1, 16);
    assert_false(game.decision.change);
    game_end(&game);
    world_free(&world);
}

/* The way back to an earlier plan may be refused: the planner proposes it again. */
static void test_refused_way_back(void **state)
{
    struct choices refused;
    struct world world;
    struct game game;
    bool again = false;

    (void)state;
    world_init(&world, VGG16, WORLD_BACKWARD, 100000, 6);
    world_link(&world, 1);
    for (uint32_t t = 0; t < world.tensors; t++) {
        world.tensor[t].allowed &= 1u << CHOICE_DENSE | 1u << CHOICE_ALLGATHER;
    }
    game_begin(&game, &world);
    assert_true(choices_init(&refused, world.tensors));
    for (unsigned s = 1; s <= 1500 && !again; s++) {
        bool back;

        (void)world_step(&world, &game.plan, &game.estimates);
        if (s % DECIDE_EVERY != 0) {
            continue;
        }
        planner_decide(game.planner, &game.estimates, &game.plan, &game.decision);
        back = game.decision.change && strncmp(game.decision.why, "back to", 7) == 0;
        again = back && choices_equal(&refused, game.decision.plan);
        if (back && refused.bucket_bytes == 1) {
            choices_copy(&refused, game.decision.plan);
        } else if (game.decision.change) {
            choices_copy(&game.plan, game.decision.plan);
            estimate_plan(&game.estimates, ++game.version);
        }
    }
    assert_true(again);
    choices_free(&refused);
    game_end(&game);
    world_free(&world);
}

/* Three of four proposals are withdrawn, without a trace. However many there were, the planner
 * makes them again, and the way back from a trial at once. */
static void test_withdrawn(void **state)
{
    unsigned proposals = 0, late = 0;
    bool trial = false, back = false;
    struct world world;
    struct game game;
    struct fixed best;

    (void)state;
    world_init(&world, VGG16, WORLD_BACKWARD, 20e3, 22);
    world_link(&world, 1);
    game_begin(&game, &world);
    for (unsigned s = 1; s <= 4000; s++) {
        (void)world_step(&world, &game.plan, &game.estimates);
        if (s % DECIDE_EVERY != 0) {
            continue;
        }
        planner_decide(game.planner, &game.estimates, &game.plan, &game.decision);
        late += back && !game.decision.change ? 1 : 0;
        trial = trial && strstr(game.decision.why, "no other plan") == NULL;
        back = trial && strncmp(game.decision.why, "back to", 7) == 0;
        if (game.decision.change && ++proposals % 4 != 0) {
            planner_withdraw(game.planner);
        } else if (game.decision.change) {
            trial = strncmp(game.decision.why, "trying", 6) == 0;
            back = false;
            choices_copy(&game.plan, game.decision.plan);
            estimate_plan(&game.estimates, ++game.version);
        }
    }
    assert_true(proposals > 2 * 16);
    assert_int_equal(late, 0);
    assert_true(game_regret(&game, &best) < 0.08);
    game_end(&game);
    world_free(&world);
}

/* An operator keeps setting new plans. The list never shows a plan with the prediction of the plan
 * that had its slot before. */
static void test_foreign_plans(void **state)
{
    struct planner_candidate candidate;
    struct world world;
    struct game game;

    (void)state;
    world_init(&world, LSTM, WORLD_AT_ONCE, 0, 8);
    game_begin(&game, &world);
    game_play(&game, 60);
    for (uint64_t i = 1; i <= 2 * RECORDS_MAX; i++) {
        game_play(&game, 16); /* the planner measured and listed it */
        game.plan.bucket_bytes = 1000 + i;
        estimate_plan(&game.estimates, ++game.version);
        planner_decide(game.planner, &game.estimates, &game.plan, &game.decision);
        assert_false(game.decision.change);
        for (unsigned c = 0; planner_candidate(game.planner, c, &candidate); c++) {
            assert_false(candidate.in_force);
        }
    }
    game_end(&game);
    world_free(&world);
}

/* If a slot is needed, the best measured plan keeps its own. */
static void test_records_full(void **state)
{
    struct records records;
    struct choices plan;
    struct record *best;

    (void)state;
    assert_true(records_init(&records, 1));
    assert_true(choices_init(&plan, 1));
    for (uint64_t i = 0; i < RECORDS_MAX; i++) {
        plan.bucket_bytes = 1 + i;
        (void)records_of(&records, &plan, 0, NULL);
    }
    best = &records.item[RECORDS_MAX / 2];
    best->past_us = 100;
    best->past_steps = 10;
    for (uint64_t i = 0; i < 2 * RECORDS_MAX; i++) {
        plan.bucket_bytes = 1000 + i;
        struct record *next = records_of(&records, &plan, 0, &records.item[0]);
        assert_ptr_not_equal(next, best);
        next->past_us = 200 + (double)i;
        next->past_steps = 10;
    }
    assert_ptr_equal(records_best(&records), best);
    choices_free(&plan);
    records_free(&records);
}

/* An operator sets a bad plan while the planner rests: the planner leaves it again. */
static void test_foreign_plan(void **state)
{
    struct world world;
    struct game game;
    struct fixed best;

    (void)state;
    world_init(&world, LSTM, WORLD_BACKWARD, 30e3, 11);
    world_link(&world, 1);
    game_begin(&game, &world);
    game_play(&game, 300);
    game_fix(&world, CHOICE_DENSE, 12345678, &game.plan);
    game.plan.choice[0] = CHOICE_OKTOPK;
    game.plan.choice[1] = CHOICE_DENSE_BF16;
    estimate_plan(&game.estimates, ++game.version);
    game_play(&game, 40);
    game_rest(&game);
    assert_true(game_regret(&game, &best) <= 0.05);
    game_end(&game);
    world_free(&world);
}

/* The daemon of another node starts again and measures anew, while steps take longer, or shorter.
 */
static void test_restarted_node(void **state)
{
    static const double factors[] = {0.3, 2.5};
    struct world world;
    struct game game;
    struct estimates other, merged;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        world_init(&world, LSTM, WORLD_BACKWARD, 30e3, 11);
        game_begin(&game, &world);
        game_fix(&world, CHOICE_ALLGATHER, 4 << 20, &game.plan);
        assert_true(estimate_init(&other, world.tensors, world.nodes));
        assert_true(estimate_init(&merged, world.tensors, world.nodes));
        for (unsigned step = 0; step < 20; step++) {
            estimate_step(&game.estimates, 1000);
        }
        planner_decide(game.planner, &game.estimates, &game.plan, &game.decision);
        estimate_plan(&other, game.version);
        for (unsigned step = 0; step < 4; step++) {
            estimate_step(&game.estimates, 1000 * factors[i]);
            estimate_step(&other, 1000 * factors[i]);
        }
        estimate_copy(&merged, &game.estimates);
        estimate_merge(&merged, &other);
        assert_in_range(merged.steps.count, 1, 2);
        planner_decide(game.planner, &merged, &game.plan, &game.decision);
        estimate_free(&other);
        estimate_free(&merged);
        game_end(&game);
        world_free(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_refused_way_back),
        cmocka_unit_test(test_withdrawn),
        cmocka_unit_test(test_foreign_plans),
        cmocka_unit_test(test_records_full),
        cmocka_unit_test(test_foreign_plan),
        cmocka_unit_test(test_restarted_node),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
