/*
 * Shared by the tests of single failures: a small world with a job that fails (0) and a bystander
 * (1). Ranks 0 and 1 are on node 0, 2 and 3 on node 1.
 */
#ifndef ADTOPK_SIM_FAILURE_H
#define ADTOPK_SIM_FAILURE_H

#include "tests/sim/suites.h"
#include "tests/sim/world.h"

#define POLICY_WITH(more)                                                                          \
    "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\",\"join_timeout\":3,"                  \
    "\"push_timeout\":3,\"wait_limit\":2" more "}"
#define POLICY POLICY_WITH("")

struct scenario failure_scenario(const char *policy);

/** Nodes of one job crash and come back, are cut off and stop, for longer than the others wait. The
 * policy is to go on without them. */
struct scenario losses_scenario(const char *policy, uint64_t seed);
struct losses_ends {
    unsigned done, left_out, joined; /* ranks that took all steps; and others */
};
/** Runs the scenario, and counts how ranks end. False: something is violated, and *found is what.
 */
bool losses_run(const struct scenario *scenario, struct losses_ends *ends, char found[SIM_TEXT]);
/** Runs the seeds 1 to `seeds`, and fails with the first violation. Returns how all ranks ended. */
struct losses_ends losses_all(
    uint64_t seeds, bool (*run)(uint64_t seed, struct losses_ends *ends, char *found));
/** Plants a bug in runs of the seeds 1 to 200, until one finds it. */
void losses_find(enum planted bug, const char *name, bool (*run)(uint64_t seed, char *found));
struct world *failure_world(const char *policy);

/** The rank has failed, with this code and a sentence that has both words. */
void expect_rank(const struct trainer *trainer, enum adtopk_status status, const char *culprit,
    const char *second);
/** Runs to the end: no hang, no violation, and the bystander has finished its steps. */
void expect_end(struct world *world);
/** The same, and every rank of job 0 that was not lost has failed like that. */
void expect_all(
    struct world *world, enum adtopk_status status, const char *culprit, const char *second);

/** The rank's process is gone. */
void lose(struct trainer *trainer);
/** The node is gone, and its ranks with it. */
void lose_node(struct world *world, unsigned node);
/** Runs to the end: every rank that is not lost takes all of its steps. */
void expect_rest(struct world *world, const char *about);
void leave(struct trainer *trainer);
/** A held rank goes on. */
void let_go(struct trainer *trainer);

/* Conditions for world_until() */
bool later(const struct world *world);                      /* all events have happened */
bool all_in_step(const struct world *world, uint64_t step); /* or in a later one */
bool all_run_step_one(const struct world *world);
extern uint64_t until_us;
bool waited(const struct world *world);     /* it is until_us, or later */
bool others_run(const struct world *world); /* the same, and rank 0 is in step 2 */
/* A node has sent its last bulk packet (node.bulk_last); the same, or rank 0 needs no more. */
bool some_node_is_mute(const struct world *world);
bool mute_or_over(const struct world *world);

#endif
