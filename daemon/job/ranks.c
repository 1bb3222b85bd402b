#include "daemon/job/ranks.h"

#include <stdlib.h>

#include "daemon/job/actions.h"
#include "daemon/job/id_table.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/members.h"

void rank_take_pushed(struct rank *rank)
{
    if (rank->next_pushed == NULL) {
        return; /* it returned with the batch, and has them */
    }
    free(rank->pushed);
    rank->pushed = rank->next_pushed;
    rank->waits = rank->next_waits;
    rank->waiting = 0;
    rank->next_pushed = NULL;
}

void rank_make_ready(struct rank *rank)
{
    const struct job *job = rank->job;
    uint64_t step;

    if (rank->machine.state != RANK_MAPPED && rank->machine.state != RANK_READY) {
        return;
    }
    step = rank->succeeds ? rank->first_step : step_number(job);
    rank->ready = job->batches;
    machine_fire(&rank->machine, RANK_ON_READY, RANK_READY);
    core_act(job->core,
        &(struct action){.type = ACTION_READY,
            .session = rank->session,
            .number = step,
            .operation = job->store->ops_done,
            .run = rank->client.returns && job->core->config.memory.has_store != NULL ? job->run.id
                                                                                      : 0,
            .job = job->number,
            .index = rank->index,
            .batches = job->batches,
            .members = members_taking_part(rank, step),
            .status = store_step_status(job->store)});
}

bool rank_has_begun(const struct rank *rank)
{
    const uint64_t open = step_number(rank->job) + 1;
    bool begun = rank->ended == open;

    for (uint32_t t = 0; t < rank->job->tensors && !begun; t++) {
        begun = rank->pushed[t] == open;
    }
    return begun;
}

uint32_t rank_arena(const struct job *job, unsigned rank, uint32_t t)
{
    const struct repeat *repeat = &job->rank[rank]->repeat;
    const bool before =
        repeat->pushed != NULL && repeat->step == step_number(job) + 1 && repeat->pushed[t];

    return ENGINE_GRADIENTS +
           (before ? CORE_MAX_BATCHES : job->tensor[t].layout.batch) * job->ranks + rank;
}

void rank_release(const struct rank *rank)
{
    const struct core_memory *memory = &rank->job->core->config.memory;

    memory->release_session(memory->context, rank->session);
    if (rank->repeat.session != 0) {
        memory->release_session(memory->context, rank->repeat.session);
    }
    if (rank->vacancy.successor != NULL) {
        rank_release(rank->vacancy.successor);
    }
}

void rank_free(struct rank *rank)
{
    id_table_remove(&rank->job->core->ranks, rank->session);
    if (rank->vacancy.successor != NULL) {
        rank_free(rank->vacancy.successor);
    }
    free(rank->repeat.pushed);
    free(rank->pushed);
    free(rank->next_pushed);
    free(rank);
}
