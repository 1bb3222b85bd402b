/*
 * Computations of a round.
 *
 * Happy path: select adds the step's gradients to the residuals, selects, and makes the
 * collective's first frames. Combine makes the frames of each later phase. Reduce forms the sum and
 * writes the update.
 *
 * The step can be repeated from the state that finished work leaves. A gradient is added once
 * (STAGE_ACCUMULATED). Selected entries stay in the residual until the step is over, so a
 * repetition selects the same entries again, bit for bit.
 *
 * The node does nothing for a tensor that no local rank pushed: it makes no pass over the residuals
 * and contributes nothing. If no node contributed, the update is empty and the turn does not count.
 */
#include "daemon/compute/work_round.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/device_sum.h"
#include "daemon/compute/layout.h"
#include "daemon/compute/nonfinite.h"
#include "daemon/compute/orders.h"
#include "daemon/compute/rests.h"
#include "daemon/job/hash.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/ranks.h"
#include "daemon/job/store.h"
#include "kernels/base/quantise.h"
#include "kernels/kernels.h"
#include "proto/loss_scale.h"

/* ------------------------------------------------------------------ what this node sends */

/* Rounds a list to the values that others will decode. A repetition rounds as before; each node
 * rounds in its own way. */
static void round_to_sent(const struct job *job, uint32_t t, struct sparse *list)
{
    uint64_t seed = hash_mix(plan_turn(job, t).seed + job->core->config.node);

    quantise_values(
        list->value, list->count, (enum quantisation)job->plan->tensor[t].policy.values, seed);
}

/* Sums the local ranks' lists, in their order, into the node's. */
static enum adtopk_status merge_ranks(const struct work *work, uint32_t t)
{
    const struct parallel parallel = work_parallel(work);
    const struct job *job = work->job;
    struct plan_tensor *planned = &job->plan->tensor[t];
    struct sparse *list = malloc(job->ranks * sizeof(*list));
    struct merge merge = {.list = list,
        .lists = job->ranks,
        .positions = job->tensor[t].numel,
        .scale = 1,
        .out = &planned->sent};
    enum adtopk_status status = ADTOPK_ERR_MEMORY;
    uint64_t total = 0;

    for (unsigned r = 0; list != NULL && r < job->ranks; r++) {
        list[r] = planned->selection[r].list;
        total += list[r].count;
    }
    merge.parts = merge_parts(merge.positions, total, false, &parallel);
    merge.cursor = malloc((size_t)merge.parts * merge.lists * sizeof(*merge.cursor));
    if (list != NULL && merge.cursor != NULL) {
        merge_run(&merge, &parallel);
        status = ADTOPK_OK;
    }
    free(list);
    free(merge.cursor);
    return status;
}

enum adtopk_status work_form_sent(const struct work *work, uint32_t t)
{
    const struct job *job = work->job;
    struct plan_tensor *planned = &job->plan->tensor[t];
    const struct sparse *selected = &planned->selection[0].list;
    struct sparse *sent = &planned->sent;

    if (planned->by_rank && merge_ranks(work, t) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    if (!planned->by_rank) {
        sent->count = selected->count;
        if (sent->value != selected->value) {
            (void)memcpy(sent->value, selected->value, selected->count * sizeof(*selected->value));
        }
    }
    round_to_sent(job, t, sent);
    planned->sent_step = job->store->steps_done + 1;
    return ADTOPK_OK;
}

static bool is_pushed(const struct job *job, uint32_t t)
{
    for (unsigned r = 0; r < job->ranks; r++) {
        if (job->rank[r]->pushed[t] == job->store->steps_done + 1) {
            return true;
        }
    }
    return false;
}

/* Prepares a tensor. So far this node knows only which ranks pushed gradients of the step. */
static void begin_tensor(const struct job *job, uint32_t t)
{
    struct store_tensor *store = job->tensor[t].store;

    if (store->step != job->store->steps_done || store->stage < STAGE_ACCUMULATED) {
        store->nonfinite = 0;
        store->round_nonfinite = 0;
        store->unpushed = !is_pushed(job, t);
        store->round_unpushed = 0;
    }
}

static void keep_state(
    const struct job *job, uint32_t t, unsigned rank, const struct sparsifier_state *state)
{
    struct store_states *states = layout_states(job, t, rank);
    unsigned then = (unsigned)((job->tensor[t].store->turn + 1) % 2);

    states->state[then] = *state;
    states->after[then] = job->store->policies;
}

/* Selects nothing. The sparsifier's state goes over to the next turn unchanged. */
static void select_nothing(const struct job *job, uint32_t t)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];

    for (unsigned r = 0; !planned->dense && r < plan_residuals(job, planned); r++) {
        const struct sparsifier_state state = orders_state(job, t, r);
        planned->selection[r].list.count = 0;
        keep_state(job, t, r, &state);
    }
}

