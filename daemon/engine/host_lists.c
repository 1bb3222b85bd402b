/*
 * Orders on entries: entries leave a residual, come back to it, or are read, and an update is
 * written for the ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/host.h"

static bool lists_is_set(const uint8_t *bits, size_t entry)
{
    return bits == NULL || (bits[entry / 8] >> entry % 8 & 1) != 0;
}

/* ------------------------------------------------------------------ leaving */

/* A rank's residual and its list, which is read from the front. */
struct leaver {
    float *residual, *momentum;
    struct sparse list;
    size_t next; /* the first entry that is still in the residual */
};

/* Subtracts an entry from the residual of every rank that selected it. The first of these residuals
 * keeps the rounding error of the sum. */
static void host_leave_entry(
    const struct host *host, const struct leave *leave, size_t entry, struct leaver *leaver)
{
    uint32_t position = leave->sent->position[entry];
    uint64_t element = view_element(leave->view, position);
    bool accepted = lists_is_set(leave->accepted, entry);
    double left = -(double)leave->sent->value[entry];
    float *first = NULL;

    for (unsigned r = 0; r < host->order->parts; r++) {
        struct leaver *own = &leaver[r];
        if (own->next == own->list.count || own->list.position[own->next] != position) {
            continue;
        }
        left += (double)own->list.value[own->next++];
        if (accepted) {
            own->residual[element] = 0;
            first = first != NULL ? first : &own->residual[element];
        }
        if (accepted && own->momentum != NULL && host->order->leave.masks) {
            own->momentum[element] = 0;
        }
    }
    if (first != NULL) {
        *first = (float)left;
    }
}

static enum adtopk_status leave_ranks(const struct host *host, const struct leave *leave)
{
    struct leaver *leaver = calloc(host->order->parts, sizeof(*leaver));

    for (unsigned r = 0; leaver != NULL && r < host->order->parts; r++) {
        leaver[r] = (struct leaver){.residual = host_at(host, host->part[r].element),
            .momentum = host_at(host, host->part[r].momentum),
            .list = host_list(host, &host->part[r].list)};
    }
    for (size_t i = 0; leaver != NULL && i < leave->sent->count; i++) {
        host_leave_entry(host, leave, i, leaver);
    }
    free(leaver);
    return leaver != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
}

enum adtopk_status host_order_leave(const struct host *host)
{
    const struct engine_leave *order = &host->order->leave;
    const struct sparse sent = host_list(host, &order->sent);
    const struct leave leave = {&order->view, &sent, host_at(host, order->accepted)};

    if (host->order->parts > 0) {
        return leave_ranks(host, &leave);
    }
    if (host->order->residual.rounded) {
        leave_rounded(host_rounded(host).element, &leave, &host->parallel);
    } else {
        leave_residual(host_residual(host),
            order->masks ? host_at(host, host->order->residual.momentum) : NULL, &leave,
            host_at(host, order->before), &host->parallel);
    }
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ coming back */

/* Adds entries that come back to the residual after LEAVE: to the values that LEAVE wrote, or else
 * to the earlier values. So the order can be repeated. */
enum adtopk_status host_order_return(const struct host *host)
{
    const struct engine_return *order = &host->order->back;
    const struct sparse list = host_list(host, &order->list), sent = host_list(host, &order->sent),
                        own = host_list(host, &order->own);
    const uint8_t *accepted = host_at(host, order->accepted), *taken = host_at(host, order->taken);
    const float *before = host_at(host, order->before);
    float *residual = host_residual(host);
    size_t s = 0, o = 0;

    for (size_t i = 0; i < list.count; i++) {
        uint32_t position = list.position[i];
        float *rest = &residual[view_element(&order->view, position)];
        bool written;
        while (s < sent.count && sent.position[s] < position) {
            s++;
        }
        while (o < own.count && own.position[o] < position) {
            o++;
        }
        written = s < sent.count && sent.position[s] == position && lists_is_set(accepted, s) &&
                  o < own.count && own.position[o] == position;
        if (lists_is_set(taken, i)) {
            *rest = (written ? *rest : before[i]) + list.value[i];
        }
    }
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ reading and writing */

enum adtopk_status host_order_gather(const struct host *host)
{
    const struct engine_gather *order = &host->order->gather;
    const struct sparse list = host_list(host, &order->list);
    const float *residual = host_residual(host);

    for (size_t i = 0; i < list.count; i++) {
        list.value[i] = residual[view_element(&order->view, list.position[i])];
    }
    return ADTOPK_OK;
}

enum adtopk_status host_order_update(const struct host *host)
{
    const struct engine_update *order = &host->order->update;
    const struct sparse list = host_list(host, &order->list);
    float *dense = host_at(host, order->dense), *value = host_at(host, order->value);
    uint32_t *index = host_at(host, order->index);

    if (dense != NULL) {
        scatter_dense(dense, &order->view, &list, &host->parallel);
    }
    if (index != NULL) {
        scatter_index(index, &order->view, &list, &host->parallel);
    }
    if (value != NULL) {
        (void)memcpy(value, list.value, list.count * sizeof(*value));
    }
    return ADTOPK_OK;
}

enum adtopk_status host_order_narrow(const struct host *host)
{
    const struct engine_narrow *order = &host->order->narrow;
    const struct narrow narrow = {.dtype = host->order->dtype,
        .numel = host->order->numel,
        .dense = host_at(host, order->dense),
        .index = host_at(host, order->index),
        .value = host_at(host, order->value),
        .count = order->count,
        .half = host_at(host, order->half),
        .shown = host_at(host, order->shown)};

    narrow_update(&narrow, &host->parallel);
    return ADTOPK_OK;
}
