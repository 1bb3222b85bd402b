/*
 * The kernels that write updates where ranks see them on their GPUs, and their tables.
 */
#include <assert.h>

#include "daemon/device/worker_launch.h"
#include "proto/local.h"

static_assert(UPDATE_NO_LIST == LOCAL_NO_LIST, "kernels do not include the protocol");

/* The word in front of a rank's list; NULL: it sees no lists. */
static uint32_t *run_counted(const struct run *run, const struct engine_list *list)
{
    return engine_is_there(list->position)
               ? (void *)((uint8_t *)run_mapped(run, list->position) - LOCAL_LIST_BEGIN)
               : NULL;
}

/* Has the list go to a rank's own one, too, if it has room there. */
static void run_list_seen(
    const struct run *run, const struct engine_list *list, struct update_order *update)
{
    update->counted = run_counted(run, list);
    update->count = LOCAL_NO_LIST;
    if (update->counted != NULL && update->list.count <= list->count) {
        update->count = (uint32_t)update->list.count;
        update->index = run_mapped(run, list->position);
        update->value = update->half == NULL ? run_mapped(run, list->value) : NULL;
        update->shown = update->half != NULL ? run_mapped(run, list->value) : NULL;
    }
}

/* SHOW: the list is scattered for each rank. */
void run_fill_in_show(const struct run *run)
{
    const struct engine_show *show = &run->order->show;
    struct run_sum *sum = run->sum;

    for (unsigned p = 0; p < run->order->parts; p++) {
        void *to = run_mapped(run, run->part[p].element);
        struct update_order *update = &run->tables.update[sum->shown++];

        *update = (struct update_order){.first = sum->entries,
            .first_element = sum->elements,
            .numel = run->order->numel,
            .view = show->view,
            .list = run_list(run, &show->list),
            .dense = show->half ? NULL : to,
            .half = show->half ? to : NULL,
            .dtype = run->order->dtype};
        run_list_seen(run, &run->part[p].list, update);
        sum->entries += show->list.count;
        sum->elements += run->order->numel;
    }
}

bool run_show(const struct run *run)
{
    const struct update_batch batch = {.order = run_table(run, run->tables.update),
        .orders = run->sum->shown,
        .entries = run->sum->entries,
        .elements = run->sum->elements};

    return run_kernel(run, KERNEL_update_elements, run_threads(run, batch.elements), &batch) &&
           run_kernel(run, KERNEL_update_entries, run_threads(run, batch.entries), &batch);
}

/* SUMMED: the vector's elements become the update, which each rank's place gets, too. */
void run_fill_in_summed(const struct run *run)
{
    const struct engine_summed *summed = &run->order->summed;
    const void **shown = &run->tables.address[run->order->first];
    const void **counted = &run->tables.counted[run->order->first];

    for (unsigned p = 0; p < run->order->parts; p++) {
        shown[p] = run_mapped(run, run->part[p].element);
        counted[p] = run_counted(run, &run->part[p].list);
    }
    run->tables.summed[run->sum->orders] = (struct update_sum){.first = run->sum->elements,
        .sum = run_at(run, summed->sum),
        .factor = summed->factor,
        .dtype = (uint32_t)run->order->dtype,
        .half = summed->half,
        .places = run->order->parts,
        .shown = run_table(run, shown),
        .counted = run_table(run, counted)};
    run->sum->elements += run->order->numel;
}

bool run_summed(const struct run *run)
{
    const struct update_sums batch = {.order = run_table(run, run->tables.summed),
        .orders = run->sum->orders,
        .elements = run->sum->elements};

    return run_kernel(run, KERNEL_update_summed, run_threads(run, batch.elements), &batch);
}
