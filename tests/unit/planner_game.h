/*
 * A planner that works in a world of planner_world.h without knowing the costs there.
 */
#ifndef ADTOPK_TESTS_PLANNER_GAME_H
#define ADTOPK_TESTS_PLANNER_GAME_H

#include "planner_world.h"

#define DECIDE_EVERY 4 /* steps */

/* Models of adtopk-perf. */
#define VGG16 0
#define BERT 2
#define LSTM 4

struct game {
    struct world *world;
    struct planner *planner;
    struct estimates estimates;
    struct choices plan;
    struct planner_decision decision;
    uint64_t version;
    unsigned changes;
    double spent_us; /* time of all steps so far */
    unsigned long steps;
    bool talk;
};

/* A fixed plan. */
struct fixed {
    double us;
    enum choice choice;
    uint64_t bucket_bytes;
};

/** Begins with a plan in which everything is sparse, in buckets of 4 MiB. */
void game_begin(struct game *game, struct world *world);
void game_end(struct game *game);

/** Asks the planner and does what it wants. */
void game_decide(struct game *game);

/** Makes steps, and asks the planner after every DECIDE_EVERY. */
void game_play(struct game *game, unsigned steps);

/** Plays until nothing has changed for longer than a trial takes. */
void game_rest(struct game *game);

/** The fixed plan of a choice. */
void game_fix(
    const struct world *world, enum choice choice, uint64_t bucket_bytes, struct choices *plan);

/** The best of 18 fixed plans. */
struct fixed game_best_fixed(struct world *world);

/** How much worse than the best fixed plan the plan in force is. */
double game_regret(const struct game *game, struct fixed *best);

#endif