void work_order_selection(struct work *work, uint32_t t)
{
    begin_tensor(work->job, t);
    if (work->job->tensor[t].store->unpushed != 0) {
        select_nothing(work->job, t);
    } else {
        orders_add(work->job, &work->batch[work->filling], t);
    }
}

void work_take_selection(struct work *work, uint32_t t)
{
    const struct job *job = work->job;
    struct plan_tensor *planned = &job->plan->tensor[t];
    unsigned count;
    const struct engine_result *result = work_results(work, &count);

    for (unsigned r = 0; r < count; r++) {
        if (result[r].nonfinite > 0) {
            job->tensor[t].store->nonfinite = 1;
        }
        if (!planned->dense) {
            planned->selection[r].list.count = result[r].count;
            keep_state(job, t, r, &result[r].state);
        }
    }
}

/* ------------------------------------------------------------------ select */

/* Whether the tensor is sent without its residual. That needs an empty residual that keeps nothing,
 * and gradients that nothing changes. A lone node writes the sum of its ranks to the update, where
 * a loss scale may stay in it. A lone rank's gradient is sent from its own place, in host memory.
 */
static bool is_direct(const struct round *round, uint32_t t)
{
    const struct job *job = round->job;
    const struct plan_tensor *planned = &job->plan->tensor[t];
    bool lone = round->exchange.members == 1;

    bool sent = job->ranks == 1 && !job->rank[0]->on_gpu &&
                job->rank[0]->pushed[t] == job->store->steps_done + 1 &&
                job->tensor[t].spec.dtype == DTYPE_F32;
    bool scaled = loss_scale_changes(job->step.loss_scale); /* sent values must not be scaled */

    return plan_leaves_nothing(planned) && !plan_is_corrected(planned) &&
           !store_is_filled(job->tensor[t].store) && (lone || (sent && !scaled));
}

static const float *lone_gradient(const struct job *job, uint32_t t)
{
    const struct engine_place place = {
        rank_arena(job, 0, t), job->tensor[t].layout.gradient_offset};

    return engine_address(&job->layout.arenas, place);
}

static enum adtopk_status select_order(struct work *work, uint32_t item)
{
    const struct round *round = work->round;
    uint32_t t = round->tensor[item];
    struct exchange_tensor *entry = &work->round->exchange.tensor[item];

    begin_tensor(work->job, t);
    entry->unpushed = work->job->tensor[t].store->unpushed != 0;
    if (entry->unpushed || !is_direct(round, t)) {
        work_order_selection(work, t);
        return ADTOPK_OK;
    }
    entry->summed = round->exchange.members == 1;
    entry->acc = entry->summed ? NULL : lone_gradient(work->job, t);
    orders_direct(work->job, &work->batch[work->filling], t, entry->summed ? entry->dense : NULL,
        round->exchange.scale);
    return ADTOPK_OK;
}

/* The place from which the collective reads this node's elements of a dense tensor: the residual,
 * or a copy by a far engine. An unpushed tensor has zeros, in pages that are never written. */
static enum adtopk_status select_elements(
    struct work *work, uint32_t t, struct exchange_tensor *entry)
{
    const struct job *job = work->job;

    if (!entry->unpushed && engine_is_near(plan_engine(job))) {
        entry->acc = layout_residual(job, t, 0);
        return ADTOPK_OK;
    }
    entry->own_acc = entry->unpushed ? calloc(job->tensor[t].numel, sizeof(float))
                                     : malloc(job->tensor[t].numel * sizeof(float));
    entry->acc = entry->own_acc;
    if (entry->own_acc == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    if (!entry->unpushed) {
        orders_read(job, &work->batch[work->filling], t, 0, entry->own_acc);
    }
    return ADTOPK_OK;
}

static enum adtopk_status select_take(struct work *work, uint32_t item)
{
    const struct round *round = work->round;
    uint32_t t = round->tensor[item];
    const struct plan_tensor *planned = &work->job->plan->tensor[t];
    struct exchange_tensor *entry = &work->round->exchange.tensor[item];
    bool direct = entry->summed || entry->acc != NULL;

