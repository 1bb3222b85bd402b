/*
 * Declarations that the files of the host engine share: one function per kind of order.
 */
#ifndef ADTOPK_ENGINE_HOST_H
#define ADTOPK_ENGINE_HOST_H

#include "daemon/engine/engine.h"
#include "kernels/kernels.h"

/* Memory for passes. The orders of a batch use it one after the other. */
struct host_scratch {
    void *memory;
    size_t size;
};

/* An order that the engine is carrying out. */
struct host {
    const struct engine_memory *memory;
    const struct engine_order *order;
    const struct engine_part *part; /* the first of its parts */
    struct engine_result *result;
    struct host_scratch *scratch;
    struct parallel parallel;
};

static inline void *host_at(const struct host *host, struct engine_place place)
{
    return engine_address(host->memory, place);
}

static inline struct sparse host_list(const struct host *host, const struct engine_list *list)
{
    return (struct sparse){.position = host_at(host, list->position),
        .value = host_at(host, list->value),
        .count = list->count,
        .capacity = list->count};
}

/** The order's residual if it is in bf16. Otherwise the element of the result is NULL. */
struct rounded host_rounded(const struct host *host);
/** The order's residual if it is in f32; otherwise NULL. */
float *host_residual(const struct host *host);
/** The first element that a pass over the parts leaves out. */
struct engine_fault host_fault(const struct host *host);
/** The number of ranges into which the order's tensor is cut, for idle workers. */
unsigned host_ranges(const struct host *host);

/* host_pass.c */
enum adtopk_status host_order_add(const struct host *host);
enum adtopk_status host_order_withdraw(const struct host *host);
enum adtopk_status host_order_join(const struct host *host);
enum adtopk_status host_order_take(const struct host *host);
/* host_direct.c */
enum adtopk_status host_order_direct(const struct host *host);
enum adtopk_status host_order_passed(const struct host *host);
/* host_lists.c */
enum adtopk_status host_order_leave(const struct host *host);
enum adtopk_status host_order_return(const struct host *host);
enum adtopk_status host_order_gather(const struct host *host);
enum adtopk_status host_order_update(const struct host *host);
enum adtopk_status host_order_narrow(const struct host *host);
/* host_whole.c */
enum adtopk_status host_order_read(const struct host *host);
enum adtopk_status host_order_save(const struct host *host);
enum adtopk_status host_order_load(const struct host *host);
enum adtopk_status host_order_sums(const struct host *host);
enum adtopk_status host_order_convert(const struct host *host);
enum adtopk_status host_order_carry(const struct host *host);

#endif
