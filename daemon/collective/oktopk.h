/*
 * Shared by the files of Ok-Topk; read oktopk.c first.
 */
#ifndef ADTOPK_OKTOPK_H
#define ADTOPK_OKTOPK_H

#include "daemon/collective/collective.h"
#include "daemon/collective/gather.h"
#include "daemon/collective/vote.h"

enum oktopk_phase { SPLIT, VOTE, VOTE_AGAIN, BALANCE, SHARE, OKTOPK_PHASES };

/* A tensor, from phase to phase. */
struct region {
    uint32_t *bound;   /* [members + 1]: member m owns positions bound[m] to bound[m + 1] */
    struct sparse sum; /* of this node's region; from BALANCE on only those among the k largest;
                        * positions */
    struct vote vote;  /* this node's */
    struct vote total; /* all nodes' */
    uint64_t k;        /* sums that are selected, if there are as many */
    struct vote_line line;
    uint32_t octave;     /* where the line is, if it was not in the window */
    uint64_t *came;      /* [members]: entries that each sent to this node's region */
    uint64_t *in;        /* [members]: sums that each has on the line, or in its octave */
    bool decided;        /* the line is known */
    bool balanced;       /* the shares are even; otherwise they are those of the regions */
    uint64_t *first;     /* [members + 1]: of the k, in order of positions, the first[m]-th is the
                          * first of member m's region. Until the line is known, first[m + 1] is
                          * how many member m has above its octave */
    struct sparse share; /* the sums that this node sends to all; positions */
};

struct oktopk {
    struct region *region; /* [tensor] */
    bool again;            /* a second vote is needed */
};

static inline struct region *oktopk_region(const struct exchange *exchange, unsigned t)
{
    return &((const struct oktopk *)exchange->state)->region[t];
}

/** How a list of at most `most` positions in the regions of members m to end - 1 looks; they count
 * from bound[m]. */
struct payload_shape oktopk_shape(
    const struct region *region, unsigned m, unsigned end, uint64_t most);

/** Appends a list to a frame, with positions that count from `base`. */
enum adtopk_status oktopk_put(const struct exchange *exchange, struct payload_writer *frame,
    const struct payload_shape *shape, struct sparse *list, uint32_t base,
    enum payload_value value);

/* oktopk_line.c: which sums are selected */

/** Makes this node's first votes, and sends them. */
enum adtopk_status oktopk_vote(struct exchange *exchange, struct error *err);

/** Counts the first votes, and sends the second ones if they are needed. */
enum adtopk_status oktopk_vote_again(struct exchange *exchange, struct error *err);

/** Counts the second votes. */
enum adtopk_status oktopk_decide(struct exchange *exchange, struct error *err);

/* oktopk_share.c: which member sends the sums to all */

/** Whether member `from` hands some of its sums over to member `to`. */
bool oktopk_hands_over(const struct exchange *exchange, unsigned from, unsigned to);

/** Selects this node's sums, and hands surplus ones over to other members. */
enum adtopk_status oktopk_balance(struct exchange *exchange, struct error *err);

/** Puts this node's share together, and sends it. */
enum adtopk_status oktopk_send_shares(struct exchange *exchange, struct error *err);

/** Checks the shares of a tensor and decodes them into gather->list. */
gather_visit oktopk_take_shares;

#endif
