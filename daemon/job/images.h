/*
 * Residuals and velocities outside their engine: on their way between it and a checkpoint, the
 * store, or another engine.
 */
#ifndef ADTOPK_JOB_IMAGES_H
#define ADTOPK_JOB_IMAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/job/events.h"
#include "kernels/base/rounded.h"

/* A stretch of an array of a checkpoint: compute/keeping_array.c. */
struct keeping {
    bool writes; /* it goes to the engine; false: it came from there */
    enum keep_section section;
    uint32_t tensor, residual;
    uint64_t first, count; /* floats of the array; count 0: there is no stretch */
    uint64_t next;         /* where the piece ended that was read last */
    uint64_t used_us;      /* when it was read, or could be */
    uint64_t step;         /* when it began */
    uint32_t policies;     /* the same: switches that were made by then */
    uint64_t room;         /* floats; 0: it has no memory */
    float *value;
    struct carry *carry; /* written: of the elements' chunks, if there are */
    bool carries;
};

/* Memory beside the store for a far engine's residuals and velocities: compute/leaving.c. */
struct leaving {
    uint8_t *residuals[CORE_MAX_BATCHES], *velocities; /* NULL: not open */
    bool given_up;                                     /* there is no room for them */
};

/* Memory to which another engine gives its residuals and velocities, when the next plan is put in
 * force: compute/moving.c. */
struct moving {
    bool open; /* they move */
    uint8_t *residuals[CORE_MAX_BATCHES], *velocities;
};

#endif
