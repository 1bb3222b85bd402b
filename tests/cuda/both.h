/*
 * The same tensors on both sides: as kernels/cpu keeps them, and as kernels/cuda does. Each turn
 * adds the same gradients on both sides and compares all bytes that come of it.
 *
 * Happy path: both_make(), then per turn both_push(), both_host(), both_add(),
 * both_compare(), both_leave(); at last both_drop().
 */
#ifndef ADTOPK_TESTS_CUDA_BOTH_H
#define ADTOPK_TESTS_CUDA_BOTH_H

#include <stdbool.h>

#include "kernels/cpu/fused.h"
#include "kernels/cuda/add.h"
#include "tests/cuda/input.h"

enum { BOTH_GRADIENTS = 3, BOTH_TENSORS = 8, BOTH_ABSENT = 3 };
/* Spare slots: for the blocks of a launch, for residuals and then for velocities. */
enum { BOTH_BLOCKS = INPUT_BLOCKS, BOTH_SPARES = 2 * BOTH_BLOCKS };

/* What the host has of a tensor. */
struct both_tensor {
    struct view view;
    uint64_t k;
    enum input_kind kind;
    void *gradient[BOTH_GRADIENTS]; /* some are NULL, others these: */
    void *pushed[BOTH_GRADIENTS];   /* always at the same place, as those of trainers */
    float *residual;
    float *velocity;        /* NULL: no momentum correction */
    void *halves;           /* of a batch in bf16: it is here, too, and `residual` is a copy */
    struct rounded rounded; /* in that memory */
    struct progress *progress;
    double sums[2];
    double before[2];               /* those without the turn's pass */
    double lost[2], before_lost[2]; /* the same of what decay took */
    uint64_t nonfinite;
    bool fresh; /* its first turn is to come, and its chunks are nowhere */
    struct sparse list;
};

/* A residual or a velocity on both sides. */
struct both_held {
    uint64_t numel;
    float *host;
    const struct rounded *rounded; /* or NULL */
    uint64_t *entry;
    uint32_t home;
    bool fresh; /* its chunks are nowhere at first */
};

struct both {
    struct input input;
    unsigned tensors;
    struct both_tensor host[BOTH_TENSORS];
    struct add_tensor *device; /* as many */
    struct add_batch batch;
    uint32_t slot_count;
    bool rounded; /* residuals are in bf16 */
    struct both_held held[2 * BOTH_TENSORS];
    unsigned helds;
    uint32_t homes; /* their chunks */
};

/** Draws tensors of at most `most` elements. spares: slots besides those of the chunks, BOTH_SPARES
 * at least. */
void both_make(struct both *both, uint64_t seed, uint64_t most, uint32_t spares);
void both_drop(struct both *both);

/** The pool of velocities: that of residuals, with the spare slots behind theirs. */
struct slots both_velocities(const struct slots *slots);

/** The next turn's gradients, stamp, and scratch. */
void both_push(struct both *both);

/** The host's pass. */
void both_host(struct both *both);

/** Fresh scratch, as every attempt at a pass needs it. */
void both_attempt(struct both *both);

/** Runs the kernels of ADD to their ends. */
void both_add(struct both *both);

/** Names the first difference: false. */
bool both_compare(const struct both *both);

/** The same of the lists alone. Sums with a NaN may have other bits of it. */
bool both_compare_lists(const struct both *both);

/** Makes NaN of some elements of residuals in f32, on both sides, between two turns. */
void both_spoil(struct both *both);

/** What was selected leaves the residuals of both sides. */
void both_leave(struct both *both);

#endif
