/*
 * Settling: entries that were sent and accepted leave the residuals. That happens once, whenever
 * the daemon is killed.
 *
 * Happy path of a tensor: the ledger, the sparsifier's states and the values that all nodes share
 * are made for the next turn, beside those in force. The lists of entries that leave are complete
 * in the store. STAGE_SETTLING is published. The elements are written. The turn is counted, which
 * puts the new records in force.
 *
 * If the daemon is killed before that stage, everything is computed again. If it is killed after
 * it, the elements are written again, to the same values, because a kept list has the residual's
 * values. The pass of a dense tensor is journalled. A tensor that was sent whole without a residual
 * (work_round.c) has only a ledger to settle.
 *
 * If no rank of this node pushed a tensor, the node has sent nothing of it. Only rests of sums that
 * it rounded for other nodes come back. If no rank of any node pushed it, no turn is counted, and
 * nothing changes.
 *
 * If an engine has lost what was in a residual, the step goes on with zeros. When it is over, the
 * ledger declares as lost what the input has beyond the applied values and the residual.
 *
 * If the policy passes on that a tensor's update is NaN, nobody applies it. The finite part of its
 * gradients stays in the residual, and no turn is counted. Gradients of a tensor without a residual
 * are added to it.
 */
#include "daemon/compute/settle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/layout.h"
#include "daemon/compute/orders.h"
#include "daemon/compute/rests.h"
#include "daemon/compute/work_round.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/store.h"
#include "kernels/kernels.h"

/* The inputs and outputs of a stage. */
struct settling {
    struct job *job;
    uint32_t t;
    struct plan_tensor *planned;
    struct store_tensor *store;
    struct engine_batch *batch; /* the batch that the stage fills */
};

static struct settling settling_of(struct work *work, uint32_t t)
{
    struct job *job = work->job;

    return (struct settling){.job = job,
        .t = t,
        .planned = &job->plan->tensor[t],
        .store = job->tensor[t].store,
        .batch = &work->batch[work->filling]};
}

/* The rests that go back to the residual. If ranks see 16 bits, the list of the update's rests has
 * those of sums as well. */
static const struct rest_list *settle_rests(const struct plan_tensor *planned)
{
    return planned->narrow ? &planned->update_rests : &planned->sum_rests;
}

/* A restarted daemon goes on where the last one stopped. Nothing leaves if no rank of the job
 * pushed the tensor, or if its update is NaN. */
static bool is_settled(const struct settling *settling)
{
    const struct store_tensor *store = settling->store;

    return store->stage == STAGE_SETTLED || store->round_unpushed != 0 ||
           store->round_nonfinite != 0 ||
           (store->stage == STAGE_SETTLING && store->turn == store->settled);
}

/* ------------------------------------------------------------------ accepted entries */

/* An update on which positions are looked up in ascending order. */
struct lookup {
    struct view view;
    const float *dense; /* NULL: only the list is there */
    const uint32_t *index;
    const float *value;
    uint64_t next, count;
};

static struct lookup lookup_of(const struct settling *settling)
{
    const struct local_update *update = results_update(settling->job, settling->t);
    const struct job *job = settling->job;
    bool dense = (update->forms & LOCAL_FORM_DENSE) != 0;

    return (struct lookup){.view = plan_choice(job, settling->t).view,
        .dense = dense ? results_dense(job, settling->t) : NULL,
        .index = results_index(job, settling->t),
        .value = results_value(job, settling->t),
        .count = update->count};
}

static float lookup_value(struct lookup *lookup, uint32_t position)
{
    uint64_t element = view_element(&lookup->view, position);

    if (lookup->dense != NULL) {
        return lookup->dense[element];
    }
    while (lookup->next < lookup->count &&
           view_position(&lookup->view, lookup->index[lookup->next]) < position) {
        lookup->next++;
    }
    return lookup->next < lookup->count && lookup->index[lookup->next] == element
               ? lookup->value[lookup->next]
               : 0;
}

/* Marks the entries of the list that are in the sum of a collective that selects; NULL without
 * memory. */
