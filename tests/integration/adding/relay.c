/*
 * Sparse all-gather around a ring: in each phase every member sends one list to the next member,
 * first its own, then the one that came in last. After P-1 phases every member has all lists, and
 * sums them in the order of the members. A node receives k(P-1) entries, all from one neighbour.
 */
#include <stdlib.h>

#include "daemon/collective/collective.h"
#include "daemon/collective/gather.h"

/* The member so many places before this one. */
static unsigned relay_before(const struct exchange *exchange, unsigned places)
{
    return (exchange->self + exchange->members - places % exchange->members) % exchange->members;
}

static unsigned relay_phases(const struct exchange *exchange)
{
    return exchange->members > 1 ? exchange->members - 1 : 1;
}

static bool relay_expects(const struct exchange *exchange, unsigned phase, unsigned from)
{
    (void)phase;
    return from != exchange->self && from == relay_before(exchange, 1);
}

/* exchange->state is the list of tensor t that member m contributed, at [t * members + m]. */
static struct sparse *relay_list(const struct exchange *exchange, unsigned t, unsigned m)
{
    return (struct sparse *)exchange->state + (size_t)t * exchange->members + m;
}

/* Takes the list that came in; after the last phase it writes the sum of all. */
static enum adtopk_status relay_take(struct gather *gather, unsigned t, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    struct exchange_tensor *tensor = &exchange->tensor[t];
    const unsigned neighbour = relay_before(exchange, 1);

    gather->shape[neighbour] = tensor->shape;
    if (gather_next(gather, &tensor->sent, err) != ADTOPK_OK) {
        return err->code;
    }
    if (exchange->members > 1) {
        *relay_list(exchange, t, relay_before(exchange, gather->phase + 1)) =
            gather->list[neighbour];
        gather->list[neighbour] = (struct sparse){0};
    }
    if (gather->phase + 1 < relay_phases(exchange)) {
        return ADTOPK_OK;
    }
    for (unsigned m = 0; m < exchange->members; m++) {
        if (m != exchange->self) {
            gather->list[m] = *relay_list(exchange, t, m); /* which gather_each() frees */
            *relay_list(exchange, t, m) = (struct sparse){0};
        }
    }
    if (gather_limit(gather, tensor, view_size(&tensor->shape.view), err) != ADTOPK_OK) {
        return err->code;
    }
    return gather_update(gather, tensor, err);
}

static enum adtopk_status relay_send(struct exchange *exchange, unsigned phase, struct error *err)
{
    const unsigned next = (exchange->self + 1) % exchange->members;
    const unsigned owner = relay_before(exchange, phase);
    struct payload_writer *frame = exchange_add_frame(exchange, phase, next);
    enum adtopk_status status = frame != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;

    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        struct exchange_tensor *tensor = &exchange->tensor[t];
        struct sparse *list = phase == 0 ? &tensor->sent : relay_list(exchange, t, owner);
        status = payload_put_list(frame, &tensor->shape, list, exchange->index, exchange->value);
    }
    if (status != ADTOPK_OK) {
        return exchange_no_memory(exchange, "sum", err);
    }
    payload_end(frame);
    return ADTOPK_OK;
}

static enum adtopk_status relay_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    if (exchange->members == 1) {
        return ADTOPK_OK;
    }
    if (phase == 0) {
        exchange->state =
            calloc((size_t)exchange->tensors * exchange->members, sizeof(struct sparse));
        if (exchange->state == NULL) {
            return exchange_no_memory(exchange, "sum", err);
        }
    } else if (gather_each(exchange, phase - 1, relay_take, err) != ADTOPK_OK) {
        return err->code;
    }
    return relay_send(exchange, phase, err);
}

static enum adtopk_status relay_finish(struct exchange *exchange, struct error *err)
{
    return gather_each(exchange, relay_phases(exchange) - 1, relay_take, err);
}

static void relay_drop(struct exchange *exchange)
{
    for (unsigned i = 0; i < exchange->tensors * exchange->members; i++) {
        list_free((struct sparse *)exchange->state + i);
    }
    free(exchange->state);
}

const struct collective_ops collective_relay = {
    .name = "relay",
    .traits = {.values = COLLECTIVE_VALUES_ALL,
        .scatters = true,
        .members_max = EXCHANGE_PHASES_MAX + 1},
    .phases = relay_phases,
    .expects = relay_expects,
    .produce = relay_produce,
    .finish = relay_finish,
    .drop = relay_drop,
};
