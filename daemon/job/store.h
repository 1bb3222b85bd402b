/*
 * The store: a job's state on this node that a restarted daemon finds again.
 *
 * It is memory that outlives the core (core_memory.store), in parts:
 *
 *   STORE_MAIN   a header, one record per tensor, and for each residual the progress of the passes
 *                over it, and states
 *   STORE_RANKS  while a tensor has a residual per rank: the same for the local ranks but the
 *                first, each behind its residual
 *   STORE_PLAN   two parts, which successive policies use in turn: a plan's records of each
 *                residual (struct store_selection), and the rests of dense sums that this node
 *                rounds (struct store_rest says for which elements)
 *   STORE_VELOCITIES
 *                two parts, used in turn as well: with momentum correction, a velocity per residual
 *   STORE_RESIDUALS
 *                two parts, one of which has the nodes' residuals, which are also the first
 *                ranks', in f32 or bf16. A policy with other types has them converted into the
 *                other part
 *
 * Tensors that are registered while training runs come in batches. Each has parts of its own behind
 * these (store_part()).
 *
 * The core, or a compute that it started, writes every field. A daemon may be killed at any
 * instruction. The next one goes on from there, without losing anything or doing it twice. Passes
 * over residuals are journalled (kernels/cpu/journal.h). All other changes can be repeated without
 * effect. They compute new values from values that they do not overwrite. Then they publish a
 * stage, a turn or a count, which puts the new values in force. A killed thread stops between two
 * instructions, and its earlier stores stay. So the compiler must not reorder the stores, and
 * nothing more is needed (store_publish).
 */
#ifndef ADTOPK_JOB_STORE_H
#define ADTOPK_JOB_STORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/job/info.h"
#include "daemon/job/store_version.h"
#include "daemon/job/views.h"
#include "daemon/policy/policy.h"
#include "proto/error.h"

enum {
    STORE_MAIN = CORE_STORE_MAIN,
    STORE_RANKS = CORE_STORE_RANKS,
    STORE_PLAN = 2,
    STORE_RESIDUALS = CORE_STORE_RESIDUALS,
    STORE_VELOCITIES = CORE_STORE_VELOCITIES,
    STORE_LATER = CORE_STORE_LATER
};

/** The part of a batch of tensors. A later batch has a main part with records and slots behind a
 * struct store_batch, a part for ranks, and parts for residuals. What plans keep, velocities
 * included, is for all tensors together.
 */
static inline unsigned store_part(unsigned part, unsigned batch)
{
    return batch == 0 ? part
                      : STORE_LATER + 4 * (batch - 1) + (part < STORE_PLAN ? part : part - 2);
}

/* A tensor's stage in step `step`. Before that step, and after SETTLED, the residual is at rest. */
enum tensor_stage {
    STAGE_REST = 0,    /* nothing of step `step` is in the residual */
    STAGE_ACCUMULATED, /* the step's gradients were added; entries to send are still inside */
    STAGE_DELIVERED,   /* the update is in the results; sent entries are still inside */
    STAGE_SETTLING,    /* accepted entries are leaving, as the selections say */
    STAGE_SETTLED      /* accepted entries have left, or the gradients were withdrawn */
};

/* For a dense tensor: the rounding errors of the sums that this node sent in step `step` - 1 (0:
 * none yet). They are of elements first..first + count - 1 of the tensor. They are lower halves, or
 * rests if the collective rounds partial sums (kernels/cpu/rest.h). They lie this many places
 * behind the first one that the plan keeps. */
struct store_rest {
    uint64_t step;
    uint64_t first, count;
    uint64_t place;
};

/* Bits of store_tensor.filled. */
enum store_filled {
    STORE_FILLED = 1,  /* something may be in the residual; otherwise it is all zeros */
    STORE_EMPTIED = 2, /* a far engine lost some of it, and the ledger has yet to declare that */
};