static uint8_t *mark_accepted(const struct settling *settling, const struct sparse *list)
{
    uint8_t *bits = calloc(list->count / 8 + 1, 1);
    struct lookup lookup = lookup_of(settling);

    for (size_t i = 0; bits != NULL && i < list->count; i++) {
        if (lookup_value(&lookup, list->position[i]) != 0) {
            bits[i / 8] |= (uint8_t)(1u << i % 8);
        }
    }
    return bits;
}

static void drop_bits(struct plan_tensor *planned)
{
    free(planned->accepted);
    free(planned->rests_accepted);
    planned->accepted = planned->rests_accepted = NULL;
}

static bool settle_fits(const struct settling *settling, const struct sparse *list, uint64_t count)
{
    return results_list_fits(
        list->position, count, list->capacity, settling->job->tensor[settling->t].numel);
}

static enum adtopk_status settle_damaged(struct work *work)
{
    work->status = results_damaged(work->job, &work->error);
    return work->status;
}

/* The rests of sums that this node rounded in this step; 0: it rounded none. */
static uint64_t settle_sum_rests(const struct settling *settling)
{
    const struct store_rest_list *rests = settling->planned->sum_rests.header;

    return rests != NULL && rests->step == settling->job->store->steps_done + 1 ? rests->count : 0;
}

/* Whether rests that are taken from the store are within their tensor. */
static bool settle_rests_fit(const struct settling *settling)
{
    const struct plan_tensor *planned = settling->planned;
    const struct rest_list *rests = &planned->update_rests;
    const bool found = planned->narrow && settling->store->stage == STAGE_SETTLING;

    return settle_fits(settling, &planned->sum_rests.list, settle_sum_rests(settling)) &&
           (!found || settle_fits(settling, &rests->list, rests->header->count));
}

/* Finds which sent entries, and which rests, are of this step and in the sum. */
static enum adtopk_status find_accepted(const struct settling *settling)
{
    struct plan_tensor *planned = settling->planned;
    struct sparse *sum_rests = &planned->sum_rests.list;

    drop_bits(planned);
    sum_rests->count = settle_sum_rests(settling);
    if (plan_is_whole(planned)) {
        planned->rests_accepted = mark_accepted(settling, sum_rests);
        return planned->rests_accepted != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
    }
    if (planned->known || planned->policy.sparse_collective->traits.picks != PICKS_ENTRIES) {
        return ADTOPK_OK; /* known positions use the dense collective, which takes all */
    }
    planned->accepted = mark_accepted(settling, &planned->sent);
    planned->rests_accepted = mark_accepted(settling, sum_rests);
    return planned->accepted != NULL && planned->rests_accepted != NULL ? ADTOPK_OK
                                                                        : ADTOPK_ERR_MEMORY;
}

/* ------------------------------------------------------------------ records of the next turn */

/* The properties of the update that all nodes see. Zeros, which a list lacks, change nothing. */
static struct sparsifier_update look_at_update(const struct job *job, uint32_t t)
{
    const struct local_update *update = results_update(job, t);
    bool dense = (update->forms & LOCAL_FORM_LIST) == 0;
    const float *value = dense ? results_dense(job, t) : results_value(job, t);
    uint64_t count = dense ? update->numel : update->count;
    struct sparsifier_update seen = {.count = 0};

    for (uint64_t i = 0; i < count; i++) {
        seen.count += value[i] != 0;
        seen.sum_abs += (double)fabsf(value[i]);
    }
    seen.sum_abs /= (double)job->tensor[t].store->loss_scale;
    return seen;
}

/* Computes the values that all nodes share for the next turn. */
static void agree(const struct settling *settling)
{
    const struct sparsifier_ops *ops = settling->planned->policy.sparsifier;
    struct sparsifier_turn turn = plan_turn(settling->job, settling->t);
    unsigned next = (unsigned)((turn.turn + 1) % 2);
    struct sparsifier_update update;

    settling->store->agreed[next] = *turn.agreed;
    settling->store->agreed_after[next] = settling->job->store->policies;
    if (!settling->planned->dense && ops->observes != NULL && ops->observes(turn.params)) {
        update = look_at_update(settling->job, settling->t);
        ops->observe(&turn, &update, &settling->store->agreed[next]);
    }
}

