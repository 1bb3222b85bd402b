/*
 * Settling: what was sent and accepted leaves the residuals, once, whenever the daemon is killed.
 *
 * Happy path of a tensor: the ledger, the sparsifier's states and what the nodes agree on are made
 * for the turn that comes next, beside those in force; the lists that say what leaves are complete
 * in the store; STAGE_SETTLING is published; the elements are written; the turn is counted, which
 * puts the new records in force. Killed before the stage: everything is computed again. Killed
 * after it: the elements are written again, to the same values, because a kept list has what its
 * residual was; a dense tensor's pass is journalled. What went past an empty residual (work.c) has
 * only a ledger to settle.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/model.h"
#include "daemon/core/pass.h"
#include "daemon/core/plan.h"
#include "kernels/cpu/leave.h"

/* What is settled. */
struct settling {
    struct job *job;
    uint32_t t;
    struct planned *planned;
    struct store_tensor *store;
    struct view view;
    struct parallel parallel;
    /* One bit an entry of what was sent, and of what is returned: is it in the sum? NULL: all are.
     */
    uint8_t *accepted, *taken;
};

static bool is_set(const uint8_t *bits, size_t entry)
{
    return bits == NULL || (bits[entry / 8] >> entry % 8 & 1) != 0;
}

/* An update on which positions are looked up in ascending order. */
struct lookup {
    const struct view *view;
    const float *dense; /* NULL: only the list is there */
    const uint32_t *index;
    const float *value;
    uint64_t next, count;
};

static struct lookup lookup_of(const struct settling *settling)
{
    const struct local_update *update = layout_update(settling->job, settling->t);
    const uint8_t *results = settling->job->results;
    bool dense = (update->forms & LOCAL_FORM_DENSE) != 0;

    return (struct lookup){.view = &settling->view,
        .dense = dense ? (const float *)(const void *)(results + update->dense_offset) : NULL,
        .index = (const uint32_t *)(const void *)(results + update->index_offset),
        .value = (const float *)(const void *)(results + update->value_offset),
        .count = update->count};
}

static float lookup_value(struct lookup *lookup, uint32_t position)
{
    uint64_t element = view_element(lookup->view, position);

    if (lookup->dense != NULL) {
        return lookup->dense[element];
    }
    while (lookup->next < lookup->count &&
           view_position(lookup->view, lookup->index[lookup->next]) < position) {
        lookup->next++;
    }
    return lookup->next < lookup->count && lookup->index[lookup->next] == element
               ? lookup->value[lookup->next]
               : 0;
}

/* Which entries of the list are in the sum of a collective that selects; NULL without memory. */
static uint8_t *find_taken(const struct settling *settling, const struct sparse *list)
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

/* What was sent and what comes back: if it is of this step, and in the sum. */
static enum adtopk_status find_accepted(struct settling *settling)
{
    struct planned *planned = settling->planned;
    struct returned *returned = &planned->returned;
    bool current =
        returned->header != NULL && returned->header->step == settling->job->store->steps_done + 1;

    returned->list.count = current ? returned->header->count : 0;
    if (plan_is_whole(planned)) {
        settling->taken = find_taken(settling, &returned->list);
        return settling->taken != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
    }
    if (planned->known || !planned->policy.sparse_collective->selects) {
        return ADTOPK_OK; /* known positions travel by the dense collective, which takes all */
    }
    settling->accepted = find_taken(settling, &planned->sent);
    settling->taken = find_taken(settling, &returned->list);
    return settling->accepted != NULL && settling->taken != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
}

/* ------------------------------------------------------------------ records of the next turn */

/* What all nodes see of the update. */
static struct sparsifier_update look_at_update(const struct job *job, uint32_t t)
{
    const struct local_update *update = layout_update(job, t);
    bool dense = (update->forms & LOCAL_FORM_DENSE) != 0;
    const float *value =
        (const float *)(const void *)(job->results +
                                      (dense ? update->dense_offset : update->value_offset));
    uint64_t count = dense ? update->numel : update->count;
    struct sparsifier_update seen = {.count = 0};