struct store_tensor {
    uint64_t step;
    uint64_t turn; /* how often this tensor was sparsified */
    uint32_t stage;
    uint32_t nonfinite;       /* a gradient of this node has NaN or Inf in step `step` */
    uint32_t round_nonfinite; /* DELIVERED: a gradient of any node has */
    uint32_t split_policy;    /* `split` is for the plan after this many switches */
    uint32_t filled;          /* enum store_filled */
    /* At [policies % 2]: the sparsifiers' states are valid if they were made after this many
     * switches. The other is being made. */
    uint32_t since[2];
    uint32_t unpushed; /* no rank of this node pushed it in step `step`, so nothing was added */
    uint32_t round_unpushed; /* DELIVERED: no rank of any node did, and the turn will not count */
    float loss_scale; /* DELIVERED: of the step; the update contains it, and no residual does */
    uint32_t ranks;   /* DELIVERED: in the view; under `mean` the sum was divided by so many */
    /* Of the view of the last contribution, and this node's place in it: they share rests. */
    uint16_t nodes, place;
    uint64_t split;   /* step + 1 from which its bucket is split, in the bucket's first tensor */
    uint64_t settled; /* from SETTLING on: the next turn; before: 0 */
    struct store_rest rest;
    double input[2]; /* ledger: plain and sign-hashed sums; of a direct pass when it is settled */
    double lost[2];  /* ledger: what decay took from the residuals, or was lost with memory */
    double applied[2][2];               /* ledger: at [turn % 2]; the other is being made */
    struct sparsifier_agreed agreed[2]; /* at [turn % 2] too, if made */
    uint32_t agreed_after[2];           /* switches that were made by then: see `since` */
};

/* Behind each residual's progress: its sparsifier's states, at the same index as
 * store_tensor.agreed. */
struct store_states {
    struct sparsifier_state state[2];
    uint32_t after[2];
};

/* A plan's record of one residual of a tensor that is sent sparse. Behind it lie, each aligned:
 * `capacity` positions, and as many values. The values are those of the residual at the selected
 * positions. They are valid from SETTLING on. */
struct store_selection {
    uint64_t count;
    uint64_t reserved[7];
};

/* The rounding errors of the sums that this node sent in step `step` - 1 (0: none yet). Behind it
 * lie, as above: positions, values, and the residual's values there, valid from SETTLING on. */
struct store_rest_list {
    uint64_t step;
    uint64_t count;
    uint64_t reserved[6];
};

/* A policy to which the job switched. */
struct store_policy {
    struct policy_change change;
    char text[POLICY_TEXT_SIZE];
    uint32_t residuals; /* which of the two STORE_RESIDUALS it uses */
    uint32_t batches;   /* of tensors that are in force with it; 0: 1 */
};

#define STORE_DUE 0x100u

struct store_header {
    uint64_t magic;
    uint32_t version;
    uint32_t view;   /* the highest view number promised */
    uint64_t run;    /* 0: none is in force yet */
    uint64_t digest; /* of the ranks' policy, tensors and local ranks */
    uint64_t steps_done;
    uint64_t ops_done;
    uint64_t steps_withdrawn[2]; /* at [steps_done % 2]; the other is being made */
    /* At [steps_done % 2], of the last step: OK or NONFINITE; and STORE_DUE, if the ranks save a
     * checkpoint after it (job/due.h). */
    uint32_t step_status[2];
    uint32_t op_size[2]; /* at [ops_done % 2], of the last plain operation */
    uint32_t tensors;
    uint32_t more; /* STORE_RANKS is in use */
    /* Switches so far: the policy in force is policy[policies % 2]; 0: none was. */
    uint32_t policies;
    uint32_t joining; /* residuals of ranks are being joined to the node's */
    uint32_t begun;   /* enum store_begun */
    uint32_t restore; /* enum store_restore */
    uint64_t seed;    /* of random choices, which a checkpoint brought; 0: the run's own */
    uint64_t base;    /* steps of the runs before, of which a checkpoint brought the residuals */
    /* At [steps_done % 2], if ranks joined with the open step: operations that were done when it
     * began, + 1; 0: none did. */
    uint64_t grown[2];
    struct store_policy policy[2];
    struct views views;
    struct store_tensor tensor[];
};

/* In front of a later batch's main part. */
struct store_batch {
    uint64_t digest; /* of its tensors */
    uint64_t reserved[7];
};

/* The first STORE_RESIDUALS is there. KEPT: what a far engine had is beside the store, complete
 * (compute/leaving.h). LEFT: this node's part of the job ended in order, and the run may go on
 * elsewhere. SETTLED: besides, what others applied has left the residuals (compute/comeback.h). */
enum store_begun { BEGUN_NOTHING = 0, BEGUN_THERE, BEGUN_KEPT, BEGUN_LEFT, BEGUN_SETTLED };

/* A checkpoint brings residuals (compute/keeping.c). While they come, no rank may push. */
enum store_restore { RESTORE_NOTHING = 0, RESTORE_BEGUN, RESTORE_DONE };

/* The passes of a step over a residual, in their order: each has a stamp of its own, and they grow.
 * A bf16 residual is rounded by its stamp, so steps of the runs before count too.
 */