/* Adds to the ledger the values that were applied for this node: the sent ones, less the rests. */
static void add_applied(const struct settling *settling, const struct parallel *parallel)
{
    const struct plan_tensor *planned = settling->planned;
    const struct rest_list *rests = settle_rests(planned);
    const struct view view = plan_choice(settling->job, settling->t).view;
    const struct leave sent = {&view, &planned->sent, planned->accepted};
    const struct leave kept = {&view, &rests->list, planned->rests_accepted};
    double *applied = settling->store->applied[(settling->store->turn + 1) % 2];
    double sums[2] = {0, 0};

    leave_sums(&sent, applied, parallel);
    leave_sums(&kept, sums, parallel);
    applied[0] -= sums[0];
    applied[1] -= sums[1];
}

/* ------------------------------------------------------------------ what an engine has lost */

static bool settle_measures(const struct work *work, uint32_t t)
{
    return t >= work->measure && t < work->measure_end;
}

/* Asks what is left of a tensor whose residual was lost, or how much one holds. After a loss all
 * are asked, also those that nobody pushes: an engine vouches for its memory again only when each
 * tensor has said what it lost, and is asked once more. */
static void settle_measure(struct work *work, uint32_t t)
{
    const struct tensor *tensor = &work->job->tensor[t];

    if (store_is_emptied(tensor->store) || work->asks_all ||
        (settle_measures(work, t) && store_is_filled(tensor->store))) {
        orders_sums(work->job, &work->batch[work->filling], t);
    }
}

static void settle_begin(struct work *work)
{
    const uint64_t losses = work->job->figures.residual.losses;

    work->residual = (struct member_residual){.measured = true};
    work->asks_all = losses != work->heard;
    work->heard = losses;
}

static void settle_add_residual(struct work *work, const struct tensor *tensor)
{
    const struct store_tensor *store = tensor->store;
    struct member_residual *residual = &work->residual;

    for (unsigned i = 0; i < 2; i++) {
        residual->sums[i] += store->input[i] - store_applied(store)[i] - store->lost[i];
    }
    residual->measured = residual->measured && tensor->measured;
    residual->magnitude += tensor->magnitude;
}

static enum adtopk_status settle_declare(struct work *work, uint32_t t)
{
    struct tensor *tensor = &work->job->tensor[t];
    struct store_tensor *store = tensor->store;
    const bool emptied = store_is_emptied(store);
    unsigned count;
    const struct engine_result *result = work_results(work, &count);

    for (unsigned i = 0; emptied && i < 2; i++) {
        double missing = store->input[i] - store_applied(store)[i] - store->lost[i];

        for (unsigned r = 0; r < count; r++) {
            missing -= result[r].sums[i];
        }
        store->lost[i] += missing;
        work->lost[i] += missing;
    }
    if (emptied) {
        store_note_declared(store);
        work->losses++;
    }
    if (settle_measures(work, t)) {
        tensor->measured = true;
        tensor->magnitude = 0;
        for (unsigned r = 0; r < count; r++) {
            tensor->magnitude += result[r].magnitude;
        }
    }
    settle_add_residual(work, tensor);
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ the stages */

/* Whether the sent entries are known. They are not if an earlier daemon selected them, or if the
 * collective selects. */
static bool is_formed(const struct settling *settling)
{
    const struct plan_tensor *planned = settling->planned;

    return planned->dense ||
           (planned->sent_step == settling->job->store->steps_done + 1 && !plan_is_whole(planned));
}

/* Selects the sent entries again, unless they are known. */
static enum adtopk_status settle_select(struct work *work, uint32_t t)
{
    const struct settling settling = settling_of(work, t);
    struct plan_tensor *planned = settling.planned;
    bool whole = plan_is_whole(planned);

