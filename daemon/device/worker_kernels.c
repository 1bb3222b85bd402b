/*
 * The kernels of a run (kernels/cuda/kernels.h), and the tables that they read. A run has orders of
 * one kind, whose residuals are in one pool, and so are others that they read or fill.
 *
 * Happy path: the places of the orders become addresses. The tables are made in the page and copied
 * to scratch memory. Chunks that were never written get their homes. Then the kernels of the
 * orders' kind follow. All of it goes into one stream, so nothing is waited for.
 */
#include <assert.h>
#include <float.h>
#include <math.h>

#include "daemon/device/order.h"
#include "daemon/device/worker_launch.h"
#include "kernels/base/record.h"

static_assert(sizeof(struct whole_progress) == sizeof(struct progress) &&
                  sizeof(struct whole_record) == sizeof(struct chunk_record),
    "the store has room for the device's progress");

/* ------------------------------------------------------------------ passes */

static void run_select_known(const struct run *run, const struct add_tensor *tensor)
{
    const struct engine_add *add = &run->order->add;
    const struct sparsifier_choice choice = order_choice(run->order);

    if (choice.mode == SPARSIFIER_KNOWN) {
        run->tables.entries[run->sum->lists++] = (struct entries_order){.first = run->sum->entries,
            .entry = tensor->entry,
            .view = choice.view,
            .list = {.position = run_at(run, add->list.position), .count = choice.count},
            .found = run_at(run, add->list.value)};
        run->sum->entries += choice.count;
    }
}

/* A rule asks for the largest elements. It keeps no hint, so there is none. */
static void run_select_asked(const struct run *run, struct add_tensor *tensor)
{
    const struct page_ask *ask = &run->page->ask;

    tensor->position = run_at(run, ask->list.position);
    tensor->value = run_at(run, ask->list.value);
    tensor->hints = (float *)run_table(run, &run->tables.nothing[2]);
}

static void run_select(const struct run *run, struct add_tensor *tensor)
{
    const struct engine_add *add = &run->order->add;

    tables_select(tensor, run->order, &run->page->ask);
    if (run->page->ask.question == PAGE_TOP) {
        run_select_asked(run, tensor);
        return;
    }
    if (tensor->mode == ADD_NOTHING) {
        run_select_known(run, tensor);
        return;
    }
    tensor->position = run_at(run, add->list.position);
    tensor->value = run_at(run, add->list.value);
    if (tensor->mode == ADD_TOP) {
        tensor->hints = run_hints(run);
    } else if (tables_hints(run->order, &tensor->view)) {
        tensor->hints = run_hints(run) + 1;
    }
}

/* The factors of the gradients' sum. */
static void run_scale(const struct run *run, struct add_tensor *tensor)
{
    const struct engine_add *add = &run->order->add;
    const float gamma = (float)add->params.gamma;
    const bool scales = add->params.gamma < 1 || add->params.gamma > 1;

    tensor->scale = add->unscale;
    if (tables_clips(run->order)) {
        struct add_clip *clip = &run->tables.clip[run->sum->orders];

        *clip = (struct add_clip){.limit = add->clip,
            .chunk = run_scratch(run, run->own.squares),
            .after = scales ? gamma : 1};
        tensor->clip = run_table(run, clip);
        run->sum->clips = true;
    } else if (scales) {
        tensor->scale = fmaxf(gamma * add->unscale, FLT_MIN);
    }
}

/* A gradient, which is where its rank wrote it, or was copied. */
static const void *run_gradient(const struct run *run, struct engine_place place)
{
    return place.arena >= PAGE_ARENA ? run_mapped(run, place) : run_at(run, place);
}

