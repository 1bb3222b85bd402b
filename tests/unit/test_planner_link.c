/*
 * The planner on links that change. It notices a change and leaves a plan that has become far
 * worse. A link that alternates for ever does not keep it busy.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "planner_game.h"

static bool mostly_sparse(const struct game *game)
{
    uint64_t sparse = 0, all = 0;

    for (uint32_t t = 0; t < game->world->tensors; t++) {
        bool is = choice_is_sparse((enum choice)game->plan.choice[t]);
        all += game->world->tensor[t].numel;
        sparse += is ? game->world->tensor[t].numel : 0;
    }
    return sparse > all / 2;
}

/* Makes selecting so slow that it pays only on slow links. */
static void make_selecting_slow(struct world *world)
{
    for (unsigned c = 0; c < CHOICES; c++) {
        world->select_element[c] = c >= CHOICE_ALLGATHER ? 6 : 0.4;
        world->reduce_element[c] = 0.4;
    }
    world->copy_ns = 0.05;
}

/* The planner notices a link that gets much slower or faster, whatever plan is in force. */
static void test_link_changes(void **state)
{
    static const double links[] = {0.5, 100, 1, 40, 0.1};
    struct world world;
    struct game game;
    struct fixed best;

    (void)state;
    world_init(&world, BERT, WORLD_BACKWARD, 20e3, 7);
    make_selecting_slow(&world);
    game_begin(&game, &world);
    for (unsigned l = 0; l < sizeof(links) / sizeof(links[0]); l++) {
        world_link(&world, links[l]);
        game_play(&game, 300);
        game_rest(&game);
        assert_true(game_regret(&game, &best) < 0.08);
        assert_int_equal(mostly_sparse(&game), links[l] < 10);
    }
    game_end(&game);
    world_free(&world);
}

/* Plays steps while the link keeps changing between two rates. Returns the number of plans. */
static unsigned play_flips(struct game *game, unsigned steps, unsigned period)
{
    unsigned before = game->changes;

    for (unsigned s = 0; s < steps; s += period) {
        world_link(game->world, s / period % 2 == 0 ? 0.5 : 40);
        game_play(game, period);
    }
    return game->changes - before;
}

/* A link goes up and down for ever: the planner starts again ever more rarely, in the end hardly
 * ever. After the link has been calm for long, the next change counts at once. */
static void test_link_flips(void **state)
{
    static const unsigned periods[] = {64, 300};
    struct fixed best;

    (void)state;
    for (unsigned p = 0; p < 2; p++) {
        struct world world;
        struct game game;
        unsigned first, then, calm;

        world_init(&world, VGG16, WORLD_BACKWARD, 20e3, 21 + p);
        game_begin(&game, &world);
        first = play_flips(&game, 40 * periods[p], periods[p]);
        then = play_flips(&game, 40 * periods[p], periods[p]);
        printf("# flips every %u steps: %u plans in the first 40 times, %u in the next\n",
            periods[p], first, then);
        assert_true(then < 40); /* fewer than flips: the planner accepts the better of both */
        world_link(&world, 40);
        game_play(&game, 8000);
        game_rest(&game);
        calm = game.changes;
        world_link(&world, 0.2);
        game_play(&game, 300);
        game_rest(&game);
        assert_true(game.changes > calm);
        assert_true(game_regret(&game, &best) < 0.08);
        game_end(&game);
        world_free(&world);
    }
}

/* Plays until another plan is in force, at most this many steps. Returns their number. */
static unsigned play_until_left(struct game *game, unsigned most)
{
    unsigned changes = game->changes, steps = 0;

    for (; steps < most && game->changes == changes; steps++) {
        game->spent_us += world_step(game->world, &game->plan, &game->estimates);
        game->steps++;
        if (game->steps % DECIDE_EVERY == 0) {
            game_decide(game);
        }
    }
    return steps;
}

/* The planner leaves a plan that a link makes far worse within 8 steps. It does so even if the link
 * alternated before, so that it expects no change soon. The time of all steps after that has a
 * limit. */
static void test_escape(void **state)
{
    static const unsigned flips[] = {0, 8, 16};

    (void)state;
    for (unsigned f = 0; f < sizeof(flips) / sizeof(flips[0]); f++) {
        for (unsigned later = 0; later < DECIDE_EVERY; later++) {
            struct world world;
            struct game game;
            struct fixed best;
            double before;
            unsigned steps;

            world_init(&world, VGG16, WORLD_BACKWARD, 20e3, 7 + later);
            make_selecting_slow(&world);
            game_begin(&game, &world);
            world_link(&world, 40);
            game_play(&game, 400);
            for (unsigned i = 0; i < flips[f]; i++) {
                world_link(&world, i % 2 == 0 ? 0.5 : 40);
                game_play(&game, 64);
            }
            world_link(&world, 40);
            game_play(&game, 1500 + later);
            game_rest(&game);
            assert_false(mostly_sparse(&game));
            world_link(&world, 0.1);
            before = game.spent_us;
            steps = play_until_left(&game, 200);
            game_play(&game, 200 - steps);
            best = game_best_fixed(&world);
            printf("# after %u flips: left after %u steps, 200 steps took %.2f times the best\n",
                flips[f], steps, (game.spent_us - before) / (200 * best.us));
            assert_true(steps <= 8);
            game_play(&game, 400);
            assert_true(game_regret(&game, &best) < 0.1);
            game_end(&game);
            world_free(&world);
        }
    }
}

/* A link alternates for 10,000 steps. The steps take at most 1.5 times as long as under the best
 * fixed plan. */
static void test_alternating(void **state)
{
    static const unsigned models_played[] = {VGG16, LSTM};

    (void)state;
    for (unsigned m = 0; m < 2; m++) {
        struct world world;
        struct game game;
        uint64_t random = 3;
        unsigned slow[2] = {0, 0};
        struct choices plan;
        double best = INFINITY;

        world_init(&world, models_played[m], WORLD_BACKWARD, 20e3, 31);
        make_selecting_slow(&world);
        game_begin(&game, &world);
        for (unsigned phase = 0; game.steps < 10000; phase++) {
            unsigned steps = 50 + (unsigned)(450 * world_random(&random));
            world_link(&world, phase % 2 == 0 ? 10 : 0.01);
            game_play(&game, steps);
            slow[phase % 2] += steps;
        }
        assert_true(choices_init(&plan, world.tensors));
        for (unsigned c = 0; c < CHOICES; c++) {
            for (uint64_t bytes = 256 << 10; bytes <= 64 << 20; bytes *= 16) {
                double us = 0;
                game_fix(&world, (enum choice)c, bytes, &plan);
                for (unsigned i = 0; i < 2; i++) {
                    world_link(&world, i == 0 ? 10 : 0.01);
                    us += slow[i] * world_true(&world, &plan);
                }
                best = fmin(best, us);
            }
        }
        printf("# alternating: %.2f times the best fixed plan, %u plans\n", game.spent_us / best,
            game.changes);
        assert_true(game.spent_us < 1.5 * best);
        choices_free(&plan);
        game_end(&game);
        world_free(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link_changes),
        cmocka_unit_test(test_link_flips),
        cmocka_unit_test(test_escape),
        cmocka_unit_test(test_alternating),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
