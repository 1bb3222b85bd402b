#include "daemon/job/declared.h"

#include <string.h>

static void lost_add(struct lost_info *lost, const struct member_residual *residual)
{
    lost->nodes++;
    if (!residual->told) {
        lost->unknown++;
        return;
    }
    lost->step = residual->step > lost->step ? residual->step : lost->step;
    for (unsigned i = 0; i < 2; i++) {
        lost->sums[i] += residual->sums[i];
    }
    lost->unmeasured += residual->measured ? 0 : 1;
    lost->magnitude += residual->measured ? residual->magnitude : 0;
}

static void declared_remove(struct declared *declared, uint32_t place)
{
    declared->nodes--;
    (void)memmove(&declared->node[place], &declared->node[place + 1],
        (declared->nodes - place) * sizeof(*declared->node));
}

/* Its place in the list, or the number of those in it. */
static uint32_t declared_place(const struct declared *declared, uint16_t node)
{
    uint32_t place = 0;

    while (place < declared->nodes && declared->node[place].node != node) {
        place++;
    }
    return place;
}

void declared_finish(struct declared *declared, uint16_t node)
{
    const uint32_t place = declared_place(declared, node);

    if (place < declared->nodes) {
        lost_add(&declared->final, &declared->node[place].residual);
        declared_remove(declared, place);
    }
}

void declared_add(struct declared *declared, uint16_t node, const struct member_residual *residual)
{
    declared_finish(declared, node);
    if (declared->nodes == DECLARED_MOST) {
        declared_finish(declared, declared->node[0].node);
    }
    declared->node[declared->nodes++] = (struct declared_node){.residual = *residual, .node = node};
}

bool declared_withdraw(struct declared *declared, uint16_t node, struct member_residual *residual)
{
    const uint32_t place = declared_place(declared, node);
    const bool listed = place < declared->nodes;

    if (listed) {
        *residual = declared->node[place].residual;
        declared_remove(declared, place);
    }
    return listed;
}

/* Any other byte is no value of the type. */
static bool is_bool(const bool *value)
{
    return *(const unsigned char *)value <= 1;
}

bool declared_fits(const struct declared *declared)
{
    bool fits = declared->nodes <= DECLARED_MOST;

    for (uint32_t i = 0; fits && i < declared->nodes; i++) {
        const struct member_residual *residual = &declared->node[i].residual;
        fits = is_bool(&residual->told) && is_bool(&residual->kept) && is_bool(&residual->measured);
    }
    return fits;
}

struct lost_info declared_total(const struct declared *declared)
{
    struct lost_info total = declared->final;

    for (uint32_t i = 0; i < declared->nodes; i++) {
        lost_add(&total, &declared->node[i].residual);
    }
    return total;
}
