/*
 * Collectives: how the contributions of the nodes become one sum.
 *
 * A collective is a state machine in phases. In each phase every member produces frames (pure
 * compute), the core sends them, and when all frames that a member expects have arrived, the next
 * phase begins; after the last, finish() writes the sum. The core owns frames, timing, retries and
 * the view; a collective only ever looks at one exchange. One file a collective, one table of
 * operations; allgather.c is the one to read first.
 *
 * Everything is a function of the frames and their phase, never of their order of arrival, and
 * sums are formed in an order that each file documents: every member writes the same bits.
 */
#ifndef ADTOPK_COLLECTIVE_H
#define ADTOPK_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "proto/error.h"
#include "proto/payload.h"

/* Of what collectives' frames hold. Nodes with another one cannot exchange.
 *   1  dense sums travel as f32
 *   2  they travel as bf16 where contributions have two bytes a value; pairwise cuts the vector
 * into slices first, then each into segments; "allreduce" may be "one-shot"; allgather cuts large
 * lists into segments
 *   3  frames name the run instead of the job */
#define EXCHANGE_VERSION 3u

#define EXCHANGE_ALL UINT32_MAX
#define EXCHANGE_PHASES_MAX 256u  /* a frame's header counts them in 8 bits */
#define EXCHANGE_SEGMENTS_MAX 16u /* frames that a member sends another at a time */

enum op_kind { OP_BARRIER = 0, OP_BROADCAST = 1, OP_ALLREDUCE = 2, OP_KIND_COUNT };

/* What a collective remembers of a tensor from turn to turn. It only makes the next turn cheaper:
 * no result depends on it. All members of a view have the same, because all have finished the same
 * turns in it; a new view begins with none. */
struct exchange_memory {
    uint32_t view;   /* in which it was made; 0: none was */
    uint32_t number; /* the collective's */
    uint32_t cuts;
    uint32_t room; /* for cuts */
    uint32_t *cut; /* positions; of malloc() */
};

/* One tensor of the bucket. */
struct exchange_tensor {
    struct payload_shape shape;
    uint64_t numel;
    const float *acc;   /* dense, whole: residual plus gradient, memory order */
    bool summed;        /* dense, of a lone member: `dense` has the result already, acc is NULL */
    uint64_t select;    /* sparse: how many elements a node selects, whole: all together; all nodes
                         * have the same number */
    struct sparse sent; /* sparse: what is contributed, values as the others will decode them */
    struct sparse update; /* sparse, result: the sum; room for update.capacity entries, or none,
                           * and positions NULL, if `dense` is enough: then about how many */
    float *dense;         /* result: the sum, memory order; sparse: NULL unless the collective
                           * scatters, it is wanted, and positions are elements */
    bool own_update;      /* the arrays of `update` are of malloc(), the exchange's */
    /* Sparse, result: of the sums that this node rounded before others got them, what that cut off;
     * its residual takes it back. Room for returned.capacity entries; see exchange_round(). */
    struct sparse returned;
    struct exchange_memory *memory; /* NULL: nothing can be remembered */
};

/* A plain operation (barrier, broadcast, sum) instead of tensors. */
struct exchange_op {
    enum op_kind kind;
    uint32_t root; /* rank whose bytes are broadcast */
    uint32_t size; /* bytes */
    bool has_root; /* the root is a rank of this node; then input[0] is its data */
    unsigned inputs;
    const void *const *input; /* one a local rank, in rank order */
    void *result;             /* size bytes */
};

struct exchange_frame {
    uint32_t to; /* index of a member, or EXCHANGE_ALL: all but this one */
    struct payload_writer frame;
};

/* Dense, values narrower than f32: what comes back of the sums that this node rounded
 * (kernels/cpu/rest.h), which are one slice of the bucket's tensors, end to end. */
struct exchange_rest {
    int16_t *low; /* room for so many; NULL: for none, and sums travel as f32 */
    uint64_t room;
    uint64_t first, count; /* result: the slice; count 0: nothing was rounded */
};

struct exchange_input {
    const uint8_t *bytes; /* NULL: not there yet */
    size_t size;
};

/* One round on one node. */
struct exchange {
    const struct collective_ops *ops;
    unsigned members;
    unsigned self;
    const uint16_t *node;         /* id of each member, ascending; for errors */
    struct payload_header header; /* of every frame this node produces; phase is filled in */
    enum payload_index index;
    enum payload_value value;
    uint64_t segment; /* elements of a dense vector that are under way at a time, or many times the
                       * entries of lists; 0: all */
    float scale;      /* of the sum: 1, or one over the number of ranks */
    bool nonfinite;   /* in: a gradient of this node held NaN or Inf; out: one of any node did */
    unsigned tensors;
    struct exchange_tensor *tensor;
    struct exchange_rest rest;
    struct exchange_op *op;

