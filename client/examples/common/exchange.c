#include "exchange.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <adtopk/checkpoint.h>
#include <adtopk/members.h>

struct exchange {
    adtopk_context *context; /* NULL: trains alone, and a gradient is its own mean */
    const struct tensor *tensors;
    size_t count;
    float **gradients;
    uint32_t *numbers; /* the library's, of each tensor */
    int failed;
    char message[512];
};

/* Keeps the library's sentence and returns -1 unless the call succeeded. */
static int exchange_check(struct exchange *exchange, enum adtopk_status status)
{
    if (status == ADTOPK_OK) {
        return 0;
    }
    exchange->failed = 1;
    snprintf(exchange->message, sizeof exchange->message, "%s: %s", adtopk_status_name(status),
        adtopk_message(exchange->context));
    return -1;
}

static int exchange_register(struct exchange *exchange, size_t tensor)
{
    const struct tensor *from = &exchange->tensors[tensor];
    /* Momentum and weight decay move every element, so the update is wanted in its dense form. The
     * trainers look ahead, which takes the residual too. */
    struct adtopk_tensor_spec spec = {.size = sizeof spec,
        .name = from->name,
        .dtype = ADTOPK_F32,
        .dims = (int)from->dims,
        .forms = ADTOPK_FORM_DENSE | ADTOPK_FORM_PENDING};
    for (size_t d = 0; d < from->dims; d++) {
        spec.shape[d] = from->shape[d];
    }
    return exchange_check(
        exchange, adtopk_register(exchange->context, &spec, &exchange->numbers[tensor]));
}

static int exchange_join(struct exchange *exchange, const struct exchange_options *options)
{
    const struct adtopk_options join = {.size = sizeof join,
        .address = options->address,
        .job = options->job,
        .policy = options->policy,
        .rank = options->rank,
        .has_rank = options->rank >= 0,
        .world_size = options->world};
    if (exchange_check(exchange, adtopk_open(&join, &exchange->context)) != 0) {
        return -1;
    }
    /* Registers in the order of the forward pass: tensors that are registered first go first, and
     * the next pass needs them first. */
    for (size_t t = 0; t < exchange->count; t++) {
        if (exchange_register(exchange, t) != 0) {
            return -1;
        }
    }
    if (exchange_check(exchange, adtopk_commit(exchange->context)) != 0) {
        return -1;
    }
    for (size_t t = 0; t < exchange->count; t++) {
        exchange->gradients[t] = adtopk_gradient(exchange->context, exchange->numbers[t]);
    }
    return 0;
}

static int exchange_allocate(struct exchange *exchange)
{
    for (size_t t = 0; t < exchange->count; t++) {
        exchange->gradients[t] = calloc(tensor_size(&exchange->tensors[t]), sizeof(float));
        if (!exchange->gradients[t]) {
            exchange->failed = 1;
            snprintf(exchange->message, sizeof exchange->message, "no memory for gradients");
            return -1;
        }
    }
    return 0;
}

struct exchange *exchange_open(
    const struct exchange_options *options, const struct tensor *tensors, size_t count)
{
    struct exchange *exchange = calloc(1, sizeof *exchange);
    if (!exchange) {
        return NULL;
    }
    exchange->tensors = tensors;
    exchange->count = count;
    exchange->gradients = calloc(count, sizeof *exchange->gradients);
    exchange->numbers = calloc(count, sizeof *exchange->numbers);
    if (!exchange->gradients || !exchange->numbers) {
        exchange_close(exchange);
        return NULL;
    }
    if (options->local) {
        exchange_allocate(exchange);
    } else {
        exchange_join(exchange, options);
    }
    return exchange;
}

int exchange_failed(const struct exchange *exchange)
{
    return exchange->failed;
}

void exchange_close(struct exchange *exchange)
{
    if (!exchange) {
        return;
    }
    if (exchange->context) {
        adtopk_close(exchange->context); /* the gradients were the library's */
    } else {
        for (size_t t = 0; exchange->gradients && t < exchange->count; t++) {
            free(exchange->gradients[t]);
        }
    }
    free(exchange->gradients);
    free(exchange->numbers);
    free(exchange);
}

int exchange_rank(const struct exchange *exchange)
{
    return exchange->context ? adtopk_rank(exchange->context) : 0;
}

int exchange_world(const struct exchange *exchange)
{
    return exchange->context ? adtopk_world_size(exchange->context) : 1;
}

const char *exchange_message(const struct exchange *exchange)
{
    return exchange->message;
}

const struct tensor *exchange_tensors(const struct exchange *exchange, size_t *count)
{
    *count = exchange->count;
    return exchange->tensors;
}

/* The rank whose values count: the lowest that takes part. It is 0 unless the node of rank 0 is
 * lost. -1 on an error. */
static int exchange_first(struct exchange *exchange)
{
    struct adtopk_members members = {.size = sizeof members};
    if (!exchange->context) {
        return 0;
    }
    if (exchange_check(exchange, adtopk_members(exchange->context, &members)) != 0) {
        return -1;
    }
    return (int)members.root;
}

/* Gives every rank the bytes of the first one. Returns that rank, or -1 on an error. */
static int exchange_share(struct exchange *exchange, void *bytes, size_t size)
{
    const int first = exchange_first(exchange);
    if (exchange->context && first >= 0 &&
        exchange_check(exchange, adtopk_broadcast(exchange->context, bytes, size, first)) != 0) {
        return -1;
    }
    return first;
}

int exchange_is_first(struct exchange *exchange)
{
    const int first = exchange_first(exchange);
    return first < 0 ? -1 : first == exchange_rank(exchange);
}

