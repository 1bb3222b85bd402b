/*
 * Work: the computation of a round or a whole job, in stages with an engine's orders between them.
 *
 * A kind of work is a table of stages. Each stage is a function of one tensor, and runs on a
 * worker. It reads the results of the orders of the stage before, and adds orders to a batch. When
 * a stage has run for every tensor of a window, the engine carries the batch out. A near engine
 * does that inside the same compute. A far engine takes the batch. When it is done the driver sends
 * EVENT_ENGINE_DONE, and the core offers the compute again, for the next stage.
 *
 * Ownership: from core_work() until `done` is called, the compute owns the residuals or updates of
 * its tensors, as its kind says. While the engine has a batch, the engine owns those of its tensors
 * (struct tensor, `residual_owner` and `update_owner`). Nobody else changes them, nor their records
 * in the store. A verification may own residuals while a round of the same tensors is being summed.
 */
#ifndef ADTOPK_COMPUTE_WORK_H
#define ADTOPK_COMPUTE_WORK_H

#include "daemon/job/model.h"

#define WORK_STAGES 6

/* One stage for one tensor: the round's tensor of this index, or the job's. If it does not return
 * OK there is no memory, unless it sets the work's status and error. */
typedef enum adtopk_status (*work_stage)(struct work *work, uint32_t item);

struct work_kind {
    const char *verb; /* for errors: no memory to ... */
    bool residuals;   /* it owns the residuals of its tensors, and the selections from them */
    bool updates;     /* it owns their updates */
    bool last;        /* it is done in a frozen job, too */
    void (*begin)(struct work *work); /* before the first stage; NULL: nothing */
    work_stage stage[WORK_STAGES];    /* up to the first NULL */
    unsigned moves; /* orders of stages from this one on are for the node's engine; 0: none are */
    void (*finish)(struct work *work); /* after the last stage of all tensors; NULL: nothing */
};

/* Offers the driver a compute that does the work. The job computes until `done` is called. bytes:
 * about how much memory it will move. A frozen job leaves it to the next daemon. */
void core_work(struct work *work, const struct work_kind *kind, void (*done)(struct work *work),
    uint64_t bytes);
/* The work is done for good: the core owns its tensors again. */
void work_ended(struct work *work);
void work_drop(struct work *work); /* frees its batches */
/* A part of the work took so long; 0: not known. */
void work_spent(struct work *work, uint64_t us);
/* Gives a far engine the batch that the compute has left. */
void work_submit(struct work *work);
/* Ends the job if a far engine is silent for longer than round_timeout. The memory stays until its
 * orders are done. */
void work_check_engine(struct work *work);
/* Handles EVENT_ENGINE_DONE: the engine has carried the batch out, and the compute goes on. */
void work_ordered(struct engine_batch *batch);
/* Handles EVENT_ENGINE_LOST: the engine has lost the residuals of the job of this number, or of all
 * jobs (0). Those that had some fail. */
void work_engine_lost(struct core *core, uint64_t number);

/* For stages: the results of the tensor's orders of the stage before; *count: their number. */
const struct engine_result *work_results(const struct work *work, unsigned *count);
/* The parallel loops of a compute. */
struct parallel work_parallel(const struct work *work);
enum adtopk_status work_no_memory(struct work *work);

#endif
