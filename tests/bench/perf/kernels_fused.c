#include "tests/bench/perf/kernels_fused.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/fused.h"

#define ALIGNMENT 64

struct fused_state {
    struct fused pass;
    struct journal *journal;
    const void *gradient;
    float *learned; /* the hints after the first turn */
    bool first;
    size_t hints_size;
};

static void *aligned_zeros(size_t size)
{
    const size_t whole = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    void *memory = aligned_alloc(ALIGNMENT, whole);

    if (memory != NULL) {
        memset(memory, 0, whole);
    }
    return memory;
}

void kernels_fused_drop(void *context)
{
    struct fused_state *state = context;

    free(state->pass.scratch);
    free(state->pass.progress);
    free(state->pass.hints);
    free(state->learned);
    free(state->journal);
    free(state);
}

static void *prepare(const struct turn *turn, uint64_t k, bool per_fibre)
{
    struct fused_state *state = calloc(1, sizeof(*state));
    struct fused *pass;

    if (state == NULL) {
        return NULL;
    }
    pass = &state->pass;
    state->first = true;
    state->hints_size = turn->view.fibres * sizeof(float);
    state->gradient = turn->gradient;
    state->journal = aligned_zeros(sizeof(*state->journal));
    state->learned = calloc(1, state->hints_size);
    *pass = (struct fused){.residual = turn->residual,
        .view = turn->view,
        .k = k,
        .per_fibre = per_fibre,
        .gradients = &state->gradient,
        .count = 1,
        .dtype = turn->dtype,
        .progress = calloc(1, progress_size(turn->n)),
        .hints = calloc(1, state->hints_size),
        .ranges = 1,
        .scratch = aligned_zeros(fused_scratch(&turn->view, k, per_fibre, 1))};
    if (state->journal == NULL || state->learned == NULL || pass->progress == NULL ||
        pass->hints == NULL || pass->scratch == NULL) {
        kernels_fused_drop(state);
        return NULL;
    }
    return state;
}

void *kernels_fused_top(const struct turn *turn)
{
    return prepare(turn, turn->k, false);
}

void *kernels_fused_fibres(const struct turn *turn)
{
    return prepare(turn, turn->per_fibre, true);
}

void kernels_fused_begin(void *context)
{
    struct fused_state *state = context;

    if (state->first) {
        memcpy(state->learned, state->pass.hints, state->hints_size);
        state->first = false;
    }
    memcpy(state->pass.hints, state->learned, state->hints_size);
}

void kernels_fused_run(struct turn *turn, void *context)
{
    struct fused_state *state = context;

    state->pass.stamp++;
    state->pass.out = &turn->out;
    fused_start(&state->pass, turn->sums);
    fused_range(&state->pass, 0, state->journal);
    (void)fused_finish(&state->pass, turn->sums);
    kernels_settle(turn);
}
