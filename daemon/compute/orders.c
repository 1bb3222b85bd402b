#include "daemon/compute/orders.h"

#include <math.h>

#include "daemon/compute/layout.h"
#include "daemon/compute/rests.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/ranks.h"
#include "daemon/job/store.h"
#include "proto/loss_scale.h"

unsigned orders_per_tensor(const struct job *job)
{
    /* A switch: join, convert, and a velocity per rank. A step that is withdrawn, with a residual
     * per rank: as many passes, and what updates lack as often. */
    return 2 * job->ranks + 2;
}

unsigned orders_parts(const struct job *job)
{
    return 2 * job->ranks;
}

/* The place of an address in the part of the store for the tensor's batch. */
static struct engine_place in_part(
    const struct job *job, uint32_t t, unsigned part, const void *address)
{
    return engine_place_of(
        &job->layout.arenas, store_part(part, job->tensor[t].layout.batch), address);
}

/* The place of an address in a rank's slot. Ranks but the first have slots, and residuals, in a
 * part of their own. */
static struct engine_place in_slot(
    const struct job *job, uint32_t t, unsigned rank, const void *address)
{
    return in_part(job, t, rank == 0 ? STORE_MAIN : STORE_RANKS, address);
}

static struct engine_place in_results(const struct job *job, uint32_t t, const void *address)
{
    return engine_place_of(
        &job->layout.arenas, ENGINE_RESULTS + job->tensor[t].layout.batch, address);
}

static struct engine_place in_store(
    const struct plan *plan, const struct job *job, const void *address)
{
    return engine_place_of(&job->layout.arenas, plan->store_part, address);
}

static struct engine_place in_velocities(
    const struct plan *plan, const struct job *job, const void *address)
{
    return engine_place_of(&job->layout.arenas, plan->velocity_part, address);
}

static struct engine_place residual_place(
    const struct job *job, const struct plan *plan, uint32_t t, unsigned rank)
{
    return rank == 0 ? in_part(job, t, STORE_RESIDUALS + plan->residuals, plan->tensor[t].residual)
                     : in_part(job, t, STORE_RANKS, layout_residual(job, t, rank));
}

static const float *velocity_of(
    const struct job *job, const struct plan_tensor *planned, unsigned rank)
{
    return planned->selection != NULL && rank < plan_residuals(job, planned)
               ? planned->selection[rank].momentum
               : NULL;
}

static struct engine_residual residual_of(
    const struct job *job, const struct plan *plan, uint32_t t, unsigned rank)
{
    const struct plan_tensor *planned = &plan->tensor[t];

    return (struct engine_residual){.element = residual_place(job, plan, t, rank),
        .progress = in_slot(job, t, rank, layout_progress(job, t, rank)),
        .momentum = in_velocities(plan, job, velocity_of(job, planned, rank)),
        .rounded = rank == 0 && planned->rounded,
        .salt = (uint64_t)job->core->config.node << 32 | t,
        .number = layout_number(t, rank)};
}

static struct engine_order *orders_next(const struct job *job, struct engine_batch *batch,
    enum engine_kind kind, uint32_t t, unsigned rank)
{
    struct engine_order *order = engine_batch_add(batch, kind);

    order->tensor = t;
    order->numel = job->tensor[t].numel;
    order->residual = residual_of(job, job->plan, t, rank);
    order->stamp = store_stamp(job->store, STAMP_NONE);
    order->dtype = job->tensor[t].spec.dtype;
    return order;
}

/* Adds a part for the gradient of a local rank: nowhere if it did not push. */
static void orders_gradient(
    const struct job *job, struct engine_batch *batch, uint32_t t, unsigned rank)
{
    struct engine_part *part = engine_batch_part(batch);

    if (job->rank[rank]->pushed[t] == job->store->steps_done + 1) {
        part->element =
            (struct engine_place){rank_arena(job, rank, t), job->tensor[t].layout.gradient_offset};
    }
}

/* ------------------------------------------------------------------ gradients in and out */

