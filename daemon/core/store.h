/*
 * The store: what a job keeps on this node and a restarted daemon finds again.
 *
 * Memory that outlives the core (core_memory.store), in two parts. The first is a header, one
 * record a tensor, and a residual for each; the second, while a tensor is by rank, has the
 * residuals of the local ranks but the first, whose residual is the one in the first part. Every
 * field is written by the core or by a compute it started, and between computes the block describes
 * a state from which the step can be repeated: see tensor_stage. A pass that adds gradients is
 * journalled (kernels/cpu/journal.h) and may be cut short anywhere. Settling, and joining the
 * residuals of ranks, may not yet: they must not end within a tensor.
 */
#ifndef ADTOPK_STORE_H
#define ADTOPK_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/inspect.h"
#include "daemon/core/policy.h"
#include "proto/error.h"

#define STORE_MAGIC 0x314b505444414b41u
#define STORE_VERSION 2u

/* How far a tensor is in step `step`. Before it, and after SETTLED, the residual is at rest. */
enum tensor_stage {
    STAGE_REST = 0,    /* nothing of step `step` is in the residual */
    STAGE_ACCUMULATED, /* the step's gradients were added; what will be sent is still inside */
    STAGE_DELIVERED,   /* the update is in the results; what was sent is still inside */
    STAGE_SETTLED      /* what was accepted has left, or the gradients were withdrawn */
};

struct store_tensor {
    uint64_t step;
    uint64_t turn; /* times this tensor was sparsified */
    uint32_t stage;
    uint32_t nonfinite;       /* a gradient of this node held NaN or Inf in step `step` */
    uint32_t round_nonfinite; /* DELIVERED: one of any node did */
    uint32_t reserved;
    uint64_t split;  /* step + 1 from which its bucket is split, in the bucket's first tensor */
    double input[2]; /* ledger: plain and sign-hashed sums */
    double applied[2];
};

/* A policy that was switched to. */
struct store_policy {
    struct policy_change change;
    char text[POLICY_TEXT_SIZE];
};

struct store_header {
    uint64_t magic;
    uint32_t version;
    uint32_t view; /* the highest view number promised */
    uint64_t job;
    uint64_t digest; /* of tensors and local ranks */
    uint64_t steps_done;
    uint32_t step_status; /* of the last step: OK or NONFINITE */
    uint32_t tensors;
    uint64_t ops_done;
    uint64_t steps_withdrawn;
    uint32_t op_size;  /* of the last plain operation */
    uint32_t more;     /* the second part is in use */
    uint32_t policies; /* switched to: the one in force is policy[policies % 2]; 0: none was */
    uint32_t reserved[13];
    struct store_policy policy[2];
    struct store_tensor tensor[];
};

/** Bytes of a store of `tensors` tensors with `residual_elements` f32 in all. */
uint64_t store_size(uint32_t tensors, uint64_t residual_elements);

/** Where the residuals begin. */
float *store_residuals(struct store_header *store);

/** Fills in a new store, or checks that an existing one is this job's. */
enum adtopk_status store_open(struct store_header *store, bool existing, uint64_t job,
    uint64_t digest, uint32_t tensors, struct error *err);

#endif