static void run_gradients(const struct run *run, struct add_tensor *tensor)
{
    const void **address = &run->tables.address[run->order->first];

    for (unsigned p = 0; p < run->order->parts; p++) {
        address[p] = run_gradient(run, run->part[p].element);
    }
    tensor->gradient = run_table(run, address);
    tensor->gradients = run->order->parts;
    run_scale(run, tensor);
    run_velocity(run, tensor, run->order->residual.momentum);
    tensor->momentum.mu = (float)run->order->add.params.momentum;
    tensor->momentum.nesterov = run->order->add.params.nesterov;
    tensor->withdraw = run->order->kind == ENGINE_WITHDRAW;
    if (engine_is_there(run->order->ledger)) {
        tensor->ledger.input = run_at(run, run->order->ledger);
    }
    tensor->ledger.lost = run_at(run, run->order->lost);
    tensor->decay = tensor->ledger.lost != NULL ? (float)(1 - run->order->add.params.beta) : 0;
    run_select(run, tensor);
    tensor->plain = !run->order->residual.rounded && add_is_plain(tensor, address[0]);
}

/* A residual or velocity is joined to the order's. Returns its entries. */
static uint64_t *run_join_part(const struct run *run, unsigned p, struct engine_place place)
{
    struct add_tensor *joined = &run->tables.joined[run->order->first + p];

    *joined = run_residual(run, run_wide(place));
    joined->first = (uint32_t)run->sum->joined;
    run->sum->joined += chunk_count(run->order->numel);
    run->sum->parts++;
    run->tables.address[run->order->first + p] = joined->entry;
    return joined->entry;
}

static void run_joined(const struct run *run, struct add_tensor *tensor)
{
    for (unsigned p = 0; p < run->order->parts; p++) {
        const uint64_t first = run->sum->joined;

        run->tables.cleared[run->order->first + p] = (struct whole_order){.first = first,
            .count = run->order->numel,
            .entry = run_join_part(run, p, run->part[p].element)};
    }
    tensor->joined = run_table(run, &run->tables.address[run->order->first]);
    tensor->gradients = run->order->parts;
}

static struct add_rest run_add_rest(const struct run *run, const struct engine_rest *rest)
{
    return (struct add_rest){.rounded = run_at(run, rest->rounded),
        .low = run_at(run, rest->low),
        .exact = run_at(run, rest->exact),
        .first = rest->first,
        .count = rest->count,
        .unscale = rest->unscale,
        .shrink = rest->shrink};
}

static void run_taken(const struct run *run, struct add_tensor *tensor)
{
    const struct engine_take_out *take = &run->order->take;

    struct add_take *taken = &run->tables.take[run->sum->orders];

    *taken = (struct add_take){.values = (uint32_t)take->values,
        .nothing = take->nothing,
        .rest = {run_add_rest(run, &take->sums), run_add_rest(run, &take->update)}};
    tensor->take = run_table(run, taken);
}

static void run_fill_in(const struct run *run, struct add_tensor *tensor)
{
    *tensor = run_residual(run, run_own(run));
    tensor->first = (uint32_t)run->sum->chunks;
    tensor->dtype = (uint32_t)run->order->dtype;
    tensor->scratch = run_scratch(run, run->own.kernels);
    tensor->ledger.input = run_table(run, run->tables.nothing);
    tensor->before = run_mapped(run, run->order->residual.progress);
    tensor->result = run_pointer(worker_on_device(run->state, &run->page->result.add));
    switch (run->order->kind) {
    case ENGINE_JOIN: run_joined(run, tensor); break;
    case ENGINE_TAKE: run_taken(run, tensor); break;
    default: run_gradients(run, tensor); break;
    }
}

/* The pass over the elements. */
static bool run_elements(const struct run *run, unsigned blocks, const struct add_batch *batch)
{
    if (run->order->kind == ENGINE_TAKE) {
        return run_kernel(run, KERNEL_take_stream, blocks, batch);
    }
    return (!run->sum->plain || run_kernel(run, KERNEL_add_plain, blocks, batch)) &&
           (!run->sum->others || run_kernel(run, KERNEL_add_stream, blocks, batch));
}

static bool run_clip(const struct run *run, unsigned blocks, const struct add_batch *batch)
{
    return !run->sum->clips ||
           (run_kernel(run, KERNEL_clip_squares, blocks, batch) &&
               run_kernel(run, KERNEL_clip_factor, run_blocks(run, batch->tensors), batch));
}