    struct exchange_frame *outgoing; /* of the phase produced last; the core takes the bytes */
    unsigned outgoing_count;
    void *state; /* the collective's own, from phase to phase; NULL at first, see drop() */
    struct exchange_input *input; /* [phase * members + member] */

    struct parallel parallel; /* for the loops of the compute that runs; zero: none */
};

struct collective_ops {
    const char *name;
    bool dense;    /* carries dense buckets; otherwise sparse ones */
    bool selects;  /* not all that is sent is in the sum: where the update is 0, nothing was taken,
                    * and what was sent stays in the residuals */
    bool whole;    /* it selects itself, for all nodes: each contributes, and takes out of its
                    * residual, its own value wherever the update is not 0 */
    bool scatters; /* sparse: writes the dense form too, with or without a list */
    bool streams;  /* sparse: writes results from its second phase on */
    bool rounds;   /* sums are encoded again: calls exchange_round() */
    unsigned members_max; /* 0: any number */

    /* Dense: for how many sums of so many elements a member needs room, if it is to round them.
     * NULL: none. */
    uint64_t (*rests)(unsigned members, uint64_t elements);
    bool partial; /* ... of two values each, before they are scaled: rests are kept themselves, as
                   * rest_sum() writes them; otherwise the lower halves of rest_round() */

    /* Number of phases, 1 to EXCHANGE_PHASES_MAX. */
    unsigned (*phases)(const struct exchange *exchange);

    /* Whether member `from` sends this node a frame in `phase`, which is the one produced last. */
    bool (*expects)(const struct exchange *exchange, unsigned phase, unsigned from);

    /* Compute: fills exchange->outgoing for `phase`, from the inputs of the phase before; older
     * ones are gone. */
    enum adtopk_status (*produce)(struct exchange *exchange, unsigned phase, struct error *err);

    /* Compute: writes the result, scaled. */
    enum adtopk_status (*finish)(struct exchange *exchange, struct error *err);

    /* Frees exchange->state; NULL: it has none. */
    void (*drop)(struct exchange *exchange);
};

extern const struct collective_ops collective_allreduce;
extern const struct collective_ops collective_oneshot;
extern const struct collective_ops collective_pairwise;
extern const struct collective_ops collective_ring;
extern const struct collective_ops collective_halving;
extern const struct collective_ops collective_allgather;
extern const struct collective_ops collective_balanced;
extern const struct collective_ops collective_hierarchical;
extern const struct collective_ops collective_oktopk;
extern const struct collective_ops collective_exclusive;
extern const struct collective_ops collective_plain;

/** The collective of that name among those a policy may name, or NULL. */
const struct collective_ops *collective_find(const char *name);

/** All that a policy may name, NULL-terminated. */
extern const struct collective_ops *const collective_table[];

/** Adds an empty frame to outgoing, begun with the exchange's header; NULL without memory. For
 * the files of this folder. */
struct payload_writer *exchange_add_frame(struct exchange *exchange, unsigned phase, uint32_t to);

/** Opens the frame that `from` sent in `phase`: checks it, and names the node in errors. Any
 * thread; exchange_note() is due if it is OK. */
enum adtopk_status exchange_open(const struct exchange *exchange, unsigned phase, unsigned from,
    struct payload_reader *reader, struct error *err);

/** Notes the non-finite flag of a frame that was opened. */
void exchange_note(struct exchange *exchange, const struct payload_reader *reader);

/** Puts "node N sent a bad frame ..." before an error of a decoder. Returns its code. */
enum adtopk_status exchange_blame(
    const struct exchange *exchange, unsigned from, struct error *err);

/**
 * Rounds the sums of a tensor that this node is about to send to what the others will decode, and
 * adds what that cuts off to tensor->returned. Returns how they are to be encoded: as f32, and not
 * rounded, where there is no room to note it.
 */
enum payload_value exchange_round(
    const struct exchange *exchange, struct exchange_tensor *tensor, struct sparse *sum);

/** Frees outgoing frames. */
void exchange_drop_frames(struct exchange *exchange);

/** Frees these, the collective's state and updates of its own; inputs belong to the caller. */
void exchange_drop(struct exchange *exchange);

#endif
