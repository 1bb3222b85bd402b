/*
 * What a node measures while a job trains, as running estimates: when gradients arrive, and how
 * long computes, exchanges and whole steps take. The planner's model (forecast.h) takes its costs
 * from them.
 *
 * Costs are fitted. Each kind of work is a line over the reference cost of cost.h, by least squares
 * of relative errors that forget older steps. One outlier counts for at most ESTIMATE_CLIP times
 * the expected value. After two steps of nothing but outliers a line begins anew. Costs without
 * observations are derived from others, see forecast.h.
 *
 * A node sends its estimates packed. The coordinator unpacks the estimates of all nodes and merges
 * them into those of the slowest node for each kind of work.
 *
 * No I/O, no clock, no locks: one thread at a time. The same calls give the same bits.
 */
#ifndef ADTOPK_ESTIMATE_H
#define ADTOPK_ESTIMATE_H

#include "daemon/planner/cost.h"

#define ESTIMATE_STEPS 32  /* how many of the latest steps the median covers */
#define ESTIMATE_WARMUP 2  /* steps of a plan that do not count */
#define ESTIMATE_CLIP 3.0  /* an observation counts for at most so many times the expected value */
#define ESTIMATE_RECENT 3  /* steps in a row that show a sudden change */
#define ESTIMATE_VERSION 2 /* of the packed form */

/* Decayed sums of observations (x, y), each weighted by 1 / (expected value)^2. */
struct estimate_line {
    double weight, x, xx, y, xy;
    double count; /* of observations */
    bool fresh;   /* observed in the open step */
    bool near; /* in the open step some observation was at most ESTIMATE_CLIP times the expected */
    bool far;  /* the step before it had observations, none of them near */
};

/* Times of the steps of the plan in force. */
struct estimate_steps {
    uint32_t count;   /* of this plan so far, without ESTIMATE_WARMUP */
    double median_us; /* of the latest ESTIMATE_STEPS; 0: none */
    double error_us;  /* standard error of that median, from the spread of the steps */
    double least_us;  /* the shortest of the latest ESTIMATE_RECENT; 0: there are fewer */
    double most_us;   /* the longest of them */
};

struct estimates {
    uint32_t tensors;
    unsigned nodes;
    double *arrival_us;                     /* [tensors], after the step's first push; -1: never */
    struct estimate_line select[CHOICES];   /* x, y in us */
    struct estimate_line reduce[CHOICES];   /* decoding, sums and update, including what phases
                                             * combine */
    struct estimate_line exchange[CHOICES]; /* x: bytes, y: us */
    struct estimate_line settle;
    double exchange_link[CHOICES]; /* us a byte that the link took when exchange[] was observed */
    double volume[CHOICES];        /* observed bytes divided by cost_bytes(); 0: never observed */
    double link_us_byte;           /* 0: not known */
    double link_bound_us_byte;     /* it takes no longer than that; 0: not known */
    double round_trip_us;          /* 0: not known */
    double gamma;                  /* entries of a sum divided by those of one contribution; 0: not
                                    * known */
    struct estimate_steps steps;
    uint64_t plan;                    /* version of the policy under which steps were measured */
    uint32_t warmed;                  /* its steps so far, all of them */
    double latest_us[ESTIMATE_STEPS]; /* step n is at n % ESTIMATE_STEPS; only of the own node */
};

/** Nothing measured yet, for a job of so many tensors and nodes (at least 1). False without memory.
 * Freed by estimate_free(). */
bool estimate_init(struct estimates *estimates, uint32_t tensors, unsigned nodes);
void estimate_free(struct estimates *estimates);

/**
 * A plan (the policy of this version) is in force from the next step on: steps are counted anew,
 * costs are kept.
 */
void estimate_plan(struct estimates *estimates, uint64_t version);

/** The last local push of the tensor came so long after the step's first push. */
void estimate_arrival(struct estimates *estimates, uint32_t tensor, double us);

/**
 * A bucket's selection took so long on its worker (from its start, without the time in the queue).
 * elements, entries: of all its tensors. `entries` are those that one node contributes, 0 if dense.
 * threads: how many shared the work.
 */
void estimate_select(struct estimates *estimates, enum choice choice, uint64_t elements,
    uint64_t entries, unsigned threads, double us);

/** Sum and update of a bucket took so long: all of its computes after the first, together. */
void estimate_reduce(struct estimates *estimates, enum choice choice, uint64_t elements,
    uint64_t entries, unsigned threads, double us);

/** Settling a step took so long. dense_elements: of the dense tensors; entries: of the sparse ones.
 */
void estimate_settle(
    struct estimates *estimates, uint64_t dense_elements, uint64_t entries, double us);

/**
 * A bucket's exchange. bytes: received by this node (or sent, if that was more), frame headers
 * included. us: how long the link worked for it, without the computes between its phases. That time
 * ends with the last received frame. It begins with the first frame that left, or with the end of
 * the exchange before, if that is later. If it is under 1 us (all frames had arrived already) or
 * negative, only the bytes count. An exchange at more than 200 Gbit/s counts as one at that rate.
 */
void estimate_exchange(struct estimates *estimates, enum choice choice, struct cost_load load,
    uint64_t bytes, double us);

/**
 * The link to a peer (or to all) moved so many bytes in so long, during which it always had bytes
 * to move. round_trip_us: measured then; 0: not measured. Times under 4 round trips say only how
 * slow the link is at most.
 */
void estimate_link(struct estimates *estimates, uint64_t bytes, double us, double round_trip_us);

/** A bucket's sum had so many entries, each node contributed so many. Only of collectives that
 * deliver the whole sum (not CHOICE_OKTOPK). */
void estimate_gamma(struct estimates *estimates, uint64_t entries_of_sum, uint64_t entries);

/** A step took so long from its first push to its acceptance. Ends the step: call it last. */
void estimate_step(struct estimates *estimates, double us);

/** Bytes of the packed form for so many tensors. */
size_t estimate_packed_size(uint32_t tensors);

/** Writes the packed form: estimate_packed_size(estimates->tensors) bytes, little-endian. */
void estimate_pack(const struct estimates *estimates, uint8_t *bytes);

/**
 * Reads a peer's packed estimates into *estimates (initialised, for the same tensors and nodes) and
 * replaces its contents. It trusts nothing: a wrong size or version, another number of tensors or
 * nodes, and numbers that cannot be measurements are ADTOPK_ERR_PROTOCOL. *estimates is unchanged
 * then.
 */
enum adtopk_status estimate_unpack(
    struct estimates *estimates, const uint8_t *bytes, size_t size, struct error *err);

/**
 * Merges another node's estimates into *into: of each kind of work the slower. Of exchanges and the
 * link it takes the quicker: all nodes take part in an exchange, and a node that begins early only
 * waits for the last. Steps count only if both nodes measured them under the same plan; otherwise
 * there are none. Both must have equally many tensors. Start from a copy of the first node's
 * estimates (estimate_copy), and merge in order of node ids.
 */
void estimate_merge(struct estimates *into, const struct estimates *other);

/** Copies; both must be of equally many tensors. */
void estimate_copy(struct estimates *to, const struct estimates *from);

#endif
