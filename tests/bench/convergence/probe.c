#include "probe.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <adtopk/adtopk.h>

#include "measure.h"

/* The data of one tensor. Only tensors of at least two dimensions are watched: others are sent
 * dense. */
struct probe_tensor {
    const char *name;
    size_t at; /* its first element among all that are watched */
    size_t size;
    struct measure_tensor shape;
    uint64_t *last;  /* measure_note() */
    double *totals;  /* measure_step() */
    uint32_t number; /* in the job of rank 0's own */
};

struct probe {
    FILE *out;
    const char *path;
    uint64_t every;
    int ranks_per_worker;
    const char *address;
    adtopk_context *own; /* rank 0: the job in which it is alone */
    const struct tensor *tensors;
    size_t count;
    struct probe_tensor *watched; /* as tensors; size 0: not watched */
    size_t size;                  /* elements of all that are watched */
    double *left;                 /* the sum of g_p - u of this rank */
    float *sums;                  /* [2][size]: mean gradient, mean gradient plus residual */
    double *own_residual;         /* rank 0: residual of its second job */
    float *ideal;
};

struct probe *probe_create(
    const char *path, uint64_t every, int ranks_per_worker, const char *address)
{
    struct probe *probe = calloc(1, sizeof *probe);
    if (!probe) {
        fprintf(stderr, "probe: no memory\n");
        return NULL;
    }
    probe->path = path;
    probe->every = every;
    probe->ranks_per_worker = ranks_per_worker;
    probe->address = address;
    return probe;
}

int probe_destroy(struct probe *probe)
{
    int result = 0;
    if (!probe) {
        return 0;
    }
    if (probe->out) {
        const int wrong = ferror(probe->out);
        if (fclose(probe->out) != 0 || wrong) {
            fprintf(stderr, "probe: %s: cannot write\n", probe->path);
            result = -1;
        }
    }
    adtopk_close(probe->own);
    for (size_t t = 0; probe->watched && t < probe->count; t++) {
        free(probe->watched[t].last);
        free(probe->watched[t].totals);
    }
    free(probe->watched);
    free(probe->left);
    free(probe->sums);
    free(probe->own_residual);
    free(probe->ideal);
    free(probe);
    return result;
}

/* ---------------------------------------------------------------- the job of rank 0's own */

static int probe_check(const struct probe *probe, enum adtopk_status status)
{
    if (status == ADTOPK_OK) {
        return 0;
    }
    fprintf(stderr, "probe: %s: %s\n", adtopk_status_name(status), adtopk_message(probe->own));
    return -1;
}

static int probe_register(struct probe *probe, size_t t)
{
    const struct tensor *from = &probe->tensors[t];
    struct adtopk_tensor_spec spec = {.size = sizeof spec,
        .name = from->name,
        .dims = (int)from->dims,
        .forms = ADTOPK_FORM_DENSE};
    for (size_t d = 0; d < from->dims; d++) {
        spec.shape[d] = from->shape[d];
    }
    return probe_check(probe, adtopk_register(probe->own, &spec, &probe->watched[t].number));
}

/* Registers the tensors in the same order as the training, so that everything that their order
 * seeds is equal. */
static int probe_join(struct probe *probe, const struct options *options)
{
    const struct adtopk_options join = {.size = sizeof join,
        .address = probe->address,
        .job = options->exchange.job,
        .policy = options->exchange.policy,
        .has_rank = 1,
        .world_size = 1};
    if (probe_check(probe, adtopk_open(&join, &probe->own)) != 0) {
        return -1;
    }
    for (size_t t = 0; t < probe->count; t++) {
        if (probe_register(probe, t) != 0) {
            return -1;
        }
    }
    return probe_check(probe, adtopk_commit(probe->own));
}

/* ideal = C(total), in the scale of the ranks' mean; the workers' scale is ranks_per_worker times
 * as large. Without `total`, in a step that is not measured, only the turn passes. */
static int probe_select(struct probe *probe, const float *total)
{
    const double scale = probe->ranks_per_worker;
    for (size_t t = 0; total && t < probe->count; t++) {
        const struct probe_tensor *watched = &probe->watched[t];
        float *gradient = adtopk_gradient(probe->own, watched->number);
        double *residual = probe->own_residual + watched->at;
        for (size_t i = 0; i < watched->size; i++) {
            gradient[i] = (float)(scale * total[watched->at + i] - residual[i]);
            residual[i] += gradient[i];
        }
        if (watched->size > 0 &&
            probe_check(probe, adtopk_push_tensor(probe->own, watched->number, NULL)) != 0) {
            return -1;
        }
    }
    if (probe_check(probe, adtopk_step_wait(probe->own)) != 0) {
        return -1;
    }
    for (size_t t = 0; t < probe->count; t++) {
        const struct probe_tensor *watched = &probe->watched[t];
        struct adtopk_update update = {.size = sizeof update};
        if (probe_check(probe, adtopk_update(probe->own, watched->number, &update)) != 0) {
            return -1;
        }
        for (size_t i = 0; i < watched->size; i++) {
            probe->own_residual[watched->at + i] -= update.dense[i];
            probe->ideal[watched->at + i] = (float)(update.dense[i] / scale);
        }
    }
    return 0;
}

/* ---------------------------------------------------------------- the first step */