/* A kernel that has a thread for each entry. */
static bool run_entries_kernel(const struct run *run, enum worker_kernel kernel)
{
    const struct entries_batch batch = {.order = run_table(run, run->tables.entries),
        .orders = run->sum->lists,
        .entries = run->sum->entries,
        .element = run_slots_element(run),
        .half = run_slots_half(run)};

    return run_kernel(run, kernel, run_threads(run, batch.entries), &batch);
}

/* The spare slots of a residual's pool, or a velocity's. */
static bool run_spares(const struct run *run, struct run_held held, const struct add_batch *batch)
{
    const unsigned slots = pool_type(&run_arena(run, held.place)->pool, held.rounded)->slots;

    return run_kernel(run, KERNEL_slots_spare, run_threads(run, slots), batch);
}

static bool run_velocity_spares(const struct run *run, const struct add_batch *batch)
{
    struct add_batch velocities = *batch;

    velocities.slots = batch->velocities;
    return !run_moves(run) || run_spares(run, run_wide(run->order->residual.momentum), &velocities);
}

/* From the first kernel of a pass to the last one. Elements at positions that all nodes know are
 * read behind the pass. */
static bool run_stream(const struct run *run)
{
    const struct run_held residual = run_own(run);
    const unsigned blocks = run->sum->others ? run_blocks_large(run, run->sum->chunks)
                                             : run_blocks(run, run->sum->chunks);
    const struct add_batch batch = {.tensor = run_table(run, run->tables.tensor),
        .tensors = run->sum->orders,
        .chunks = (uint32_t)run->sum->chunks,
        .top = run->sum->top,
        .fibres = run->sum->fibres,
        .steps = run_scratch(run, run->at.steps),
        .slots = run_slots(run, residual, blocks, run->at.spare),
        .velocities = run_velocities(run, blocks)};

    return run_clip(run, blocks, &batch) && run_spares(run, residual, &batch) &&
           run_velocity_spares(run, &batch) && run_kernel(run, KERNEL_add_begin, blocks, &batch) &&
           run_elements(run, blocks, &batch) &&
           run_kernel(run, KERNEL_add_finish, blocks, &batch) &&
           run_entries_kernel(run, KERNEL_entries_gather);
}

/* The residuals that were joined become zeros. */
static bool run_clear(const struct run *run)
{
    const struct whole_batch batch = {.order = run_table(run, run->tables.cleared),
        .orders = run->sum->parts,
        .chunks = run->sum->joined,
        .element = run_slots_element(run)};

    return run_kernel(run, KERNEL_whole_fill, run_blocks(run, batch.chunks), &batch);
}

/* The orders' residuals get homes. */
static bool run_begin_own(const struct run *run)
{
    return run_begin(run, run_own(run), run->tables.tensor, run->sum->orders, run->sum->chunks);
}

static bool run_pass(const struct run *run)
{
    return run_begin_own(run) && run_stream(run);
}

static bool run_join(const struct run *run)
{
    return run_begin(run, run_wide(run->part[0].element), run->tables.joined, run->sum->parts,
               run->sum->joined) &&
           run_pass(run) && run_clear(run);
}

/* ------------------------------------------------------------------ entries */

/* Whether a rank's residual is in another pool than the order's. */
static bool run_is_apart(const struct run *run, const struct engine_part *part)
{
    return part->element.arena != run->order->residual.element.arena;
}

/* A rank's residual is to have homes, too: it has none if memory was lost. */
static void run_apart(const struct run *run, const struct engine_part *part)
{
    struct add_tensor *apart = &run->tables.joined[run->sum->parts];

    *apart = run_residual(run, run_wide(part->element));
    apart->first = (uint32_t)run->sum->joined;
    run_velocity(run, apart, part->momentum);
    run->sum->joined += chunk_count(run->order->numel);
    run->sum->parts++;
}

