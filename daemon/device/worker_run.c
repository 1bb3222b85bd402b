/*
 * Entries of the page become operations of the stream: copies between staging and scratch memory,
 * and kernels. The stream then writes the entry's number where the daemon looks.
 */
#include "daemon/device/order.h"
#include "daemon/device/worker.h"

/* Blocks of threads a multiprocessor, and threads of a block: kernels walk through their arrays in
 * strides of the whole grid. */
#define BLOCKS 2u
#define THREADS 256u

static CUdeviceptr worker_on_device(const struct worker_state *state, const void *in_page)
{
    return state->page_address + (CUdeviceptr)((const char *)in_page - (const char *)state->page);
}

/* Room for the inputs and outputs of an order. Where there is none the order is left out, and says
 * so. */
static bool worker_room(struct worker_state *state, uint64_t size)
{
    CUresult result;

    state->no_room = false;
    if (size <= state->scratch_size) {
        return true;
    }
    if (state->scratch != 0 && (!WORKER_TRY(state, cuStreamSynchronize, state->stream) ||
                                   !WORKER_TRY(state, cuMemFree_v2, state->scratch))) {
        return false;
    }
    state->scratch = 0;
    state->scratch_size = 0;
    result = state->driver.cuMemAlloc_v2(&state->scratch, size);
    state->no_room = result == CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        state->scratch_size = size;
    }
    return state->no_room || driver_check(&state->driver, result, "cuMemAlloc", &state->device,
                                 &state->error) == ADTOPK_OK;
}

/* A place becomes an address on the device. */
static void worker_place(
    void *context, struct engine_place *place, uint64_t size, enum order_way way)
{
    const struct worker_state *state = context;
    const CUdeviceptr base = place->arena == ENGINE_HERE
                                 ? state->scratch
                                 : state->arena[(place->arena - PAGE_ARENA) % PAGE_ARENAS].address;

    (void)size;
    (void)way;
    *place = (struct engine_place){.arena = ENGINE_HERE, .offset = base + place->offset};
}

static bool worker_launch(struct worker_state *state, struct page_order *order)
{
    struct worker_arguments arguments = {.order = worker_on_device(state, &order->order),
        .part = worker_on_device(state, order->part),
        .result = worker_on_device(state, &order->result)};
    void *list[] = {&arguments};

    if (state->no_room) {
        order->result.status = ADTOPK_ERR_MEMORY;
        return true;
    }
    order_places(&order->order, order->part, worker_place, state);
    worker_place(state, &order->spare, PAGE_SPARE, ORDER_STAYS);
    arguments.spare = order->spare.offset;
    return WORKER_TRY(state, cuLaunchKernel, state->kernel[order->order.kind],
        BLOCKS * state->device.multiprocessors, 1, 1, THREADS, 1, 1, 0, state->stream, list, NULL);
}

bool worker_entry(struct worker_state *state, uint32_t number)
{
    const struct page_entry entry = state->page->entry[number % PAGE_ENTRIES];
    uint8_t *staging = state->page->staging + entry.staging;
    const CUdeviceptr done = worker_on_device(state, &state->page->done);
    bool ok = true;

    switch ((enum page_command)entry.command) {
    case PAGE_ROOM: ok = worker_room(state, entry.size); break;
    case PAGE_RUN: ok = worker_launch(state, (struct page_order *)(void *)staging); break;
    case PAGE_COPY_IN:
        ok = state->no_room ||
             WORKER_TRY(state, cuMemcpyHtoDAsync_v2, state->scratch + entry.scratch, staging,
                 entry.size, state->stream);
        break;
    case PAGE_COPY_OUT:
        ok = state->no_room || WORKER_TRY(state, cuMemcpyDtoHAsync_v2, staging,
                                   state->scratch + entry.scratch, entry.size, state->stream);
        break;
    }
    return ok && WORKER_TRY(state, cuStreamWriteValue32_v2, state->stream, done, number,
                     CU_STREAM_WRITE_VALUE_DEFAULT);
}
