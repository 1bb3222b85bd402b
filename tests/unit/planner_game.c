#include "planner_game.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

void game_begin(struct game *game, struct world *world)
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

void game_end(struct game *game)
{
    planner_free(game->planner);
    estimate_free(&game->estimates);
    choices_free(&game->plan);
}

void game_decide(struct game *game)
{
    planner_decide(game->planner, &game->estimates, &game->plan, &game->decision);
    if (game->talk && (game->decision.change || game->steps % 100 == 0)) {
        printf("#   %5lu %s\n", game->steps, game->decision.why);
    }
    if (game->decision.change) {
        choices_copy(&game->plan, game->decision.plan);
        estimate_plan(&game->estimates, ++game->version);
        game->changes++;
    }
}

void game_play(struct game *game, unsigned steps)
{
    for (unsigned s = 1; s <= steps; s++) {
        game->spent_us += world_step(game->world, &game->plan, &game->estimates);
        game->steps++;
        if (s % DECIDE_EVERY == 0) {
            game_decide(game);
        }
    }
}

void game_fix(
    const struct world *world, enum choice choice, uint64_t bucket_bytes, struct choices *plan)
{
    plan->bucket_bytes = bucket_bytes;
    for (uint32_t t = 0; t < world->tensors; t++) {
        bool may = (world->tensor[t].allowed >> choice & 1) != 0;
        plan->choice[t] = may ? (uint8_t)choice : CHOICE_DENSE;
    }
}

struct fixed game_best_fixed(struct world *world)
{
    static const uint64_t bytes[] = {256 << 10, 4 << 20, 64 << 20};
    struct fixed best = {.us = INFINITY};
    struct choices plan;

    assert_true(choices_init(&plan, world->tensors));
    for (unsigned c = 0; c < CHOICES; c++) {
        for (unsigned i = 0; i < 3; i++) {
            double us;
            game_fix(world, (enum choice)c, bytes[i], &plan);
            us = world_true(world, &plan);
            if (us < best.us) {
                best = (struct fixed){us, (enum choice)c, bytes[i]};
            }
        }
    }
    choices_free(&plan);
    return best;
}

void game_rest(struct game *game)
{
    unsigned changes;

    do {
        changes = game->changes;
        game_play(game, 60);
    } while (game->changes != changes);
}

double game_regret(const struct game *game, struct fixed *best)
{
    *best = game_best_fixed(game->world);
    return world_true(game->world, &game->plan) / best->us - 1;
}
