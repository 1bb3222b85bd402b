#include "daemon/compute/comeback.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/layout.h"
#include "daemon/compute/settle.h"
#include "daemon/compute/work.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/notes.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/store.h"

bool comeback_leave(const struct job *job)
{
    const bool leaves = job->core->config.memory.leave_job != NULL && job->view != 0 &&
                        job->in_force.nodes > 1 && job->batches == 1 &&
                        engine_is_near(job->core->config.engine) && job_goes_on_elsewhere(job);

    if (leaves) {
        store_publish(&job->store->begun, BEGUN_LEFT);
    }
    return leaves;
}

static void comeback_warn(const struct job *job, const char *why)
{
    core_warn(job->core, "job '%s': node %u begins without the residuals that it had: %s",
        job->key.name, job->core->config.node, why);
}

/* ------------------------------------------------------------------ the store */

/* Notes what others know of this node. False: nothing, or there is no memory for it. */
static bool comeback_note(
    struct job *job, const Adtopk__PeerAbsent *absent, const Adtopk__PeerPrepare *prepare)
{
    struct comeback *comeback = &job->agreement.comeback;

    comeback->delivered = malloc((absent->n_delivered + 1) * sizeof(*comeback->delivered));
    if (comeback->delivered == NULL) {
        return false;
    }
    comeback->run = prepare->run;
    comeback->step = absent->step;
    comeback->policy = absent->policy;
    comeback->count = absent->n_delivered;
    for (size_t i = 0; i < comeback->count; i++) {
        comeback->delivered[i] = absent->delivered[i];
    }
    return true;
}

/* Whether the residuals of a store of this run can be kept, as far as its header tells. */
static enum adtopk_status comeback_may_keep(
    const struct job *job, const struct store_header *store, struct error *err)
{
    const uint32_t version =
        store->policies > 0 ? store->policy[store->policies % 2].change.version : 0;
    const uint64_t step = job->agreement.comeback.step, done = store->steps_done;

    if (!engine_is_near(job->core->config.engine)) {
        return error_set(err, ADTOPK_ERR_LOST, "they are in memory of a GPU");
    }
    if (store_batches(store) > 1) {
        return error_set(err, ADTOPK_ERR_LOST, "they are of tensors that were committed later");
    }
    if ((store->begun != BEGUN_LEFT && store->begun != BEGUN_SETTLED) || store->joining != 0 ||
        store->restore == RESTORE_BEGUN) {
        return error_set(err, ADTOPK_ERR_LOST, "its part of the job did not end in order");
    }
    if (version != job->agreement.comeback.policy) {
        return error_set(err, ADTOPK_ERR_LOST,
            "they are of version %u of the policy, and it was lost under version %u", version,
            job->agreement.comeback.policy);
    }
    if (done > step + 1 || step > done + 1) {
        return error_set(err, ADTOPK_ERR_LOST,
            "they are of step %llu, and it was lost in step %llu", (unsigned long long)done,
            (unsigned long long)step);
    }
    if (done == step + 1 && store_step_status(store) != ADTOPK_OK) {
        return error_set(err, ADTOPK_ERR_LOST, "its last step was withdrawn");
    }
    return ADTOPK_OK;
}

static void comeback_drop_parts(const struct job *job, unsigned first)
{
    const struct core_memory *memory = &job->core->config.memory;

    for (unsigned part = first; part < CORE_STORE_PARTS; part++) {
        memory->drop_store(memory->context, job->number, part);
    }
}

/* Whether the store that was found can be used. */
static enum adtopk_status comeback_check(const struct job *job, struct error *err)
{
    if (job->layout.fresh) {
        return error_set(err, ADTOPK_ERR_LOST, "their store is gone");
    }
    if (store_open(job->layout.found, true, layout_run(job), layout_digest(job),
            job->layout.batch[0].end, err) != ADTOPK_OK) {
        return err->code;
    }
    return comeback_may_keep(job, job->layout.found, err);
}

/* Without memory for the store the job hears of that when it opens it. */
static void comeback_find(struct job *job)
{
    struct error why;

    if (layout_find(job, &why) == ADTOPK_OK ? comeback_check(job, &why) != ADTOPK_OK
                                            : why.code == ADTOPK_ERR_LOST) {
        comeback_warn(job, why.text);
        comeback_drop_parts(job, STORE_MAIN);
        job->layout.found = NULL;
        job->agreement.comeback.run = 0;
    }
}