static void run_fill_in_leave(const struct run *run, struct entries_order *entries)
{
    const struct engine_leave *leave = &run->order->leave;
    struct entries_rank *rank = &run->tables.rank[run->order->first];

    entries->view = leave->view;
    entries->list = run_list(run, &leave->sent);
    entries->chosen = run_at(run, leave->accepted);
    entries->kept = run_at(run, leave->before);
    entries->ranks = run->order->parts;
    entries->rank = run_table(run, rank);
    for (unsigned p = 0; p < run->order->parts; p++) {
        const struct engine_part *part = &run->part[p];
        const bool masks = leave->masks && engine_is_there(part->momentum);

        rank[p] = (struct entries_rank){.entry = run_entries(run, run_wide(part->element)),
            .velocity = masks ? run_entries(run, run_wide(part->momentum)) : NULL,
            .list = run_list(run, &part->list)};
        if (run_is_apart(run, part)) {
            run_apart(run, part);
        }
    }
}

static void run_fill_in_return(const struct run *run, struct entries_order *entries)
{
    const struct engine_return *back = &run->order->back;

    entries->view = back->view;
    entries->list = run_list(run, &back->list);
    entries->chosen = run_at(run, back->taken);
    entries->kept = run_at(run, back->before);
    entries->sent = run_list(run, &back->sent);
    entries->own = run_list(run, &back->own);
    entries->accepted = run_at(run, back->accepted);
}

static void run_fill_in_entries(const struct run *run)
{
    struct entries_order *entries = &run->tables.entries[run->sum->lists++];
    struct add_tensor *tensor = &run->tables.tensor[run->sum->orders];
    const struct engine_gather *gather = &run->order->gather;

    *tensor = run_residual(run, run_own(run));
    tensor->first = (uint32_t)run->sum->chunks;
    run_velocity(run, tensor, run->order->residual.momentum);
    entries->first = run->sum->entries;
    entries->entry = tensor->entry;
    entries->rounded = run->order->residual.rounded;
    entries->velocity = tensor->velocity;
    switch (run->order->kind) {
    case ENGINE_LEAVE: run_fill_in_leave(run, entries); break;
    case ENGINE_RETURN: run_fill_in_return(run, entries); break;
    default:
        entries->view = gather->view;
        entries->list = run_list(run, &gather->list);
        entries->found = run_at(run, gather->list.value);
        break;
    }
    run->sum->entries += entries->list.count;
}

/* All of these are in one pool. */
static bool run_begin_apart(const struct run *run)
{
    const struct engine_part *part = run->part;

    while (run->sum->parts > 0 && !run_is_apart(run, part)) {
        part++;
    }
    return run->sum->parts == 0 || run_begin(run, run_wide(part->element), run->tables.joined,
                                       run->sum->parts, run->sum->joined);
}

static bool run_lists(const struct run *run, enum worker_kernel kernel)
{
    return run_begin_own(run) && run_begin_apart(run) && run_entries_kernel(run, kernel);
}

/* ------------------------------------------------------------------ whole residuals */

static struct run_held run_converted(const struct run *run)
{
    return (struct run_held){
        .place = run->order->convert.element, .rounded = run->order->convert.rounded};
}

/* A residual or velocity that an order fills. Returns its entries. */
static uint64_t *run_filled(const struct run *run, struct run_held to)
{
    struct add_tensor *filled = &run->tables.filled[run->sum->orders];

    *filled = run_residual(run, to);
    filled->first = (uint32_t)run->sum->chunks;
    return filled->entry;
}

/* CONVERT: the other residual becomes the sum of this one alone. */
static void run_fill_in_convert(const struct run *run, struct whole_order *whole)
{
    const struct run_held to = run_converted(run);
    const void **from = &run->tables.from[run->sum->orders];

    whole->rounded = to.rounded;
    whole->carry = run_carries(run, to);
    whole->from_rounded = run->order->residual.rounded;
    whole->from_carry = run_carries(run, run_own(run));
    whole->rounding = rounded_pass(0, run->order->residual.salt);
    *from = whole->entry;
    whole->part = run_table(run, from);
    whole->parts = 1;
    whole->entry = run_filled(run, to);
}

/* CARRY: a velocity becomes the sum of others, or zeros. */
static void run_fill_in_carry(const struct run *run, struct whole_order *whole)
{
    for (unsigned p = 0; p < run->order->parts; p++) {
        (void)run_join_part(run, p, run->part[p].momentum);
    }
    whole->rounded = false;
    whole->part = run_table(run, &run->tables.address[run->order->first]);
    whole->parts = run->order->parts;
    whole->entry = run_filled(run, run_wide(run->order->carry.momentum));
}

