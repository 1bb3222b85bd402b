#include "daemon/job/id_table.h"

#include <stdlib.h>

#include "daemon/job/hash.h"

#define ID_TABLE_MIN 16u

/* The slot of a number if no other number is in its way. */
static uint32_t id_table_home(const struct id_table *table, uint64_t number)
{
    return (uint32_t)hash_mix(number) & (table->slots - 1);
}

static uint32_t id_table_next(const struct id_table *table, uint32_t at)
{
    return (at + 1) & (table->slots - 1);
}

/* The slot of a number, or the empty one for it. */
static uint32_t id_table_at(const struct id_table *table, uint64_t number)
{
    uint32_t at = id_table_home(table, number);

    while (table->slot[at].thing != NULL && table->slot[at].number != number) {
        at = id_table_next(table, at);
    }
    return at;
}

static bool id_table_grow(struct id_table *table)
{
    const struct id_table old = *table;
    const uint32_t slots = old.slots > 0 ? 2 * old.slots : ID_TABLE_MIN;
    struct id_slot *slot = calloc(slots, sizeof(*slot));

    if (slot == NULL) {
        return false;
    }
    table->slot = slot;
    table->slots = slots;
    for (uint32_t i = 0; i < old.slots; i++) {
        if (old.slot[i].thing != NULL) {
            slot[id_table_at(table, old.slot[i].number)] = old.slot[i];
        }
    }
    free(old.slot);
    return true;
}

bool id_table_add(struct id_table *table, uint64_t number, void *thing)
{
    if (2 * (table->count + 1) > table->slots && !id_table_grow(table)) {
        return false;
    }
    table->slot[id_table_at(table, number)] = (struct id_slot){.number = number, .thing = thing};
    table->count++;
    return true;
}

void *id_table_find(const struct id_table *table, uint64_t number)
{
    return table->count > 0 ? table->slot[id_table_at(table, number)].thing : NULL;
}

/* Whether the entry at `at` may move to the gap before it: its home is not between the two. */
static bool id_table_may_move(const struct id_table *table, uint32_t gap, uint32_t at)
{
    const uint32_t mask = table->slots - 1;
    const uint32_t home = id_table_home(table, table->slot[at].number);

    return ((at - home) & mask) >= ((at - gap) & mask);
}

void id_table_remove(struct id_table *table, uint64_t number)
{
    uint32_t gap;

    if (id_table_find(table, number) == NULL) {
        return;
    }
    gap = id_table_at(table, number);
    for (uint32_t at = id_table_next(table, gap); table->slot[at].thing != NULL;
         at = id_table_next(table, at)) {
        if (id_table_may_move(table, gap, at)) {
            table->slot[gap] = table->slot[at];
            gap = at;
        }
    }
    table->slot[gap] = (struct id_slot){.thing = NULL};
    table->count--;
}

void id_table_free(struct id_table *table)
{
    free(table->slot);
    *table = (struct id_table){.slots = 0};
}
