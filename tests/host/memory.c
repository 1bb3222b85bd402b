#include "tests/host/memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMORY_ALIGN 64u /* small, so that sanitizers notice a write behind the end */

#define MEMORY_MAPPED 65536u /* from here on pages that nobody touches cost nothing */

static uint64_t memory_whole(uint64_t size)
{
    return (size + MEMORY_ALIGN) / MEMORY_ALIGN * MEMORY_ALIGN;
}

static uint64_t memory_pages(uint64_t whole)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    return (whole + page - 1) / page * page;
}

/* Zeros, and behind them a page that nobody may touch. */
static uint8_t *memory_map(uint64_t whole)
{
    const uint64_t pages = memory_pages(whole), guard = memory_pages(1);
    uint8_t *base = mmap(NULL, pages + guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int failed;

    assert((void *)base != MAP_FAILED);
    failed = mprotect(base, pages, PROT_READ | PROT_WRITE);
    assert(failed == 0);
    (void)failed;
    return base + pages - whole;
}

static void memory_unmap(uint8_t *bytes, uint64_t whole)
{
    const uint64_t pages = memory_pages(whole);

    (void)munmap(bytes + whole - pages, pages + memory_pages(1));
}

static void memory_free(const struct host_memory *memory, struct host_area *area)
{
    if (memory->shared && area->bytes != NULL) {
        (void)munmap(area->bytes, area->size + 1);
    } else if (area->bytes != NULL && memory_whole(area->size) >= MEMORY_MAPPED) {
        memory_unmap(area->bytes, memory_whole(area->size));
    } else {
        free(area->bytes);
    }
    *area = (struct host_area){.bytes = NULL};
}

static void memory_new(const struct host_memory *memory, struct host_area *area, uint64_t size)
{
    const uint64_t whole = memory_whole(size);

    memory_free(memory, area);
    area->size = size;
    if (memory->shared) {
        area->bytes =
            mmap(NULL, size + 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert((void *)area->bytes != MAP_FAILED);
        return;
    }
    if (whole >= MEMORY_MAPPED) {
        area->bytes = memory_map(whole);
        return;
    }
    area->bytes = aligned_alloc(MEMORY_ALIGN, whole);
    assert(area->bytes != NULL);
    memset(area->bytes, 0, whole);
}

/* Returns memory that an earlier core may have used already. */
static void *memory_find(
    const struct host_memory *memory, struct host_area *area, uint64_t size, bool *existing)
{
    *existing = memory->outlives && area->old && area->size == size;
    if (!*existing) {
        memory_new(memory, area, size);
    }
    area->old = true;
    return area->bytes;
}

static const void *memory_gradients(
    void *context, session_id session, unsigned batch, uint64_t size, struct error *err)
{
    struct host_memory *memory = context;
    const unsigned place = (unsigned)((session - 1) % HOST_ARENAS);
    struct host_area *area = batch == 0 ? &memory->arena[place] : &memory->later[place][batch];

    (void)err;
    memory->owner[place] = session;
    memory_new(memory, area, size);
    return area->bytes;
}

static void *memory_results(
    void *context, uint64_t job, unsigned batch, uint64_t size, bool *existing, struct error *err)
{
    struct host_memory *memory = context;
    struct host_area *area = batch == 0 ? &memory->results : &memory->later_results[batch];
    void *results = memory_find(memory, area, size, existing);

    (void)job;
    (void)err;
    if (!*existing && batch == 0 && memory->marks) {
        memory_new(memory, &memory->reserved, size);
    }
    return results;
}

static enum adtopk_status memory_reserve(void *context, uint64_t job, unsigned batch,
    const struct core_piece *piece, unsigned pieces, bool *later, struct error *err)
{
    struct host_memory *memory = context;

    (void)job;
    *later = false;
    if (memory->no_results) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no room for %u pieces", pieces);
    }
    for (unsigned i = 0; batch == 0 && i < pieces; i++) {
        assert(piece[i].offset + piece[i].size <= memory->results.size);
        if (memory->marks) {
            memset(memory->reserved.bytes + piece[i].offset, 1, piece[i].size);
        }
    }
    return ADTOPK_OK;
}

static void *memory_store(void *context, uint64_t job, unsigned part, uint64_t size, bool shown,
    bool *existing, struct error *err)
{
    struct host_memory *memory = context;
    uint8_t *bytes;

    if (memory->job != 0 && memory->job != job) {
        (void)error_set(err, ADTOPK_ERR_STATE, "another job has the store");
        return NULL;
    }
    memory->job = job;
    if (part == 1 && memory->no_rank_store) {
        (void)error_set(
            err, ADTOPK_ERR_MEMORY, "no memory for %llu bytes", (unsigned long long)size);
        return NULL;
    }
    bytes = memory_find(memory, &memory->store[part], size, existing);
    assert(!*existing || memory->store[part].shown == shown);
    memory->store[part].shown = shown;
    return bytes;
}

static void memory_drop_store(void *context, uint64_t job, unsigned part)
{
    struct host_memory *memory = context;

    (void)job;
    memory_free(memory, &memory->store[part]);
}

static void memory_open_job(void *context, uint64_t job, const struct job_key *key, bool returning)
{
    const struct host_memory *memory = context;
    const bool unused = memory->job == 0 || memory->job == job;

    (void)key;
    for (unsigned part = 0; part < CORE_STORE_PARTS && unused && !returning; part++) {
        memory_drop_store(context, job, part);
    }
}

static bool memory_has_store(void *context, const struct job_key *key)
{
    const struct host_memory *memory = context;

    (void)key;
    return memory->store[0].bytes != NULL;
}

static void memory_free_arenas(struct host_memory *memory, unsigned place)
{
    memory_free(memory, &memory->arena[place]);
    for (unsigned batch = 0; batch < CORE_MAX_BATCHES; batch++) {
        memory_free(memory, &memory->later[place][batch]);
    }
}

static void memory_release_session(void *context, session_id session)
{
    struct host_memory *memory = context;
    const unsigned place = (unsigned)((session - 1) % HOST_ARENAS);

    if (!memory->keeps && memory->owner[place] == session) {
        memory_free_arenas(memory, place);
    }
}

static void memory_release_job(void *context, uint64_t job)
{
    struct host_memory *memory = context;

    if (memory->job != job) {
        return; /* another one with the same key has it */
    }
    memory->job = 0;
    if (!memory->keeps) {
        memory_free(memory, &memory->results);
        memory_free(memory, &memory->reserved);
        for (unsigned batch = 0; batch < CORE_MAX_BATCHES; batch++) {
            memory_free(memory, &memory->later_results[batch]);
        }
        memory_open_job(context, job, NULL, false);
    }
}

struct core_memory host_memory_ops(struct host_memory *memory)
{
    return (struct core_memory){.context = memory,
        .gradients = memory_gradients,
        .results = memory_results,
        .reserve_results = memory_reserve,
        .store = memory_store,
        .drop_store = memory_drop_store,
        .open_job = memory->outlives ? memory_open_job : NULL,
        .has_store = memory->outlives ? memory_has_store : NULL,
        .release_session = memory_release_session,
        .release_job = memory_release_job};
}

uint8_t *host_memory_arena(const struct host_memory *memory, session_id session)
{
    const unsigned place = (unsigned)((session - 1) % HOST_ARENAS);

    return memory->owner[place] == session ? memory->arena[place].bytes : NULL;
}

static void memory_unshare(const struct host_memory *memory, struct host_area *area)
{
    const struct host_area seen = *area;

    if (seen.bytes != NULL) { /* The shared memory stays mapped, because the process ends soon. */
        area->bytes = NULL;
        memory_new(memory, area, seen.size);
        area->old = seen.old;
        memcpy(area->bytes, seen.bytes, seen.size);
    }
}

void host_memory_unshare(struct host_memory *memory)
{
    memory_unshare(memory, &memory->results);
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        memory_unshare(memory, &memory->store[part]);
    }
}

void host_memory_free(struct host_memory *memory)
{
    for (unsigned i = 0; i < HOST_ARENAS; i++) {
        memory_free_arenas(memory, i);
    }
    memory->keeps = false;
    memory_release_job(memory, memory->job);
}
