/*
 * The partners of a member when distances double. In hop h, neighbouring groups of 2^h cores form
 * groups of 2^(h+1): each core exchanges with its partner in the other group.
 *
 * Hops need a power of two, so that many members are cores. The members are P = cores + extras, and
 * the first 2 * extras of them form pairs of a core and an extra. The extra gives its core its data
 * before the hops, and gets the result after them. So groups are always neighbours in the order of
 * the members. A sum over groups, lower one first, is a balanced tree over that order.
 * (Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.)
 */
#ifndef ADTOPK_DOUBLING_H
#define ADTOPK_DOUBLING_H

#include <stdbool.h>

#define DOUBLING_NOBODY (~0u)

struct doubling {
    unsigned members;
    unsigned cores; /* a power of two */
    unsigned extras;
    unsigned hops; /* log2 cores */
};

static inline struct doubling doubling_of(unsigned members)
{
    struct doubling doubling = {.members = members, .cores = 1};

    while (2 * doubling.cores <= members) {
        doubling.cores *= 2;
        doubling.hops++;
    }
    doubling.extras = members - doubling.cores;
    return doubling;
}

static inline bool doubling_is_extra(const struct doubling *doubling, unsigned member)
{
    return member < 2 * doubling->extras && member % 2 == 1;
}

/** The number of a core among the cores. */
static inline unsigned doubling_core(const struct doubling *doubling, unsigned member)
{
    return member < 2 * doubling->extras ? member / 2 : member - doubling->extras;
}

/** The member that is that core. */
static inline unsigned doubling_member(const struct doubling *doubling, unsigned core)
{
    return core < doubling->extras ? 2 * core : core + doubling->extras;
}

/** The other member of a pair of core and extra; DOUBLING_NOBODY if there is none. */
static inline unsigned doubling_mate(const struct doubling *doubling, unsigned member)
{
    return member < 2 * doubling->extras ? member ^ 1u : DOUBLING_NOBODY;
}

/** The partner of a member in a hop; an extra has none. */
static inline unsigned doubling_partner(
    const struct doubling *doubling, unsigned member, unsigned hop)
{
    return doubling_is_extra(doubling, member)
               ? DOUBLING_NOBODY
               : doubling_member(doubling, doubling_core(doubling, member) ^ 1u << hop);
}

/** How many members the group has that a core is in before a hop, extras included. */
static inline unsigned doubling_group(
    const struct doubling *doubling, unsigned member, unsigned hop)
{
    unsigned first = doubling_core(doubling, member) >> hop << hop, end = first + (1u << hop);
    unsigned last = end < doubling->extras ? end : doubling->extras;

    return end - first + (last > first ? last - first : 0);
}

#endif
