/*
 * All elements of residuals on a device: READ, SAVE, LOAD, SUMS, and residuals or velocities that
 * become the sum of others (CONVERT, CARRY, the end of JOIN). The bits are those of
 * daemon/engine/host_whole.c.
 *
 * A batch is a table of orders whose chunks are numbered through; a block has one chunk at a time.
 * whole_fill writes into slots in place, from others, and so does whole_load, from an image. They
 * may be killed and repeated, but no block of the killed attempt may run any more (slots.h).
 */
#ifndef ADTOPK_KERNELS_WHOLE_H
#define ADTOPK_KERNELS_WHOLE_H

#include <stdint.h>

#include "kernels/base/chunks.h"
#include "kernels/base/rounded.h"
#include "kernels/cuda/add.h"

struct whole_sums {
    double sums[2]; /* the ledger's */
    double magnitude;
};

/* How far passes over a residual have come, as it lies in an image: as large as struct progress. */
struct whole_progress {
    struct add_before before;
    uint64_t reserved;
    struct whole_record {
        struct slot_record record;
        uint64_t stamp;
        uint64_t reserved;
    } chunk[];
};

struct whole_order {
    uint64_t first;              /* number of its first chunk in the batch */
    uint64_t begin;              /* chunk of the residual where it begins */
    uint64_t count;              /* elements from there on */
    uint64_t *entry;             /* of the residual's chunks (slots.h) */
    const uint64_t *const *part; /* whole_fill: the residual becomes the sum of these, in their
                                  * order; zeros if there are none */
    uint32_t parts;
    uint32_t rounded;               /* not 0: the residual is in bf16 */
    uint32_t from_rounded;          /* whole_fill: not 0: there is one part, in bf16 */
    struct carry *carry;            /* of the slots of the residual's pool, if it is in bf16 */
    const struct carry *from_carry; /* of the part's pool, if that is */
    uint64_t rounding;   /* whole_fill from f32 to bf16: rounded_pass() of stamp 0 and the salt */
    float *read;         /* whole_read: `count` elements; NULL: only places get them */
    float factor;        /* whole_read: by which they are multiplied */
    uint32_t places;     /* whole_read: so many others get them */
    float *const *place; /* whole_read: where these are */
    void *image; /* whole_save, whole_load: `count` elements of the residual's type; NULL: none */
    struct carry *image_carry;             /* bf16: the carries of their chunks; NULL: none */
    struct whole_progress *image_progress; /* of all chunks; NULL: it is left alone */
    struct slot_record *record;            /* of the slots of the residual's pool */
    struct add_before *before;             /* the residual's */
    struct whole_sums *chunk;              /* whole_sums: scratch, one per chunk */
    struct whole_sums *sums;               /* whole_total: of all chunks */
};

/* The parameter of all kernels here. */
struct whole_batch {
    const struct whole_order *order;
    uint32_t orders;
    uint64_t chunks; /* of all orders */
    float *element;  /* of the slots */
    uint16_t *half;  /* of the slots of residuals in bf16 */
};

#endif
