#include "daemon/job/plan_query.h"

#include "daemon/job/hash.h"
#include "daemon/job/store.h"

unsigned plan_nodes(const struct job *job)
{
    const unsigned founders = job->agreement.views->founders;
    const unsigned nodes =
        job->in_force.nodes > 0 ? job->in_force.nodes : job->agreement.members.nodes;

    return founders > 0 ? founders : nodes;
}

uint32_t plan_tensors(const struct job *job)
{
    return job->tensors + job->registering.moving;
}

/* Most entries that this node contributes if each residual selects `count`. */
uint64_t plan_contribution_count(
    const struct job *job, const struct plan_tensor *planned, uint64_t numel)
{
    uint64_t count = planned->count;

    if (planned->policy.scope == SCOPE_RANK && !planned->known) {
        count *= job->run.world_size; /* other nodes may have more ranks than this one */
    }
    return count < numel ? count : numel;
}

uint64_t plan_update_count(const struct job *job, const struct plan *plan, uint32_t t)
{
    const struct plan_tensor *planned = &plan->tensor[t];
    uint64_t numel = job->tensor[t].numel;
    bool once = planned->policy.scope == SCOPE_RANK || planned->known || plan_is_whole(planned);
    uint64_t factor = once ? 1 : plan_nodes(job);
    uint64_t count = plan_contribution_count(job, planned, numel) * factor;

    return count < numel ? count : numel;
}

bool plan_is_far(const struct job *job, const struct plan *plan)
{
    return !engine_is_near(job->core->config.engine) && plan->policy.engine == POLICY_ENGINE_NODE;
}

const struct engine_ops *plan_engine(const struct job *job)
{
    const struct engine_ops *node = job->core->config.engine;

    return engine_is_near(node) || plan_is_far(job, job->plan) ? node : &engine_host;
}

bool plan_is_whole(const struct plan_tensor *planned)
{
    return !planned->dense && !planned->known &&
           planned->policy.sparse_collective->traits.picks == PICKS_POSITIONS;
}

unsigned plan_residuals(const struct job *job, const struct plan_tensor *planned)
{
    return planned->by_rank ? job->ranks : 1;
}

bool plan_leaves_nothing(const struct plan_tensor *planned)
{
    return planned->dense && planned->policy.dense_values == PAYLOAD_VALUE_F32 && !planned->narrow;
}

bool plan_propagates(const struct plan *plan)
{
    return plan->policy.non_finite == NON_FINITE_PROPAGATE;
}

bool plan_is_corrected(const struct plan_tensor *planned)
{
    const struct sparsifier_params *params = &planned->policy.params;

    return params->momentum > 0 || params->clip > 0 || params->gamma < 1 || params->gamma > 1;
}

/* The entries from which one of the tensor's turns selects. */
struct sparsifier_choice plan_choice_of(const struct tensor *tensor,
    const struct tensor_policy *policy, const struct sparsifier_agreed *agreed, uint64_t turn)
{
    struct sparsifier_turn this = {
        .shape = &tensor->spec.shape, .params = &policy->params, .agreed = agreed, .turn = turn};
    struct sparsifier_choice choice;

    policy->sparsifier->choose(&this, &choice);
    return choice;
}

uint64_t plan_seed(const struct job *job)
{
    return job->store->seed != 0 ? job->store->seed : job->run.seed;
}

struct sparsifier_turn plan_turn(const struct job *job, uint32_t t)
{
    static const struct sparsifier_agreed nothing;
    const struct tensor *tensor = &job->tensor[t];
    uint64_t turn = tensor->store->turn;
    bool agreed = store_remembers(job->store, tensor->store, tensor->store->agreed_after[turn % 2]);

    return (struct sparsifier_turn){
        .shape = &tensor->spec.shape,
        .params = &job->plan->tensor[t].policy.params,
        .agreed = agreed ? &tensor->store->agreed[turn % 2] : &nothing,
        .turn = turn,
        .seed = hash_mix(hash_mix(plan_seed(job) ^ tensor->seed) + turn),
    };
}

struct sparsifier_choice plan_choice(const struct job *job, uint32_t t)
{
    struct sparsifier_turn turn = plan_turn(job, t);
    struct sparsifier_choice choice;

    job->plan->tensor[t].policy.sparsifier->choose(&turn, &choice);
    return choice;
}

struct payload_shape plan_shape(
    const struct job *job, uint32_t t, const struct sparsifier_choice *choice)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];

    return (struct payload_shape){
        .view = choice->view,
        .per_fibre = planned->by_rank ? 0 : choice->per_fibre,
        .max_count = plan_contribution_count(job, planned, job->tensor[t].numel),
    };
}

void plan_choices(const struct plan *plan, struct choices *choices)
{
    choices->bucket_bytes = plan->bucket_bytes;
    for (uint32_t t = 0; t < plan->tensors; t++) {
        choices->choice[t] = (uint8_t)plan->tensor[t].choice;
    }
}

bool plan_by_rank(const struct plan *plan)
{
    for (uint32_t t = 0; t < plan->tensors; t++) {
        if (plan->tensor[t].by_rank) {
            return true;
        }
    }
    return false;
}

const char *plan_unmatched_rule(const struct plan *plan, uint32_t index)
{
    const unsigned rules = plan->rounds > 0 ? plan->policy.rules : 0;

    for (unsigned r = 0; r < rules; r++) {
        if ((plan->matching >> r & 1) == 0 && index-- == 0) {
            return plan->policy.rule[r].match;
        }
    }
    return NULL;
}