/* What the proposal says about this node; NULL: nothing. */
static const Adtopk__PeerAbsent *comeback_absent(
    const struct job *job, const Adtopk__PeerPrepare *prepare)
{
    for (size_t i = 0; i < prepare->n_absent; i++) {
        if (prepare->absent[i]->node == job->core->config.node) {
            return prepare->absent[i];
        }
    }
    return NULL;
}

void comeback_hear(struct job *job, const Adtopk__PeerPrepare *prepare)
{
    const struct core_memory *memory = &job->core->config.memory;
    const bool has = memory->has_store != NULL && memory->has_store(memory->context, &job->key);
    const Adtopk__PeerAbsent *absent = comeback_absent(job, prepare);

    if (views_since(job->agreement.views, job->core->config.node) != SINCE_UNKNOWN) {
        return;
    }
    if (absent != NULL && !has) {
        comeback_warn(
            job, memory->has_store != NULL ? "their store is gone" : "this daemon keeps no stores");
    } else if (absent != NULL && !comeback_note(job, absent, prepare)) {
        comeback_warn(job, "there is no memory for what the others know of them");
    } else if (absent != NULL) {
        comeback_find(job);
    } else if (has) {
        comeback_warn(job, "the others do not know what of them was applied");
    }
}

/* Empties the store's parts. The policy that was found stays: it is the others' of that time. */
static void comeback_empty(struct job *job, const char *why)
{
    struct store_header *store = job->store;
    uint8_t *slots = (uint8_t *)store_slots(store);

    comeback_warn(job, why);
    store_publish(&store->begun, BEGUN_NOTHING);
    store_publish(&store->more, 0);
    job->layout.batch[0].more = NULL;
    comeback_drop_parts(job, STORE_MAIN + 1);
    (void)memset(store->tensor, 0, job->tensors * sizeof(store->tensor[0]));
    (void)memset(slots, 0, (size_t)((uint8_t *)job->layout.journal - slots));
    job->agreement.comeback.run = 0;
}

/* ------------------------------------------------------------------ what leaves the residuals */

/* Whether no sum of the tensor was rounded. */
static bool comeback_is_exact(const struct plan_tensor *planned)
{
    const struct tensor_policy *policy = &planned->policy;

    if (planned->known) {
        return policy->values == PAYLOAD_VALUE_F32 && policy->dense_values == PAYLOAD_VALUE_F32;
    }
    return policy->values == PAYLOAD_VALUE_F32 || !policy->sparse_collective->traits.rerounds;
}

/* Whether it is known without the update what of a contribution became part of it. */
static bool comeback_needs_no_update(const struct job *job, const struct plan_tensor *planned)
{
    if (planned->narrow || plan_propagates(job->plan)) {
        return false;
    }
    if (planned->dense) {
        return plan_leaves_nothing(planned);
    }
    return (planned->known || planned->policy.sparse_collective->traits.picks == PICKS_NOTHING) &&
           comeback_is_exact(planned);
}

/* Marks a tensor whose round is not complete, so nothing of it leaves. False: something has left
 * already, and this node cannot put it back. */
static bool comeback_mark_open(const struct job *job, uint32_t t)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];
    struct store_tensor *store = job->tensor[t].store;
    const bool settled =
        store->step == job->agreement.comeback.step && store->stage >= STAGE_SETTLING;
    const bool next =
        store->step > job->agreement.comeback.step && store->stage >= STAGE_ACCUMULATED;
    const bool leaves =
        store->round_unpushed == 0 && !(planned->dense && plan_leaves_nothing(planned));

    if (next || (settled && leaves)) {
        return false;
    }
    store->round_unpushed = 1; /* as if nobody had pushed it */
    store->round_nonfinite = 0;
    return true;
}