    for (uint64_t i = 0; i < count; i++) {
        seen.count += value[i] != 0;
        seen.sum_abs += (double)(value[i] < 0 ? -value[i] : value[i]);
    }
    return seen;
}

/* What the nodes agree on for the next turn. */
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

/* What was applied of this node is what it sent, less what comes back. */
static void add_applied(const struct settling *settling, double applied[2])
{
    const struct leave sent = {&settling->view, &settling->planned->sent, settling->accepted};
    const struct leave returned = {
        &settling->view, &settling->planned->returned.list, settling->taken};
    double back[2] = {0, 0};

    leave_sums(&sent, applied, &settling->parallel);
    leave_sums(&returned, back, &settling->parallel);
    applied[0] -= back[0];
    applied[1] -= back[1];
}

static void keep_lists(const struct settling *settling)
{
    const struct planned *planned = settling->planned;
    const struct returned *returned = &planned->returned;
    const float *residual = layout_residual(settling->job, settling->t, 0);

    for (unsigned r = 0; r < plan_residuals(settling->job, planned); r++) {
        planned->kept[r].header->count = planned->kept[r].list.count;
    }
    for (size_t i = 0; i < returned->list.count; i++) {
        returned->kept[i] = residual[view_element(&settling->view, returned->list.position[i])];
    }
}

static void prepare(const struct settling *settling)
{
    struct store_tensor *store = settling->store;
    struct planned *planned = settling->planned;
    uint64_t turn = store->turn;

    (void)memcpy(store->applied[(turn + 1) % 2], store->applied[turn % 2], sizeof(*store->applied));
    agree(settling);
    if (!planned->dense) {
        add_applied(settling, store->applied[(turn + 1) % 2]);
        keep_lists(settling);
    }
    store->settled = turn + 1;
    store_publish(&store->stage, STAGE_SETTLING);
}

/* ------------------------------------------------------------------ elements */

/* An entry leaves the residual of every rank that selected it; what rounding cut off the sum stays
 * with the first of them. next: the first entry of each rank's list that is not settled. */
static void settle_entry(const struct settling *settling, size_t entry, size_t *next)
{
    const struct planned *planned = settling->planned;
    uint32_t position = planned->sent.position[entry];
    uint64_t element = view_element(&settling->view, position);
    bool accepted = is_set(settling->accepted, entry);
    double left = -(double)planned->sent.value[entry];
    float *first = NULL;

    for (unsigned r = 0; r < settling->job->ranks; r++) {
        const struct kept *kept = &planned->kept[r];
        float *residual = layout_residual(settling->job, settling->t, r) + element;
        if (next[r] == kept->list.count || kept->list.position[next[r]] != position) {
            continue;
        }
        left += (double)kept->list.value[next[r]++];
        if (accepted) {
            *residual = 0;
            first = first != NULL ? first : residual;
        }
        if (accepted && kept->momentum != NULL && planned->policy.params.momentum_masking) {
            kept->momentum[element] = 0;
        }
    }
    if (first != NULL) {
        *first = (float)left;
    }
}

static enum adtopk_status settle_ranks(const struct settling *settling)
{
    size_t *next = calloc(settling->job->ranks, sizeof(*next));

    for (size_t i = 0; next != NULL && i < settling->planned->sent.count; i++) {
        settle_entry(settling, i, next);
    }
    free(next);
    return next != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
}

/* What comes back is added to what the residual is after the entries have left: to what was written
 * just now, or else to what it was, so that it can be done again. */