/* A list wherever it lies: in the store, in the results, or in memory of the plan or the round. */
static struct engine_list list_here(const struct sparse *list)
{
    return (struct engine_list){.position = engine_here(list->position),
        .value = engine_here(list->value),
        .count = list->count};
}

/* The list in the store of what a residual selects. */
static struct engine_list list_in_store(
    const struct job *job, const struct sparse *list, size_t count)
{
    return (struct engine_list){.position = in_store(job->plan, job, list->position),
        .value = in_store(job->plan, job, list->value),
        .count = count};
}

struct sparsifier_state orders_state(const struct job *job, uint32_t t, unsigned rank)
{
    const struct store_tensor *store = job->tensor[t].store;
    const struct store_states *states = layout_states(job, t, rank);
    unsigned now = (unsigned)(store->turn % 2);
    struct sparsifier_state none = {.threshold = 0};

    return store_remembers(job->store, store, states->after[now]) ? states->state[now] : none;
}

static uint32_t sparsifier_number(const struct sparsifier_ops *ops)
{
    uint32_t number = 0;

    while (sparsifier_table[number] != ops) {
        number++;
    }
    return number;
}

/* Sets what the loss scale and the policy do to the gradients before they are added. One rank's
 * gradient may have the norm clip / sqrt(ranks), and a sum of several that many times as much. */
static struct engine_add corrected(const struct job *job, uint32_t t, unsigned gradients)
{
    const struct sparsifier_params *params = &job->plan->tensor[t].policy.params;

    return (struct engine_add){.params = *params,
        .unscale = 1 / loss_scale_factor(job->step.loss_scale),
        .clip = params->clip > 0 ? params->clip * gradients / sqrt((double)job->run.ranks) : 0,
        .hints = engine_nowhere,
        .list = {.position = engine_nowhere, .value = engine_nowhere}};
}

/* Sets what the turn selects from a residual. */
static void orders_select(const struct job *job, uint32_t t, unsigned rank, struct engine_add *add)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];
    const struct sparsifier_turn turn = plan_turn(job, t);
    const struct sparse *list = &planned->selection[rank].list;

    add->state = orders_state(job, t, rank);
    add->selects = !plan_is_whole(planned);
    if (add->selects) {
        add->sparsifier = sparsifier_number(planned->policy.sparsifier);
        add->shape = *turn.shape;
        add->agreed = *turn.agreed;
        add->turn = turn.turn;
        add->seed = turn.seed;
        add->hints = engine_here(planned->hints + rank * (1 + planned->fibres));
        add->fibres = planned->fibres;
        add->list = list_in_store(job, list, list->capacity);
    }
}

/* Orders one pass over each residual, with its gradients. */
static struct engine_order *orders_pass(const struct job *job, struct engine_batch *batch,
    enum engine_kind kind, uint32_t t, unsigned rank)
{
    bool by_rank = job->plan->tensor[t].by_rank;
    struct engine_order *order = orders_next(job, batch, kind, t, rank);
    unsigned first = by_rank ? rank : 0, end = by_rank ? rank + 1 : job->ranks;

    order->stamp = store_stamp(job->store, kind == ENGINE_ADD ? STAMP_ADD : STAMP_WITHDRAW);
    order->ledger = in_part(job, t, STORE_MAIN, job->tensor[t].store->input);
    if (job->plan->tensor[t].policy.params.beta < 1) {
        order->lost = in_part(job, t, STORE_MAIN, job->tensor[t].store->lost);
    }
    order->add = corrected(job, t, end - first);
    for (unsigned r = first; r < end; r++) {
        orders_gradient(job, batch, t, r);
    }
    return order;
}

void orders_add(const struct job *job, struct engine_batch *batch, uint32_t t)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];

    for (unsigned r = 0; r < plan_residuals(job, planned); r++) {
        struct engine_order *order = orders_pass(job, batch, ENGINE_ADD, t, r);
        if (!planned->dense) {
            orders_select(job, t, r, &order->add);
        }
    }
    store_note_filled(job->tensor[t].store);
}

void orders_withdraw(const struct job *job, struct engine_batch *batch, uint32_t t)
{
    for (unsigned r = 0; r < plan_residuals(job, &job->plan->tensor[t]); r++) {
        (void)orders_pass(job, batch, ENGINE_WITHDRAW, t, r);
    }
}