int exchange_share_parameters(struct exchange *exchange)
{
    for (size_t t = 0; t < exchange->count; t++) {
        const struct tensor *tensor = &exchange->tensors[t];
        if (exchange_share(exchange, tensor->values, tensor_size(tensor) * sizeof(float)) < 0) {
            return -1;
        }
    }
    return 0;
}

float *const *exchange_gradients(const struct exchange *exchange)
{
    return exchange->gradients;
}

int exchange_push(void *context, size_t tensor)
{
    struct exchange *exchange = context;
    if (!exchange->context) {
        return 0;
    }
    return exchange_check(
        exchange, adtopk_push_tensor(exchange->context, exchange->numbers[tensor], NULL));
}

/* Alone, a step is withdrawn under the same condition as by the daemon. */
static enum exchange_step exchange_wait_alone(const struct exchange *exchange)
{
    for (size_t t = 0; t < exchange->count; t++) {
        const size_t size = tensor_size(&exchange->tensors[t]);
        for (size_t i = 0; i < size; i++) {
            if (!isfinite(exchange->gradients[t][i])) {
                return EXCHANGE_WITHDRAWN;
            }
        }
    }
    return EXCHANGE_ACCEPTED;
}

enum exchange_step exchange_wait(struct exchange *exchange)
{
    if (!exchange->context) {
        return exchange_wait_alone(exchange);
    }
    const enum adtopk_status status = adtopk_step_wait(exchange->context);
    if (status == ADTOPK_NONFINITE) {
        return EXCHANGE_WITHDRAWN;
    }
    return exchange_check(exchange, status) == 0 ? EXCHANGE_ACCEPTED : EXCHANGE_FAILED;
}

const float *exchange_update(struct exchange *exchange, size_t tensor)
{
    if (!exchange->context) {
        return exchange->gradients[tensor];
    }
    struct adtopk_update update = {.size = sizeof update};
    if (exchange_check(
            exchange, adtopk_update(exchange->context, exchange->numbers[tensor], &update)) != 0) {
        return NULL;
    }
    return update.dense;
}

int exchange_look_ahead(struct exchange *exchange, size_t tensor, const float *parameters,
    const struct optimiser_reach *reach, float *shifted)
{
    const struct adtopk_lookahead_spec spec = {.size = sizeof spec,
        .parameters = parameters,
        .shifted = shifted,
        .second_moment = reach->second_moment,
        .correction = reach->correction,
        .epsilon = reach->epsilon,
        .rate = reach->rate};
    if (!exchange->context) {
        memcpy(shifted, parameters, tensor_size(&exchange->tensors[tensor]) * sizeof(float));
        return 0;
    }
    return exchange_check(
        exchange, adtopk_lookahead(exchange->context, exchange->numbers[tensor], &spec));
}

int exchange_sum(struct exchange *exchange, float *values, size_t count)
{
    if (!exchange->context) {
        return 0;
    }
    return exchange_check(exchange, adtopk_allreduce(exchange->context, values, count));
}

/* The length of the first option in `words`: up to the next one, or the end. */
static int exchange_option(const char *words)
{
    const char *next = strstr(words, " --");
    return (int)(next ? (size_t)(next - words) : strlen(words));
}

/* Names the first option that differs from that of another rank. */
static void exchange_name_option(
    struct exchange *exchange, const char *here, int rank, const char *there)
{
    int size = exchange_option(here);
    while (size == exchange_option(there) && here[size] != '\0' && there[size] != '\0' &&
           memcmp(here, there, (size_t)size) == 0) {
        here += size + 1;
        there += size + 1;
        size = exchange_option(here);
    }
    snprintf(exchange->message, sizeof exchange->message, "trains with %.*s, but rank %d with %.*s",
        size, here, rank, exchange_option(there), there);
}

int exchange_check_words(struct exchange *exchange, const char *words)
{
    char first[EXCHANGE_WORDS] = "";
    snprintf(first, sizeof first, "%s", words);
    const int rank = exchange_share(exchange, first, sizeof first);
    if (rank < 0) {
        return -1;
    }
    first[sizeof first - 1] = '\0';
    const int differs = strcmp(first, words) != 0;
    float ranks = (float)differs;
    if (exchange_sum(exchange, &ranks, 1) != 0) {
        return -1;
    }
    if (differs) {
        exchange_name_option(exchange, words, rank, first);
    } else if (ranks > 0) {
        snprintf(exchange->message, sizeof exchange->message,
            "%g of %d ranks train with other options than rank %d", (double)ranks,
            exchange_world(exchange), rank);
    } else {
        return 0;
    }
    exchange->failed = 1;
    return -1;
}

int exchange_check_equal(struct exchange *exchange, uint64_t hash)
{
    uint64_t first = hash;
    const int rank = exchange_share(exchange, &first, sizeof first);
    if (rank < 0) {
        return -1;
    }
    if (first == hash) {
        return 0;
    }
    exchange->failed = 1;
    snprintf(exchange->message, sizeof exchange->message,
        "the parameters of rank %d differ from those of rank %d", exchange_rank(exchange), rank);
    return -1;
}

int exchange_checkpoint_due(struct exchange *exchange)
{
    int due = 0;
    if (exchange_check(exchange, adtopk_checkpoint_due(exchange->context, &due)) != 0) {
        return -1;
    }
    return due;
}

int exchange_save(struct exchange *exchange, const char *folder)
{
    return exchange_check(exchange, adtopk_checkpoint_save(exchange->context, folder));
}

int exchange_load(struct exchange *exchange, const char *folder)
{
    return exchange_check(exchange, adtopk_checkpoint_load(exchange->context, folder, NULL));
}