    work_take_selection(work, t);
    if (nonfinite_check(work, t) != ADTOPK_OK) {
        return work->status;
    }
    direct = direct || round->exchange.carried.on_devices;
    return !direct && (planned->dense || plan_is_whole(planned)) ? select_elements(work, t, entry)
                                                                 : ADTOPK_OK;
}

/* The gradients are in the residuals, so faults in them are known, and this node is about to
 * contribute. */
static void accumulated(const struct job *job, uint32_t t)
{
    struct store_tensor *store = job->tensor[t].store;

    rests_note_share(job, store);
    if (store->step != job->store->steps_done || store->stage < STAGE_ACCUMULATED) {
        store_publish(&store->stage, STAGE_REST); /* the stage of the last step is not this one's */
        store->step = job->store->steps_done;
        store->settled = 0;
        store_publish(&store->stage, STAGE_ACCUMULATED);
    }
}

/* Makes zeros for a node that contributes nothing at positions that all nodes know. */
static void select_zeros(const struct job *job, uint32_t t, struct exchange_tensor *entry)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];
    const struct sparsifier_turn turn = plan_turn(job, t);
    struct sparse zeros = planned->sent;

    planned->policy.sparsifier->known(&turn, &zeros);
    (void)memset(zeros.value, 0, zeros.count * sizeof(*zeros.value));
    entry->acc = zeros.value;
}

static enum adtopk_status select_form(struct work *work, uint32_t item)
{
    struct round *round = work->round;
    const struct job *job = work->job;
    uint32_t t = round->tensor[item];
    const struct plan_tensor *planned = &job->plan->tensor[t];
    struct exchange_tensor *entry = &round->exchange.tensor[item];

    if (!planned->dense) {
        if (work_form_sent(work, t) != ADTOPK_OK) {
            return ADTOPK_ERR_MEMORY;
        }
        entry->sent = planned->sent;
        entry->acc = planned->known ? entry->sent.value : entry->acc;
        if (planned->known && entry->unpushed) {
            select_zeros(job, t, entry);
        }
        entry->rests = planned->sum_rests.list;
        entry->rests.count = 0;
    }
    accumulated(job, t);
    entry->nonfinite = job->tensor[t].store->nonfinite != 0;
    return ADTOPK_OK;
}

/* Notes in the store for which elements it has rounding errors of dense sums. */
static void keep_rests(const struct round *round)
{
    const struct job *job = round->job;
    const struct exchange_rest *rest = &round->exchange.rest;
    uint64_t start = 0;

    for (unsigned i = 0; i < round->tensors; i++) {
        const struct tensor *tensor = &job->tensor[round->tensor[i]];
        struct store_rest *stored = &tensor->store->rest;
        uint64_t first = rest->first > start ? rest->first - start : 0;
        uint64_t end = rest->first + rest->count > start ? rest->first + rest->count - start : 0;
        end = end < tensor->numel ? end : tensor->numel;
        stored->first = first;
        stored->count = end > first ? end - first : 0;
        if (stored->count > 0) {
            stored->place = (uint64_t)(rest->low - job->plan->rest) + start + first - rest->first;
        }
        stored->step = job->store->steps_done + 1;
        start += tensor->numel;
    }
}

static void select_produce(struct work *work)
{
    struct exchange *exchange = &work->round->exchange;

    exchange->parallel = work_parallel(work);
    work->status = exchange->ops->produce(exchange, 0, &work->error);
    keep_rests(work->round);
}

const struct work_kind work_select = {.verb = "select",
    .residuals = true,
    .stage = {select_order, select_take, select_form},
    .finish = select_produce};

/* ------------------------------------------------------------------ combine */

static bool wants(const struct job *job, uint32_t t, unsigned form)
{
    return (results_forms(&job->tensor[t]) & form) != 0;
}

/* Whether positions of the turn's view are the elements themselves. */
static bool are_elements(const struct exchange_tensor *entry)
{
    return entry->shape.view.stride == 1;
}

/* Whether ranks see a list, and it has room for every sum. */
static bool has_room(const struct job *job, uint32_t t)
{
    return wants(job, t, LOCAL_FORM_LIST) &&
           plan_update_count(job, job->plan, t) <= job->tensor[t].list_capacity;
}

/* Whether the sum is written straight into the list that the ranks see. The engine then converts
 * its positions to elements in place, unless they are. A far engine could not do so twice. */
static bool in_place(const struct job *job, uint32_t t, const struct exchange_tensor *entry)
{
    return (engine_is_near(plan_engine(job)) || are_elements(entry)) &&
           !job->plan->tensor[t].known && has_room(job, t);
}

