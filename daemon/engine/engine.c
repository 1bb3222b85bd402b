#include "daemon/engine/engine.h"

#include <assert.h>
#include <stdlib.h>

struct engine_place engine_here(const void *address)
{
    return address == NULL ? engine_nowhere
                           : (struct engine_place){ENGINE_HERE, (uint64_t)(uintptr_t)address};
}

static uint8_t *engine_base(const struct engine_memory *memory, uint32_t arena)
{
    if (arena < ENGINE_STORE_PARTS) {
        return memory->store[arena];
    }
    return memory->results[arena - ENGINE_RESULTS];
}

struct engine_place engine_place_of(
    const struct engine_memory *memory, uint32_t arena, const void *address)
{
    assert(arena < ENGINE_HERE);
    return address == NULL ? engine_nowhere
                           : (struct engine_place){arena,
                                 (uint64_t)((const uint8_t *)address - engine_base(memory, arena))};
}

void *engine_address(const struct engine_memory *memory, struct engine_place place)
{
    switch (place.arena) {
    case ENGINE_NOWHERE: return NULL;
    case ENGINE_HERE: return (void *)(uintptr_t)place.offset;
    default: break;
    }
    if (place.arena >= ENGINE_GRADIENTS) {
        return (
            void *)(uintptr_t)(memory->gradients[place.arena - ENGINE_GRADIENTS] + place.offset);
    }
    return engine_base(memory, place.arena) + place.offset;
}

bool engine_batch_init(
    struct engine_batch *batch, const struct engine_memory *memory, unsigned orders, unsigned parts)
{
    *batch = (struct engine_batch){.memory = memory, .room = orders, .part_room = parts};
    batch->order = malloc(orders * sizeof(*batch->order));
    batch->result = malloc(orders * sizeof(*batch->result));
    batch->part = malloc((parts > 0 ? parts : 1) * sizeof(*batch->part));
    if (batch->order == NULL || batch->result == NULL || batch->part == NULL) {
        engine_batch_free(batch);
        return false;
    }
    return true;
}

void engine_batch_free(struct engine_batch *batch)
{
    free(batch->order);
    free(batch->result);
    free(batch->part);
    *batch = (struct engine_batch){.memory = NULL};
}

void engine_batch_clear(struct engine_batch *batch)
{
    batch->count = 0;
    batch->parts = 0;
    batch->took_us = 0;
}

struct engine_order *engine_batch_add(struct engine_batch *batch, enum engine_kind kind)
{
    struct engine_order *order = &batch->order[batch->count];

    assert(batch->count < batch->room);
    batch->result[batch->count++] = (struct engine_result){.status = ADTOPK_OK};
    order->kind = kind;
    order->residual = (struct engine_residual){
        .element = engine_nowhere, .progress = engine_nowhere, .momentum = engine_nowhere};
    order->stamp = 0;
    order->first = batch->parts;
    order->parts = 0;
    order->ledger = engine_nowhere;
    order->lost = engine_nowhere;
    return order;
}

struct engine_part *engine_batch_part(struct engine_batch *batch)
{
    struct engine_part *part = &batch->part[batch->parts];

    assert(batch->count > 0 && batch->parts < batch->part_room);
    batch->parts++;
    batch->order[batch->count - 1].parts++;
    *part = (struct engine_part){.element = engine_nowhere,
        .momentum = engine_nowhere,
        .list = {.position = engine_nowhere, .value = engine_nowhere}};
    return part;
}

static bool engine_is_pass(const struct engine_order *order)
{
    return order->kind == ENGINE_ADD || order->kind == ENGINE_WITHDRAW ||
           order->kind == ENGINE_JOIN || order->kind == ENGINE_TAKE;
}

static bool engine_passes_again(const struct engine_order *earlier, const struct engine_order *pass)
{
    const struct engine_place *a = &earlier->residual.element, *b = &pass->residual.element;

    return engine_is_pass(earlier) && a->arena == b->arena && a->offset == b->offset;
}

bool engine_passes_once(const struct engine_batch *batch)
{
    bool once = true;

    for (unsigned i = 1; i < batch->count; i++) {
        const struct engine_order *order = &batch->order[i];

        for (unsigned j = i; once && j > 0 && batch->order[j - 1].tensor == order->tensor; j--) {
            once = !engine_is_pass(order) || !engine_passes_again(&batch->order[j - 1], order);
        }
    }
    return once;
}

bool engine_leaves_out(const struct engine_batch *batch, unsigned at)
{
    bool out = at > 0 && batch->order[at - 1].tensor == batch->order[at].tensor &&
               batch->result[at - 1].status != ADTOPK_OK;

    batch->result[at].status = out ? ADTOPK_ERR_MEMORY : batch->result[at].status;
    return out;
}

void engine_pass(enum engine_owner *owner, enum engine_owner from, enum engine_owner to)
{
    assert(*owner == from);
    *owner = to;
}
