/*
 * What the processes of a walk share, and what each of them knows: for outage_rank.c, which runs
 * them, outage_calls.c and outage_operator.c.
 */
#ifndef ADTOPK_TESTS_OUTAGE_WALK_H
#define ADTOPK_TESTS_OUTAGE_WALK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "outage_rank.h"
#include "proto/error.h"

#define WALK_ROWS 40u
#define WALK_COLUMNS 30u
#define WALK_NUMEL (WALK_ROWS * WALK_COLUMNS)

struct walkers {
    _Atomic unsigned order;           /* number of the walk that all shall do */
    _Atomic unsigned done[WALKERS];   /* number of the last one that each has done */
    _Atomic unsigned failed[WALKERS]; /* number of the walk that each gave up */
    _Atomic unsigned trains;          /* number of the walk in which ranks wait for the operator */
    _Atomic unsigned stopped;         /* number of the walk in which the daemon was stopped */
    _Atomic unsigned halfway;         /* and in which the rank of LOST_NODE was in mid-step */
    _Atomic enum walk_kind kind;
    struct walk_end end[WALKERS];
};

struct walker {
    struct outage_node *node;
    struct walkers *shared;
    adtopk_context *context;
    unsigned number; /* of this walk */
    int rank;
    enum walk_kind kind;
    bool comes_back; /* in the place of the one that died in step `first_step` */
    uint64_t first_step;
    struct error refusal; /* of an operator's request */
    float parameters[WALK_NUMEL], values[WALK_NUMEL];
};

/** One call, or several that belong together. */
struct walk_call {
    const char *name;
    enum adtopk_status (*run)(struct walker *walker);
};

/** What a rank does in this kind of walk, up to a call without a name. */
const struct walk_call *walk_calls(enum walk_kind kind);

/** Whether another rank has given up. */
bool walk_given_up(const struct walker *walker);

/** Calls of a rank whose gradients are on a GPU: whether they can be there, a tensor, and a step
 * that a stream of the rank waits for. */
enum adtopk_status walk_device_check(struct walker *walker);
enum adtopk_status walk_device_register(struct walker *walker);
enum adtopk_status walk_device_step(struct walker *walker);

/** A step in which the first daemon is killed. */
enum adtopk_status walk_device_killed(struct walker *walker);

/** The first rank asks its daemon for every document that shows something. */
enum adtopk_status walk_ask(struct walker *walker);

/** The operator changes what can be changed, while the ranks train. */
enum adtopk_status walk_operate(struct walker *walker);

/** Asks the walker's daemon to take new ranks again. */
enum adtopk_status walk_take_again(struct walker *walker);

#endif