    if (is_settled(&settling) || is_formed(&settling)) {
        return ADTOPK_OK;
    }
    if (settling.store->stage != STAGE_SETTLING) {
        if (!whole || planned->sent_step != settling.job->store->steps_done + 1) {
            work_order_selection(work, t);
        }
        return ADTOPK_OK;
    }
    for (unsigned r = 0; r < plan_residuals(settling.job, planned); r++) {
        struct selection *selection = &planned->selection[r];
        selection->list.count = selection->header->count;
        if (!settle_fits(&settling, &selection->list, selection->list.count)) {
            return settle_damaged(work);
        }
    }
    return ADTOPK_OK;
}

/* For a collective that selects: the entries in the update leave the residual. The view is the
 * whole tensor. */
static void list_update(const struct settling *settling)
{
    const struct local_update *update = results_update(settling->job, settling->t);
    bool listed = (update->forms & LOCAL_FORM_LIST) != 0;
    const float *value = listed ? results_value(settling->job, settling->t)
                                : results_dense(settling->job, settling->t);
    const uint32_t *index = results_index(settling->job, settling->t);
    struct sparse *list = &settling->planned->selection[0].list;
    uint64_t count = listed ? update->count : update->numel;

    list->count = 0;
    for (uint64_t i = 0; i < count && list->count < list->capacity; i++) {
        if (value[i] != 0) {
            list->position[list->count++] = listed ? index[i] : (uint32_t)i;
        }
    }
    orders_gather(settling->job, settling->batch, settling->t, list, list->value);
}

static enum adtopk_status settle_gather(struct work *work, uint32_t t)
{
    const struct settling settling = settling_of(work, t);

    if (is_settled(&settling) || is_formed(&settling) || settling.store->stage == STAGE_SETTLING) {
        return ADTOPK_OK;
    }
    work_take_selection(work, t);
    if (plan_is_whole(settling.planned) && settling.store->unpushed == 0) {
        list_update(&settling);
    }
    return ADTOPK_OK;
}

/* If ranks see 16 bits, collects all rests in one list. */
static void collect_rests(const struct settling *settling)
{
    struct plan_tensor *planned = settling->planned;

    if (!planned->narrow) {
        return;
    }
    if (settling->store->stage == STAGE_SETTLING) {
        planned->update_rests.list.count = planned->update_rests.header->count;
    } else {
        rests_collect(settling->job, settling->t, planned->rests_accepted);
    }
    free(planned->rests_accepted);
    planned->rests_accepted = NULL; /* all of that list */
}

/* Finds the accepted entries, and the residual's values at the places to which rests go back. */
static enum adtopk_status settle_find(struct work *work, uint32_t t)
{
    const struct settling settling = settling_of(work, t);
    struct plan_tensor *planned = settling.planned;
    const struct rest_list *rests = settle_rests(settling.planned);

    if (is_settled(&settling) || planned->dense) {
        return ADTOPK_OK;
    }
    if (!settle_rests_fit(&settling)) {
        return settle_damaged(work);
    }
    if ((!is_formed(&settling) && work_form_sent(work, t) != ADTOPK_OK) ||
        find_accepted(&settling) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    collect_rests(&settling);
    if (settling.store->stage != STAGE_SETTLING && rests->list.count > 0) {
        orders_gather(settling.job, settling.batch, t, &rests->list, rests->before);
    }
    return ADTOPK_OK;
}

static void publish_settling(const struct settling *settling, const struct parallel *parallel)
{
    struct store_tensor *store = settling->store;
    struct plan_tensor *planned = settling->planned;
    uint64_t turn = store->turn;

    (void)memcpy(store->applied[(turn + 1) % 2], store->applied[turn % 2], sizeof(*store->applied));
    agree(settling);
    if (!planned->dense) {
        add_applied(settling, parallel);
    }
    for (unsigned r = 0; !planned->dense && r < plan_residuals(settling->job, planned); r++) {
        planned->selection[r].header->count = planned->selection[r].list.count;
    }
    if (!planned->dense && planned->narrow) {
        planned->update_rests.header->count = planned->update_rests.list.count;
    }
    store->settled = turn + 1;
    store_publish(&store->stage, STAGE_SETTLING);
}

static enum adtopk_status settle_leave(struct work *work, uint32_t t)
{
    const struct settling settling = settling_of(work, t);
    const struct parallel parallel = work_parallel(work);
    const struct plan_tensor *planned = settling.planned;
    const struct rest_list *rests = settle_rests(settling.planned);

