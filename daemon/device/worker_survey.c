/* What a rule asks of a residual (kernels/cuda/survey.h): its tables and kernels. */
#include "daemon/device/worker_launch.h"

/* Threads that share a chunk. */
enum { OF_STATS = STATS_LANES, OF_LIST = 32 };

static void run_add_survey(const struct run *run, const struct add_tensor *tensor, uint64_t kept,
    uint32_t least, const struct stats *total)
{
    const uint64_t chunks = chunk_count(run->order->numel);

    run->tables.survey[run->sum->surveys++] = (struct survey_order){.first = run->sum->surveyed,
        .entry = tensor->entry,
        .numel = run->order->numel,
        .least = least,
        .chunk = run_scratch(run, kept),
        .place = run_scratch(run, kept + chunks * sizeof(struct stats)),
        .total = run_pointer(worker_on_device(run->state, total))};
    run->sum->surveyed += chunks;
}

/* The elements that reach a bound, and a list of them. */
static void run_add_reach(const struct run *run, const struct add_tensor *tensor)
{
    const struct page_ask *ask = &run->page->ask;
    const uint64_t kept = run->own.kernels + tables_survey(run->order->numel);
    struct survey_order *order = &run->tables.survey[run->sum->surveys];

    run_add_survey(run, tensor, kept, ask->least, &run->page->answer.reach);
    order->position = run_at(run, ask->list.position);
    order->value = run_at(run, ask->list.value);
    order->room = ask->list.count;
    run->sum->listed |= order->position != NULL;
}

void run_fill_in_survey(const struct run *run, const struct add_tensor *tensor)
{
    const struct page_ask *ask = &run->page->ask;

    if (ask->all != 0) {
        run_add_survey(run, tensor, run->own.kernels, 1, &run->page->answer.all);
    }
    if (ask->least > 0) {
        run_add_reach(run, tensor);
    }
    *run->tables.ranked = (struct survey_rank){.entry = tensor->entry,
        .numel = run->order->numel,
        .start = ask->start,
        .stride = ask->stride,
        .rank = (uint32_t)ask->rank,
        .magnitude = run_pointer(worker_on_device(run->state, &run->page->answer.magnitude))};
}

static struct survey_batch run_survey_batch(const struct run *run)
{
    return (struct survey_batch){.order = run_table(run, run->tables.survey),
        .ranked = run_table(run, run->tables.ranked),
        .orders = run->sum->surveys,
        .rankeds = 1,
        .chunks = run->sum->surveyed,
        .slots = run_slots(run, run_own(run), 0, run->at.spare)};
}

bool run_survey(const struct run *run)
{
    const struct survey_batch batch = run_survey_batch(run);

    return run_kernel(
               run, KERNEL_survey_stats, run_threads(run, batch.chunks * OF_STATS), &batch) &&
           run_kernel(run, KERNEL_survey_total, run_blocks(run, batch.orders), &batch) &&
           (!run->sum->listed || run_kernel(run, KERNEL_survey_list,
                                     run_threads(run, batch.chunks * OF_LIST), &batch));
}

bool run_ranked(const struct run *run)
{
    const struct survey_batch batch = run_survey_batch(run);

    return run_kernel(run, KERNEL_survey_ranked, 1, &batch);
}