/* Marks a tensor whose round is complete. False: it is not known what leaves. */
static bool comeback_mark_complete(const struct job *job, uint32_t t)
{
    struct store_tensor *store = job->tensor[t].store;
    const bool began = store->step == job->store->steps_done && store->stage >= STAGE_ACCUMULATED;
    const bool delivered = began && store->stage >= STAGE_DELIVERED;
    const bool withdrawn =
        began && store->stage == STAGE_SETTLED && store->settled == 0 && store->round_unpushed == 0;

    if (withdrawn) {
        return false; /* the others had it applied */
    }
    if (job->store->steps_done > job->agreement.comeback.step) {
        store->round_unpushed = 1; /* it has left already */
        return true;
    }
    if (began && !delivered) {
        store->round_unpushed = store->round_nonfinite = 0;
        store->loss_scale = 1;
    }
    return delivered || (began && comeback_needs_no_update(job, &job->plan->tensor[t]));
}

/* Marks the tensors of the rounds that are complete. False: some round cannot be. */
static bool comeback_list(const struct job *job, bool *complete)
{
    const struct comeback *comeback = &job->agreement.comeback;
    const bool all = job->store->steps_done < comeback->step;

    for (uint32_t t = 0; t < job->tensors; t++) {
        complete[t] = all;
    }
    for (size_t i = 0; i < comeback->count; i++) {
        const struct round *round;
        if (comeback->delivered[i] >= job->plan->rounds) {
            return false;
        }
        round = &job->plan->round[comeback->delivered[i]];
        for (unsigned k = 0; k < round->tensors; k++) {
            complete[round->tensor[k]] = true;
        }
    }
    return true;
}

static bool comeback_mark_all(const struct job *job, bool *complete)
{
    bool known = comeback_list(job, complete);

    for (uint32_t t = 0; known && t < job->tensors; t++) {
        known = complete[t] ? comeback_mark_complete(job, t) : comeback_mark_open(job, t);
    }
    return known;
}

void comeback_mark(struct job *job)
{
    struct comeback *comeback = &job->agreement.comeback;
    bool *complete;

    if (comeback->run == 0) {
        return;
    }
    comeback->settled = job->store->begun == BEGUN_SETTLED;
    for (uint32_t t = 0; t < job->tensors; t++) {
        job->tensor[t].store->split = 0; /* the others may not know of it */
    }
    complete = calloc(job->tensors, sizeof(*complete));
    if (!comeback->settled && (complete == NULL || !comeback_mark_all(job, complete))) {
        comeback_empty(job, "a part of them was applied, and it is not known which");
    }
    free(complete);
}

/* ------------------------------------------------------------------ the compute */

static void comeback_keep(struct job *job)
{
    store_publish(&job->store->begun, BEGUN_SETTLED);
    job->agreement.comeback.kept = true;
    core_note(job->core, "job '%s': node %u keeps the residuals that it had after step %llu",
        job->key.name, job->core->config.node, (unsigned long long)step_number(job));
}

static void comeback_settled(struct work *work)
{
    comeback_keep(work->job);
}

bool comeback_settle(struct job *job)
{
    const struct comeback *comeback = &job->agreement.comeback;

    if (comeback->run == 0 || comeback->kept) {
        return false;
    }
    if (comeback->settled) {
        comeback_keep(job);
        return false;
    }
    core_work(&job->lending.work, &work_settle, comeback_settled,
        job->figures.counters.elements * sizeof(float));
    return true;
}

/* ------------------------------------------------------------------ joining */

static void comeback_adopt_lists(struct plan_tensor *planned)
{
    planned->sent_step = 0;
    if (planned->sum_rests.header != NULL) {
        planned->sum_rests.header->step = 0;
    }
    if (planned->update_rests.header != NULL) {
        planned->update_rests.header->step = 0;
    }
}

void comeback_adopt(struct job *job)
{
    store_publish(&job->store->begun, BEGUN_THERE); /* a kill from here on loses the residuals */
    for (uint32_t t = 0; t < job->tensors; t++) {
        struct store_tensor *store = job->tensor[t].store;
        for (unsigned r = 0; r < plan_residuals(job, &job->plan->tensor[t]); r++) {
            (void)memset(layout_states(job, t, r), 0, sizeof(struct store_states));
        }
        store->nonfinite = store->round_nonfinite = store->round_unpushed = 0;
        (void)memset(store->agreed, 0, sizeof(store->agreed));
        (void)memset(&store->rest, 0, sizeof(store->rest));
        comeback_adopt_lists(&job->plan->tensor[t]);
    }
    (void)memset(job->store->step_status, 0, sizeof(job->store->step_status));
    (void)memset(job->store->grown, 0, sizeof(job->store->grown));
}