static void settle_returned(const struct settling *settling)
{
    const struct planned *planned = settling->planned;
    const struct sparse *list = &planned->returned.list, *sent = &planned->sent;
    const struct sparse *own = &planned->kept[0].list;
    float *residual = layout_residual(settling->job, settling->t, 0);
    size_t s = 0, o = 0;

    for (size_t i = 0; i < list->count; i++) {
        uint32_t position = list->position[i];
        float *rest = &residual[view_element(&settling->view, position)];
        bool written;
        while (s < sent->count && sent->position[s] < position) {
            s++;
        }
        while (o < own->count && own->position[o] < position) {
            o++;
        }
        written = s < sent->count && sent->position[s] == position &&
                  is_set(settling->accepted, s) && o < own->count && own->position[o] == position;
        if (is_set(settling->taken, i)) {
            *rest = (written ? *rest : planned->returned.kept[i]) + list->value[i];
        }
    }
}

static enum adtopk_status settle_lists(const struct settling *settling)
{
    const struct planned *planned = settling->planned;
    const struct kept *kept = &planned->kept[0];
    const struct leave sent = {&settling->view, &planned->sent, settling->accepted};
    enum adtopk_status status = ADTOPK_OK;

    if (planned->by_rank) {
        status = settle_ranks(settling);
    } else if (planned->rounded) {
        leave_rounded(
            layout_rounded(settling->job, settling->t).element, &sent, &settling->parallel);
    } else {
        leave_residual(layout_residual(settling->job, settling->t, 0),
            planned->policy.params.momentum_masking ? kept->momentum : NULL, &sent,
            kept->list.value, &settling->parallel);
    }
    if (status == ADTOPK_OK) {
        settle_returned(settling);
    }
    return status;
}

static enum adtopk_status settle_dense(struct work *work, const struct settling *settling)
{
    struct store_tensor *store = settling->store;
    const double *before = store->applied[(store->settled - 1) % 2];
    double *applied = store->applied[store->settled % 2];
    double taken[2], input[2];

    if (store->filled == 0) {
        pass_direct_sums(work->job, settling->t, taken, input);
        store->input[0] = input[0] + taken[0];
        store->input[1] = input[1] + taken[1];
    } else if (pass_take(work, settling->t, taken) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    applied[0] = before[0] + taken[0];
    applied[1] = before[1] + taken[1];
    return ADTOPK_OK;
}

enum adtopk_status settle_tensor(struct work *work, uint32_t t)
{
    struct job *job = work->job;
    struct settling settling = {.job = job,
        .t = t,
        .planned = &job->plan->tensor[t],
        .store = job->tensor[t].store,
        .view = plan_choice(job, t).view,
        .parallel = work_parallel(work)};
    enum adtopk_status status;

    if (settling.store->stage == STAGE_SETTLING &&
        settling.store->turn == settling.store->settled) {
        return ADTOPK_OK; /* killed just before its stage could say so */
    }
    status = work_sent(work, t);
    if (status == ADTOPK_OK && !settling.planned->dense) {
        status = find_accepted(&settling);
    }
    if (status == ADTOPK_OK && settling.store->stage != STAGE_SETTLING) {
        prepare(&settling);
    }
    if (status == ADTOPK_OK) {
        status = settling.planned->dense ? settle_dense(work, &settling) : settle_lists(&settling);
    }
    free(settling.accepted);
    free(settling.taken);
    if (status == ADTOPK_OK) {
        store_count_turn(settling.store);
    }
    if (status == ADTOPK_OK && plan_leaves_nothing(settling.planned)) {
        store_publish(&settling.store->filled, 0);
    }
    return status;
}

/* ------------------------------------------------------------------ another scope */

enum adtopk_status settle_join(struct work *work, uint32_t t)
{
    const struct job *job = work->job;
    const void **others = calloc(job->ranks, sizeof(*others));
    enum adtopk_status status = ADTOPK_ERR_MEMORY;

    for (unsigned r = 1; others != NULL && r < job->ranks; r++) {
        others[r - 1] = layout_residual(job, t, r);
    }
    if (others != NULL) {
        status = pass_join(work, t, others);
    }
    for (unsigned r = 1; status == ADTOPK_OK && r < job->ranks; r++) {
        (void)memset(layout_residual(job, t, r), 0, job->tensor[t].numel * sizeof(float));
    }
    free(others);
    return status;
}
