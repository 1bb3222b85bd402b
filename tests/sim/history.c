/* Jobs from which nodes are left out, and which others join: all that go on have one history. */
#include <string.h>

#include "tests/sim/world.h"

/* Whether the trainer saw the step. A node that was left out when its rank had all of its steps
 * does not count: the others may have made the last one anew. */
static bool history_has(const struct trainer *trainer, uint64_t step)
{
    return trainer->state == TRAINER_DONE && step >= trainer->since &&
           !trainer->world->node[trainer->node].memory[0].failed;
}

static void history_check_step(struct world *world, uint64_t step)
{
    const struct sim_job *job = &world->job[0];
    const uint64_t row = world->scenario.steps + 1;
    const struct trainer *first = NULL;

    for (unsigned i = 0; i < job->trainers; i++) {
        const struct trainer *trainer = &world->trainer[job->first + i];
        if (!history_has(trainer, step)) {
            continue;
        }
        first = first != NULL ? first : trainer;
        if (job->outcome[trainer->node * row + step] != job->outcome[first->node * row + step]) {
            world_violate(world, "nodes %u and %u differ in step %llu", first->node, trainer->node,
                (unsigned long long)step);
        }
    }
}

void history_check(struct world *world)
{
    for (uint64_t step = 0; step < world->scenario.steps; step++) {
        history_check_step(world, step);
    }
}
