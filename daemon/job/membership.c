#include "daemon/job/membership.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum adtopk_status membership_begin(struct membership *membership, uint16_t own, size_t capacity)
{
    uint64_t *memory =
        malloc(capacity * (3 * sizeof(uint64_t) + sizeof(uint32_t) + sizeof(uint16_t)));

    *membership = (struct membership){.own = own};
    if (memory == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    membership->incarnation = memory;
    membership->job = memory + capacity;
    membership->since = memory + 2 * capacity;
    membership->ranks = (uint32_t *)(memory + 3 * capacity);
    membership->node = (uint16_t *)(membership->ranks + capacity);
    return ADTOPK_OK;
}

void membership_add(struct membership *membership, uint16_t node, uint64_t incarnation,
    uint64_t job, uint32_t ranks, uint64_t since)
{
    unsigned at = membership->nodes++;

    assert(at == 0 || membership->node[at - 1] < node);
    membership->node[at] = node;
    membership->incarnation[at] = incarnation;
    membership->job[at] = job;
    membership->ranks[at] = ranks;
    membership->since[at] = since;
    membership->self = node == membership->own ? at : membership->self;
}

void membership_break_ties(struct membership *membership, int64_t node)
{
    const bool given =
        node >= 0 && node < UINT16_MAX && membership_index(membership, (uint16_t)node) >= 0;

    if (membership->nodes > 0) {
        membership->tie_breaker = given ? (uint16_t)node : membership->node[0];
    }
}

void membership_replace(struct membership *membership, struct membership *from)
{
    if (membership->nodes > 0 && membership_same_nodes(membership, from)) {
        (void)memcpy(membership->incarnation, from->incarnation, from->nodes * sizeof(uint64_t));
        (void)memcpy(membership->job, from->job, from->nodes * sizeof(uint64_t));
        (void)memcpy(membership->since, from->since, from->nodes * sizeof(uint64_t));
        (void)memcpy(membership->ranks, from->ranks, from->nodes * sizeof(uint32_t));
        membership->tie_breaker = from->tie_breaker;
        membership_free(from);
    } else {
        membership_free(membership);
        *membership = *from;
        *from = (struct membership){.nodes = 0};
    }
}

void membership_free(struct membership *membership)
{
    free(membership->incarnation);
    *membership = (struct membership){.nodes = 0};
}

int membership_index(const struct membership *membership, uint16_t node)
{
    unsigned low = 0, high = membership->nodes;

    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        if (membership->node[middle] < node) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < membership->nodes && membership->node[low] == node ? (int)low : -1;
}

bool membership_same_nodes(const struct membership *one, const struct membership *other)
{
    return one->nodes == other->nodes &&
           (one->nodes == 0 ||
               memcmp(one->node, other->node, one->nodes * sizeof(*one->node)) == 0);
}

bool membership_equal(const struct membership *one, const struct membership *other)
{
    return membership_same_nodes(one, other) &&
           (one->nodes == 0 ||
               (memcmp(one->incarnation, other->incarnation, one->nodes * sizeof(uint64_t)) == 0 &&
                   memcmp(one->job, other->job, one->nodes * sizeof(uint64_t)) == 0 &&
                   memcmp(one->ranks, other->ranks, one->nodes * sizeof(uint32_t)) == 0));
}

uint32_t membership_ranks(const struct membership *membership, uint64_t step)
{
    uint32_t ranks = 0;

    for (unsigned i = 0; i < membership->nodes; i++) {
        ranks += membership->since[i] <= step ? membership->ranks[i] : 0;
    }
    return ranks;
}

uint16_t membership_coordinator(const struct membership *membership)
{
    unsigned first = 0;

    for (unsigned i = 1; i < membership->nodes; i++) {
        first = membership->since[i] < membership->since[first] ? i : first;
    }
    return membership->node[first];
}

bool membership_coordinates(const struct membership *membership)
{
    return membership_coordinator(membership) == membership->own;
}