void orders_direct(
    const struct job *job, struct engine_batch *batch, uint32_t t, float *sum, float scale)
{
    struct engine_order *order = orders_next(job, batch, ENGINE_DIRECT, t, 0);

    order->stamp = store_stamp(job->store, STAMP_DIRECT);
    order->ledger = in_part(job, t, STORE_MAIN, job->tensor[t].store->input);
    order->direct = (struct engine_direct){.sum = in_results(job, t, sum), .scale = scale};
    for (unsigned r = 0; r < job->ranks; r++) {
        orders_gradient(job, batch, t, r);
    }
}

/* ------------------------------------------------------------------ sent entries leave */

void orders_passed(const struct job *job, struct engine_batch *batch, uint32_t t)
{
    (void)orders_next(job, batch, ENGINE_PASSED, t, 0);
}

/* The rests that come back of the step's sums which this node rounded: those that the ranks see. */
static void orders_sums_rest(const struct job *job, uint32_t t, struct engine_rest *take)
{
    const struct store_rest *stored = &job->tensor[t].store->rest;
    const float *dense = results_dense(job, t);
    const struct tensor_policy *policy = &job->plan->tensor[t].policy;
    bool partial = policy->dense_collective->traits.partial;
    bool scaled = !partial && job->plan->policy.reduce == REDUCE_MEAN;

    if (stored->step != job->store->steps_done + 1 || stored->count == 0 ||
        stored->place + stored->count > job->plan->rests) {
        return;
    }
    if (!partial) {
        take->rounded = in_results(job, t, dense + stored->first);
    }
    take->low = in_store(job->plan, job, job->plan->rest + stored->place);
    take->first = stored->first;
    take->count = stored->count;
    take->unscale = scaled ? (float)job->tensor[t].store->ranks : 1.0f;
    take->shrink = 1 / job->tensor[t].store->loss_scale;
}

/* The rests that come back of the update, if ranks see it in 16 bits. */
static void orders_update_rest(const struct job *job, uint32_t t, struct engine_rest *take)
{
    if (job->plan->tensor[t].narrow) {
        rests_share(job, t, job->tensor[t].numel, &take->first, &take->count);
        take->exact = in_results(job, t, results_dense(job, t) + take->first);
        take->unscale = rests_unscale(job, t);
        take->shrink = rests_shrink(job, t);
    }
}

void orders_take(const struct job *job, struct engine_batch *batch, uint32_t t)
{
    const struct engine_rest no_rest = {
        .rounded = engine_nowhere, .low = engine_nowhere, .exact = engine_nowhere};
    struct store_tensor *store = job->tensor[t].store;
    struct engine_take_out take = {
        .values = (enum quantisation)job->plan->tensor[t].policy.dense_values,
        .nothing = store->unpushed != 0,
        .sums = no_rest,
        .update = no_rest};
    struct engine_order *order;

    orders_sums_rest(job, t, &take.sums);
    orders_update_rest(job, t, &take.update);
    if (take.nothing && take.sums.count + take.update.count == 0) {
        return;
    }
    order = orders_next(job, batch, ENGINE_TAKE, t, 0);
    order->stamp = store_stamp(job->store, STAMP_TAKE);
    order->take = take;
    store_note_filled(store);
}

void orders_leave(
    const struct job *job, struct engine_batch *batch, uint32_t t, const uint8_t *accepted)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];
    struct engine_order *order = orders_next(job, batch, ENGINE_LEAVE, t, 0);

    order->leave = (struct engine_leave){.view = plan_choice(job, t).view,
        .sent = list_here(&planned->sent),
        .accepted = engine_here(accepted),
        .before = in_store(job->plan, job, planned->selection[0].list.value),
        .masks = planned->policy.params.momentum_masking};
    for (unsigned r = 0; planned->by_rank && r < job->ranks; r++) {
        struct engine_part *part = engine_batch_part(batch);
        part->element = residual_place(job, job->plan, t, r);
        part->momentum = in_velocities(job->plan, job, planned->selection[r].momentum);
        part->list =
            list_in_store(job, &planned->selection[r].list, planned->selection[r].list.count);
    }
}

