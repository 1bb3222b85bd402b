/*
 * Formulas of volume and reference times: see cost.h.
 */
#include "daemon/planner/cost.h"

#define MESSAGE_BYTES 184 /* headers of frame, packet and TCP/IP */
#define PART_ELEMENTS 18u /* log2 of the elements that are worth another thread */

double cost_gamma(unsigned nodes)
{
    return (nodes + 1) / 2.0;
}

double cost_saved(enum payload_value values)
{
    return 2 - payload_value_bits(values) / 8;
}

static struct collective_load cost_load_of(
    enum choice choice, unsigned nodes, double gamma, struct cost_load load)
{
    return (struct collective_load){.members = nodes,
        .elements = (double)load.elements,
        .entries = (double)load.entries,
        .saved = load.entries > 0 ? load.saved / (double)load.entries : 0,
        .growth = gamma,
        .wide = choice != CHOICE_DENSE_BF16};
}

static const struct collective_cost *formulas_of(enum choice choice)
{
    return choice_collective(choice)->traits.cost;
}

double cost_bytes(enum choice choice, unsigned nodes, double gamma, struct cost_load load)
{
    struct collective_load bucket = cost_load_of(choice, nodes, gamma, load);

    return formulas_of(choice)->bytes(&bucket) + cost_messages(choice, nodes) * MESSAGE_BYTES;
}

double cost_messages(enum choice choice, unsigned nodes)
{
    struct collective_load bucket =
        cost_load_of(choice, nodes, 1, (struct cost_load){.elements = 0});

    return formulas_of(choice)->messages(&bucket);
}

double cost_hops(enum choice choice, unsigned nodes)
{
    struct collective_load bucket =
        cost_load_of(choice, nodes, 1, (struct cost_load){.elements = 0});

    return nodes > 1 ? formulas_of(choice)->hops(&bucket) : 0;
}

/* ns per element and per entry on one core. */
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
    struct collective_load bucket = cost_load_of(choice, nodes, gamma, load);

    return 1e-3 * (choice_is_sparse(choice)
                          ? 0.15 * bucket.elements + 8 * formulas_of(choice)->summed(&bucket)
                          : 1.2 * bucket.elements);
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
