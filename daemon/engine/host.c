/*
 * The engine of this processor: near, in the memory of this process. Each kind of order is one
 * function. The functions are in host_pass.c (passes over a residual), host_direct.c (without a
 * residual), host_lists.c (entries) and host_whole.c (all elements).
 */
#include "daemon/engine/host.h"
#include "kernels/base/convert.h"

#include <math.h>
#include <stdlib.h>

struct rounded host_rounded(const struct host *host)
{
    const struct engine_residual *residual = &host->order->residual;
    struct rounded rounded = {.element = NULL};

    if (residual->rounded) {
        rounded = rounded_at(host_at(host, residual->element), host->order->numel);
        rounded.salt = residual->salt;
    }
    return rounded;
}

float *host_residual(const struct host *host)
{
    const struct engine_residual *residual = &host->order->residual;

    return residual->rounded ? NULL : host_at(host, residual->element);
}

unsigned host_ranges(const struct host *host)
{
    uint64_t range = host->memory->range > 0 ? host->memory->range : ENGINE_RANGE;
    uint64_t ranges = host->order->numel / range;
    uint64_t most = parallel_threads(&host->parallel);

    most = most < FUSED_MAX_RANGES ? most : FUSED_MAX_RANGES;
    ranges = ranges < most ? ranges : most;
    return ranges > 1 ? (unsigned)ranges : 1;
}

static float host_value(const void *gradient, enum dtype dtype, uint64_t i)
{
    switch (dtype) {
    case DTYPE_F16: return convert_f16(((const uint16_t *)gradient)[i]);
    case DTYPE_BF16: return convert_bf16(((const uint16_t *)gradient)[i]);
    default: return ((const float *)gradient)[i];
    }
}

struct engine_fault host_fault(const struct host *host)
{
    const struct engine_order *order = host->order;

    for (uint64_t i = 0; i < order->numel; i++) {
        for (unsigned p = 0; p < order->parts; p++) {
            const void *gradient = host_at(host, host->part[p].element);
            float value = gradient != NULL ? host_value(gradient, order->dtype, i) : 0;
            if (!(fabsf(value) < KERNEL_FINITE_LIMIT)) {
                return (struct engine_fault){true, p, i, value};
            }
        }
    }
    return (struct engine_fault){.found = false};
}

static void host_run(
    void *context, const struct engine_batch *batch, const struct parallel *parallel)
{
    static enum adtopk_status (*const carry_out[ENGINE_KINDS])(const struct host *host) = {
        [ENGINE_ADD] = host_order_add,
        [ENGINE_WITHDRAW] = host_order_withdraw,
        [ENGINE_JOIN] = host_order_join,
        [ENGINE_TAKE] = host_order_take,
        [ENGINE_DIRECT] = host_order_direct,
        [ENGINE_PASSED] = host_order_passed,
        [ENGINE_LEAVE] = host_order_leave,
        [ENGINE_RETURN] = host_order_return,
        [ENGINE_GATHER] = host_order_gather,
        [ENGINE_READ] = host_order_read,
        [ENGINE_SAVE] = host_order_save,
        [ENGINE_LOAD] = host_order_load,
        [ENGINE_UPDATE] = host_order_update,
        [ENGINE_NARROW] = host_order_narrow,
        [ENGINE_SUMS] = host_order_sums,
        [ENGINE_CONVERT] = host_order_convert,
        [ENGINE_CARRY] = host_order_carry,
    };

    struct host_scratch scratch = {.memory = NULL};

    (void)context;
    for (unsigned i = 0; i < batch->count; i++) {
        const struct engine_order *order = &batch->order[i];
        struct host host = {.memory = batch->memory,
            .order = order,
            .part = order->parts > 0 ? batch->part + order->first : NULL,
            .result = &batch->result[i],
            .scratch = &scratch,
            .parallel = *parallel};
        if (!engine_leaves_out(batch, i)) {
            host.result->status = carry_out[order->kind](&host);
        }
    }
    free(scratch.memory);
}

const struct engine_ops engine_host = {.name = "host", .run = host_run};
