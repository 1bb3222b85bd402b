/*
 * Entries of the page become operations of the stream: copies between staging and scratch memory,
 * and the kernels of a run. The stream then writes the entry's number where the daemon looks.
 */
#include "daemon/device/worker.h"

CUdeviceptr worker_on_device(const struct worker_state *state, const void *in_page)
{
    return state->page_address + (CUdeviceptr)((const char *)in_page - (const char *)state->page);
}

/* False: it was refused, or failed. */
static bool worker_allocate(struct worker_state *state, uint64_t size, CUresult *result)
{
    *result = state->driver.cuMemAlloc_v2(&state->scratch, size);
    state->scratch_size = *result == CUDA_SUCCESS ? size : 0;
    state->scratch = *result == CUDA_SUCCESS ? state->scratch : 0;
    return *result == CUDA_SUCCESS;
}

static bool worker_give_back(struct worker_state *state, CUdeviceptr scratch)
{
    return scratch == 0 || (WORKER_TRY(state, cuStreamSynchronize, state->stream) &&
                               WORKER_TRY(state, cuMemFree_v2, scratch));
}

/* The worker has what it had before. If it gave that back it takes it again, before others do. */
static void worker_restore(
    struct worker_state *state, const struct page_entry *entry, CUdeviceptr before, uint64_t size)
{
    CUresult ignored;

    if (entry->keeps) {
        state->scratch = before;
        state->scratch_size = size;
    } else if (before != 0) {
        (void)worker_allocate(state, size, &ignored);
    }
}

/* Room for the inputs and outputs of a run, or the values of an operation. Where there is none they
 * are left out, and say so. */
static bool worker_room(struct worker_state *state, const struct page_entry *entry)
{
    const CUdeviceptr before = state->scratch;
    const uint64_t size = state->scratch_size;
    CUresult result;

    state->left_out = ADTOPK_OK;
    if (entry->size <= size) {
        return true;
    }
    if (!entry->keeps && !worker_give_back(state, before)) {
        return false;
    }
    if (!worker_allocate(state, entry->size, &result) && result == CUDA_ERROR_OUT_OF_MEMORY) {
        state->left_out = ADTOPK_ERR_MEMORY;
        worker_restore(state, entry, before, size);
        return true;
    }
    return driver_check(&state->driver, result, "cuMemAlloc", &state->device, &state->error) ==
               ADTOPK_OK &&
           (!entry->keeps || worker_give_back(state, before));
}

/* Between staging memory and scratch memory or an arena. */
static bool worker_copy(
    struct worker_state *state, const struct page_entry *entry, uint8_t *staging)
{
    const struct worker_arena *arena = &state->arena[(entry->arena - PAGE_ARENA) % PAGE_ARENAS];
    const CUdeviceptr there =
        (entry->arena != 0 ? arena->address : state->scratch) + entry->scratch;

    if (entry->arena == 0 && state->left_out != ADTOPK_OK) {
        return true;
    }
    return entry->command == PAGE_COPY_IN
               ? WORKER_TRY(state, cuMemcpyHtoDAsync_v2, there, staging, entry->size, state->stream)
               : WORKER_TRY(
                     state, cuMemcpyDtoHAsync_v2, staging, there, entry->size, state->stream);
}

static bool worker_clear(struct worker_state *state, const struct page_entry *entry)
{
    return state->left_out != ADTOPK_OK ||
           WORKER_TRY(state, cuMemsetD8Async, state->scratch + entry->scratch, 0, entry->size,
               state->stream);
}

bool worker_entry(struct worker_state *state, uint32_t number)
{
    const struct page_entry entry = state->page->entry[number % PAGE_ENTRIES];
    uint8_t *staging = state->page->staging + entry.staging;
    const CUdeviceptr done = worker_on_device(state, &state->page->done);
    bool ok = true;

    switch ((enum page_command)entry.command) {
    case PAGE_ROOM: ok = worker_room(state, &entry); break;
    case PAGE_RUN: ok = worker_launch(state, (struct page_run *)(void *)staging); break;
    case PAGE_CARRY: ok = worker_carry(state, (struct page_carry *)(void *)staging, number); break;
    case PAGE_COPY_IN:
    case PAGE_COPY_OUT: ok = worker_copy(state, &entry, staging); break;
    case PAGE_CLEAR: ok = worker_clear(state, &entry); break;
    }
    return ok && WORKER_TRY(state, cuStreamWriteValue32_v2, state->stream, done, number,
                     CU_STREAM_WRITE_VALUE_DEFAULT);
}
