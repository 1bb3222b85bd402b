/*
 * Gradients that are sent whole while their residual is empty, and leave nothing in it.
 */
#include <stdlib.h>

#include "daemon/engine/host.h"

struct direct_pass {
    struct direct direct;
    unsigned ranges;
};

static void direct_range(void *arg, unsigned range, unsigned thread)
{
    const struct direct_pass *pass = arg;
    uint64_t chunks = chunk_count(pass->direct.n);

    (void)thread;
    direct_chunks(
        &pass->direct, chunks * range / pass->ranges, chunks * (range + 1) / pass->ranges);
}

enum adtopk_status host_order_direct(const struct host *host)
{
    const struct engine_order *order = host->order;
    const void **input = malloc((order->parts > 0 ? order->parts : 1) * sizeof(*input));
    struct direct_pass pass = {.direct = {.gradients = input,
                                   .count = order->parts,
                                   .dtype = order->dtype,
                                   .n = order->numel,
                                   .sum = host_at(host, order->direct.sum),
                                   .scale = order->direct.scale,
                                   .stamp = order->stamp,
                                   .progress = host_at(host, order->residual.progress),
                                   .ahead = host->parallel.ahead},
        .ranges = host_ranges(host)};

    if (input == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    for (unsigned i = 0; i < order->parts; i++) {
        input[i] = host_at(host, host->part[i].element);
    }
    direct_start(&pass.direct, host_at(host, order->ledger));
    parallel_for(&host->parallel, direct_range, &pass, pass.ranges);
    host->result->nonfinite =
        direct_sums(pass.direct.progress, order->numel, host->result->sums, NULL);
    if (host->result->nonfinite > 0) {
        host->result->fault = host_fault(host);
    }
    free(input);
    return ADTOPK_OK;
}

enum adtopk_status host_order_passed(const struct host *host)
{
    (void)direct_sums(host_at(host, host->order->residual.progress), host->order->numel,
        host->result->sums, host->result->before);
    return ADTOPK_OK;
}
