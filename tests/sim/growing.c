#include "tests/sim/growing.h"

#include <string.h>

struct scenario growing_scenario(const char *policy, unsigned nodes, unsigned ranks, uint64_t seed)
{
    struct scenario scenario = failure_scenario(policy);

    scenario.seed = seed;
    scenario.nodes = nodes;
    scenario.ranks_per_node = ranks;
    scenario.jobs = 1;
    scenario.steps = STEPS;
    scenario.operations = 2;
    scenario.calls = seed % 2 == 0;
    scenario.sums = true;
    scenario.max_us = 400000000;
    return scenario;
}

struct world *growing_world(const char *policy, unsigned nodes, unsigned ranks, uint64_t seed)
{
    const struct scenario scenario = growing_scenario(policy, nodes, ranks, seed);
    struct world *world = world_create(&scenario);

    world->job[0].may_fail = true;
    return world;
}

bool grow_in_step_four(const struct world *world) /* tensors of later batches are there */
{
    return all_in_step(world, 4);
}

unsigned grow_nodes(const struct world *world)
{
    unsigned nodes = 0;

    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        struct job_info info;
        if (check_find(world, n, 0, &info) && strcmp(info.state, "active") == 0) {
            nodes = info.nodes;
        }
    }
    return nodes;
}

bool grow_is_smaller(const struct world *world)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        struct job_info info;
        if (world->node[n].core != NULL && check_find(world, n, 0, &info) &&
            info.nodes == world->scenario.nodes) {
            return false;
        }
    }
    return grow_nodes(world) > 0;
}

void grow_hold_others(struct world *world, unsigned node, uint64_t step)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        struct trainer *trainer = &world->trainer[i];
        trainer->hold = trainer->node != node ? HOLD_STEP : HOLD_NEVER;
        trainer->hold_step = step;
    }
}

void grow_release(struct world *world)
{
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].hold == HOLD_STEP) {
            let_go(&world->trainer[i]);
        }
    }
}

void grow_come_back(struct world *world, unsigned node)
{
    node_start(world, node);
    for (unsigned i = 0; i < world->trainers; i++) {
        if (world->trainer[i].node == node) {
            trainer_come_back(&world->trainer[i], 1 + i);
        }
    }
}

bool grow_has_joined(const struct world *world)
{
    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        struct job_info info;
        if (!check_find(world, n, 0, &info) || info.nodes != world->scenario.nodes) {
            return false;
        }
    }
    return true;
}

bool grow_is_three(const struct world *world)
{
    return grow_nodes(world) == 3;
}

double grow_missing(const struct world *world, unsigned t, uint64_t place, uint64_t element,
    unsigned node, uint64_t steps)
{
    const struct sim_job *job = &world->job[0];
    double missing = -job->applied[place];

    for (unsigned n = 0; n < world->scenario.nodes; n++) {
        missing -= job->residual[n * job->elements + place];
    }
    for (uint64_t s = 0; s < STEPS; s++) {
        for (unsigned r = 0; r < job->trainers; r++) {
            const struct trainer *trainer = &world->trainer[job->first + r];
            const bool before = trainer->node == node && s < steps;
            if (before || trainer->node != node || s >= trainer->absent_to) {
                missing += (double)trainer_gradient(world, 0, s, r, t, element);
            }
        }
    }
    return missing;
}