void orders_return(
    const struct job *job, struct engine_batch *batch, uint32_t t, const struct rest_list *returned)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];
    struct engine_order *order = orders_next(job, batch, ENGINE_RETURN, t, 0);

    order->back = (struct engine_return){.view = plan_choice(job, t).view,
        .list = list_in_store(job, &returned->list, returned->list.count),
        .taken = engine_here(planned->rests_accepted),
        .before = in_store(job->plan, job, returned->before),
        .sent = list_here(&planned->sent),
        .own = list_in_store(job, &planned->selection[0].list, planned->selection[0].list.count),
        .accepted = engine_here(planned->accepted)};
    store_note_filled(job->tensor[t].store);
}

/* ------------------------------------------------------------------ reading */

void orders_gather(const struct job *job, struct engine_batch *batch, uint32_t t,
    const struct sparse *list, float *value)
{
    struct engine_order *order = orders_next(job, batch, ENGINE_GATHER, t, 0);

    order->gather = (struct engine_gather){.view = plan_choice(job, t).view,
        .list = {.position = in_store(job->plan, job, list->position),
            .value = in_store(job->plan, job, value),
            .count = list->count}};
}

void orders_read_part(const struct job *job, struct engine_batch *batch, uint32_t t, unsigned rank,
    const struct orders_part *part)
{
    struct engine_order *order = orders_next(job, batch, ENGINE_READ, t, rank);

    order->gather = (struct engine_gather){.first = part->first,
        .factor = 1,
        .list = {
            .position = engine_nowhere, .value = engine_here(part->out), .count = part->count}};
}

void orders_read(
    const struct job *job, struct engine_batch *batch, uint32_t t, unsigned rank, float *out)
{
    orders_read_part(
        job, batch, t, rank, &(struct orders_part){.count = job->tensor[t].numel, .out = out});
}

void orders_image(const struct job *job, struct engine_batch *batch, uint32_t t, unsigned rank,
    const struct orders_image *image)
{
    struct engine_order *order =
        orders_next(job, batch, image->loads ? ENGINE_LOAD : ENGINE_SAVE, t, rank);

    order->residual = residual_of(job, image->plan != NULL ? image->plan : job->plan, t, rank);
    if (image->velocity) {
        order->residual.element = order->residual.momentum;
        order->residual.rounded = false;
    }
    order->residual.momentum = engine_nowhere;
    order->image = (struct engine_image){.element = engine_here(image->element),
        .carry = engine_here(image->carry),
        .progress = engine_here(image->progress ? layout_progress(job, t, rank) : NULL),
        .first = image->first,
        .count = image->count};
}

void orders_sums(const struct job *job, struct engine_batch *batch, uint32_t t)
{
    for (unsigned r = 0; r < plan_residuals(job, &job->plan->tensor[t]); r++) {
        (void)orders_next(job, batch, ENGINE_SUMS, t, r);
    }
}

/* ------------------------------------------------------------------ another policy */

void orders_join(const struct job *job, struct engine_batch *batch, uint32_t t)
{
    struct engine_order *order = orders_next(job, batch, ENGINE_JOIN, t, 0);

    order->stamp = store_stamp(job->store, STAMP_JOIN);
    order->dtype = DTYPE_F32;
    order->residual.momentum = engine_nowhere; /* velocities have orders of their own */
    store_note_filled(job->tensor[t].store);
    for (unsigned r = 1; r < job->ranks; r++) {
        engine_batch_part(batch)->element = residual_place(job, job->plan, t, r);
    }
}

/* Velocities follow their residuals: the ranks' are joined to the node's, and the first rank takes
 * over the node's. */