/* READ: all places get the same elements. */
static void run_fill_in_read(const struct run *run, struct whole_order *whole)
{
    const struct engine_gather *read = &run->order->gather;
    const void **place = &run->tables.address[run->order->first];

    whole->begin = read->first / CHUNK;
    whole->count = read->list.count;
    whole->read = run_at(run, read->list.value);
    whole->factor = read->factor;
    for (unsigned p = 0; p < run->order->parts; p++) {
        place[p] = run_mapped(run, run->part[p].element);
    }
    whole->place = run_table(run, place);
    whole->places = run->order->parts;
}

static void run_fill_in_whole(const struct run *run)
{
    const struct engine_order *order = run->order;
    struct add_tensor *tensor = &run->tables.tensor[run->sum->orders];
    struct whole_order *whole = &run->tables.whole[run->sum->orders];

    *tensor = run_residual(run, run_own(run));
    tensor->first = (uint32_t)run->sum->chunks;
    whole->first = run->sum->wholes;
    whole->entry = tensor->entry;
    whole->rounded = order->residual.rounded;
    whole->carry = run_carries(run, run_own(run));
    whole->count = order->numel;
    switch (order->kind) {
    case ENGINE_READ: run_fill_in_read(run, whole); break;
    case ENGINE_SAVE:
    case ENGINE_LOAD:
        whole->begin = order->image.first / CHUNK;
        whole->count = order->image.count;
        whole->image = run_at(run, order->image.element);
        whole->image_carry = run_at(run, order->image.carry);
        whole->image_progress = run_at(run, order->image.progress);
        whole->record = run_slots(run, run_own(run), 0, run->at.spare).record;
        whole->before = run_mapped(run, order->residual.progress);
        break;
    case ENGINE_SUMS:
        whole->chunk = run_scratch(run, run->own.kernels);
        whole->sums = run_pointer(worker_on_device(run->state, &run->page->result.whole));
        break;
    case ENGINE_CARRY: run_fill_in_carry(run, whole); break;
    default: run_fill_in_convert(run, whole); break;
    }
    run->sum->wholes += chunk_count(whole->count);
}

static bool run_whole_kernel(const struct run *run, enum worker_kernel kernel)
{
    const struct whole_batch batch = {.order = run_table(run, run->tables.whole),
        .orders = run->sum->orders,
        .chunks = run->sum->wholes,
        .element = run_slots_element(run),
        .half = run_slots_half(run)};

    return run_begin_own(run) && run_kernel(run, kernel, run_blocks(run, batch.chunks), &batch) &&
           (kernel != KERNEL_whole_sums ||
               run_kernel(run, KERNEL_whole_total, run_blocks(run, batch.orders), &batch));
}

static bool run_convert(const struct run *run)
{
    return run_begin(
               run, run_converted(run), run->tables.filled, run->sum->orders, run->sum->chunks) &&
           run_whole_kernel(run, KERNEL_whole_fill);
}

static bool run_carry(const struct run *run)
{
    return (run->sum->parts == 0 || run_begin(run, run_wide(run->part[0].momentum),
                                        run->tables.joined, run->sum->parts, run->sum->joined)) &&
           run_begin(run, run_wide(run->order->carry.momentum), run->tables.filled,
               run->sum->orders, run->sum->chunks) &&
           run_whole_kernel(run, KERNEL_whole_fill);
}

/* ------------------------------------------------------------------ an order */

static bool run_unknown(const struct run *run)
{
    (void)error_set(&run->state->error, ADTOPK_ERR_PROTOCOL,
        "there are no kernels for an order of the kind '%s'", order_kinds[run->order->kind].name);
    return false;
}

/* ADDs, some of them with the questions of rules; or one later question, which is a run alone. */
static bool run_asked(const struct run *run)
{
    switch ((enum page_question)run->page->ask.question) {
    case PAGE_REACH: return run_survey(run);
    case PAGE_RANKED: return run_ranked(run);
    case PAGE_NO_QUESTION:
    case PAGE_BESIDE:
    case PAGE_TOP: break;
    }
    return run_pass(run) && run_survey(run);
}

