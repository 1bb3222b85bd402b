/*
 * One tensor, turn after turn, with the data that the daemon keeps for it: residual, progress,
 * hints, ledger, the sparsifier's state. Every turn brings new gradients; the selected entries
 * leave the residual between two turns.
 *
 * Happy path: tensor_open(). Then for every turn tensor_turn(), any number of times
 * tensor_restore() and a measurement, at last tensor_restore(), tensor_pass() and tensor_settle().
 * Then tensor_close().
 */
#ifndef PERF_TENSOR_H
#define PERF_TENSOR_H

#include "daemon/sparsify/sparsifier.h"
#include "kernels/cpu/fused.h"
#include "tests/bench/perf/data.h"
#include "tests/bench/perf/floor.h"
#include "tests/bench/perf/team.h"

#define TENSOR_RANKS_MAX 64

/* The tensor and the work on it. */
struct tensor_kind {
    const struct sparsifier_ops *sparsifier;
    struct sparsifier_params params;
    enum dtype dtype;
    unsigned ranks; /* local gradients, 1 to TENSOR_RANKS_MAX */
    bool rounded;   /* the residual is in bf16 (kernels/cpu/rounded.h); no sparsifier with a rule */
    enum distribution distribution;
};

struct tensor {
    struct tensor_kind kind;
    uint64_t n;
    void *residual;
    void *start; /* the residual before this turn */
    void *base;  /* the source of the gradients */
    void *gradient[TENSOR_RANKS_MAX];
    struct tensor_shape shape;
    uint64_t turn;
    bool dense; /* at every turn: the sparse payload would not be smaller */
    struct sparsifier_choice choice;
    struct sparsifier_state state, next;
    struct sparsifier_agreed agreed;
    float *hints;
    struct fused pass;
    struct sparse out;
    double sums[2], applied[2]; /* the ledger's sums: of the input, and of the values that left */
};

/** Prepares for passes that a team of `threads` shares; a small tensor has no work for many.
 * Returns false without memory; tensor_close() frees everything in any case. */
bool tensor_open(struct tensor *tensor, const struct tensor_kind *kind,
    const struct tensor_shape *shape, unsigned threads);

void tensor_close(struct tensor *tensor);

/** Elements that this turn selects, at most; all of them if the tensor is sent dense. */
uint64_t tensor_selected(const struct tensor *tensor);

/** Entries that the last pass selected; all if the tensor is sent dense. */
uint64_t tensor_sent(const struct tensor *tensor);

/** Turn number `turn`: its choice and its gradients. */
void tensor_turn(struct tensor *tensor, uint64_t turn);

/** The residual is again as it was before this turn. */
void tensor_restore(struct tensor *tensor);

/** What the floor's loops do for this turn. */
struct floor_work tensor_floor(const struct tensor *tensor);

/** The pass, shared by the team, each thread with its own journal, and the selection: as the daemon
 * runs it. Returns its microseconds. */
double tensor_pass(struct tensor *tensor, struct team *team, struct journal *journals);

/** What was selected leaves the residual, as after an exchange that accepted it; the next turn
 * starts from there. Returns the microseconds of the former. */
double tensor_settle(struct tensor *tensor, struct team *team);

#endif