static int probe_watch(struct probe *probe, size_t t)
{
    const struct tensor *tensor = &probe->tensors[t];
    struct probe_tensor *watched = &probe->watched[t];
    watched->name = tensor->name;
    watched->at = probe->size;
    if (tensor->dims < 2) {
        return 0;
    }
    watched->size = tensor_size(tensor);
    watched->shape = measure_shape(tensor->shape, tensor->dims);
    watched->last = calloc(watched->shape.fibres, sizeof *watched->last);
    watched->totals = calloc(watched->shape.fibres, sizeof *watched->totals);
    probe->size += watched->size;
    return watched->last && watched->totals ? 0 : -1;
}

static int probe_allocate(struct probe *probe)
{
    probe->watched = calloc(probe->count, sizeof *probe->watched);
    for (size_t t = 0; probe->watched && t < probe->count; t++) {
        if (probe_watch(probe, t) != 0) {
            return -1;
        }
    }
    probe->left = calloc(probe->size, sizeof *probe->left);
    probe->sums = calloc(2 * probe->size, sizeof *probe->sums);
    probe->own_residual = calloc(probe->size, sizeof *probe->own_residual);
    probe->ideal = calloc(probe->size, sizeof *probe->ideal);
    const int all =
        probe->watched && probe->left && probe->sums && probe->own_residual && probe->ideal;
    return all ? 0 : -1;
}

static int probe_start(
    struct probe *probe, const struct options *options, const struct exchange *exchange)
{
    probe->tensors = exchange_tensors(exchange, &probe->count);
    if (probe_allocate(probe) != 0) {
        fprintf(stderr, "probe: no memory\n");
        return -1;
    }
    if (exchange_rank(exchange) != 0) {
        return 0;
    }
    probe->out = fopen(probe->path, "w");
    if (!probe->out) {
        fprintf(stderr, "probe: %s: %s\n", probe->path, strerror(errno));
        return -1;
    }
    return probe_join(probe, options);
}

/* ---------------------------------------------------------------- every step */

/* Adds the gradient to the residual and subtracts the update. In a measured step it keeps the
 * values between the two. */
static int probe_account(struct probe *probe, struct exchange *exchange, int measured)
{
    const float world = (float)exchange_world(exchange);
    float *const *gradients = exchange_gradients(exchange);
    for (size_t t = 0; t < probe->count; t++) {
        const struct probe_tensor *watched = &probe->watched[t];
        const float *update = exchange_update(exchange, t), *gradient = gradients[t];
        if (!update) {
            fprintf(stderr, "probe: %s\n", exchange_message(exchange));
            return -1;
        }
        float *mean = probe->sums + watched->at, *total = mean + probe->size;
        double *left = probe->left + watched->at;
        for (size_t i = 0; i < watched->size; i++) {
            left[i] += gradient[i];
            if (measured) {
                mean[i] = gradient[i] / world;
                total[i] = (float)left[i] / world;
            }
            left[i] -= update[i];
        }
    }
    return 0;
}

static void probe_print(
    struct probe *probe, const struct probe_tensor *watched, const struct measure *m)
{
    fprintf(probe->out,
        "{\"name\":\"%s\",\"elements\":%zu,\"mean\":%.9g,\"total\":%.9g,\"left\":%.9g,"
        "\"deviation\":%.9g,"
        "\"missed_total\":%.9g,\"nonzeros\":%" PRIu64 ",\"live\":%" PRIu64 ",\"missed\":%" PRIu64
        ",\"never\":%" PRIu64 ",\"longest\":%" PRIu64 "}",
        watched->name, watched->size, m->mean, m->total, m->left, m->deviation, m->missed_total,
        m->nonzeros, m->live, m->missed, m->never, m->longest);
}

static void probe_measure(
    struct probe *probe, struct exchange *exchange, uint64_t step, int measured)
{
    const char *separator = "";
    if (measured) {
        fprintf(probe->out, "{\"step\":%" PRIu64 ",\"tensors\":[", step);
    }
    for (size_t t = 0; t < probe->count; t++) {
        struct probe_tensor *watched = &probe->watched[t];
        if (watched->size == 0) {
            continue;
        }
        struct measure_tensor tensor = watched->shape;
        tensor.sent = exchange_update(exchange, t);
        tensor.mean = probe->sums + watched->at;
        tensor.total = tensor.mean + probe->size;
        tensor.ideal = probe->ideal + watched->at;
        measure_note(&tensor, step, watched->last);
        if (measured) {
            const struct measure measure =
                measure_step(&tensor, step, watched->last, watched->totals);
            fputs(separator, probe->out);
            probe_print(probe, watched, &measure);
            separator = ",";
        }
    }
    if (measured) {
        fputs("]}\n", probe->out);
    }
}

int probe_step(void *self, const struct options *options, struct exchange *exchange, uint64_t step)
{
    struct probe *probe = self;
    const int measured = step % probe->every == 0;
    if (!probe->watched && probe_start(probe, options, exchange) != 0) {
        return -1;
    }
    if (probe_account(probe, exchange, measured) != 0) {
        return -1;
    }
    if (measured && exchange_sum(exchange, probe->sums, 2 * probe->size) != 0) {
        fprintf(stderr, "probe: %s\n", exchange_message(exchange));
        return -1;
    }
    if (!probe->own) {
        return 0; /* not rank 0 */
    }
    if (probe_select(probe, measured ? probe->sums + probe->size : NULL) != 0) {
        return -1;
    }
    probe_measure(probe, exchange, step, measured);
    return 0;
}
