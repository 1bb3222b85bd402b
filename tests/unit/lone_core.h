/*
 * A core with one node and a few ranks that a test drives by hand: what it asks for is done at
 * once, and what it says is noted. Gradients are small integers, so that every sum is exact.
 */
#ifndef ADTOPK_TESTS_LONE_CORE_H
#define ADTOPK_TESTS_LONE_CORE_H

#include "daemon/core/core.h"
#include "daemon/core/inspect.h"
#include "daemon/core/work.h"
#include "tests/host/host.h"

#define LONE_RANKS 3u
#define LONE_TENSORS 16u
#define LONE_NODE 3
/* Members of a policy under which every sum is exact. */
#define LONE_EXACT "\"reduce\":\"sum\",\"values\":\"f32\",\"density\":0.05"

/* What the core said to whom asked with a ticket. */
struct lone_answer {
    unsigned count; /* so many so far; the rest is of the last one */
    uint64_t ticket;
    enum adtopk_status status;
    uint64_t version, step;
    struct error error;
};

struct lone_core {
    struct host host;
    uint64_t job, step;
    uint64_t run; /* that the ranks return to; 0: none began yet */
    unsigned ranks, tensors;
    uint64_t numel[LONE_TENSORS];
    bool withdrawing; /* steps end with NONFINITE */
    bool changed;     /* gradients are not added as they are: lone_check() only looks at ledgers */
    float scale;      /* the loss scale of what ranks push; 0: none is given */
    double tolerance; /* of each sum: 0 where values are integers that no encoding changes */
    bool half;        /* gradients and updates are in 16 bits */
    bool rounded;     /* residuals are, or were, in bf16: what rounding cuts off moves on */
    double *pushed[LONE_TENSORS], *applied[LONE_TENSORS]; /* an element each: sums over steps */
    /* Heard: */
    unsigned ready, steps, delivered, closed, failed;
    enum adtopk_status ready_status; /* what READY said of the last step */
    struct error failure;            /* of the last rank that failed */
    struct lone_answer policy, verified;
};

/** What the rank pushes for the element. */
float lone_gradient(uint64_t step, unsigned rank, uint32_t tensor, uint64_t element);

/** A core whose ranks have opened the job with this policy (NULL: the default) and registered
 * `tensors` tensors; their commit is lone_commit()'s. Fails the test if that is refused. */
void lone_open(struct lone_core *lone, unsigned ranks, const char *policy,
    const struct tensor_spec *spec, unsigned tensors);
void lone_free(struct lone_core *lone);
/** All ranks commit and map. */
void lone_commit(struct lone_core *lone);
/** Both, and the job is ready. */
void lone_start(struct lone_core *lone, unsigned ranks, const char *policy,
    const struct tensor_spec *spec, unsigned tensors);

/** ... with two ranks and three small tensors: "fc.weight", "fc.bias" and "conv.weight". */
void lone_begin(struct lone_core *lone, const char *policy);
/** The same with gradients and updates in f16 and bf16; lists are asked for of some. */
void lone_begin_half(struct lone_core *lone, const char *policy);
bool lone_is_f16(uint32_t tensor);
/** All ranks leave. */
void lone_leave(struct lone_core *lone);

/** Hands the core an event of a rank, and does what it asks for. */
enum adtopk_status lone_rank_event(struct lone_core *lone, unsigned rank, struct event event);
/** Fails the test if the last request was refused. */
void lone_must(struct lone_core *lone, enum adtopk_status status);
/** Runs computes that were held until the next one is this. */
void lone_compute_until(struct lone_core *lone, const struct work_kind *kind);
/** Runs one of them: the only one that there is. */
void lone_compute_one(struct lone_core *lone);

/** The daemon is killed, starts again and finds its memory; the ranks join again. */
void lone_restart(struct lone_core *lone);

/** Requests of one rank in the open step, lone->step. A push writes the gradient first. */
enum adtopk_status lone_push(struct lone_core *lone, unsigned rank, uint32_t tensor);
enum adtopk_status lone_end(struct lone_core *lone, unsigned rank);
enum adtopk_status lone_wait(struct lone_core *lone, unsigned rank, uint32_t tensor);
/** All ranks push everything; and end the step. */
void lone_push_all(struct lone_core *lone);
void lone_end_all(struct lone_core *lone);
/** Notes that the step is accepted (it must be), and what its updates were. */
void lone_close(struct lone_core *lone);
/** A whole step with a NaN in every gradient. */
void lone_withdraw(struct lone_core *lone);
/** `count` whole steps. */
void lone_train(struct lone_core *lone, unsigned count);

/** Asks for another policy on top of the one in force, whatever its version. */
enum adtopk_status lone_change(struct lone_core *lone, uint64_t ticket, const char *text);
/** Trains until the change under way is done, which must have this ticket and version. */
void lone_expect_change(struct lone_core *lone, uint64_t ticket, uint32_t version);
/** Both: nothing may be in its way. */
void lone_must_change(struct lone_core *lone, const char *text);
enum adtopk_status lone_verify(struct lone_core *lone, uint64_t ticket);

/** The last request was refused with this status, and a sentence that has both words. */
void lone_assert_refused(
    const struct lone_core *lone, enum adtopk_status status, const char *first, const char *second);

/** Whatever was pushed was applied or is in a residual, element by element; if some were in bf16,
 * tensor by tensor. No byte of the results was written before it was reserved. */
void lone_check(const struct lone_core *lone);

struct job_info lone_job(const struct lone_core *lone);
struct tensor_info lone_tensor(const struct lone_core *lone, uint32_t tensor);

struct tensor_spec lone_spec(const char *name, unsigned dims, const uint64_t *size);

#endif
