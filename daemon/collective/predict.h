/*
 * Formulas of volume that several collectives share. Entries are those of one node's contribution.
 * The constants were measured with up to 1,024 nodes (tests/sim/scale).
 */
#ifndef ADTOPK_PREDICT_H
#define ADTOPK_PREDICT_H

#include <math.h>

#include "daemon/collective/collective.h"
#include "daemon/collective/doubling.h"

#define PREDICT_ENTRY_BYTES 3.06 /* bf16 and a packed position: 24.5 bits; see predict_entry() */
#define PREDICT_SUM_BYTES 5.06   /* the same as f32 */

/** Bytes of an entry that one node contributes. */
static inline double predict_entry(const struct collective_load *load)
{
    return PREDICT_ENTRY_BYTES - load->saved;
}

/** How many other members there are. */
static inline double predict_others(const struct collective_load *load)
{
    return load->members - 1.0;
}

/** The same as a share of all. */
static inline double predict_share(const struct collective_load *load)
{
    return predict_others(load) / load->members;
}

/** Bytes of the lists that a member gets if everybody gets all of them. */
static inline double predict_all_lists(const struct collective_load *load)
{
    return predict_entry(load) * load->entries * predict_others(load);
}

/** Entries that a member adds up if it has the lists of all. */
static inline double predict_all_entries(const struct collective_load *load)
{
    return load->members * load->entries;
}

/** Entries of the sum over all members. */
static inline double predict_sum(const struct collective_load *load)
{
    return fmin(load->growth * load->entries, load->elements);
}

/** Bytes that a member gets if each sums a partition and sends the sums to all. */
static inline double predict_balanced(const struct collective_load *load)
{
    return predict_entry(load) * (load->entries + predict_sum(load)) * predict_share(load);
}

/** Entries that a member adds up then. */
static inline double predict_balanced_entries(const struct collective_load *load)
{
    return load->entries + predict_sum(load);
}

/** Entries of the sum over `some` of the members, divided by the entries of one: growth, as a power
 * of their number. */
static inline double predict_growth(const struct collective_load *load, double some)
{
    return load->members < 2 ? 1 : pow(some, log(load->growth) / log(load->members));
}

#endif
