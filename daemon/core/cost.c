/*
 * Formulas of volume and reference times: see cost.h.
 */
#include "daemon/core/cost.h"

#include <math.h>

#include "daemon/collective/doubling.h"

#define ENTRY_BYTES 3.06   /* bf16 and a packed position: 24.5 bits */
#define SUM_BYTES 5.06     /* the same as f32: hierarchical's sums */
#define MESSAGE_BYTES 184  /* headers of frame, packet and TCP/IP */
#define VOTE_BYTES 250     /* of a node in Ok-Topk's votes */
#define PART_ELEMENTS 18u  /* log2 of the elements that are worth another thread */
#define OKTOPK_PHASES 4.0  /* split, vote, balance, all-gather */
#define GROWTH_NODES_MIN 2 /* with one node there are no sums */

double cost_gamma(unsigned nodes)
{
    return (nodes + 1) / 2.0;
}

/* The entries of a sum over `some` of the nodes by those of one: gamma, as a power of their number.
 */
static double gamma_of(double some, unsigned nodes, double gamma)
{
    return nodes < GROWTH_NODES_MIN ? 1 : pow(some, log(gamma) / log(nodes));
}

/* The entries that come in on the way of recursive doubling, by one contribution's. The first are
 * contributions, the others sums. */
static double doubled(unsigned nodes, double gamma, double *contributions)
{
    struct doubling doubling = doubling_of(nodes);
    double sums = doubling.extras > 0 ? gamma : 0;

    *contributions = (doubling.extras > 0) + (doubling.hops > 0 && doubling.extras == 0);
    for (unsigned h = doubling.extras == 0; h < doubling.hops; h++) {
        sums += gamma_of((double)(1u << h) * nodes / doubling.cores, nodes, gamma);
    }
    return sums;
}

double cost_bytes(enum choice choice, unsigned nodes, double gamma, struct cost_load load)
{
    double p = nodes, others = (p - 1) / p, n = (double)load.elements, k = (double)load.entries;
    double sum = fmin(gamma * k, n), headers = cost_messages(choice, nodes) * MESSAGE_BYTES;
    double contributions, sums;

    switch (choice) {
    case CHOICE_DENSE: return headers + 8 * n * others;
    case CHOICE_DENSE_BF16:
        return headers + 4 * n * others; /* for two nodes, as n bf16: one-shot */
    case CHOICE_ALLGATHER: return headers + ENTRY_BYTES * k * (p - 1);
    case CHOICE_BALANCED: return headers + ENTRY_BYTES * (k + sum) * others;
    case CHOICE_OKTOPK: return headers + ENTRY_BYTES * 2 * k * others + VOTE_BYTES * (p - 1);
    case CHOICE_HIERARCHICAL:
        sums = doubled(nodes, gamma, &contributions);
        return headers + k * (ENTRY_BYTES * contributions + SUM_BYTES * sums);
    case CHOICES: break;
    }
    return 0;
}

double cost_messages(enum choice choice, unsigned nodes)
{
    struct doubling doubling = doubling_of(nodes);
    double others = nodes - 1.0, dense = nodes > 2 ? 2 * others : others;

    switch (choice) {
    case CHOICE_DENSE: return doubling.extras == 0 ? fmin(2.0 * doubling.hops, dense) : dense;
    case CHOICE_DENSE_BF16: return dense;
    case CHOICE_ALLGATHER: return others;
    case CHOICE_BALANCED: return 2 * others;
    case CHOICE_OKTOPK: return OKTOPK_PHASES * others;
    case CHOICE_HIERARCHICAL: return doubling.hops + (doubling.extras > 0 ? 2.0 : 0.0);
    case CHOICES: break;
    }
    return 0;
}

double cost_hops(enum choice choice, unsigned nodes)
{
    if (nodes == 1) {
        return 0;
    }
    switch (choice) {
    case CHOICE_DENSE:
    case CHOICE_HIERARCHICAL:
        return fmax(
            1, cost_messages(choice, nodes) < 2 * (nodes - 1.0) ? cost_messages(choice, nodes) : 2);
    case CHOICE_DENSE_BF16: return nodes > 2 ? 2 : 1;
    case CHOICE_ALLGATHER: return 1;
    case CHOICE_OKTOPK: return OKTOPK_PHASES;
    default: return 2;
    }
}

/* ns an element and an entry on one core. */
double cost_select(enum choice choice, struct cost_load load)
{
    double n = (double)load.elements, k = (double)load.entries;

    switch (choice) {
    case CHOICE_DENSE: return 1e-3 * 1.2 * n;
    case CHOICE_DENSE_BF16: return 1e-3 * 0.9 * n;
    default: return 1e-3 * (0.4 * n + 4 * k);
    }
}

double cost_reduce(enum choice choice, unsigned nodes, double gamma, struct cost_load load)
{
    double p = nodes, n = (double)load.elements, k = (double)load.entries;
    double sum = fmin(gamma * k, n), contributions, summed;

    switch (choice) {
    case CHOICE_DENSE:
    case CHOICE_DENSE_BF16: return 1e-3 * 1.2 * n;
    case CHOICE_ALLGATHER: summed = p * k; break;
    case CHOICE_BALANCED: summed = k + sum; break;
    case CHOICE_OKTOPK: summed = 3 * k; break;
    default: summed = 2 * k * doubled(nodes, gamma, &contributions) + sum; break;
    }
    return 1e-3 * (0.15 * n + 8 * summed);
}

double cost_settle(uint64_t dense_elements, uint64_t entries)
{
    return 1e-3 * (0.5 * (double)dense_elements + 6 * (double)entries);
}

unsigned cost_share(uint64_t elements, unsigned threads)
{
    uint64_t share = elements >> PART_ELEMENTS;

    return share < 2 ? 1 : share < threads ? (unsigned)share : threads;
}
