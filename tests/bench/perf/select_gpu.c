#include "tests/bench/perf/select_gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device/order.h"
#include "daemon/device/page.h"
#include "daemon/device/tables.h"
#include "kernels/cuda/scratch.h"
#include "tests/bench/perf/stop.h"

#define FLOOR_BLOCKS 8u /* per multiprocessor: as many as it holds */

enum { COPY, FLOOR, PASS, SETTLE, TIMES };

/* The device's side of a tensor. */
struct there {
    uint64_t first;  /* its place among the elements of all */
    uint64_t hinted; /* fibres that have hints */
    float *hints;    /* one for the tensor, then those of fibres */
    const void **gradient;
    struct add_tensor made; /* what does not change from turn to turn */
};

struct select_gpu {
    struct gpu *gpu;
    struct group *group;
    struct there there[GROUP_MAX];
    struct add_tensor table[GROUP_MAX]; /* copied to batch.tensor each turn */
    struct entries_order leave[GROUP_MAX];
    struct add_result result[GROUP_MAX]; /* copied from `results` */
    struct add_result *results;
    struct add_batch batch;
    struct entries_batch settle;
    unsigned blocks, homes;
    uint64_t elements; /* of all, each padded to whole chunks */
    size_t element;    /* bytes of a gradient's */
    float *floor;      /* r of the floor, and the gradients behind it */
    uint8_t *copied;
    struct series time[TIMES];
};

enum adtopk_status select_gpu_check(const struct options *options, struct error *err)
{
    const bool ranks = options->ranks.count != 1 || options->ranks.value[0] > 1;
    const bool threads = options->threads.count != 1 || options->threads.value[0] > 1;

    if (options->peers != 0 || options->layers || ranks || threads || options->residuals != 1) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "--device measures residuals in f32 of one rank: --peers, --layers, --ranks, --threads "
            "and --residual bf16 do not go with it");
    }
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ memory on the device */

static uint32_t sparsifier_number(const struct sparsifier_ops *ops)
{
    uint32_t number = 0;

    while (sparsifier_table[number] != ops) {
        number++;
    }
    return number;
}

/* The order that the daemon would give for this turn, as far as tables_select() looks at it. */
static struct engine_order turn_order(
    const struct tensor *tensor, const struct there *there, uint64_t turn)
{
    struct engine_order order = {.kind = ENGINE_ADD, .numel = tensor->n};

    order.add = (struct engine_add){.selects = !tensor->dense,
        .sparsifier = sparsifier_number(tensor->kind.sparsifier),
        .shape = tensor->shape,
        .params = tensor->kind.params,
        .agreed = tensor->agreed,
        .turn = turn,
        .seed = turn + 1,
        .fibres = there->hinted};
    return order;
}

/* The largest scratch memory of all turns. */
static uint64_t turn_scratch(const struct tensor *tensor, const struct there *there)
{
    uint64_t most = 0;

    for (uint64_t turn = 0; turn < sparsifier_period(&tensor->kind.params); turn++) {
        const struct engine_order order = turn_order(tensor, there, turn);
        struct add_tensor table = {.scratch = NULL};

        tables_select(&table, &order, &(struct page_ask){.question = PAGE_NO_QUESTION});
        most = scratch_size(&table) > most ? scratch_size(&table) : most;
    }
    return most;
}

static uint64_t hinted_fibres(const struct tensor *tensor)
{
    const struct there none = {.hinted = 0};
    uint64_t most = 0;

    for (uint64_t turn = 0; turn < sparsifier_period(&tensor->kind.params); turn++) {
        const struct engine_order order = turn_order(tensor, &none, turn);
        const struct sparsifier_choice choice = order_choice(&order);

        if (choice.mode == SPARSIFIER_FIBRES && choice.view.length >= ENGINE_HINTED &&
            choice.view.fibres > most) {
            most = choice.view.fibres;
        }
    }
    return most;
}

static uint8_t *gradients_at(const struct select_gpu *run)
{
    return (uint8_t *)(run->floor + run->elements);
}

