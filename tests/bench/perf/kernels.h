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
    void *scratch;      /* kernels_scratch(n) bytes */
    double sums[2];     /* the ledger's */
};

struct kernel {
    const char *name;
    void (*run)(struct turn *turn);
};

#define KERNELS_MAX 16

extern const struct kernel kernel_table[]; /* ends with a name of NULL; fewer than KERNELS_MAX */

/** The table's names, which end with NULL. */
void kernels_list(const char *names[KERNELS_MAX]);

/** Bytes of scratch that any of them needs. */
size_t kernels_scratch(uint64_t n);

#endif