enum store_pass {
    STAMP_NONE,
    STAMP_JOIN,
    STAMP_DIRECT,
    STAMP_ADD,
    STAMP_WITHDRAW,
    STAMP_TAKE,
    STAMPS
};

static inline uint64_t store_stamp(const struct store_header *store, enum store_pass pass)
{
    return (store->base + store->steps_done) * STAMPS + pass;
}

/** The ledger's sums of the applied values. */
static inline const double *store_applied(const struct store_tensor *tensor)
{
    return tensor->applied[tensor->turn % 2];
}

/** Publishes: when `*word` is there, all earlier stores are. */
static inline void store_publish(uint32_t *word, uint32_t value)
{
    atomic_signal_fence(memory_order_seq_cst);
    *(volatile uint32_t *)word = value;
    atomic_signal_fence(memory_order_seq_cst);
}

/** Does the same with 64 bits. */
static inline void store_publish64(uint64_t *count, uint64_t value)
{
    atomic_signal_fence(memory_order_seq_cst);
    *(volatile uint64_t *)count = value;
    atomic_signal_fence(memory_order_seq_cst);
}

/** Notes that something may be in the residual, that it is all zeros, that some of it was lost, and
 * that the ledger has declared the loss. */
static inline void store_note_filled(struct store_tensor *tensor)
{
    store_publish(&tensor->filled, tensor->filled | STORE_FILLED);
}

static inline void store_note_zeros(struct store_tensor *tensor)
{
    store_publish(&tensor->filled, tensor->filled & ~(uint32_t)STORE_FILLED);
}

static inline void store_note_emptied(struct store_tensor *tensor)
{
    store_publish(&tensor->filled, tensor->filled | STORE_EMPTIED);
}

static inline void store_note_declared(struct store_tensor *tensor)
{
    store_publish(&tensor->filled, tensor->filled & ~(uint32_t)STORE_EMPTIED);
}

static inline bool store_is_filled(const struct store_tensor *tensor)
{
    return (tensor->filled & STORE_FILLED) != 0;
}

static inline bool store_is_emptied(const struct store_tensor *tensor)
{
    return (tensor->filled & STORE_EMPTIED) != 0;
}

/** Whether a sparsifier's state, made after this many switches, is of a policy that selects as the
 * one in force does. */
static inline bool store_remembers(
    const struct store_header *store, const struct store_tensor *tensor, uint32_t after)
{
    return after >= tensor->since[store->policies % 2];
}

/** Puts the records of the settled turn in force. */
static inline void store_count_turn(struct store_tensor *tensor)
{
    store_publish64(&tensor->turn, tensor->settled);
}

/** How many batches of tensors are in force. */
static inline unsigned store_batches(const struct store_header *store)
{
    const uint32_t batches = store->policy[store->policies % 2].batches;

    return store->policies > 0 && batches > 1 ? batches : 1;
}

/** Counts the step, or the plain operation, which had this many bytes. due: the ranks save a
 * checkpoint after the step. */
void store_count_step(struct store_header *store, bool withdrawn, bool due);
void store_count_op(struct store_header *store, uint32_t size);

static inline enum adtopk_status store_step_status(const struct store_header *store)
{
    return (enum adtopk_status)(store->step_status[store->steps_done % 2] & ~STORE_DUE);
}

static inline bool store_due(const struct store_header *store)
{
    return (store->step_status[store->steps_done % 2] & STORE_DUE) != 0;
}

static inline uint64_t store_grown(const struct store_header *store)
{
    return store->grown[store->steps_done % 2];
}

static inline uint32_t store_op_size(const struct store_header *store)
{
    return store->op_size[store->ops_done % 2];
}

/** Notes that its bucket is split from `step` on, in the plan after this many switches. */
static inline void store_split(struct store_tensor *tensor, uint32_t switches, uint64_t step)
{
    /* While no plan is in force, `split` holds for none. */
    store_publish(&tensor->split_policy, switches - 1);
    store_publish64(&tensor->split, step + 1);
    store_publish(&tensor->split_policy, switches);
}

/** Size of a store of `tensors` tensors with slots of this many floats together. */
uint64_t store_size(uint32_t tensors, uint64_t floats);

/** The first slot. */
float *store_slots(struct store_header *store);

/** Whether an existing store can be read, is of this run, and has views that can be. */
enum adtopk_status store_check(const struct store_header *store, uint64_t run, struct error *err);

/** Fills in a new store, whose memory is zero, or checks that an existing one belongs to this job
 * and this run. */
enum adtopk_status store_open(struct store_header *store, bool existing, uint64_t run,
    uint64_t digest, uint32_t tensors, struct error *err);

#endif
