/*
 * What runs on worker threads: the passes over gradients, residuals and updates.
 *
 * A compute owns its round's tensors while it runs; the core's thread touches none of them, nor
 * their records in the store, until it is back. What a finished compute leaves there is a state
 * from which the step can be repeated: a gradient is added once (STAGE_ACCUMULATED), and what was
 * selected stays in the residual until the step is over, so that a retry selects the same entries
 * again, bit for bit.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/handover.h"
#include "daemon/core/hash.h"
#include "daemon/core/model.h"
#include "daemon/core/pass.h"
#include "daemon/core/plan.h"
#include "daemon/core/residual.h"
#include "kernels/cpu/merge.h"
#include "kernels/cpu/quantise.h"
#include "kernels/cpu/scatter.h"

static struct work *work_of(struct compute *compute)
{
    return (struct work *)compute;
}

struct parallel work_parallel(const struct work *work)
{
    struct parallel parallel = work->job->core->config.parallel;

    parallel.caller = work->compute.thread;
    return parallel;
}

static enum adtopk_status no_memory(struct work *work, const char *what)
{
    work->status = error_set(
        &work->error, ADTOPK_ERR_MEMORY, "job '%s': no memory to %s", work->job->key.name, what);
    return work->status;
}

/* The gradient of each local rank, NULL where it pushed none. */
static const void **gradients_of(const struct job *job, uint32_t t)
{
    const void **gradient = calloc(job->ranks, sizeof(*gradient));

    for (unsigned r = 0; gradient != NULL && r < job->ranks; r++) {
        if (job->rank[r]->pushed[t] == job->store->steps_done + 1) {
            gradient[r] = job->rank[r]->gradients + job->tensor[t].layout.gradient_offset;
        }
    }
    return gradient;
}

