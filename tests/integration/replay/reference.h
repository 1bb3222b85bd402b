/*
 * What updates must be, written from the documents alone (README.md, deploy/policy.md); it shares
 * no code with the daemon.
 *
 * A node keeps a residual of each tensor. In a step it adds (g0 + g1), the gradients of its ranks,
 * in f32. It selects the largest magnitudes, ties to the lower index, sends them as bf16, rounded
 * to the nearest and to even, and keeps what rounding cut off. The update is the sum over the
 * nodes, in their order, over the number of ranks. Every second turn of adtopk selects from the
 * whole tensor. A tensor that is sent dense keeps nothing.
 *
 * It checks itself: the selection in a second way, and in doubles that of each element all that was
 * pushed is what was applied plus what is left.
 */
#ifndef ADTOPK_TEST_REFERENCE_H
#define ADTOPK_TEST_REFERENCE_H

#include <stdint.h>

#define REFERENCE_NODES 2
#define REFERENCE_RANKS 4 /* two on each node */

enum reference_rule { RULE_TOPK, RULE_FIBRE, RULE_ROW, RULE_LONGEST, RULE_CHUNK };

struct reference {
    enum reference_rule rule;
    double density;
    int dense; /* sent dense */
    unsigned dims;
    uint64_t shape[8], numel, turn;
    float *residual[REFERENCE_NODES];
    uint8_t *taken; /* of one node */
    float *update;
    uint8_t *in_list; /* of the update: whether any node selected the element */
    double *pushed, *applied;
    uint32_t *scratch;
};

void reference_init(struct reference *reference, enum reference_rule rule, double density,
    int dense, unsigned dims, const uint64_t *shape);

/** A step: one gradient of each rank. Leaves reference->update and in_list. */
void reference_step(struct reference *reference, const float *const gradient[REFERENCE_RANKS]);

/** The largest |pushed - applied - left| over the largest |pushed|. */
double reference_loss(const struct reference *reference);

void reference_free(struct reference *reference);

#endif