    if (settling.store->round_nonfinite != 0 && settling.store->stage != STAGE_SETTLED &&
        settling.store->unpushed == 0 && planned->dense) {
        orders_add(settling.job, settling.batch, t);
    }
    if (is_settled(&settling)) {
        orders_pending(settling.job, settling.batch, t);
        return ADTOPK_OK;
    }
    if (settling.store->stage != STAGE_SETTLING) {
        publish_settling(&settling, &parallel);
    }
    if (planned->dense && settling.store->unpushed == 0 && !store_is_filled(settling.store)) {
        orders_passed(settling.job, settling.batch, t);
    } else if (planned->dense) {
        orders_take(settling.job, settling.batch, t);
    } else {
        orders_leave(settling.job, settling.batch, t, planned->accepted);
        if (rests->list.count > 0) {
            orders_return(settling.job, settling.batch, t, rests);
        }
    }
    orders_pending(settling.job, settling.batch, t);
    return ADTOPK_OK;
}

/* The ledger of a dense tensor from which values left, or to which rests went back. */
static void settle_ledger(const struct settling *settling, const struct engine_result *result)
{
    struct store_tensor *store = settling->store;
    const double *before = store->applied[(store->settled - 1) % 2];
    double *applied = store->applied[store->settled % 2];
    /* Gradients of a tensor without a residual contain the loss scale. */
    const double scale = store_is_filled(store) ? 1 : (double)store->loss_scale;

    for (unsigned i = 0; i < 2; i++) {
        if (!store_is_filled(store)) {
            store->input[i] = result->before[i] + result->sums[i] / scale;
        }
        applied[i] = before[i] + result->sums[i] / scale;
    }
}

static enum adtopk_status settle_count(struct work *work, uint32_t t)
{
    const struct settling settling = settling_of(work, t);
    unsigned count;
    const struct engine_result *result = work_results(work, &count);

    if (!is_settled(&settling)) {
        if (settling.planned->dense && count > 0) {
            settle_ledger(&settling, result);
        }
        drop_bits(settling.planned);
        store_count_turn(settling.store);
        if (plan_leaves_nothing(settling.planned) && settling.store->unpushed == 0) {
            store_note_zeros(settling.store);
        }
    }
    store_publish(&settling.store->stage, STAGE_SETTLED);
    settle_measure(work, t);
    return ADTOPK_OK;
}

const struct work_kind work_settle = {.verb = "settle",
    .residuals = true,
    .updates = true,
    .begin = settle_begin,
    .stage = {
        settle_select, settle_gather, settle_find, settle_leave, settle_count, settle_declare}};

/* ------------------------------------------------------------------ a step that is withdrawn */

static enum adtopk_status withdraw_order(struct work *work, uint32_t t)
{
    const struct store_tensor *store = work->job->tensor[t].store;

    if (store->stage != STAGE_SETTLED && store->unpushed == 0 &&
        store_is_filled(store)) { /* otherwise the tensor was sent whole without a residual */
        orders_withdraw(work->job, &work->batch[work->filling], t);
        /* Rounding may have changed the residual. */
        orders_pending(work->job, &work->batch[work->filling], t);
    }
    return ADTOPK_OK;
}

static enum adtopk_status withdraw_tell(struct work *work, uint32_t t)
{
    store_publish(&work->job->tensor[t].store->stage, STAGE_SETTLED);
    settle_measure(work, t);
    return ADTOPK_OK;
}

const struct work_kind work_withdraw = {.verb = "withdraw",
    .residuals = true,
    .updates = true,
    .begin = settle_begin,
    .stage = {withdraw_order, withdraw_tell, settle_declare}};
