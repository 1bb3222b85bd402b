/* The exchange of gradients with the other ranks: the one place that calls the adtopk client
 * library. Everything else in this example would look the same without it.
 *
 * One thread uses an exchange. Functions that return int return 0, or -1 on an error that ends the
 * run; exchange_message() then has the sentence. */
#ifndef EXAMPLE_EXCHANGE_H
#define EXAMPLE_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

#include "optimiser.h"
#include "tensor.h"

struct exchange_options {
    int local;           /* train alone, without a daemon */
    const char *address; /* NULL here and below: the library's default, from the environment */
    const char *job;
    const char *policy; /* JSON document */
    int rank;           /* -1: from the environment */
    int world;          /* 0: from the environment */
};

struct exchange;

/* The outcome of a step. */
enum exchange_step {
    EXCHANGE_FAILED = -1, /* the run is over */
    EXCHANGE_ACCEPTED,    /* the updates are there: apply all */
    EXCHANGE_WITHDRAWN    /* a gradient of some rank was not finite: apply nothing, go on */
};

/* Joins the job with these tensors, which must outlive the exchange; waits for the other ranks.
 * NULL only when there is no memory; otherwise ask exchange_failed(), and close it in either case.
 */
struct exchange *exchange_open(
    const struct exchange_options *options, const struct tensor *tensors, size_t count);
int exchange_failed(const struct exchange *exchange);
void exchange_close(struct exchange *exchange);

int exchange_rank(const struct exchange *exchange);
int exchange_world(const struct exchange *exchange);
const char *exchange_message(const struct exchange *exchange);

/* The tensors it was opened with. */
const struct tensor *exchange_tensors(const struct exchange *exchange, size_t *count);

/* 1 if this rank is the lowest of those that take part, otherwise 0. It is rank 0 unless that was
 * lost, and it alone writes what is equal on all ranks. -1 on an error. To be asked between two
 * steps. */
int exchange_is_first(struct exchange *exchange);

/* Gives every rank the parameters of the first one. */
int exchange_share_parameters(struct exchange *exchange);

/* Where the gradient of each tensor is to be written: shared memory, so that nothing is copied. */
float *const *exchange_gradients(const struct exchange *exchange);

/* Hands over a gradient that is complete; does not wait. A tensor_ready_fn: `exchange` is a struct
 * exchange. */
int exchange_push(void *exchange, size_t tensor);

/* Ends the step and waits for its updates. */
enum exchange_step exchange_wait(struct exchange *exchange);

/* The mean gradient over all ranks, dense; to be read before the next push. NULL on an error. */
const float *exchange_update(struct exchange *exchange, size_t tensor);

/* Writes the parameters at which the next gradient of a tensor is taken, given what becomes of
 * an update: see adtopk_lookahead(). Alone, they are the parameters. */
int exchange_look_ahead(struct exchange *exchange, size_t tensor, const float *parameters,
    const struct optimiser_reach *reach, float *shifted);

/* values[i] = the sum of values[i] over all ranks. */
int exchange_sum(struct exchange *exchange, float *values, size_t count);

enum { EXCHANGE_WORDS = 320 };

/* Fails on all ranks unless `words`, options such as "--lr 0.4 --seed 1", are the same on all.
 * The message of a rank that differs from the first one names the first option that does. */
int exchange_check_words(struct exchange *exchange, const char *words);

/* Fails unless `hash` is the same as on the first rank. */
int exchange_check_equal(struct exchange *exchange, uint64_t hash);

/* 1 if an operator has asked for a checkpoint, otherwise 0, the same on all ranks. To be asked
 * between every two steps. */
int exchange_checkpoint_due(struct exchange *exchange);

/* Saves what the daemons keep to an existing folder, or loads it before the first step. All ranks,
 * between two steps. */
int exchange_save(struct exchange *exchange, const char *folder);
int exchange_load(struct exchange *exchange, const char *folder);

#endif
