/*
 * A planner that changes its mind: every so often it wants any plan that there can be. The real one
 * is asked as well, so that it sees plans that it did not think of.
 */
#include "daemon/planner/planner_survey.h"
#include "tests/sim/world.h"

bool fickle_planner = true;

void __real_planner_decide(struct planner *planner, const struct estimates *estimates,
    const struct choices *in_force, struct planner_decision *decision);
void __wrap_planner_decide(struct planner *planner, const struct estimates *estimates,
    const struct choices *in_force, struct planner_decision *decision);

static enum choice any_choice(struct world *dice, uint32_t allowed)
{
    enum choice choice;

    do {
        choice = (enum choice)world_random(dice, CHOICES);
    } while ((allowed >> choice & 1) == 0);
    return choice;
}

void __wrap_planner_decide(struct planner *planner, const struct estimates *estimates,
    const struct choices *in_force, struct planner_decision *decision)
{
    static uint8_t choice[SIM_MAX_TENSORS];
    static struct choices plan = {.choice = choice};
    const struct planner_config *config = &planner->config;
    struct world dice = {.random = estimates->plan * 1000 + estimates->warmed};

    __real_planner_decide(planner, estimates, in_force, decision);
    if (!fickle_planner || world_chance(&dice, 0.5)) {
        return;
    }
    plan.tensors = config->tensors;
    plan.bucket_bytes =
        config->bucket_bytes != 0 ? config->bucket_bytes : 1 + world_random(&dice, 5000);
    for (uint32_t t = 0; t < plan.tensors; t++) {
        choice[t] = (uint8_t)any_choice(&dice, config->tensor[t].allowed);
    }
    decision->change = true;
    decision->plan = &plan;
}
