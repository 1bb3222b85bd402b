/* The queue of events to come: a binary heap by time, then by order of creation. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/world.h"

void *sim_must(void *pointer)
{
    if (pointer == NULL) {
        (void)fprintf(stderr, "simulator: out of memory\n");
        abort();
    }
    return pointer;
}

#define ALLOC_TRIES 100

void *sim_alloc(size_t size)
{
    void *pointer = NULL;

    for (int i = 0; pointer == NULL && i < ALLOC_TRIES; i++) {
        pointer = calloc(1, size);
    }
    return sim_must(pointer);
}

static void *sim_realloc(void *old, size_t size)
{
    void *pointer = NULL;

    for (int i = 0; pointer == NULL && i < ALLOC_TRIES; i++) {
        pointer = realloc(old, size);
    }
    return sim_must(pointer);
}

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

void queue_push(struct world *world, struct sim_event event)
{
    size_t at = world->heap_size++;

    if (world->heap_size > world->heap_capacity) {
        world->heap_capacity = world->heap_capacity * 2 + 64;
        world->heap = sim_realloc(world->heap, world->heap_capacity * sizeof(*world->heap));
    }
    event.order = world->order++;
    while (at > 0 && before(&event, &world->heap[(at - 1) / 2])) {
        world->heap[at] = world->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    world->heap[at] = event;
}

struct sim_event queue_pop(struct world *world)
{
    struct sim_event top = world->heap[0];
    struct sim_event last = world->heap[--world->heap_size];
    size_t at = 0;

    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= world->heap_size) {
            break;
        }
        if (child + 1 < world->heap_size && before(&world->heap[child + 1], &world->heap[child])) {
            child++;
        }
        if (!before(&world->heap[child], &last)) {
            break;
        }
        world->heap[at] = world->heap[child];
        at = child;
    }
    world->heap[at] = last;
    return top;
}