static void orders_carry(
    const struct job *job, struct engine_batch *batch, uint32_t t, unsigned rank)
{
    const struct plan_tensor *now = &job->plan->tensor[t], *next = &job->switching.next->tensor[t];
    unsigned owners = now->policy.params.momentum > 0 ? plan_residuals(job, now) : 0;
    unsigned end = next->by_rank && rank + 1 < owners ? rank + 1 : owners;
    struct engine_order *order = orders_next(job, batch, ENGINE_CARRY, t, 0);

    order->carry.momentum = in_velocities(job->switching.next, job, next->selection[rank].momentum);
    for (unsigned r = rank; r < end; r++) {
        engine_batch_part(batch)->momentum =
            in_velocities(job->plan, job, now->selection[r].momentum);
    }
}

void orders_switch(const struct job *job, struct engine_batch *batch, uint32_t t)
{
    const struct plan *now = job->plan, *next = job->switching.next;
    struct engine_order *order;

    if (now->tensor[t].by_rank && !next->tensor[t].by_rank && job->ranks > 1) {
        orders_join(job, batch, t);
    }
    if (next->tensor[t].residual != now->tensor[t].residual) {
        order = orders_next(job, batch, ENGINE_CONVERT, t, 0);
        order->convert = (struct engine_convert){
            .element = in_part(job, t, STORE_RESIDUALS + next->residuals, next->tensor[t].residual),
            .rounded = next->tensor[t].rounded};
    }
    if (next->tensor[t].policy.params.momentum > 0) {
        for (unsigned r = 0; r < plan_residuals(job, &next->tensor[t]); r++) {
            orders_carry(job, batch, t, r);
        }
    }
}

/* ------------------------------------------------------------------ updates */

/* An order for all elements of an update, without a residual. */
static struct engine_order *orders_of_update(
    const struct job *job, struct engine_batch *batch, enum engine_kind kind, uint32_t t)
{
    struct engine_order *order = engine_batch_add(batch, kind);

    order->tensor = t;
    order->numel = job->tensor[t].numel;
    order->dtype = job->tensor[t].spec.dtype;
    return order;
}

void orders_update(const struct job *job, struct engine_batch *batch, uint32_t t,
    const struct exchange_tensor *entry, const struct orders_written *to)
{
    struct engine_order *order = orders_of_update(job, batch, ENGINE_UPDATE, t);

    order->update = (struct engine_update){.view = entry->shape.view,
        .list = list_here(&entry->update),
        .index = in_results(job, t, to->index),
        .value = in_results(job, t, to->value),
        .dense = in_results(job, t, to->dense)};
}

void orders_narrow(const struct job *job, struct engine_batch *batch, uint32_t t)
{
    const struct local_update *update = results_update(job, t);
    const bool listed = (update->forms & LOCAL_FORM_LIST) != 0;
    struct engine_order *order;

    if (!results_is_narrow(&job->tensor[t])) {
        return;
    }
    order = orders_of_update(job, batch, ENGINE_NARROW, t);
    order->narrow =
        (struct engine_narrow){.dense = in_results(job, t, listed ? NULL : results_dense(job, t)),
            .index = in_results(job, t, results_index(job, t)),
            .value = in_results(job, t, results_value(job, t)),
            .count = listed ? update->count : 0,
            .half = in_results(job, t, results_half(job, t)),
            .shown = in_results(job, t, results_shown(job, t))};
}

/* ------------------------------------------------------------------ updates on GPUs */

bool orders_are_shown(const struct job *job)
{
    bool any = false;

    for (unsigned r = 0; r < job->ranks; r++) {
        any = any || job->rank[r]->shown_on_gpu != CORE_SHOWN_NOT;
    }
    return any;
}

/* Adds a part for each rank's places. */
static void orders_shown_parts(const struct job *job, struct engine_batch *batch, uint32_t t)
{
    const struct tensor_layout *layout = &job->tensor[t].layout;

    for (unsigned r = 0; r < job->ranks; r++) {
        const uint32_t arena = ENGINE_GRADIENTS + layout->batch * job->ranks + r;
        const uint64_t list = layout->list_offset + LOCAL_LIST_BEGIN;
        struct engine_part *part;

        if (job->rank[r]->shown_on_gpu == CORE_SHOWN_NOT) {
            continue;
        }
        part = engine_batch_part(batch);
        part->element = (struct engine_place){arena, layout->shown_offset};
        if (job->rank[r]->shown_on_gpu == CORE_SHOWN_LISTS) {
            part->list = (struct engine_list){.position = {arena, list},
                .value = {arena, list + local_list_half(job->tensor[t].numel)},
                .count = local_list_room(job->tensor[t].numel)};
        }
    }
}

