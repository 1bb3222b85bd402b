/*
 * Mutations of fuzz_store's inputs: two bytes, then changes of four bytes each. A byte that comes
 * in between would make other changes of all that follow, and many changes at once are refused
 * early. So mutations here keep changes whole, and few.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HEAD 2u
#define CHANGE 4u
#define CHANGES_MOST 16u /* as the target */
#define PARTS 16u
#define PLACE_BITS 17u /* places are below two to this, and mostly far below */

/* What libFuzzer calls. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

struct changes {
    uint32_t state; /* of the random numbers */
    unsigned count;
    uint8_t head[HEAD];
    uint8_t change[CHANGES_MOST + 1][CHANGE];
};

static uint32_t draw_number(struct changes *changes, uint32_t below)
{
    changes->state ^= changes->state << 13;
    changes->state ^= changes->state >> 17;
    changes->state ^= changes->state << 5;
    return changes->state % below;
}

static void set_place(uint8_t *change, uint32_t place)
{
    change[0] = (uint8_t)(change[0] % PARTS | place >> 16 << 4);
    change[1] = (uint8_t)place;
    change[2] = (uint8_t)(place >> 8);
}

static void draw_value(struct changes *changes, uint8_t *change)
{
    const uint32_t bit = draw_number(changes, 8);

    change[3] = (uint8_t)(draw_number(changes, 2) == 0 ? 1u << bit : draw_number(changes, 256));
}

/* Also puts it at the end, if it was not there. */
static void draw_change(struct changes *changes, unsigned which)
{
    uint8_t *change = changes->change[which];

    change[0] = (uint8_t)draw_number(changes, PARTS);
    set_place(
        change, draw_number(changes, UINT32_C(1) << (3 + draw_number(changes, PLACE_BITS - 2))));
    draw_value(changes, change);
}

/* The place moves by a field, or by part of one. */
static void move_change(struct changes *changes, uint8_t *change)
{
    const uint32_t place =
        change[1] | (uint32_t)change[2] << 8 | (uint32_t)(change[0] / PARTS) << 16;
    const uint32_t by = UINT32_C(1) << draw_number(changes, 9);

    set_place(
        change, draw_number(changes, 2) == 0 ? place + by : place - (place < by ? place : by));
}

static void change_one(struct changes *changes)
{
    const unsigned which = draw_number(changes, changes->count + 1);
    uint8_t *change = changes->change[which];

    if (which == changes->count) {
        draw_change(changes, changes->count++);
        return;
    }
    switch (draw_number(changes, 6)) {
    case 0: draw_change(changes, which); break;
    case 1: draw_value(changes, change); break;
    case 2: move_change(changes, change); break;
    case 3: /* of the next byte, too */
        memcpy(changes->change[changes->count], change, CHANGE);
        move_change(changes, changes->change[changes->count++]);
        break;
    case 4: changes->head[draw_number(changes, HEAD)] = (uint8_t)draw_number(changes, 256); break;
    default: memmove(change, change + CHANGE, CHANGE * (--changes->count - which)); break;
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    struct changes changes = {.state = seed * UINT32_C(2654435761) | 1};

    if (size >= HEAD) {
        memcpy(changes.head, data, HEAD);
        changes.count = (unsigned)((size - HEAD) / CHANGE);
        changes.count = changes.count < CHANGES_MOST ? changes.count : CHANGES_MOST;
        memcpy(changes.change, data + HEAD, CHANGE * (size_t)changes.count);
    }
    for (unsigned i = 1 + draw_number(&changes, 3); i > 0; i--) {
        change_one(&changes);
        changes.count = changes.count < CHANGES_MOST ? changes.count : CHANGES_MOST;
    }
    while (changes.count > 0 && HEAD + CHANGE * (size_t)changes.count > max_size) {
        changes.count--;
    }
    if (max_size < HEAD) {
        return 0;
    }
    memcpy(data, changes.head, HEAD);
    memcpy(data + HEAD, changes.change, CHANGE * (size_t)changes.count);
    return HEAD + CHANGE * (size_t)changes.count;
}