/* Pointers, and the tensor's list, results and scratch memory. */
static bool there_make(struct select_gpu *run, unsigned t, uint64_t *entry, uint32_t home)
{
    const struct tensor *tensor = &run->group->tensor[t];
    struct there *there = &run->there[t];
    const void *gradient = gradients_at(run) + there->first * run->element;
    const uint64_t entries = tensor->out.capacity;
    double *nothing = gpu_memory(run->gpu, 2 * sizeof(double));

    there->hints = gpu_memory(run->gpu, (1 + there->hinted) * sizeof(float));
    there->gradient = gpu_memory(run->gpu, sizeof(*there->gradient));
    there->made = (struct add_tensor){.entry = entry,
        .gradient = there->gradient,
        .gradients = 1,
        .dtype = (uint32_t)tensor->kind.dtype,
        .home = home,
        .first = home - run->batch.slots.first,
        .scale = 1,
        .ledger = {.input = nothing},
        .scratch = gpu_memory(run->gpu, turn_scratch(tensor, there)),
        .before = gpu_memory(run->gpu, sizeof(struct add_before)),
        .position = gpu_memory(run->gpu, entries * sizeof(uint32_t)),
        .value = gpu_memory(run->gpu, entries * sizeof(float)),
        .result = run->results + t};
    return nothing != NULL && there->hints != NULL && there->gradient != NULL &&
           there->made.scratch != NULL && there->made.before != NULL &&
           there->made.position != NULL && there->made.value != NULL &&
           gpu_put(run->gpu, there->gradient, &gradient, sizeof(gradient));
}

/* One pool for all: slot 0 is nobody's, then come homes and spares. */
static bool pool_make(struct select_gpu *run)
{
    struct slots *slots = &run->batch.slots;
    const uint32_t count = 1 + run->homes + run->blocks;

    *slots = (struct slots){.element = gpu_memory(run->gpu, count * POOL_SLOT),
        .record = gpu_memory(run->gpu, count * sizeof(struct slot_record)),
        .spare = gpu_memory(run->gpu, run->blocks * sizeof(uint32_t)),
        .owner = gpu_memory(run->gpu, count * sizeof(uint64_t)),
        .entries = gpu_memory(run->gpu, run->homes * sizeof(uint64_t)),
        .first = 1,
        .homes = 1 + run->homes,
        .count = count,
        .spares = run->blocks,
        .found = gpu_memory(run->gpu, sizeof(uint32_t))};
    return slots->element != NULL && slots->record != NULL && slots->spare != NULL &&
           slots->owner != NULL && slots->entries != NULL && slots->found != NULL;
}

static bool floor_make(struct select_gpu *run)
{
    run->floor = gpu_memory(run->gpu, run->elements * (sizeof(float) + run->element));
    run->copied = gpu_memory(run->gpu, run->elements * (2 * sizeof(float) + run->element) / 2);
    return run->floor != NULL && run->copied != NULL;
}

static bool tensors_make(struct select_gpu *run)
{
    uint64_t *entry = (uint64_t *)(uintptr_t)run->batch.slots.entries;
    uint32_t home = run->batch.slots.first;
    bool ok = true;

    for (unsigned t = 0; t < run->group->count && ok; t++) {
        const struct tensor *tensor = &run->group->tensor[t];

        ok = there_make(run, t, entry, home) &&
             gpu_put(run->gpu, run->batch.slots.element + (uint64_t)home * CHUNK, tensor->start,
                 tensor->n * sizeof(float));
        entry += chunk_count(tensor->n);
        home += (uint32_t)chunk_count(tensor->n);
    }
    return ok;
}

static bool run_open(struct select_gpu *run)
{
    const unsigned most = PAGE_BLOCKS * run->gpu->device.multiprocessors;
    struct add_tensor *table;
    struct entries_order *leave;

    run->element = dtype_size(run->group->kind.dtype);
    for (unsigned t = 0; t < run->group->count; t++) {
        const uint64_t chunks = chunk_count(run->group->tensor[t].n);

        run->there[t].hinted = hinted_fibres(&run->group->tensor[t]);
        run->there[t].first = (uint64_t)run->homes * CHUNK;
        run->homes += (unsigned)chunks;
    }
    run->elements = (uint64_t)run->homes * CHUNK;
    run->blocks = run->homes < most ? run->homes : most;
    run->results = gpu_memory(run->gpu, sizeof(run->result));
    table = gpu_memory(run->gpu, sizeof(run->table));
    leave = gpu_memory(run->gpu, sizeof(run->leave));
    run->batch = (struct add_batch){.tensor = table,
        .tensors = run->group->count,
        .chunks = run->homes,
        .steps = gpu_memory(run->gpu, sizeof(struct add_steps))};
    run->settle = (struct entries_batch){.order = leave};
    if (run->results == NULL || table == NULL || leave == NULL || run->batch.steps == NULL ||
        !pool_make(run) || !floor_make(run) || !tensors_make(run)) {
        return false;
    }
    run->settle.element = run->batch.slots.element;
    return true;
}

