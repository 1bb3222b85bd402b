/*
 * What follows the pass over the elements, in one launch (add.h). Every step is done share by
 * share. Blocks take shares in their order, a step's after those of the step before, and wait where
 * a share needs another step's results. What is waited for has been taken before, by blocks that
 * run: so the blocks of a launch need not all fit on the device at once.
 *
 * Failure: a launch that is killed leaves its words in steps and scratch, which are its attempt's.
 * The next attempt has others.
 */
#include "kernels/cuda/fibres.cu"
#include "kernels/cuda/ledger.cu"
#include "kernels/cuda/top.cu"

DEVICE bool finish_has(const struct add_batch *batch, uint32_t step)
{
    switch (step) {
    case ADD_HISTOGRAM:
    case ADD_COLLECT: return batch->steps->again != 0;
    case ADD_BORDER:
    case ADD_EMIT: return batch->top != 0;
    case ADD_PICK:
    case ADD_SEARCH: return batch->fibres != 0;
    default: return true;
    }
}

/* The nth step of the batch; ADD_STEPS: it has no more. */
DEVICE uint32_t finish_step(const struct add_batch *batch, uint32_t nth)
{
    uint32_t step = 0;
    for (; step < ADD_STEPS; step++) {
        if (finish_has(batch, step) && nth-- == 0) {
            return step;
        }
    }
    return step;
}

/* The step whose results this one needs; ADD_STEPS: none. */
DEVICE uint32_t finish_needs(const struct add_batch *batch, uint32_t step)
{
    switch (step) {
    case ADD_COLLECT: return ADD_HISTOGRAM;
    case ADD_BORDER: return finish_has(batch, ADD_COLLECT) ? ADD_COLLECT : ADD_STEPS;
    case ADD_EMIT: return ADD_BORDER;
    case ADD_SEARCH: return ADD_PICK;
    default: return ADD_STEPS;
    }
}

/* For all threads of a block: the next share that is to be done, of those of all steps. */
DEVICE uint32_t finish_take(struct add_steps *steps)
{
    SHARED(uint32_t, taken, 1);
    __syncthreads(); /* the last one has been read */
    if (threadIdx.x == 0) {
        taken[0] = atomicAdd(&steps->taken, 1u);
    }
    __syncthreads();
    return taken[0];
}

DEVICE void finish_share(const struct add_batch *batch, uint32_t step, uint32_t share)
{
    switch (step) {
    case ADD_HISTOGRAM: top_histogram(batch, share); break;
    case ADD_COLLECT: top_collect(batch, share); break;
    case ADD_BORDER: top_border(batch, share); break;
    case ADD_PICK: fibres_pick(batch, share); break;
    case ADD_LEDGER: ledger_share(batch, share); break;
    case ADD_EMIT: top_emit(batch, share); break;
    default: fibres_search(batch, share); break;
    }
}

KERNEL add_finish(const struct add_batch batch)
{
    for (;;) {
        const uint32_t taken = finish_take(batch.steps);
        const uint32_t step = finish_step(&batch, taken / gridDim.x);
        if (step == ADD_STEPS) {
            return;
        }
        const uint32_t needs = finish_needs(&batch, step);
        if (needs != ADD_STEPS) {
            device_await(&batch.steps->done[needs], gridDim.x);
        }
        finish_share(&batch, step, taken % gridDim.x);
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            (void)atomicAdd(&batch.steps->done[step], 1u);
        }
    }
}
