/*
 * Entries of lists on a device: LEAVE, RETURN and GATHER of many tensors at once. The bits are
 * those of daemon/engine/host_lists.c.
 *
 * A batch is a table of orders whose entries are numbered through; a thread has one entry at a
 * time. LEAVE and RETURN write into slots in place. They may be killed and repeated, RETURN
 * together with the LEAVE before it, but no block of the killed attempt may run any more (slots.h).
 */
#ifndef ADTOPK_KERNELS_ENTRIES_H
#define ADTOPK_KERNELS_ENTRIES_H

#include <stdint.h>

#include "kernels/base/view.h"

/* A list: ascending positions of a view, and their values. */
struct entries {
    const uint32_t *position;
    const float *value;
    uint64_t count;
};

/* LEAVE: a residual of a rank, and what the rank selected of it. */
struct entries_rank {
    const uint64_t *entry;    /* of its chunks (slots.h) */
    const uint64_t *velocity; /* of its velocity's; NULL: nothing leaves that */
    struct entries list;
};

struct entries_order {
    uint64_t first;           /* number of its first entry in the batch */
    const uint64_t *entry;    /* of the residual's chunks */
    uint32_t rounded;         /* LEAVE: not 0: it is in bf16, and nothing of an entry stays */
    const uint64_t *velocity; /* LEAVE: as a rank's */
    const struct entries_rank *rank; /* LEAVE, with ranks > 0: instead of these two */
    uint32_t ranks;
    struct view view;
    struct entries list;
    const uint8_t *chosen; /* LEAVE: the entries that were accepted. RETURN: those that are taken.
                            * One bit per entry, lowest bit first; NULL: all */
    const float *kept;     /* LEAVE, RETURN: what the elements were when they were selected */
    float *found;          /* GATHER: what they are */
    struct entries sent, own; /* RETURN: what was sent; what this residual selected of it */
    const uint8_t *accepted;  /* RETURN: one bit per entry of `sent`; NULL: all */
};

/* The parameter of all kernels here. */
struct entries_batch {
    const struct entries_order *order;
    uint32_t orders;
    uint64_t entries; /* of all orders */
    float *element;   /* of the slots */
    uint16_t *half;   /* of the slots of residuals in bf16 */
};

#endif
