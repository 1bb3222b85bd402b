/*
 * What a chunk has of one row or one slab. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_PIECE_H
#define ADTOPK_KERNELS_PIECE_H

#include "kernels/cpu/chunk.h"

struct piece {
    unsigned length;
    uint32_t position;               /* of its first element in the list */
    const struct chunk_bound *bound; /* of its candidates */
    struct sparse *list;             /* takes them; NULL: none are wanted */
};

#endif