bool orders_show(const struct job *job, struct engine_batch *batch, uint32_t t,
    const struct view *view, const struct sparse *list)
{
    const bool half = results_is_narrow(&job->tensor[t]);
    const void *whole = half ? (const void *)results_half(job, t) : results_dense(job, t);
    struct engine_order *order;

    if (!orders_are_shown(job)) {
        return false;
    }
    order = orders_of_update(job, batch, ENGINE_SHOW, t);
    order->show = (struct engine_show){.view = *view,
        .list = list_here(list != NULL ? list : &(struct sparse){.position = NULL}),
        .whole = in_results(job, t, list != NULL ? NULL : whole),
        .half = half};
    orders_shown_parts(job, batch, t);
    return true;
}

/* Adds a part for the place where a rank sees what its updates lack. */
static void orders_pending_part(
    const struct job *job, struct engine_batch *batch, uint32_t t, unsigned rank)
{
    const uint32_t arena = ENGINE_GRADIENTS + job->tensor[t].layout.batch * job->ranks + rank;

    if (job->rank[rank]->shown_on_gpu != CORE_SHOWN_NOT) {
        engine_batch_part(batch)->element =
            (struct engine_place){arena, layout_pending(job, job->rank[rank], t)};
    }
}

/* Adds an order that shows the residual of a rank to `ranks` ranks, beginning with that one. */
static void orders_pending_of(
    const struct job *job, struct engine_batch *batch, uint32_t t, unsigned rank, unsigned ranks)
{
    struct engine_order *order = orders_next(job, batch, ENGINE_READ, t, rank);
    const float scale = results_pending_scale(job, job->plan, t);

    order->gather = (struct engine_gather){
        .list = {.position = engine_nowhere, .value = engine_nowhere, .count = order->numel},
        .factor = scale};
    if (!(scale > 0)) {
        order->residual.element = engine_nowhere;
    }
    for (unsigned r = rank; r < rank + ranks; r++) {
        orders_pending_part(job, batch, t, r);
    }
}

void orders_pending(const struct job *job, struct engine_batch *batch, uint32_t t)
{
    struct tensor *tensor = &job->tensor[t];
    const bool shows = results_pending_scale(job, job->plan, t) > 0;
    const unsigned residuals = shows ? plan_residuals(job, &job->plan->tensor[t]) : 1;

    if ((tensor->spec.forms & LOCAL_FORM_PENDING) == 0 || !orders_are_shown(job) ||
        (!shows && !tensor->layout.pending)) {
        return;
    }
    for (unsigned r = 0; r < residuals; r++) {
        if (residuals == 1 || job->rank[r]->shown_on_gpu != CORE_SHOWN_NOT) {
            orders_pending_of(job, batch, t, r, residuals == 1 ? job->ranks : 1);
        }
    }
    tensor->layout.pending = shows;
}

/* ------------------------------------------------------------------ sums on devices */

void orders_give(const struct job *job, struct engine_batch *batch, uint32_t t,
    const struct exchange_tensor *entry, struct engine_place place)
{
    struct engine_order *order = orders_next(job, batch, ENGINE_READ, t, 0);

    order->gather = (struct engine_gather){
        .list = {.position = engine_nowhere, .value = place, .count = order->numel}, .factor = 1};
    if (entry->unpushed || entry->acc != NULL) {
        order->residual.element = engine_here(entry->acc);
    }
}

void orders_summed(const struct job *job, struct engine_batch *batch, uint32_t t,
    struct engine_place place, float factor, bool shows)
{
    struct engine_order *order = orders_of_update(job, batch, ENGINE_SUMMED, t);

    order->summed = (struct engine_summed){.sum = place,
        .dense = in_results(job, t, results_dense(job, t)),
        .factor = factor,
        .half = results_is_narrow(&job->tensor[t])};
    if (shows) {
        orders_shown_parts(job, batch, t);
    }
}
