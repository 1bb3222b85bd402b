#include "tests/host/inside.h"

#include <string.h>

#include "daemon/compute/layout.h"
#include "daemon/compute/orders.h"
#include "daemon/core/rank.h"
#include "daemon/job/job_index.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/store.h"

static const struct job *find(const struct core *core, uint64_t id)
{
    return job_index_first(core, BY_NUMBER, id);
}

bool inside_ledger(const struct core *core, uint64_t job_id, uint32_t number, double input[2],
    double applied[2], double lost[2])
{
    const struct job *job = find(core, job_id);

    if (job == NULL || number >= job->tensors || job->store == NULL) {
        return false;
    }
    (void)memcpy(input, job->tensor[number].store->input, 2 * sizeof(*input));
    (void)memcpy(applied, store_applied(job->tensor[number].store), 2 * sizeof(*applied));
    (void)memcpy(lost, job->tensor[number].store->lost, 2 * sizeof(*lost));
    return true;
}

static bool has_residual(const struct job *job, uint32_t number, uint32_t slot)
{
    return job != NULL && number < job->tensors && job->plan->rounds > 0 &&
           job->plan->tensor[number].residual != NULL &&
           slot < (job->plan->tensor[number].by_rank && job->store->more != 0 ? job->ranks : 1);
}

const float *inside_residual(
    const struct core *core, uint64_t job_id, uint32_t number, uint32_t slot)
{
    const struct job *job = find(core, job_id);

    return has_residual(job, number, slot) ? layout_residual(job, number, slot) : NULL;
}

/* False: a far engine cannot do that at once. */
static bool read_part(
    const struct job *job, uint32_t tensor, unsigned slot, const struct orders_part *part)
{
    const struct engine_ops *engine = plan_engine(job);
    const struct parallel alone = {.threads = 0};
    struct engine_order order;
    struct engine_result result;
    struct engine_batch batch = {
        .memory = &job->layout.arenas, .order = &order, .result = &result, .room = 1};

    if (engine->run != NULL) {
        orders_read_part(job, &batch, tensor, slot, part);
        engine->run(job->core->config.engine_context, &batch, &alone);
    }
    return engine->run != NULL;
}

bool inside_residual_copy(
    const struct core *core, uint64_t job_id, uint32_t number, uint32_t slot, float *out)
{
    const struct job *job = find(core, job_id);

    return has_residual(job, number, slot) &&
           read_part(job, number, slot,
               &(struct orders_part){.count = job->tensor[number].numel, .out = out});
}

bool inside_layout(
    const struct core *core, session_id session, uint32_t tensor, struct tensor_layout *layout)
{
    const struct rank *rank = rank_find(core, session);

    if (rank == NULL || tensor >= rank->job->tensors) {
        return false;
    }
    *layout = rank->job->tensor[tensor].layout;
    return true;
}

bool inside_op_layout(
    const struct core *core, session_id session, uint64_t *gradient_offset, uint64_t *result_offset)
{
    const struct rank *rank = rank_find(core, session);

    if (rank == NULL) {
        return false;
    }
    *gradient_offset = CORE_OP_GRADIENTS;
    *result_offset = rank->job->layout.op_result_offset;
    return true;
}