/* ------------------------------------------------------------------ a turn */

static void turn_leaves(struct select_gpu *run, const struct add_tensor *table, uint64_t count)
{
    struct entries_order *next = &run->leave[run->settle.orders++];

    *next = (struct entries_order){.first = run->settle.entries,
        .entry = table->entry,
        .view = table->mode == ADD_TOP
                    ? (struct view){.fibres = 1, .length = table->numel, .stride = 1}
                    : table->view,
        .list = {table->position, table->value, count},
        .kept = table->value};
    run->settle.entries += count;
}

static void turn_table(struct select_gpu *run, unsigned t, uint64_t turn)
{
    struct there *there = &run->there[t];
    struct add_tensor *table = &run->table[t];
    const struct engine_order order = turn_order(&run->group->tensor[t], there, turn);

    *table = there->made;
    table->stamp = (uint32_t)turn + 2;
    tables_select(table, &order, &(struct page_ask){.question = PAGE_NO_QUESTION});
    table->plain = add_is_plain(table, gradients_at(run));
    if (table->mode == ADD_TOP) {
        table->hints = there->hints;
        run->batch.top = 1;
    } else if (table->mode == ADD_FIBRES) {
        table->hints = tables_hints(&order, &table->view) ? there->hints + 1 : NULL;
        run->batch.fibres = 1;
    }
}

/* New gradients, and the tables of the turn. */
static bool turn_begin(struct select_gpu *run, uint64_t turn)
{
    bool ok = true;

    run->batch.top = run->batch.fibres = 0;
    for (unsigned t = 0; t < run->group->count && ok; t++) {
        struct tensor *tensor = &run->group->tensor[t];

        tensor_turn(tensor, turn);
        ok = gpu_put(run->gpu, gradients_at(run) + run->there[t].first * run->element,
            tensor->gradient[0], tensor->n * run->element);
        turn_table(run, t, turn);
    }
    return ok && gpu_put(run->gpu, (void *)(uintptr_t)run->batch.tensor, run->table,
                     run->group->count * sizeof(*run->table));
}

/* What the pass has selected is what leaves. */
static bool turn_settles(struct select_gpu *run)
{
    if (!gpu_get(run->gpu, run->result, run->results, run->group->count * sizeof(*run->result))) {
        return false;
    }
    run->settle.orders = 0;
    run->settle.entries = 0;
    for (unsigned t = 0; t < run->group->count; t++) {
        if (run->table[t].mode != ADD_NOTHING) {
            turn_leaves(run, &run->table[t], run->result[t].count);
        }
    }
    return gpu_put(run->gpu, (void *)(uintptr_t)run->settle.order, run->leave,
        run->settle.orders * sizeof(*run->leave));
}

static bool queue_copy(struct select_gpu *run)
{
    return gpu_copy(
        run->gpu, run->copied, run->floor, run->elements * (2 * sizeof(float) + run->element) / 2);
}

static bool queue_floor(struct select_gpu *run)
{
    const struct bench_add add = {.r = run->floor,
        .g = gradients_at(run),
        .dtype = (uint32_t)run->group->kind.dtype,
        .n = run->elements};

    return gpu_run(run->gpu, GPU_bench_add, FLOOR_BLOCKS * run->gpu->device.multiprocessors, &add);
}

/* As worker_kernels.c launches an ADD. */
static bool queue_pass(struct select_gpu *run)
{
    static const enum gpu_kernel kernel[] = {
        GPU_slots_begin, GPU_slots_spare, GPU_add_begin, GPU_add_plain, GPU_add_finish};
    bool ok = true;

    for (unsigned k = 0; k < sizeof(kernel) / sizeof(*kernel) && ok; k++) {
        ok = gpu_run(run->gpu, kernel[k], run->blocks, &run->batch);
    }
    return ok;
}