/* Rounds a list to what the others will decode. A retry rounds as before, each node for itself. */
static void quantise(const struct job *job, uint32_t t, struct sparse *list)
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
    struct planned *planned = &job->plan->tensor[t];
    struct sparse *list = malloc(job->ranks * sizeof(*list));
    struct merge merge = {.list = list,
        .lists = job->ranks,
        .positions = job->tensor[t].numel,
        .scale = 1,
        .out = &planned->sent};
    enum adtopk_status status = ADTOPK_ERR_MEMORY;
    uint64_t total = 0;

    for (unsigned r = 0; list != NULL && r < job->ranks; r++) {
        list[r] = planned->kept[r].list;
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

/* What this node sends, from what its residuals selected. */
static enum adtopk_status form_sent(const struct work *work, uint32_t t)
{
    const struct job *job = work->job;
    struct planned *planned = &job->plan->tensor[t];
    const struct sparse *kept = &planned->kept[0].list;
    struct sparse *sent = &planned->sent;

    if (planned->by_rank && merge_ranks(work, t) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    if (!planned->by_rank) {
        sent->count = kept->count;
        if (sent->value != kept->value) {
            (void)memcpy(sent->value, kept->value, kept->count * sizeof(*kept->value));
        }
    }
    quantise(job, t, sent);
    planned->sent_step = job->store->steps_done + 1;
    return ADTOPK_OK;
}

/* Nothing is known of the step's gradients yet. */
static void begin_tensor(const struct job *job, uint32_t t)
{
    struct store_tensor *store = job->tensor[t].store;

    if (store->step != job->store->steps_done || store->stage < STAGE_ACCUMULATED) {
        store->nonfinite = 0;
        store->round_nonfinite = 0;
    }
}

/* Adds the step's gradients to the tensor's residuals, if they are not in there yet, and selects
 * what this node contributes. Repeatable. */
static enum adtopk_status select_tensor(struct work *work, uint32_t t)
{
    const struct job *job = work->job;
    struct planned *planned = &job->plan->tensor[t];
    const void **gradient = gradients_of(job, t);
    enum adtopk_status status = ADTOPK_OK;

    if (gradient == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    begin_tensor(job, t);
    for (unsigned r = 0; status == ADTOPK_OK && planned->by_rank && r < job->ranks; r++) {
        status = pass_add(work, t, r, &gradient[r], 1, &planned->kept[r]);
    }
    if (!planned->by_rank) {
        status = pass_add(work, t, 0, gradient, job->ranks, planned->kept);
    }
    free(gradient);
    return status == ADTOPK_OK && !planned->dense ? form_sent(work, t) : status;
}

static uint32_t *update_index(const struct job *job, uint32_t t)
{
    return (uint32_t *)(void *)(job->results + layout_update(job, t)->index_offset);
}

static float *update_value(const struct job *job, uint32_t t)
{
    return (float *)(void *)(job->results + layout_update(job, t)->value_offset);
}

/* What leaves the residual where a collective selects: whatever is in the update. */
static void keep_update(const struct job *job, uint32_t t)
{
    const struct local_update *update = layout_update(job, t);
    const float *residual = layout_residual(job, t, 0), *value = update_value(job, t);
    const uint32_t *index = update_index(job, t);
    struct sparse *list = &job->plan->tensor[t].kept[0].list;
    bool listed = (update->forms & LOCAL_FORM_LIST) != 0;
    uint64_t count = listed ? update->count : update->numel;

    if (!listed) {
        value = (const float *)(const void *)(job->results + update->dense_offset);
    }
    list->count = 0;
    for (uint64_t i = 0; i < count && list->count < list->capacity; i++) {
        if (value[i] != 0) {
            uint32_t element = listed ? index[i] : (uint32_t)i;
            list->position[list->count] = element; /* the view is the whole tensor */
            list->value[list->count++] = residual[element];
        }
    }
}

enum adtopk_status work_sent(struct work *work, uint32_t t)
{
    const struct job *job = work->job;
    struct planned *planned = &job->plan->tensor[t];
    bool formed = planned->sent_step == job->store->steps_done + 1;
    bool whole = plan_is_whole(planned);

    if (planned->dense || (formed && !whole)) {
        return ADTOPK_OK;
    }
    if (job->tensor[t].store->stage != STAGE_SETTLING) {
        enum adtopk_status status = formed ? ADTOPK_OK : select_tensor(work, t);
        if (status != ADTOPK_OK || !whole) {
            return status;
        }
        keep_update(job, t);
    } else {
        for (unsigned r = 0; r < (planned->by_rank ? job->ranks : 1); r++) {
            planned->kept[r].list.count = planned->kept[r].header->count;
        }
    }
    return form_sent(work, t);
}

/* The gradients are in the residuals: what is wrong with them is known. */
static void accumulated(const struct job *job, uint32_t t)
{
    struct store_tensor *store = job->tensor[t].store;

    if (store->step != job->store->steps_done || store->stage < STAGE_ACCUMULATED) {
        store_publish(&store->stage, STAGE_REST); /* the last step's is not this one's */
        store->step = job->store->steps_done;
        store_publish(&store->stage, STAGE_ACCUMULATED);
    }
}

/* What rounding cut off is in the store before rounded sums leave: if the others complete the round
 * with them, this node may have to take its copy from there. */
static void keep_returned(const struct round *round)
{
    const struct job *job = round->job;

    for (unsigned i = 0; i < round->tensors; i++) {
        struct returned *returned = &job->plan->tensor[round->tensor[i]].returned;
        if (returned->header != NULL) {
            returned->header->count = round->exchange.tensor[i].returned.count;
            returned->header->step = job->store->steps_done + 1;
        }
    }
}

/* Whether the tensor goes past its residual, which has nothing to add to it and nothing to keep of
 * it, as nothing changes the gradients: a lone node writes the sum of its ranks where they see it,
 * a lone rank's gradient is sent from where it lies. */
static bool is_direct(const struct round *round, uint32_t t)
{
    const struct job *job = round->job;
    const struct planned *planned = &job->plan->tensor[t];
    bool lone = round->exchange.members == 1;

    return plan_leaves_nothing(planned) && !plan_is_corrected(planned) &&
           job->tensor[t].store->filled == 0 &&
           (lone || (job->ranks == 1 && job->tensor[t].spec.dtype == DTYPE_F32));
}

static enum adtopk_status select_directly(
    struct work *work, uint32_t t, struct exchange_tensor *entry)
{
    const struct job *job = work->job;
    const void **gradient = gradients_of(job, t);

    if (gradient == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    begin_tensor(job, t);
    entry->summed = work->round->exchange.members == 1;
    entry->acc = gradient[0] != NULL ? gradient[0] : layout_residual(job, t, 0); /* zeros */
    entry->acc = entry->summed ? NULL : entry->acc;
    pass_direct(work, t, gradient, entry->summed ? entry->dense : NULL);
    free(gradient);
    return ADTOPK_OK;
}

/* What this node contributes of the tensor, for its collective. */
static enum adtopk_status contribute(struct work *work, uint32_t t, struct exchange_tensor *entry)
{
    const struct job *job = work->job;
    const struct planned *planned = &job->plan->tensor[t];

    if (is_direct(work->round, t)) {
        return select_directly(work, t, entry);
    }
    if (select_tensor(work, t) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    entry->sent = planned->sent;
    entry->acc = planned->known ? entry->sent.value : layout_residual(job, t, 0);
    entry->returned = planned->returned.list;
    entry->returned.count = 0;
    return ADTOPK_OK;
}

/* The same of dense sums, whose rests lie in the store: whose they are. */
static void keep_rests(const struct round *round)
{
    const struct job *job = round->job;
    const struct exchange_rest *rest = &round->exchange.rest;
    uint64_t start = 0;

    for (unsigned i = 0; i < round->tensors; i++) {
        const struct tensor *tensor = &job->tensor[round->tensor[i]];
        struct store_rest *kept = &tensor->store->rest;
        uint64_t first = rest->first > start ? rest->first - start : 0;
        uint64_t end = rest->first + rest->count > start ? rest->first + rest->count - start : 0;
        end = end < tensor->numel ? end : tensor->numel;
        kept->first = first;
        kept->count = end > first ? end - first : 0;
        if (kept->count > 0) {
            kept->place = (uint64_t)(rest->low - job->plan->rest) + start + first - rest->first;
        }
        kept->step = job->store->steps_done + 1;
        start += tensor->numel;
    }
}

void work_select(struct compute *compute)
{
    struct work *work = work_of(compute);
    struct round *round = work->round;
    struct job *job = work->job;

    round->exchange.parallel = work_parallel(work);
    for (unsigned i = 0; i < round->tensors; i++) {
        uint32_t t = round->tensor[i];
        struct exchange_tensor *entry = &round->exchange.tensor[i];
        if (contribute(work, t, entry) != ADTOPK_OK) {
            (void)no_memory(work, "select");
            return;
        }
        accumulated(job, t);
        round->exchange.nonfinite |= job->tensor[t].store->nonfinite != 0;
    }
    work->status = round->exchange.ops->produce(&round->exchange, 0, &work->error);
    keep_returned(round);
    keep_rests(round);
}

static bool wants(const struct job *job, uint32_t t, unsigned form)
{
    unsigned forms = job->tensor[t].spec.forms;

    return ((forms != 0 ? forms : LOCAL_FORM_DENSE) & form) != 0;
}

/* Whether the sum is written straight into the list that the ranks see. */
static bool in_place(const struct job *job, uint32_t t)
{
    return !job->plan->tensor[t].known && wants(job, t, LOCAL_FORM_LIST) &&
           plan_update_count(job, job->plan, t) <= job->tensor[t].list_capacity;
}

static float *update_dense(const struct job *job, uint32_t t)
{
    return (float *)(void *)(job->results + layout_update(job, t)->dense_offset);
}

/* Whether the collective writes the dense form that ranks see. It does not if a list that some of
 * them want has no place beside it. */
static bool is_scattered(const struct job *job, uint32_t t, const struct exchange_tensor *entry)
{
    const struct planned *planned = &job->plan->tensor[t];

    return !planned->dense && !planned->known && planned->policy.sparse_collective->scatters &&
           entry->shape.view.stride == 1 && wants(job, t, LOCAL_FORM_DENSE) &&
           (in_place(job, t) || !wants(job, t, LOCAL_FORM_LIST));
}

/* Points the exchange's result at the tensor's place in the results; a list that nobody asked for
 * but the collective, or that may be longer than its place, gets memory of its own. */
static enum adtopk_status place_result(
    const struct job *job, uint32_t t, struct exchange_tensor *entry)
{
    const struct planned *planned = &job->plan->tensor[t];
    struct sparse *list = &entry->update;

    if (planned->dense || planned->known) {
        return ADTOPK_OK;
    }
    list->capacity = plan_update_count(job, job->plan, t);
    if (is_scattered(job, t, entry)) {
        entry->dense = update_dense(job, t);
        if (!wants(job, t, LOCAL_FORM_LIST)) {
            return ADTOPK_OK;
        }
    }
    if (in_place(job, t)) {
        list->position = update_index(job, t);
        list->value = update_value(job, t);
        return ADTOPK_OK;
    }
    list->position = malloc(list->capacity * sizeof(uint32_t));
    list->value = malloc(list->capacity * sizeof(float));
    entry->own_update = true;
    return list->position != NULL && list->value != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
}

/* The same of all tensors of the round; false, with an error, without memory. */
static bool place_results(struct work *work)
{
    struct round *round = work->round;

    for (unsigned i = 0; i < round->tensors; i++) {
        if (place_result(work->job, round->tensor[i], &round->exchange.tensor[i]) != ADTOPK_OK) {
            (void)no_memory(work, "sum");
            return false;
        }
    }
    return true;
}

void work_combine(struct compute *compute)
{
    struct work *work = work_of(compute);
    struct round *round = work->round;
    struct exchange *exchange = &round->exchange;

    exchange->parallel = work_parallel(work);
    if (round->op || round->phase > 1 || !exchange->ops->streams || place_results(work)) {
        work->status = exchange->ops->produce(exchange, round->phase, &work->error);
    }
    keep_returned(round);
    keep_rests(round);
}

/* Sums at known positions are the update, whatever their value. */
static void note_known(const struct job *job, uint32_t t, struct exchange_tensor *entry)
{
    const struct planned *planned = &job->plan->tensor[t];

    if (planned->known) {
        entry->update = (struct sparse){
            .position = planned->sent.position, .value = planned->known_sum, .count = entry->numel};
    }
}

/* From positions of the turn's view to what ranks see: elements, and the dense form. */
static void write_update(const struct work *work, uint32_t t, struct exchange_tensor *entry)
{
    const struct parallel parallel = work_parallel(work);
    const struct job *job = work->job;
    const struct tensor *tensor = &job->tensor[t];
    struct local_update *update = layout_update(job, t);
    const struct sparse *list = &entry->update;
    bool fits = list->count <= tensor->list_capacity;

    job->plan->tensor[t].summed = list->count;
    update->step = job->store->steps_done;
    update->turn = (uint32_t)tensor->store->turn;
    update->count = 0;
    update->forms = 0;
    if (job->plan->tensor[t].dense) {
        update->forms = LOCAL_FORM_DENSE;
        return;
    }
    if (is_scattered(job, t, entry)) {
        update->forms |= LOCAL_FORM_DENSE;
    } else if (wants(job, t, LOCAL_FORM_DENSE) || !fits) {
        scatter_dense(update_dense(job, t), &entry->shape.view, list, &parallel);
        update->forms |= LOCAL_FORM_DENSE;
    }
    if (wants(job, t, LOCAL_FORM_LIST) && fits) {
        scatter_index(update_index(job, t), &entry->shape.view, list, &parallel);
        if (!in_place(job, t)) {
            (void)memcpy(update_value(job, t), list->value, list->count * sizeof(float));
        }
        update->count = list->count;
        update->forms |= LOCAL_FORM_LIST;
    }
}

void work_reduce(struct compute *compute)
{
    struct work *work = work_of(compute);
    struct round *round = work->round;
    struct job *job = work->job;

    round->exchange.parallel = work_parallel(work);
    if ((round->phase > 1 && round->exchange.ops->streams) || place_results(work)) {
        work->status = round->exchange.ops->finish(&round->exchange, &work->error);
    }
    for (unsigned i = 0; i < round->tensors; i++) {
        uint32_t t = round->tensor[i];
        if (work->status == ADTOPK_OK) {
            note_known(job, t, &round->exchange.tensor[i]);
            write_update(work, t, &round->exchange.tensor[i]);
        }
    }
    for (unsigned i = 0; work->status == ADTOPK_OK && i < round->tensors; i++) {
        struct store_tensor *store = job->tensor[round->tensor[i]].store;
        store->round_nonfinite = round->exchange.nonfinite;
        store_publish(&store->stage, STAGE_DELIVERED);
    }
}

static enum adtopk_status withdraw_tensor(struct work *work, uint32_t t)
{
    const struct job *job = work->job;
    struct planned *planned = &job->plan->tensor[t];
    const void **gradient;
    enum adtopk_status status;

    if (job->tensor[t].store->filled == 0) {
        return ADTOPK_OK; /* they went past it */
    }
    gradient = gradients_of(job, t);
    status = gradient != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
    for (unsigned r = 0; status == ADTOPK_OK && planned->by_rank && r < job->ranks; r++) {
        status = pass_withdraw(work, t, r, &gradient[r], 1, &planned->kept[r]);
    }
    if (status == ADTOPK_OK && !planned->by_rank) {
        status = pass_withdraw(work, t, 0, gradient, job->ranks, planned->kept);
    }
    free(gradient);
    return status;
}

void work_settle(struct compute *compute)
{
    struct work *work = work_of(compute);
    struct job *job = work->job;
    bool withdrawn = job->step.state == STEP_WITHDRAW;

    for (uint32_t t = 0; t < job->tensors; t++) {
        struct store_tensor *store = job->tensor[t].store;
        if (store->stage == STAGE_SETTLED) {
            continue; /* a restarted daemon goes on where it was cut off */
        }
        if ((withdrawn ? withdraw_tensor(work, t) : settle_tensor(work, t)) != ADTOPK_OK) {
            (void)no_memory(work, "settle");
            return;
        }
        store_publish(&store->stage, STAGE_SETTLED);
    }
}

/* From ranks to node residuals are joined. The other way round there is nothing to do: the first
 * rank takes over what the node had. Then the node's may become others. What else is kept of each
 * residual goes on where the next policy has use for it. */
void work_switch(struct compute *compute)
{
    struct work *work = work_of(compute);
    struct job *job = work->job;

    store_publish(&job->store->joining, 1);
    for (uint32_t t = 0; t < job->tensors; t++) {
        if (job->plan->tensor[t].by_rank && !job->next_plan->tensor[t].by_rank &&
            settle_join(work, t) != ADTOPK_OK) {
            (void)no_memory(work, "join the residuals of its ranks");
            return;
        }
        residual_convert(job, t);
        handover_tensor(job, t);
    }
    store_publish(&job->store->joining, 0);
}

void work_verify(struct compute *compute)
{
    struct job *job = work_of(compute)->job;

    for (uint32_t t = 0; t < job->tensors; t++) {
        struct tensor *tensor = &job->tensor[t];
        struct verified *found = &tensor->found;
        *found = (struct verified){.magnitude = 0};
        for (unsigned r = 0; r < (job->plan->tensor[t].by_rank ? job->ranks : 1); r++) {
            found->magnitude += residual_sums(job, t, r, found->residual);
        }
        (void)memcpy(found->input, tensor->store->input, sizeof(found->input));
        (void)memcpy(found->applied, store_applied(tensor->store), sizeof(found->applied));
    }
}
