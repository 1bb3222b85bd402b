/*
 * The selection kernels that `select` measures: one row of a table each.
 */
#ifndef PERF_KERNELS_H
#define PERF_KERNELS_H

#include "kernels/cpu/kernels.h"

/* One turn of a tensor: residual += gradient; out = the winners; the winners leave the residual. */
struct turn {
    float *residual;
    void *gradient;
    enum dtype dtype;
    uint64_t n;
    struct view view;
    uint64_t k;         /* winners of the whole tensor */
    uint64_t per_fibre; /* winners of every fibre */
    struct sparse out;  /* room for either */
    double sums[2];     /* the ledger's */
};

/* One turn is begin(), if there is one, then run(), whose time is taken. */
struct kernel {
    const char *name;
    /* Scratch memory, and what the kernel remembers from turn to turn; NULL without memory. */
    void *(*prepare)(const struct turn *turn);
    /* Goes back to what it remembered after its first turn: a sample must not learn from the one
     * before, which worked on the same numbers. */
    void (*begin)(void *state);
    void (*run)(struct turn *turn, void *state);
    void (*drop)(void *state);
};

#define KERNELS_MAX 16

extern const struct kernel kernel_table[]; /* ends with a name of NULL; fewer than KERNELS_MAX */

/** The table's names, which end with NULL. */
void kernels_list(const char *names[KERNELS_MAX]);

/** What was sent leaves the residual: for kernels that only select. */
void kernels_settle(struct turn *turn);

#endif