static bool queue_settle(struct select_gpu *run)
{
    const uint64_t blocks = (run->settle.entries + GPU_THREADS - 1) / GPU_THREADS;
    const unsigned most = PAGE_BLOCKS * run->gpu->device.multiprocessors;

    return blocks == 0 || gpu_run(run->gpu, GPU_entries_leave,
                              blocks < most ? (unsigned)blocks : most, &run->settle);
}

static bool turn_sample(struct select_gpu *run, bool counts)
{
    static bool (*const queue[TIMES])(struct select_gpu *) = {
        queue_copy, queue_floor, queue_pass, queue_settle};
    double us = 0;
    bool ok = true;

    for (unsigned i = 0; i < TIMES && ok; i++) {
        ok = (i != SETTLE || turn_settles(run)) && gpu_start(run->gpu) && queue[i](run) &&
             gpu_stop(run->gpu, &us);
        if (ok && counts && !series_add(&run->time[i], us)) {
            (void)perf_no_memory(&run->gpu->err, sizeof(us));
            ok = false;
        }
    }
    return ok;
}

static bool run_measure(const struct perf *perf, struct select_gpu *run)
{
    const uint64_t warmup = perf->options.warmup;
    bool ok = true;

    for (uint64_t turn = 0; turn < warmup + perf->options.iterations && ok && !stop_requested();
         turn++) {
        perf_progress(perf, run->group->name, run->elements * run->element,
            turn < warmup ? 0 : turn - warmup);
        ok = turn_begin(run, turn) && turn_sample(run, turn >= warmup);
    }
    return ok;
}

/* ------------------------------------------------------------------ rows */

static struct row run_row(const struct perf *perf, const struct select_gpu *run, unsigned time)
{
    const struct tensor_kind *kind = &run->group->kind;
    const uint64_t count = group_elements(run->group);

    return (struct row){.benchmark = perf->benchmark,
        .variant = run->group->name,
        .input = data_names[kind->distribution],
        .type = data_dtype_names[kind->dtype],
        .residual = data_dtype_names[DTYPE_F32],
        .size = count * run->element,
        .count = count,
        .density = kind->params.density,
        .ranks = 1,
        .alg_bytes = (double)(count * run->element),
        .bus_bytes = (double)(count * (2 * sizeof(float) + run->element)),
        .wire_bytes = NAN,
        .nonzeros = NAN,
        .target_us = NAN,
        .time = &run->time[time],
        .floor = &run->time[time == PASS ? FLOOR : COPY],
        .floor_name = time == PASS ? "r+=g on the device" : "copy on the device",
        .paired = true};
}

static enum adtopk_status run_report(
    struct perf *perf, const struct select_gpu *run, struct error *err)
{
    struct row copy = run_row(perf, run, COPY), floor = run_row(perf, run, FLOOR);
    struct row pass = run_row(perf, run, PASS);

    copy.variant = "copy";
    floor.variant = "r+=g";
    copy.density = floor.density = NAN;
    pass.settle = &run->time[SETTLE];
    pass.nonzeros = (double)run->settle.entries;
    if (perf_row(perf, &copy, err) != ADTOPK_OK || perf_row(perf, &floor, err) != ADTOPK_OK) {
        return err->code;
    }
    return perf_row(perf, &pass, err);
}

enum adtopk_status select_gpu_group(
    struct perf *perf, struct group *group, struct gpu *gpu, struct error *err)
{
    struct select_gpu *run = calloc(1, sizeof(*run));
    enum adtopk_status status;

    if (run == NULL) {
        return perf_no_memory(err, sizeof(*run));
    }
    run->gpu = gpu;
    run->group = group;
    if (run_open(run) && run_measure(perf, run)) {
        status = run_report(perf, run, err);
    } else {
        *err = gpu->err;
        status = err->code;
    }
    for (unsigned i = 0; i < TIMES; i++) {
        series_free(&run->time[i]);
    }
    gpu_forget(gpu);
    free(run);
    return status;
}