/* Whether the collective writes the dense form that ranks see: they want it, or get it in place of
 * a list that may be too long. */
static bool is_scattered(const struct job *job, uint32_t t, const struct exchange_tensor *entry)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];

    return !planned->dense && !planned->known &&
           planned->policy.sparse_collective->traits.scatters && are_elements(entry) &&
           (wants(job, t, LOCAL_FORM_DENSE) || !has_room(job, t));
}

/* Whether ranks get a list. The empty one of a tensor that no rank pushed needs no room, and is
 * what write_empty() writes on a node that gets a copy. */
static bool is_listed(const struct job *job, uint32_t t, const struct exchange_tensor *entry)
{
    const bool made = entry->unpushed || !is_scattered(job, t, entry) || has_room(job, t);

    return made && !job->plan->tensor[t].dense && wants(job, t, LOCAL_FORM_LIST) &&
           entry->update.count <= job->tensor[t].list_capacity;
}

/* Points the exchange's result to the tensor's place in the results. A list that only the
 * collective needs, or that may be too long for its place, gets memory of its own. */
static enum adtopk_status place_result(
    const struct job *job, uint32_t t, struct exchange_tensor *entry)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];
    struct sparse *list = &entry->update;

    if (planned->dense || planned->known) {
        return ADTOPK_OK;
    }
    list->capacity = plan_update_count(job, job->plan, t);
    if (is_scattered(job, t, entry)) {
        entry->dense = results_dense(job, t);
        if (!has_room(job, t)) {
            return ADTOPK_OK;
        }
    }
    if (in_place(job, t, entry)) {
        list->position = results_index(job, t);
        list->value = results_value(job, t);
        return ADTOPK_OK;
    }
    list->position = malloc(list->capacity * sizeof(uint32_t));
    list->value = malloc(list->capacity * sizeof(float));
    entry->own_update = true;
    return list->position != NULL && list->value != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
}

/* Does so for all tensors of the round. False, with an error, without memory. */
static bool place_results(struct work *work)
{
    struct round *round = work->round;

    for (unsigned i = 0; i < round->tensors; i++) {
        if (place_result(work->job, round->tensor[i], &round->exchange.tensor[i]) != ADTOPK_OK) {
            (void)work_no_memory(work);
            return false;
        }
    }
    return true;
}

/* Stores rounding errors before rounded sums are sent. If the other nodes complete the round with
 * these sums, this node may have to take its copy from there. In the first phase no sums are sent.
 */
static void keep_returned(const struct round *round)
{
    const struct job *job = round->job;

    for (unsigned i = 0; i < round->tensors; i++) {
        struct rest_list *returned = &job->plan->tensor[round->tensor[i]].sum_rests;
        if (returned->header != NULL) {
            returned->header->count = round->exchange.tensor[i].rests.count;
            returned->header->step = job->store->steps_done + 1;
        }
    }
}

/* Ranks of other nodes may have pushed with another loss scale. */
static void check_scales(struct work *work)
{
    if (work->status == ADTOPK_OK) {
        work->status = exchange_check_scales(&work->round->exchange, &work->error);
    }
}

static void combine(struct work *work)
{
    struct round *round = work->round;
    struct exchange *exchange = &round->exchange;

    exchange->parallel = work_parallel(work);
    if (round->op || round->phase > 1 || !exchange->ops->traits.streams || place_results(work)) {
        work->status = exchange->ops->produce(exchange, round->phase, &work->error);
    }
    check_scales(work);
    if (work->status == ADTOPK_OK && exchange->carried.on_devices) {
        work->status = device_sum_order(work);
    }
    keep_returned(round);
    keep_rests(round);
}

const struct work_kind work_combine = {.verb = "combine", .updates = true, .begin = combine};

/* ------------------------------------------------------------------ reduce */

static void reduce_finish(struct work *work)
{
    struct round *round = work->round;

    round->exchange.parallel = work_parallel(work);
    if ((round->phase > 1 && round->exchange.ops->traits.streams) || place_results(work)) {
        work->status = round->exchange.ops->finish(&round->exchange, &work->error);
    }
    check_scales(work);
}

