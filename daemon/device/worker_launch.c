/* What the files with the launches of orders share: see worker_launch.h. */
#include "daemon/device/worker_launch.h"

#include <assert.h>

#include "daemon/device/order.h"

#define THREADS 256u /* of a block; all kernels want so many */

/* ------------------------------------------------------------------ addresses */

void *run_pointer(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

void *run_at(const struct run *run, struct engine_place place)
{
    return engine_is_there(place) ? run_pointer(run->state->scratch + place.offset) : NULL;
}

void *run_scratch(const struct run *run, uint64_t offset)
{
    return run_pointer(run->state->scratch + offset);
}

void *run_table(const struct run *run, const void *in_page)
{
    const uint64_t offset =
        (uint64_t)((const uint8_t *)in_page - (const uint8_t *)run->tables.tensor);

    return run_scratch(run, run->at.tables + offset);
}

const struct worker_arena *run_arena(const struct run *run, struct engine_place place)
{
    return &run->state->arena[(place.arena - PAGE_ARENA) % PAGE_ARENAS];
}

void *run_mapped(const struct run *run, struct engine_place place)
{
    return run_pointer(run_arena(run, place)->address + place.offset);
}

struct run_held run_wide(struct engine_place place)
{
    return (struct run_held){.place = place, .rounded = false};
}

struct run_held run_own(const struct run *run)
{
    return (struct run_held){
        .place = run->order->residual.element, .rounded = run->order->residual.rounded};
}

uint64_t *run_entries(const struct run *run, struct run_held held)
{
    const struct worker_arena *arena = run_arena(run, held.place);

    assert(held.place.offset % POOL_SLOT == 0);
    assert(pool_type(&arena->pool, held.rounded)->slots > 0);
    return run_pointer(arena->address + pool_type(&arena->pool, held.rounded)->entries +
                       held.place.offset / pool_slot(held.rounded) * sizeof(uint64_t));
}

float *run_hints(const struct run *run)
{
    const struct engine_place residual = run->order->residual.element;
    const struct worker_arena *arena = run_arena(run, residual);
    const uint64_t home = residual.offset / POOL_SLOT;

    return run_pointer(arena->address + arena->pool.hints + home * POOL_HINTS * sizeof(float));
}

static uint32_t run_first_slot(
    const struct run *run, const struct worker_arena *arena, bool rounded)
{
    return (uint32_t)((arena->address - run->state->window) / pool_slot(rounded));
}

struct carry *run_carries(const struct run *run, struct run_held held)
{
    const struct worker_arena *arena = run_arena(run, held.place);

    return held.rounded ? run_pointer(arena->address + arena->pool.bf16.carries -
                                      run_first_slot(run, arena, true) * sizeof(struct carry))
                        : NULL;
}

float *run_slots_element(const struct run *run)
{
    return run_pointer(run->state->window);
}

uint16_t *run_slots_half(const struct run *run)
{
    return run_pointer(run->state->window);
}

struct slots run_slots(const struct run *run, struct run_held held, unsigned blocks, uint64_t spare)
{
    const struct worker_arena *arena = run_arena(run, held.place);
    const struct pool_of *pool = pool_type(&arena->pool, held.rounded);
    const uint32_t first = run_first_slot(run, arena, held.rounded);

    return (struct slots){.element = held.rounded ? NULL : run_slots_element(run),
        .half = held.rounded ? run_slots_half(run) : NULL,
        .carry = run_carries(run, held),
        .record = run_pointer(arena->address + pool->records - first * sizeof(struct slot_record)),
        .owner = run_pointer(arena->address + pool->owners - first * sizeof(uint64_t)),
        .entries = run_pointer(arena->address + pool->entries),
        .first = first,
        .homes = first + pool->homes,
        .count = first + pool->slots,
        .spares = blocks,
        .found = run_scratch(run, spare),
        .spare = run_scratch(run, spare + sizeof(uint32_t))};
}

struct entries run_list(const struct run *run, const struct engine_list *list)
{
    return (struct entries){.position = run_at(run, list->position),
        .value = run_at(run, list->value),
        .count = list->count};
}

/* ------------------------------------------------------------------ launches */

unsigned run_most_blocks(const struct worker_state *state)
{
    return PAGE_BLOCKS * state->device.multiprocessors;
}

static unsigned run_at_most(uint64_t units, unsigned most)
{
    return units < most ? (unsigned)units : most;
}

unsigned run_blocks(const struct run *run, uint64_t units)
{
    return run_at_most(units, run_most_blocks(run->state));
}

unsigned run_blocks_large(const struct run *run, uint64_t units)
{
    return run_at_most(units, PAGE_BLOCKS_LARGE * run->state->device.multiprocessors);
}

unsigned run_threads(const struct run *run, uint64_t units)
{
    return run_blocks(run, (units + THREADS - 1) / THREADS);
}

bool run_kernel(
    const struct run *run, enum worker_kernel kernel, unsigned blocks, const void *parameter)
{
    void *list[] = {(void *)(uintptr_t)parameter};

    run->sum->launches += blocks > 0;
    return blocks == 0 || WORKER_TRY(run->state, cuLaunchKernel, run->state->kernel[kernel], blocks,
                              1, 1, THREADS, 1, 1, 0, run->state->stream, list, NULL);
}

/* ------------------------------------------------------------------ residuals */

static uint32_t run_home(const struct run *run, struct run_held held)
{
    return run_first_slot(run, run_arena(run, held.place), held.rounded) +
           (uint32_t)(held.place.offset / pool_slot(held.rounded));
}

struct add_tensor run_residual(const struct run *run, struct run_held held)
{
    return (struct add_tensor){.entry = run_entries(run, held),
        .numel = run->order->numel,
        .stamp = (uint32_t)run->order->stamp,
        .home = run_home(run, held),
        .mode = ADD_NOTHING,
        .rounding = rounded_pass(run->order->stamp, run->order->residual.salt)};
}

bool run_moves(const struct run *run)
{
    return order_moves(run->order);
}

struct slots run_velocities(const struct run *run, unsigned blocks)
{
    return run_moves(run) ? run_slots(run, run_wide(run->order->residual.momentum), blocks,
                                run->at.velocity_spare)
                          : (struct slots){.found = NULL};
}

void run_velocity(const struct run *run, struct add_tensor *tensor, struct engine_place momentum)
{
    const struct run_held velocity = run_wide(momentum);

    if (run_moves(run) && engine_is_there(momentum)) {
        tensor->velocity = run_entries(run, velocity);
        tensor->momentum.home = run_home(run, velocity);
    }
}

bool run_begin(const struct run *run, struct run_held held, const struct add_tensor *tensor,
    unsigned tensors, uint64_t chunks)
{
    const unsigned blocks = run_threads(run, chunks);
    const struct add_batch batch = {.tensor = run_table(run, tensor),
        .tensors = tensors,
        .chunks = (uint32_t)chunks,
        .slots = run_slots(run, held, 0, run->at.spare),
        .velocities = run_velocities(run, 0)};

    return run_kernel(run, KERNEL_slots_begin, blocks, &batch);
}
