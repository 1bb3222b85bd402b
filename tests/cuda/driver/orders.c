/*
 * Kernels for whole orders: each carries one out with the engine of this processor, in device
 * memory, with the journal in memory that survives the worker.
 */
#include "daemon/device/worker.h"
#include "kernels/kernels.h"
#include "tests/cuda/driver/kernels.h"

_Static_assert(sizeof(struct journal) <= PAGE_SPARE, "a journal fits behind the first part");

static void *at(struct engine_place place)
{
    return place.arena == ENGINE_HERE ? (void *)(uintptr_t)place.offset : NULL;
}

/* A worker was killed inside a chunk of this residual: the chunk becomes what it was. */
static CUresult recover(const struct engine_order *order, struct journal *journal)
{
    const struct engine_residual *residual = &order->residual;
    struct rounded rounded;
    uint64_t number;
    bool good;

    if (!journal_pending(journal, &number) || number != residual->number) {
        return CUDA_SUCCESS;
    }
    if (residual->rounded) {
        rounded = rounded_at(at(residual->element), order->numel);
        good = rounded_recover(journal, &rounded, order->numel, at(residual->progress));
    } else {
        good = journal_recover(journal, at(residual->element), at(residual->momentum), order->numel,
            at(residual->progress));
    }
    return good ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}

static CUresult run_order(const struct standin_launch *launch)
{
    const struct worker_arguments *arguments = launch->arguments;
    const struct parallel alone = {.threads = 0};
    const struct engine_memory memory = {.journal = (struct journal *)(uintptr_t)arguments->spare};
    struct engine_order order = *(const struct engine_order *)(uintptr_t)arguments->order;
    struct engine_batch batch = {.memory = &memory,
        .order = &order,
        .result = (struct engine_result *)(uintptr_t)arguments->result,
        .count = 1,
        .part = (struct engine_part *)(uintptr_t)arguments->part};
    CUresult recovered = recover(&order, memory.journal);

    order.first = 0;
    if (recovered == CUDA_SUCCESS) {
        engine_host.run(NULL, &batch, &alone);
    }
    return recovered;
}

#define ORDER(kind)                                                                                \
    {                                                                                              \
        .name = "adtopk_" kind, .size = sizeof(struct worker_arguments), .run = run_order          \
    }

const struct standin_kernel standin_kernels[] = {ORDER("add"), ORDER("withdraw"), ORDER("join"),
    ORDER("take"), ORDER("leave"), ORDER("return"), ORDER("gather"), ORDER("read"), ORDER("sums"),
    ORDER("convert"), ORDER("carry"), {.name = NULL}};
