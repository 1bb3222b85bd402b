/*
 * The kernels of one order (kernels/cuda/kernels.h), and the tables that they read.
 *
 * Happy path: the places of the order become addresses. The tables are made in the page and copied
 * to scratch memory. Chunks that were never written get their homes. Then the kernels of the
 * order's kind follow. All of it goes into one stream, so nothing is waited for.
 */
#include <assert.h>
#include <float.h>
#include <math.h>

#include "daemon/device/order.h"
#include "daemon/device/tables.h"
#include "daemon/device/worker.h"

#define THREADS 256u /* of a block; all kernels want so many */

/* An order at hand. */
struct run {
    struct worker_state *state;
    struct page_order *page;
    const struct engine_order *order;
    const struct engine_part *part;
    struct tables tables; /* in the page */
    const uint8_t *tables_there;
    struct tables_scratch at; /* in scratch memory */
};

/* ------------------------------------------------------------------ addresses */

static void *run_pointer(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

/* The address of a place in scratch memory; NULL if it is nowhere. */
static void *run_at(const struct run *run, struct engine_place place)
{
    return engine_is_there(place) ? run_pointer(run->state->scratch + place.offset) : NULL;
}

static void *run_scratch(const struct run *run, uint64_t offset)
{
    return run_pointer(run->state->scratch + offset);
}

/* What of the tables the kernels see at this address of the page. */
static void *run_table(const struct run *run, const void *in_page)
{
    const uint64_t offset =
        (uint64_t)((const uint8_t *)in_page - (const uint8_t *)run->tables.tensor);

    return run_scratch(run, run->at.tables + offset);
}

static const struct worker_arena *run_arena(const struct run *run, struct engine_place place)
{
    return &run->state->arena[(place.arena - PAGE_ARENA) % PAGE_ARENAS];
}

static void *run_mapped(const struct run *run, struct engine_place place)
{
    return run_pointer(run_arena(run, place)->address + place.offset);
}

/* The entries of a residual. */
static uint64_t *run_entries(const struct run *run, struct engine_place residual)
{
    const struct worker_arena *arena = run_arena(run, residual);

    assert(residual.offset % POOL_SLOT == 0);
    return run_pointer(arena->address + pool_entries(&arena->pool) +
                       residual.offset / POOL_SLOT * sizeof(uint64_t));
}

static uint32_t run_first_slot(const struct run *run, const struct worker_arena *arena)
{
    return (uint32_t)((arena->address - run->state->window) / POOL_SLOT);
}

static float *run_slots_element(const struct run *run)
{
    return run_pointer(run->state->window);
}

/* The pool of a residual or velocity, for launches of `blocks` blocks whose spare slots are listed
 * at `spare` in scratch memory. */
static struct slots run_slots(
    const struct run *run, struct engine_place place, unsigned blocks, uint64_t spare)
{
    const struct worker_arena *arena = run_arena(run, place);
    const uint32_t first = run_first_slot(run, arena);

    return (struct slots){.element = run_slots_element(run),
        .record = run_pointer(
            arena->address + pool_records(&arena->pool) - first * sizeof(struct slot_record)),
        .owner = run_pointer(arena->address + pool_owners(&arena->pool) - first * sizeof(uint64_t)),
        .entries = run_pointer(arena->address + pool_entries(&arena->pool)),
        .first = first,
        .homes = first + arena->pool.homes,
        .count = first + arena->pool.slots,
        .spares = blocks,
        .found = run_scratch(run, spare),
        .spare = run_scratch(run, spare + sizeof(uint32_t))};
}

static struct entries run_list(const struct run *run, const struct engine_list *list)
{
    return (struct entries){.position = run_at(run, list->position),
        .value = run_at(run, list->value),
        .count = list->count};
}

/* ------------------------------------------------------------------ launches */

static unsigned run_most_blocks(const struct worker_state *state)
{
    return PAGE_BLOCKS * state->device.multiprocessors;
}

/* One block per unit of work, as far as there are so many. */
static unsigned run_blocks(const struct run *run, uint64_t units)
{
    const unsigned most = run_most_blocks(run->state);

    return units < most ? (unsigned)units : most;
}

/* parameter: the kernel's structure. No blocks: there is nothing to do. */
static bool run_kernel(
    const struct run *run, enum worker_kernel kernel, unsigned blocks, const void *parameter)
{
    void *list[] = {(void *)(uintptr_t)parameter};

    return blocks == 0 || WORKER_TRY(run->state, cuLaunchKernel, run->state->kernel[kernel], blocks,
                              1, 1, THREADS, 1, 1, 0, run->state->stream, list, NULL);
}

/* The kernels of a list, with the same parameter. */
static bool run_kernels(const struct run *run, const enum worker_kernel *kernel, unsigned kernels,
    unsigned blocks, const void *parameter)
{
    bool done = true;

    for (unsigned k = 0; done && k < kernels; k++) {
        done = run_kernel(run, kernel[k], blocks, parameter);
    }
    return done;
}

#define RUN_KERNELS(run, list, blocks, parameter)                                                  \
    run_kernels(run, list, sizeof(list) / sizeof((list)[0]), blocks, parameter)

/* ------------------------------------------------------------------ residuals */

static uint32_t run_home(const struct run *run, struct engine_place residual)
{
    return run_first_slot(run, run_arena(run, residual)) + (uint32_t)(residual.offset / POOL_SLOT);
}

/* A residual of the order. */
static struct add_tensor run_residual(const struct run *run, struct engine_place residual)
{
    return (struct add_tensor){.entry = run_entries(run, residual),
        .numel = run->order->numel,
        .stamp = (uint32_t)run->order->stamp,
        .home = run_home(run, residual),
        .mode = ADD_NOTHING};
}

/* Whether the order changes the residual's velocity. */
static bool run_moves(const struct run *run)
{
    const bool masks = run->order->kind == ENGINE_LEAVE && run->order->leave.masks;
    const bool adds = run->order->kind == ENGINE_ADD || run->order->kind == ENGINE_WITHDRAW;

    return (adds || masks) && engine_is_there(run->order->residual.momentum);
}

/* The pool of its velocity, for launches of `blocks` blocks. */
static struct slots run_velocities(const struct run *run, unsigned blocks)
{
    return run_moves(run)
               ? run_slots(run, run->order->residual.momentum, blocks, run->at.velocity_spare)
               : (struct slots){.found = NULL};
}

/* The velocity that belongs to the residual. */
static void run_velocity(const struct run *run, struct add_tensor *tensor)
{
    const struct engine_place momentum = run->order->residual.momentum;

    if (run_moves(run)) {
        tensor->velocity = run_entries(run, momentum);
        tensor->velocity_home = run_home(run, momentum);
    }
}

/* So many residuals of one pool get homes for chunks that were never written, and so does the
 * order's velocity. */
static bool run_begin(const struct run *run, struct engine_place residual,
    const struct add_tensor *tensor, unsigned tensors)
{
    const uint64_t chunks = tensors * chunk_count(run->order->numel);
    const unsigned blocks = run_blocks(run, (chunks + THREADS - 1) / THREADS);
    const struct add_batch batch = {.tensor = run_table(run, tensor),
        .tensors = tensors,
        .chunks = (uint32_t)chunks,
        .slots = run_slots(run, residual, 0, run->at.spare),
        .velocities = run_velocities(run, 0)};

    return run_kernel(run, KERNEL_slots_begin, blocks, &batch);
}

/* ------------------------------------------------------------------ passes */

static void run_select_known(const struct run *run, const struct add_tensor *tensor)
{
    const struct engine_add *add = &run->order->add;
    const struct sparsifier_choice choice = order_choice(run->order);

    if (choice.mode == SPARSIFIER_KNOWN) {
        *run->tables.entries = (struct entries_order){.entry = tensor->entry,
            .view = choice.view,
            .list = {.position = run_at(run, add->list.position), .count = choice.count},
            .found = run_at(run, add->list.value)};
    }
}

static void run_select(const struct run *run, struct add_tensor *tensor)
{
    const struct engine_add *add = &run->order->add;

    tables_select(tensor, run->order);
    if (tensor->mode == ADD_NOTHING) {
        run_select_known(run, tensor);
        return;
    }
    tensor->position = run_at(run, add->list.position);
    tensor->value = run_at(run, add->list.value);
    if (tensor->mode == ADD_TOP) {
        tensor->hints = run_at(run, add->hints);
    } else {
        tensor->hints = run->at.hints_size > 0 ? run_scratch(run, run->at.hints)
                                               : (float *)run_at(run, add->hints) + 1;
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
        *run->tables.clip = (struct add_clip){.limit = add->clip,
            .chunk = run_scratch(run, run->at.squares),
            .after = scales ? gamma : 1};
        tensor->clip = run_table(run, run->tables.clip);
    } else if (scales) {
        tensor->scale = fmaxf(gamma * add->unscale, FLT_MIN);
    }
}

static void run_gradients(const struct run *run, struct add_tensor *tensor)
{
    for (unsigned p = 0; p < run->order->parts; p++) {
        run->tables.address[p] = run_at(run, run->part[p].element);
    }
    tensor->gradient = run_table(run, run->tables.address);
    tensor->gradients = run->order->parts;
    run_scale(run, tensor);
    run_velocity(run, tensor);
    tensor->mu = (float)run->order->add.params.momentum;
    tensor->nesterov = run->order->add.params.nesterov;
    tensor->withdraw = run->order->kind == ENGINE_WITHDRAW;
    tensor->ledger.input = run_at(run, run->order->ledger);
    tensor->ledger.lost = run_at(run, run->order->lost);
    tensor->decay = tensor->ledger.lost != NULL ? (float)(1 - run->order->add.params.beta) : 0;
    run_select(run, tensor);
}

static void run_joined(const struct run *run, struct add_tensor *tensor)
{
    const uint64_t chunks = chunk_count(run->order->numel);

    for (unsigned p = 0; p < run->order->parts; p++) {
        struct add_tensor *joined = &run->tables.joined[p];

        *joined = run_residual(run, run->part[p].element);
        joined->first = (uint32_t)(p * chunks);
        run->tables.address[p] = joined->entry;
        run->tables.cleared[p] = (struct whole_order){
            .first = p * chunks, .count = run->order->numel, .entry = joined->entry};
    }
    tensor->joined = run_table(run, run->tables.address);
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

    *run->tables.take = (struct add_take){.values = (uint32_t)take->values,
        .nothing = take->nothing,
        .rest = {run_add_rest(run, &take->sums), run_add_rest(run, &take->update)}};
    tensor->take = run_table(run, run->tables.take);
}

static void run_fill_in(const struct run *run, struct add_tensor *tensor)
{
    *tensor = run_residual(run, run->order->residual.element);
    tensor->dtype = (uint32_t)run->order->dtype;
    tensor->scratch = run_scratch(run, run->at.kernels);
    tensor->ledger.input = run_table(run, run->tables.nothing);
    tensor->before = run_mapped(run, run->order->residual.progress);
    tensor->result = run_pointer(worker_on_device(run->state, &run->page->result.add));
    switch (run->order->kind) {
    case ENGINE_JOIN: run_joined(run, tensor); break;
    case ENGINE_TAKE: run_taken(run, tensor); break;
    default: run_gradients(run, tensor); break;
    }
}

/* The selection of the k largest, of the tensor or of every fibre. */
static bool run_selection(
    const struct run *run, uint32_t mode, unsigned blocks, const struct add_batch *batch)
{
    static const enum worker_kernel top[] = {KERNEL_top_histogram, KERNEL_top_collect,
        KERNEL_top_border, KERNEL_top_count, KERNEL_top_emit};
    static const enum worker_kernel fibres[] = {KERNEL_fibres_pick, KERNEL_fibres_search};

    switch (mode) {
    case ADD_TOP: return RUN_KERNELS(run, top, blocks, batch);
    case ADD_FIBRES: return RUN_KERNELS(run, fibres, blocks, batch);
    default: return true;
    }
}

static bool run_clip(const struct run *run, unsigned blocks, const struct add_batch *batch)
{
    return !tables_clips(run->order) || (run_kernel(run, KERNEL_clip_squares, blocks, batch) &&
                                            run_kernel(run, KERNEL_clip_factor, 1, batch));
}

/* Positions that all nodes know: the elements there are read behind the pass. */
static bool run_known(const struct run *run)
{
    const struct sparsifier_choice choice = order_choice(run->order);
    const struct entries_batch batch = {.order = run_table(run, run->tables.entries),
        .orders = 1,
        .entries = choice.count,
        .element = run_slots_element(run)};

    return choice.mode != SPARSIFIER_KNOWN ||
           run_kernel(run, KERNEL_entries_gather,
               run_blocks(run, (choice.count + THREADS - 1) / THREADS), &batch);
}

/* The spare slots of a residual's pool, or a velocity's. */
static bool run_spares(
    const struct run *run, struct engine_place place, const struct add_batch *batch)
{
    const unsigned slots = run_arena(run, place)->pool.slots;

    return run_kernel(run, KERNEL_slots_spare, run_blocks(run, slots / THREADS + 1), batch);
}

static bool run_velocity_spares(const struct run *run, const struct add_batch *batch)
{
    struct add_batch velocities = *batch;

    velocities.slots = batch->velocities;
    return !run_moves(run) || run_spares(run, run->order->residual.momentum, &velocities);
}

/* From the first kernel of a pass to the last one. */
static bool run_stream(const struct run *run)
{
    static const enum worker_kernel end[] = {KERNEL_add_ledger, KERNEL_add_faults};
    const struct add_tensor *tensor = run->tables.tensor;
    const uint64_t chunks = chunk_count(run->order->numel);
    const struct engine_place residual = run->order->residual.element;
    const unsigned blocks = run_blocks(run, chunks);
    const struct add_batch batch = {.tensor = run_table(run, tensor),
        .tensors = 1,
        .chunks = (uint32_t)chunks,
        .slots = run_slots(run, residual, blocks, run->at.spare),
        .velocities = run_velocities(run, blocks)};
    const bool takes = run->order->kind == ENGINE_TAKE;

    return run_clip(run, blocks, &batch) && run_spares(run, residual, &batch) &&
           run_velocity_spares(run, &batch) && run_kernel(run, KERNEL_add_begin, blocks, &batch) &&
           run_kernel(run, takes ? KERNEL_take_stream : KERNEL_add_stream, blocks, &batch) &&
           run_selection(run, tensor->mode, blocks, &batch) && run_known(run) &&
           RUN_KERNELS(run, end, 1, &batch);
}

/* The residuals that were joined become zeros. */
static bool run_clear(const struct run *run)
{
    const uint64_t chunks = run->order->parts * chunk_count(run->order->numel);
    const struct whole_batch batch = {.order = run_table(run, run->tables.cleared),
        .orders = run->order->parts,
        .chunks = chunks,
        .element = run_slots_element(run)};

    return run_kernel(run, KERNEL_whole_fill, run_blocks(run, chunks), &batch);
}

static bool run_hints(const struct run *run)
{
    return run->at.hints_size == 0 ||
           WORKER_TRY(run->state, cuMemsetD8Async, run->state->scratch + run->at.hints, 1,
               run->at.hints_size, run->state->stream);
}

static bool run_pass(const struct run *run)
{
    return run_begin(run, run->order->residual.element, run->tables.tensor, 1) && run_hints(run) &&
           run_stream(run);
}

static bool run_join(const struct run *run)
{
    return run_begin(run, run->part[0].element, run->tables.joined, run->order->parts) &&
           run_pass(run) && run_clear(run);
}

/* ------------------------------------------------------------------ entries */

static void run_fill_in_leave(const struct run *run, struct entries_order *entries)
{
    const struct engine_leave *leave = &run->order->leave;

    entries->view = leave->view;
    entries->list = run_list(run, &leave->sent);
    entries->chosen = run_at(run, leave->accepted);
    entries->kept = run_at(run, leave->before);
    entries->ranks = run->order->parts;
    entries->rank = run_table(run, run->tables.rank);
    for (unsigned p = 0; p < run->order->parts; p++) {
        const struct engine_part *part = &run->part[p];
        const bool masks = leave->masks && engine_is_there(part->momentum);

        run->tables.rank[p] = (struct entries_rank){.entry = run_entries(run, part->element),
            .velocity = masks ? run_entries(run, part->momentum) : NULL,
            .list = run_list(run, &part->list)};
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
    struct entries_order *entries = run->tables.entries;
    const struct engine_gather *gather = &run->order->gather;

    *run->tables.tensor = run_residual(run, run->order->residual.element);
    run_velocity(run, run->tables.tensor);
    entries->entry = run->tables.tensor->entry;
    entries->velocity = run->tables.tensor->velocity;
    switch (run->order->kind) {
    case ENGINE_LEAVE: run_fill_in_leave(run, entries); break;
    case ENGINE_RETURN: run_fill_in_return(run, entries); break;
    default:
        entries->view = gather->view;
        entries->list = run_list(run, &gather->list);
        entries->found = run_at(run, gather->list.value);
        break;
    }
}

static bool run_entries_kernel(const struct run *run, enum worker_kernel kernel)
{
    const uint64_t entries = run->tables.entries->list.count;
    const struct entries_batch batch = {.order = run_table(run, run->tables.entries),
        .orders = 1,
        .entries = entries,
        .element = run_slots_element(run)};

    return run_begin(run, run->order->residual.element, run->tables.tensor, 1) &&
           run_kernel(run, kernel, run_blocks(run, (entries + THREADS - 1) / THREADS), &batch);
}

/* ------------------------------------------------------------------ whole residuals */

/* CONVERT: the other residual becomes the sum of this one alone. */
static void run_fill_in_convert(const struct run *run, struct whole_order *whole)
{
    *run->tables.filled = run_residual(run, run->order->convert.element);
    *(const void **)run->tables.nothing = whole->entry;
    whole->part = run_table(run, run->tables.nothing);
    whole->parts = 1;
    whole->entry = run->tables.filled->entry;
}

/* CARRY: a velocity becomes the sum of others, or zeros. */
static void run_fill_in_carry(const struct run *run, struct whole_order *whole)
{
    const uint64_t chunks = chunk_count(run->order->numel);

    *run->tables.filled = run_residual(run, run->order->carry.momentum);
    for (unsigned p = 0; p < run->order->parts; p++) {
        run->tables.joined[p] = run_residual(run, run->part[p].momentum);
        run->tables.joined[p].first = (uint32_t)(p * chunks);
        run->tables.address[p] = run->tables.joined[p].entry;
    }
    whole->part = run_table(run, run->tables.address);
    whole->parts = run->order->parts;
    whole->entry = run->tables.filled->entry;
}

static void run_fill_in_whole(const struct run *run)
{
    const struct engine_order *order = run->order;
    struct whole_order *whole = run->tables.whole;

    *run->tables.tensor = run_residual(run, order->residual.element);
    whole->entry = run->tables.tensor->entry;
    whole->count = order->numel;
    switch (order->kind) {
    case ENGINE_READ:
        whole->begin = order->gather.first / CHUNK;
        whole->count = order->gather.list.count;
        whole->read = run_at(run, order->gather.list.value);
        break;
    case ENGINE_SUMS:
        whole->chunk = run_scratch(run, run->at.kernels);
        whole->sums = run_pointer(worker_on_device(run->state, &run->page->result.whole));
        break;
    case ENGINE_CARRY: run_fill_in_carry(run, whole); break;
    default: run_fill_in_convert(run, whole); break;
    }
}

static bool run_whole_kernel(const struct run *run, enum worker_kernel kernel)
{
    const struct whole_batch batch = {.order = run_table(run, run->tables.whole),
        .orders = 1,
        .chunks = chunk_count(run->tables.whole->count),
        .element = run_slots_element(run)};

    return run_begin(run, run->order->residual.element, run->tables.tensor, 1) &&
           run_kernel(run, kernel, run_blocks(run, batch.chunks), &batch) &&
           (kernel != KERNEL_whole_sums || run_kernel(run, KERNEL_whole_total, 1, &batch));
}

static bool run_convert(const struct run *run)
{
    return run_begin(run, run->order->convert.element, run->tables.filled, 1) &&
           run_whole_kernel(run, KERNEL_whole_fill);
}

static bool run_carry(const struct run *run)
{
    const unsigned parts = run->order->parts;

    return (parts == 0 || run_begin(run, run->part[0].momentum, run->tables.joined, parts)) &&
           run_begin(run, run->order->carry.momentum, run->tables.filled, 1) &&
           run_whole_kernel(run, KERNEL_whole_fill);
}

/* ------------------------------------------------------------------ an order */

static bool run_unknown(const struct run *run)
{
    (void)error_set(&run->state->error, ADTOPK_ERR_PROTOCOL,
        "there are no kernels for an order of the kind '%s'", order_kinds[run->order->kind].name);
    return false;
}

static bool run_kernels_of(const struct run *run)
{
    switch (run->order->kind) {
    case ENGINE_ADD:
    case ENGINE_WITHDRAW:
    case ENGINE_TAKE: return run_pass(run);
    case ENGINE_JOIN: return run_join(run);
    case ENGINE_LEAVE: return run_entries_kernel(run, KERNEL_entries_leave);
    case ENGINE_RETURN: return run_entries_kernel(run, KERNEL_entries_return);
    case ENGINE_GATHER: return run_entries_kernel(run, KERNEL_entries_gather);
    case ENGINE_READ: return run_whole_kernel(run, KERNEL_whole_read);
    case ENGINE_SUMS: return run_whole_kernel(run, KERNEL_whole_sums);
    case ENGINE_CONVERT: return run_convert(run);
    case ENGINE_CARRY: return run_carry(run);
    default: return run_unknown(run);
    }
}

static void run_make_tables(const struct run *run)
{
    switch (run->order->kind) {
    case ENGINE_LEAVE:
    case ENGINE_RETURN:
    case ENGINE_GATHER: run_fill_in_entries(run); break;
    case ENGINE_READ:
    case ENGINE_SUMS:
    case ENGINE_CONVERT:
    case ENGINE_CARRY: run_fill_in_whole(run); break;
    default: run_fill_in(run, run->tables.tensor); break;
    }
}

bool worker_launch(struct worker_state *state, struct page_order *order)
{
    const struct run run = {.state = state,
        .page = order,
        .order = &order->order,
        .part = order->part,
        .tables =
            tables_in((uint8_t *)order + page_order_size(order->order.parts), order->order.parts),
        .at = tables_scratch(&order->order, order->copies, run_most_blocks(state))};

    if (state->no_room) {
        order->status = ADTOPK_ERR_MEMORY;
        return true;
    }
    run_make_tables(&run);
    return WORKER_TRY(state, cuMemcpyHtoDAsync_v2, state->scratch + run.at.tables,
               run.tables.tensor, run.tables.size, state->stream) &&
           run_kernels_of(&run);
}
