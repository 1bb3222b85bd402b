/*
 * A hash table from numbers to pointers. Its operations take no longer if it has more entries. It
 * owns nothing, and has each number once.
 */
#ifndef ADTOPK_JOB_ID_TABLE_H
#define ADTOPK_JOB_ID_TABLE_H

#include <stdbool.h>
#include <stdint.h>

struct id_slot {
    uint64_t number;
    void *thing; /* NULL: the slot is empty */
};

/* All zeros is an empty table. */
struct id_table {
    struct id_slot *slot;
    uint32_t slots; /* a power of two, or 0; at most half of them are taken */
    uint32_t count;
};

/** False without memory; the table is then unchanged. */
bool id_table_add(struct id_table *table, uint64_t number, void *thing);

/** The pointer for this number, or NULL. */
void *id_table_find(const struct id_table *table, uint64_t number);

/** Does nothing for a number that the table does not have. */
void id_table_remove(struct id_table *table, uint64_t number);

/** Empties the table and gives its memory back. */
void id_table_free(struct id_table *table);

#endif
