#include "daemon/compute/rests.h"

#include <assert.h>

#include "daemon/compute/layout.h"
#include "daemon/job/plan_query.h"
#include "kernels/kernels.h"

/* ------------------------------------------------------------------ the form that ranks see */

void rests_narrow(const struct job *job, uint32_t t)
{
    static const struct parallel alone;
    const struct local_update *update = results_update(job, t);
    bool listed = (update->forms & LOCAL_FORM_LIST) != 0;
    const struct narrow narrow = {.dtype = job->tensor[t].spec.dtype,
        .numel = update->numel,
        .dense = listed ? NULL : results_dense(job, t),
        .index = results_index(job, t),
        .value = results_value(job, t),
        .count = listed ? update->count : 0,
        .half = results_half(job, t),
        .shown = results_shown(job, t)};

    if (results_is_narrow(&job->tensor[t])) {
        narrow_update(&narrow, &alone);
    }
}

/* ------------------------------------------------------------------ the node of a rest */

float rests_unscale(const struct job *job, uint32_t t)
{
    return job->plan->policy.reduce == REDUCE_MEAN ? (float)job->tensor[t].store->ranks : 1.0f;
}

float rests_shrink(const struct job *job, uint32_t t)
{
    return 1 / job->tensor[t].store->loss_scale;
}

/* The first element of a node's share of `total` elements, which the nodes divide evenly. */
static uint64_t rests_first(uint64_t total, unsigned nodes, unsigned place)
{
    return total / nodes * place + total % nodes * place / nodes;
}

void rests_note_share(const struct job *job, struct store_tensor *store)
{
    store->nodes = (uint16_t)job->in_force.nodes;
    store->place = (uint16_t)job->in_force.self;
}

void rests_share(
    const struct job *job, uint32_t t, uint64_t numel, uint64_t *first, uint64_t *count)
{
    const struct store_tensor *store = job->tensor[t].store;

    if (store->nodes == 0) {
        *first = *count = 0;
        return;
    }
    *first = rests_first(numel, store->nodes, store->place);
    *count = rests_first(numel, store->nodes, store->place + 1u) - *first;
}

/* ------------------------------------------------------------------ for sparse tensors */

/* This node's share of an update's entries, by ascending position. Only those that are not 0 count:
 * nodes may have the update as a list or dense, and must divide it alike. */
struct entries {
    struct view view;
    const float *dense; /* NULL: the list */
    const uint32_t *index;
    const float *value;
    uint64_t next;   /* the next entry or position */
    uint64_t before; /* entries still to skip before the share */
    uint64_t left;   /* entries of the share still to take */
};

static uint64_t count_entries(const float *value, uint64_t numel)
{
    uint64_t count = 0;

    for (uint64_t i = 0; i < numel; i++) {
        count += value[i] != 0;
    }
    return count;
}

static struct entries entries_of(const struct job *job, uint32_t t)
{
    const struct local_update *update = results_update(job, t);
    bool listed = (update->forms & LOCAL_FORM_LIST) != 0;
    struct entries entries = {.view = plan_choice(job, t).view,
        .dense = listed ? NULL : results_dense(job, t),
        .index = results_index(job, t),
        .value = results_value(job, t)};
    uint64_t total = listed ? count_entries(entries.value, update->count)
                            : count_entries(entries.dense, update->numel);

    rests_share(job, t, total, &entries.before, &entries.left);
    return entries;
}

static float entries_value(const struct entries *entries)
{
    return entries->dense != NULL ? entries->dense[view_element(&entries->view, entries->next)]
                                  : entries->value[entries->next];
}

/* Takes the next entry; false after the last one. */
static bool entries_next(struct entries *entries, uint32_t *position, float *value)
{
    if (entries->left == 0) {
        return false;
    }
    while ((*value = entries_value(entries)) == 0 || entries->before > 0) {
        entries->before -= *value != 0;
        entries->next++;
    }
    *position = (uint32_t)(entries->dense != NULL
                               ? entries->next
                               : view_position(&entries->view, entries->index[entries->next]));
    entries->next++;
    entries->left--;
    return true;
}

/* Appends a rest, or adds it to the one that was appended last. */
static void rests_append(struct sparse *list, uint32_t position, float rest)
{
    if (list->count > 0 && list->position[list->count - 1] == position) {
        list->value[list->count - 1] += rest;
    } else if (rest != 0) {
        assert(list->count < list->capacity);
        list->position[list->count] = position;
        list->value[list->count++] = rest;
    }
}

/* Appends the rests of this node's own sums, up to a position. Returns the next entry. */
static size_t append_sum_rests(const struct plan_tensor *planned, size_t next, uint64_t position,
    const uint8_t *accepted, struct sparse *list)
{
    const struct sparse *rests = &planned->sum_rests.list;

    for (; next < rests->count && rests->position[next] <= position; next++) {
        if (accepted == NULL || (accepted[next / 8] >> next % 8 & 1) != 0) {
            rests_append(list, rests->position[next], rests->value[next]);
        }
    }
    return next;
}

void rests_collect(const struct job *job, uint32_t t, const uint8_t *accepted)
{
    struct plan_tensor *planned = &job->plan->tensor[t];
    struct sparse *list = &planned->update_rests.list;
    struct entries entries = entries_of(job, t);
    enum dtype dtype = job->tensor[t].spec.dtype;
    float shrink = rests_shrink(job, t), unscale = rests_unscale(job, t), value;
    uint32_t position;
    size_t next = 0;

    list->count = 0;
    while (entries_next(&entries, &position, &value)) {
        next = append_sum_rests(planned, next, position, accepted, list);
        rests_append(list, position, narrow_rest(value, dtype) * shrink * unscale);
    }
    (void)append_sum_rests(planned, next, UINT64_MAX, accepted, list);
}