static bool run_kernels_of(const struct run *run)
{
    switch (run->order->kind) {
    case ENGINE_ADD: return run_asked(run);
    case ENGINE_WITHDRAW:
    case ENGINE_TAKE: return run_pass(run);
    case ENGINE_JOIN: return run_join(run);
    case ENGINE_LEAVE: return run_lists(run, KERNEL_entries_leave);
    case ENGINE_RETURN: return run_lists(run, KERNEL_entries_return);
    case ENGINE_GATHER: return run_lists(run, KERNEL_entries_gather);
    case ENGINE_SHOW: return run_show(run);
    case ENGINE_SUMMED: return run_summed(run);
    case ENGINE_READ: return run_whole_kernel(run, KERNEL_whole_read);
    case ENGINE_SAVE: return run_whole_kernel(run, KERNEL_whole_save);
    case ENGINE_LOAD: return run_whole_kernel(run, KERNEL_whole_load);
    case ENGINE_SUMS: return run_whole_kernel(run, KERNEL_whole_sums);
    case ENGINE_CONVERT: return run_convert(run);
    case ENGINE_CARRY: return run_carry(run);
    default: return run_unknown(run);
    }
}

/* The order joins those whose tables are made. */
static void run_count(const struct run *run, const struct add_tensor *tensor)
{
    struct run_sum *sum = run->sum;

    sum->orders++;
    sum->chunks += chunk_count(run->order->numel);
    sum->top |= tensor->mode == ADD_TOP;
    sum->fibres |= tensor->mode == ADD_FIBRES;
    sum->plain |= tensor->plain != 0;
    sum->others |= tensor->plain == 0;
}

static void run_make_tables(const struct run *run)
{
    struct add_tensor *tensor = &run->tables.tensor[run->sum->orders];

    switch (run->order->kind) {
    case ENGINE_LEAVE:
    case ENGINE_RETURN:
    case ENGINE_GATHER: run_fill_in_entries(run); break;
    case ENGINE_SHOW: run_fill_in_show(run); break;
    case ENGINE_SUMMED: run_fill_in_summed(run); break;
    case ENGINE_READ:
    case ENGINE_SAVE:
    case ENGINE_LOAD:
    case ENGINE_SUMS:
    case ENGINE_CONVERT:
    case ENGINE_CARRY: run_fill_in_whole(run); break;
    default: run_fill_in(run, tensor); break;
    }
    if (run->page->ask.question != PAGE_NO_QUESTION) {
        run_fill_in_survey(run, tensor);
    }
    run_count(run, tensor);
}

/* Makes the tables of all orders. Then *run is the first one. */
static void run_make_all(struct run *run, struct page_run *page)
{
    struct run first = *run;

    for (uint32_t i = 0; i < page->orders; i++) {
        run->page = &page->order[i];
        run->order = &run->page->order;
        run->part = page_parts(page) + run->order->first;
        run->own = tables_own(&run->at, run->order, &run->page->ask);
        first.own = i == 0 ? run->own : first.own;
        run_make_tables(run);
    }
    *run = first;
}

bool worker_launch(struct worker_state *state, struct page_run *page)
{
    struct run_sum sum = {.orders = 0};
    struct run run = {.state = state,
        .page = page->order,
        .order = &page->order[0].order,
        .part = page_parts(page),
        .sum = &sum,
        .tables = tables_in(
            (uint8_t *)page + page_run_size(page->orders, page->parts), page->orders, page->parts),
        .at = tables_scratch(page->copies, page->orders, page->parts, run_most_blocks(state))};
    bool launched;

    if (state->left_out != ADTOPK_OK) {
        page->status = state->left_out;
        return true;
    }
    run_make_all(&run, page);
    launched = WORKER_TRY(state, cuMemcpyHtoDAsync_v2, state->scratch + run.at.tables,
                   run.tables.tensor, run.tables.size, state->stream) &&
               run_kernels_of(&run);
    page->launches = sum.launches;
    return launched;
}
