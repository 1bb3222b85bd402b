#include "tests/bench/perf/kernels.h"

#include <stdlib.h>

#include "tests/bench/perf/kernels_fused.h"

void kernels_settle(struct turn *turn)
{
    for (size_t i = 0; i < turn->out.count; i++) {
        turn->residual[view_element(&turn->view, turn->out.position[i])] = 0;
    }
}

static void *scratch_new(const struct turn *turn)
{
    return malloc(select_scratch(turn->n));
}

static void compensate(struct turn *turn)
{
    const void *const gradients[] = {turn->gradient};

    (void)accumulate(turn->residual, gradients, 1, turn->dtype, turn->n, turn->sums);
}

/* The whole tensor in two passes. */
static void run_top(struct turn *turn, void *scratch)
{
    compensate(turn);
    select_top(turn->residual, &turn->view, turn->k, &turn->out, scratch);
    kernels_settle(turn);
}

/* Every fibre in two passes. */
static void run_fibres(struct turn *turn, void *scratch)
{
    compensate(turn);
    select_fibres(turn->residual, &turn->view, turn->per_fibre, &turn->out, scratch);
    kernels_settle(turn);
}

const struct kernel kernel_table[] = {
    {"top", scratch_new, NULL, run_top, free},
    {"fibres", scratch_new, NULL, run_fibres, free},
    {"fused-top", kernels_fused_top, kernels_fused_begin, kernels_fused_run, kernels_fused_drop},
    {"fused-fibres", kernels_fused_fibres, kernels_fused_begin, kernels_fused_run,
        kernels_fused_drop},
    {.name = NULL},
};

_Static_assert(sizeof(kernel_table) / sizeof(kernel_table[0]) <= KERNELS_MAX, "room for all names");

void kernels_list(const char *names[KERNELS_MAX])
{
    size_t i = 0;

    do {
        names[i] = kernel_table[i].name;
    } while (kernel_table[i++].name != NULL);
}
