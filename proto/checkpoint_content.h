/*
 * What a checkpoint keeps of a job: which arrays a residual has, and what the messages of
 * checkpoint.proto may say. Shared by the daemon, which tells it, and the files (checkpoint.h).
 */
#ifndef ADTOPK_CHECKPOINT_CONTENT_H
#define ADTOPK_CHECKPOINT_CONTENT_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint.pb-c.h"
#include "proto/error.h"

#define CHECKPOINT_BLOCK 8192u /* floats that are read or written together */
#define CHECKPOINT_CHUNK 4096u /* elements that share a carry */
#define CHECKPOINT_CARRY 32u   /* floats of a carry */
#define CHECKPOINT_DIMS 8u     /* most sizes of a shape */
#define CHECKPOINT_TURNS (UINT64_C(1) << 48)
#define CHECKPOINT_STEPS (UINT64_C(1) << 56)
#define CHECKPOINT_LIMIT 0x1p120f /* largest magnitude of a float in an array */

/* The arrays of a residual, in their order in a file. */
enum checkpoint_array {
    CHECKPOINT_ELEMENTS = 0, /* those of a bf16 residual are without its carries */
    CHECKPOINT_CARRIES,      /* the rounding errors of a bf16 residual */
    CHECKPOINT_VELOCITY,     /* of momentum correction */
    CHECKPOINT_ARRAYS
};

/** Elements of a tensor; 0 if its shape is impossible. */
uint64_t checkpoint_numel(const Adtopk__CheckpointTensor *tensor);

/** Floats of an array of a residual of this tensor; 0: the tensor has no such array. */
uint64_t checkpoint_floats(const Adtopk__CheckpointTensor *tensor, enum checkpoint_array array);

/** Whether all floats are finite and within CHECKPOINT_LIMIT. */
bool checkpoint_are_valid(const float *values, uint32_t count);

/** Whether these are ranks of a world of that size, ascending, and at least one. */
bool checkpoint_are_ranks(const uint32_t *rank, size_t ranks, uint32_t world);

/** The ranks over which the job took means. Files of early releases do not say: then all. */
uint32_t checkpoint_members(const Adtopk__CheckpointJob *job);

/** Checks what a daemon, a client or a file says of a tensor or job. `err` names the field. Errors:
 * PROTOCOL. */
enum adtopk_status checkpoint_check_tensor(
    const Adtopk__CheckpointTensor *tensor, struct error *err);
enum adtopk_status checkpoint_check_job(const Adtopk__CheckpointJob *job, struct error *err);

#endif
