/*
 * The planner in worlds whose costs it does not know: how far the plan that it settles on is from
 * the best of many fixed ones, and what it does when things are noisy, change, or are refused.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "planner_world.h"

#define DECIDE_EVERY 4
#define VGG16 0
#define BERT 2
#define LSTM 4

/* A planner at work in a world. */
struct game {
    struct world *world;
    struct planner *planner;
    struct estimates estimates;
    struct choices plan;
    struct planner_decision decision;
    uint64_t version;
    unsigned changes;
    double spent_us; /* by all steps */
    unsigned long steps;
    bool talk;
};

static void game_begin(struct game *game, struct world *world)
{
    struct planner_config config = {.tensor = world->tensor,
        .tensors = world->tensors,
        .nodes = world->nodes,
        .threads = world->threads};
    struct error err;

    *game = (struct game){.world = world, .talk = getenv("PLANNER_TALK") != NULL};
    game->planner = planner_create(&config, &err);
    assert_non_null(game->planner);
    assert_true(estimate_init(&game->estimates, world->tensors, world->nodes));
    assert_true(choices_init(&game->plan, world->tensors));
    game->plan.bucket_bytes = 4 << 20;
    for (uint32_t t = 0; t < world->tensors; t++) {
        bool sparse = (world->tensor[t].allowed >> CHOICE_ALLGATHER & 1) != 0;
        game->plan.choice[t] = sparse ? CHOICE_ALLGATHER : CHOICE_DENSE;
    }
    estimate_plan(&game->estimates, 0);
}

static void game_end(struct game *game)
{
    planner_free(game->planner);
    estimate_free(&game->estimates);
    choices_free(&game->plan);
}

static void game_decide(struct game *game)
{
    planner_decide(game->planner, &game->estimates, &game->plan, &game->decision);
    if (game->talk && (game->decision.change || game->steps % 100 == 0)) {
        printf("  %5lu %s\n", game->steps, game->decision.why);
    }
    if (game->decision.change) {
        choices_copy(&game->plan, game->decision.plan);
        estimate_plan(&game->estimates, ++game->version);
        game->changes++;
    }
}

static void game_play(struct game *game, unsigned steps)
{
    for (unsigned s = 1; s <= steps; s++) {
        game->spent_us += world_step(game->world, &game->plan, &game->estimates);
        game->steps++;
        if (s % DECIDE_EVERY == 0) {
            game_decide(game);
        }
    }
}

/* The fixed plan of a choice. */
static void fix(
    const struct world *world, enum choice choice, uint64_t bucket_bytes, struct choices *plan)
{
    plan->bucket_bytes = bucket_bytes;
    for (uint32_t t = 0; t < world->tensors; t++) {
        bool may = (world->tensor[t].allowed >> choice & 1) != 0;
        plan->choice[t] = may ? (uint8_t)choice : CHOICE_DENSE;
    }
}

struct fixed {
    double us;
    enum choice choice;
    uint64_t bucket_bytes;
};

/* The best of 18 fixed plans. */
static struct fixed best_fixed(struct world *world)
{
    static const uint64_t bytes[] = {256 << 10, 4 << 20, 64 << 20};
    struct fixed best = {.us = INFINITY};
    struct choices plan;

    assert_true(choices_init(&plan, world->tensors));
    for (unsigned c = 0; c < CHOICES; c++) {
        for (unsigned i = 0; i < 3; i++) {
            double us;
            fix(world, (enum choice)c, bytes[i], &plan);
            us = world_true(world, &plan);
            if (us < best.us) {
                best = (struct fixed){us, (enum choice)c, bytes[i]};
            }
        }
    }
    choices_free(&plan);
    return best;
}

static void test_regret(void **state)
{
    static const struct {
        const char *name;
        unsigned model;
        double backward_us;
    } models[] = {{"vgg16", VGG16, 120e3}, {"bert-base", BERT, 150e3}, {"lstm", LSTM, 80e3}};
    static const char *const patterns[] = {"backward", "at once", "late", "forward"};
    static const double links[] = {0.1, 1, 2.5, 10, 25, 100, 0};
    double worst = 0;

    (void)state;
    printf("%-10s %-9s %8s %10s %24s %10s %7s %7s %7s\n", "model", "arrivals", "Gbit/s", "best ms",
        "(of 18 fixed plans)", "planner", "regret", "changes", "trials");
    for (unsigned m = 0; m < 3; m++) {
        for (unsigned p = 0; p < 3; p++) {
            for (unsigned l = 0; l < sizeof(links) / sizeof(links[0]); l++) {
                struct world world;
                struct game game;
                struct fixed best;
                double us, regret;

                world_init(&world, models[m].model, (enum world_pattern)p, models[m].backward_us,
                    1000 * m + 10 * p + l);
                world_link(&world, links[l]);
                game_begin(&game, &world);
                game_play(&game, 400);
                us = world_true(&world, &game.plan);
                best = best_fixed(&world);
                regret = us / best.us - 1;
                worst = fmax(worst, regret);
                if (game.talk) {
                    struct planner_candidate c;
                    for (unsigned i = 0; planner_candidate(game.planner, i, &c); i++) {
                        double true_us = world_true(&world, c.plan);
                        printf("    %-32s %8lu KiB predicted %9.2f measured %9.2f true %9.2f "
                               "select %9.2f link %9.2f reduce %9.2f\n",
                            c.name, (unsigned long)c.plan->bucket_bytes >> 10, c.predicted_us / 1e3,
                            c.measured_us / 1e3, true_us / 1e3, c.select_us / 1e3, c.link_us / 1e3,
                            c.reduce_us / 1e3);
                    }
                }
                printf("%-10s %-9s %8g %10.2f %16s %4lu KiB %10.2f %6.1f%% %7u %6.2fx\n",
                    models[m].name, patterns[p], links[l], best.us / 1e3, choice_name(best.choice),
                    (unsigned long)best.bucket_bytes >> 10, us / 1e3, 100 * regret, game.changes,
                    game.spent_us / 400 / best.us);
                game_end(&game);
                world_free(&world);
            }
        }
    }
    assert_true(worst <= 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regret),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
