/*
 * Saving and loading checkpoints: all ranks together, between two steps.
 *
 * Happy path of saving (checkpoint.c): the root, which is the lowest rank that takes part, draws an
 * id. The first rank of each node asks its daemon for the job, the tensors and the arrays, and
 * writes them to a file of its own, aside. When every node has a whole file on its disk, all give
 * it its name. Loading (checkpoint_load.c) goes the other way: every file is read once and checked,
 * then the daemons get the arrays, and when all have them, ranks may push.
 *
 * Whatever goes wrong on one rank, all ranks make the same collective operations, and then each
 * returns an error: its own, or one that names the ranks which have one.
 */
#ifndef ADTOPK_CLIENT_CHECKPOINT_H
#define ADTOPK_CLIENT_CHECKPOINT_H

#include "client/src/question.h"
#include "proto/checkpoint.h"

/* A call on one rank. */
struct together {
    adtopk_context *context;
    const char *call; /* for errors */
    const char *folder;
    struct error error;         /* this rank's; code OK: none */
    float *flag;                /* of every rank: what it told last, then its status */
    uint32_t ranks;             /* of the job, lost ones included */
    uint32_t root, nodes;       /* that take part: the lowest rank; how many. See together_meet() */
    Adtopk__CheckpointJob *job; /* what this rank's daemon says */
    char *policy;               /* of the job; only on first ranks */
};

/** Begins a call: checks that it may be made now. Errors: those of a rank that cannot meet the
 * others; then there is nothing to end. Later errors are in together->error: the ranks have to hear
 * of them. */
enum adtopk_status together_begin(
    struct together *together, adtopk_context *context, const char *call);

/** Names the folder, and asks the daemon for the job. Errors: in together->error. */
void together_in(struct together *together, const char *folder);

/** Asks the daemon for the job anew, and on first ranks for its policy. Errors: in together->error.
 */
enum adtopk_status together_ask_job(struct together *together);

/** Tells all ranks this rank's status and a number, and learns theirs (together->flag). Errors:
 * this rank's own; else that of another rank, which it names; what ends the job. */
enum adtopk_status together_agree(struct together *together, float number);

/** Finds out who takes part: the first ranks of nodes tell 1. Errors: as together_agree(); STATE (a
 * node was lost since the first time). */
enum adtopk_status together_meet(struct together *together);

/** Copies bytes of the root to all ranks. Errors: what ends the job. */
enum adtopk_status together_share(struct together *together, void *bytes, size_t size);

/** Whether this rank reads and writes for its node. */
bool together_is_first(const struct together *together);

/** Reads or writes a piece at the daemon. Errors: in together->error. */
enum adtopk_status together_keep(struct together *together, struct client_piece *piece);

/** Asks the daemon for a tensor. The caller frees it with codec_free(). NULL: see together->error.
 */
Adtopk__CheckpointTensor *together_tensor(struct together *together, uint32_t tensor);

/** Frees everything, and returns the status, with the sentence in the context. */
enum adtopk_status together_end(struct together *together, enum adtopk_status status);

#endif