/* Has the update written in the forms that ranks see: elements, and the dense form. */
static void order_update(struct work *work, uint32_t t, const struct exchange_tensor *entry)
{
    const struct job *job = work->job;
    const bool placed = in_place(job, t, entry);
    const bool listed = is_listed(job, t, entry);
    const bool index = listed && entry->update.count > 0 && !(placed && are_elements(entry));
    const bool dense = !is_scattered(job, t, entry) && (wants(job, t, LOCAL_FORM_DENSE) || !listed);
    const struct orders_written to = {.dense = dense ? results_dense(job, t) : NULL,
        .index = index ? results_index(job, t) : NULL,
        .value = index && !placed ? results_value(job, t) : NULL};

    if (index || dense) {
        orders_update(job, &work->batch[work->filling], t, entry, &to);
    }
}

static enum adtopk_status reduce_order(struct work *work, uint32_t item)
{
    const struct job *job = work->job;
    uint32_t t = work->round->tensor[item];
    struct plan_tensor *planned = &job->plan->tensor[t];
    struct exchange_tensor *entry = &work->round->exchange.tensor[item];
    struct local_update *update = results_update(job, t);

    if (planned->known) { /* sums at known positions are the update, whatever their values */
        entry->update = (struct sparse){
            .position = planned->sent.position, .value = planned->known_sum, .count = entry->numel};
    }
    if (entry->unpushed) { /* even if a collective has zeros at some positions */
        entry->update.count = 0;
    }
    if (entry->nonfinite && plan_propagates(job->plan)) {
        nonfinite_spoil(entry, is_scattered(job, t, entry));
    }
    planned->summed = entry->update.count;
    update->step = job->store->steps_done;
    update->turn = (uint32_t)job->tensor[t].store->turn;
    update->unpushed = entry->unpushed;
    update->nonfinite = entry->nonfinite && plan_propagates(job->plan);
    update->final = plan_propagates(job->plan);
    update->count = 0;
    update->forms = 0;
    if (!planned->dense) {
        order_update(work, t, entry);
    }
    return ADTOPK_OK;
}

static enum adtopk_status reduce_tell(struct work *work, uint32_t item)
{
    const struct job *job = work->job;
    uint32_t t = work->round->tensor[item];
    const struct exchange_tensor *entry = &work->round->exchange.tensor[item];
    struct local_update *update = results_update(job, t);
    const bool listed = is_listed(job, t, entry);

    if (wants(job, t, LOCAL_FORM_DENSE) || !listed) {
        update->forms |= LOCAL_FORM_DENSE;
    }
    if (listed) {
        update->count = entry->update.count;
        update->forms |= LOCAL_FORM_LIST;
    }
    if (results_is_narrow(&job->tensor[t])) {
        update->forms |= LOCAL_FORM_DENSE16;
    }
    return ADTOPK_OK;
}

/* Ranks may see the update in 16 bits. */
static enum adtopk_status reduce_narrow(struct work *work, uint32_t item)
{
    orders_narrow(work->job, &work->batch[work->filling], work->round->tensor[item]);
    return ADTOPK_OK;
}

/* Ranks may see the update on their GPUs. */
static enum adtopk_status reduce_show(struct work *work, uint32_t item)
{
    const struct job *job = work->job;
    const uint32_t t = work->round->tensor[item];
    const struct exchange_tensor *entry = &work->round->exchange.tensor[item];
    const bool listed = is_listed(job, t, entry);
    const bool shown = device_sum_shows(work->round, entry) && orders_are_shown(job);

    if (shown || orders_show(job, &work->batch[work->filling], t, &entry->shape.view,
                     listed ? &entry->update : NULL)) {
        results_update(job, t)->forms |= LOCAL_FORM_SHOWN;
        results_update(job, t)->forms |=
            !shown && listed && entry->update.count <= local_list_room(job->tensor[t].numel)
                ? LOCAL_FORM_LISTED
                : 0u;
    }
    return ADTOPK_OK;
}

static void reduce_deliver(struct work *work)
{
    const struct round *round = work->round;
    const bool withdrawn = nonfinite_withdraws(round);

    for (unsigned i = 0; i < round->tensors; i++) {
        struct store_tensor *store = work->job->tensor[round->tensor[i]].store;
        store->round_nonfinite = withdrawn || round->exchange.tensor[i].nonfinite;
        store->round_unpushed = round->exchange.tensor[i].unpushed;
        store->loss_scale = loss_scale_factor(round->exchange.header.loss_scale);
        store->ranks = work->job->run.ranks;
        store_publish(&store->stage, STAGE_DELIVERED);
    }
}

const struct work_kind work_reduce = {.verb = "sum",
    .updates = true,
    .begin = reduce_finish,
    .stage = {reduce_order, reduce_tell, reduce_narrow, reduce_show},
    .finish = reduce_deliver};
