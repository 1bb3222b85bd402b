/*
 * A node that lies: a ghost that joins job 0, agrees to views and keeps the rounds going, and that
 * says other things besides.
 */
#ifndef ADTOPK_SIM_LIAR_H
#define ADTOPK_SIM_LIAR_H

#include "peer.pb-c.h"
#include "tests/sim/ghost.h"

#define LIAR_NODE 2u

struct liar {
    struct ghost ghost;
    double rate;                 /* lies per message heard */
    uint64_t job[SIM_MAX_NODES]; /* numbers that the nodes give the job */
    uint64_t run;
    uint32_t view;
    uint64_t steps;
    uint64_t lies;
    uint64_t *tensor;
    size_t tensors;
    uint64_t policy;
    uint32_t exchanges; /* of the release that it says it is of */
    uint64_t hangs_at;  /* it sends no frame of this step or a later one; 0: it never hangs */
    /* Said once, to node 0, as soon as a view was proposed; NULL: nothing. */
    void (*once)(struct liar *liar, unsigned variant);
    unsigned variant;
    bool silent;                /* it agrees to no view */
    char told[ERROR_TEXT_SIZE]; /* why its part of the job has ended, as another node said last */
};

/** Sends a message about the job, as from the job that the liar calls `sender_job`, or as from its
 * own. */
void liar_say_of(
    struct liar *liar, uint16_t peer, uint64_t sender_job, Adtopk__PeerMessage *message);
void liar_say(struct liar *liar, uint16_t peer, Adtopk__PeerMessage *message);

/** Joins with these ranks, from `rank` on. known: the view that it says it knows; NULL: none. */
void liar_say_join(struct liar *liar, uint16_t peer, uint32_t rank, uint32_t ranks, bool reply,
    Adtopk__PeerView *known);

/** Says one thing that is not so, drawn at random, to node 0 or 1. */
void liar_lie(struct liar *liar);

/** A world of three nodes with one rank each, under a policy. The liar is the third, and only job 0
 * has a rank there. */
struct world *liar_world_under(struct liar *liar, uint64_t seed, const char *policy);

/** The same, under the tests' usual policy. */
struct world *liar_world(struct liar *liar, uint64_t seed);

/** Stops the liar and frees its world. */
void liar_end(struct liar *liar, struct world *world);

#endif
