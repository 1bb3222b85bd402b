/*
 * A core with one node and a few ranks that a test drives by hand. It carries out the core's
 * actions at once and notes its answers. Gradients are small integers, so that every sum is exact.
 */
#ifndef ADTOPK_TESTS_LONE_CORE_H
#define ADTOPK_TESTS_LONE_CORE_H

#include "daemon/compute/work.h"
#include "daemon/core/core.h"
#include "daemon/core/inspect.h"
#include "tests/host/host.h"

#define LONE_RANKS 3u
#define LONE_TENSORS 16u
#define LONE_NODE 3
/* Keys of a policy under which every sum is exact. */
#define LONE_EXACT "\"reduce\":\"sum\",\"values\":\"f32\",\"density\":0.05"

/* The core's answers to requests with a ticket. */
struct lone_answer {
    unsigned count; /* answers so far; the other fields are of the last one */
    uint64_t ticket;
    enum adtopk_status status;
    uint64_t version, step;
    struct error error;
};

struct lone_core {
    struct host host;
    uint64_t job, step;
    uint64_t run; /* the run to which the ranks return; 0: none has begun yet */
    unsigned ranks, tensors;
    uint64_t numel[LONE_TENSORS];
    bool withdrawing; /* steps end with NONFINITE */
    /* The policy changes gradients before it adds them, so lone_check() looks at ledgers only. */
    bool changed;
    float scale; /* the loss scale of every push; 0: none is given */
    /* Tolerance of each sum; 0 where values are integers that no encoding changes. */
    double tolerance;
    bool half;    /* gradients and updates are in 16 bits */
    bool rounded; /* residuals are, or were, in bf16: they pass their rounding errors on */
    double *pushed[LONE_TENSORS], *applied[LONE_TENSORS]; /* per element, sums over all steps */
    /* Counts of actions: */
    unsigned ready, steps, delivered, closed, failed;
    enum adtopk_status ready_status; /* the last step's status, as in READY */
    struct error failure;            /* the error of the last rank that failed */
    struct lone_answer policy, verified;
};

/** The rank's gradient for the element. */
float lone_gradient(uint64_t step, unsigned rank, uint32_t tensor, uint64_t element);

/** Makes a core whose ranks open the job with this policy (NULL: the default) and register
 * `tensors` tensors. lone_commit() commits them. Fails the test if the core refuses. */
void lone_open(struct lone_core *lone, unsigned ranks, const char *policy,
    const struct tensor_spec *spec, unsigned tensors);
void lone_free(struct lone_core *lone);
/** All ranks commit and map. */
void lone_commit(struct lone_core *lone);
/** Does both: afterwards the job is ready. */
void lone_start(struct lone_core *lone, unsigned ranks, const char *policy,
    const struct tensor_spec *spec, unsigned tensors);

/** Starts a job with two ranks and three small tensors: "fc.weight", "fc.bias" and "conv.weight".
 */
void lone_begin(struct lone_core *lone, const char *policy);
/** Does the same with gradients and updates in f16 and bf16. Ranks ask for lists of some tensors.
 */
void lone_begin_half(struct lone_core *lone, const char *policy);
bool lone_is_f16(uint32_t tensor);
/** All ranks leave. */
void lone_leave(struct lone_core *lone);

/** Hands the core an event of a rank and carries out the core's actions. */
enum adtopk_status lone_rank_event(struct lone_core *lone, unsigned rank, struct event event);
/** Fails the test if the core refused the last request. */
void lone_must(struct lone_core *lone, enum adtopk_status status);
/** Runs held computes until the next one is of this kind. */
void lone_compute_until(struct lone_core *lone, const struct work_kind *kind);
/** Runs the only compute that is held. */
void lone_compute_one(struct lone_core *lone);

/** Kills the daemon and starts one that finds its memory. The ranks join again. */
void lone_restart(struct lone_core *lone);

/** Requests of one rank in the open step, lone->step. A push writes the gradient first. */
enum adtopk_status lone_push(struct lone_core *lone, unsigned rank, uint32_t tensor);
enum adtopk_status lone_end(struct lone_core *lone, unsigned rank);
enum adtopk_status lone_wait(struct lone_core *lone, unsigned rank, uint32_t tensor);
/** All ranks push every tensor; the second also ends the step. */
void lone_push_all(struct lone_core *lone);
void lone_end_all(struct lone_core *lone);
/** Notes the updates of the step, which must be accepted. */
void lone_close(struct lone_core *lone);
/** Takes a whole step with a NaN in every gradient. */
void lone_withdraw(struct lone_core *lone);
/** Takes `count` whole steps. */
void lone_train(struct lone_core *lone, unsigned count);

/** Asks for a change of the policy in force, whatever its version. */
enum adtopk_status lone_change(struct lone_core *lone, uint64_t ticket, const char *text);
/** Trains until the change under way is done. It must have this ticket and version. */
void lone_expect_change(struct lone_core *lone, uint64_t ticket, uint32_t version);
/** Asks for a change and trains until it is done. Nothing may prevent it. */
void lone_must_change(struct lone_core *lone, const char *text);
enum adtopk_status lone_verify(struct lone_core *lone, uint64_t ticket);

/** Checks that the core refused the last request with this status, in a sentence with both words.
 */
void lone_assert_refused(
    const struct lone_core *lone, enum adtopk_status status, const char *first, const char *second);

/** Checks, element by element, that every pushed gradient was applied or is in a residual. If some
 * residuals were in bf16 it checks tensor by tensor. Also checks that no byte of the results was
 * written before it was reserved. */
void lone_check(const struct lone_core *lone);

struct job_info lone_job(const struct lone_core *lone);
struct tensor_info lone_tensor(const struct lone_core *lone, uint32_t tensor);

struct tensor_spec lone_spec(const char *name, unsigned dims, const uint64_t *size);

#endif
