/*
 * Collectives: how the contributions of the nodes become one sum.
 *
 * A collective is a state machine in phases. In each phase every member produces frames (pure
 * compute), and the core sends them. When all frames that a member expects have arrived, the next
 * phase begins. After the last phase, finish() writes the sum. The core owns frames, timing,
 * retries and the membership; a collective sees one exchange only. Each collective is one file with
 * one table of operations. Read allgather.c first.
 *
 * Every result is a function of the frames and their phase, never of their order of arrival. Each
 * file documents the order of its sums: every member writes the same bits.
 */
#ifndef ADTOPK_COLLECTIVE_H
#define ADTOPK_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/collective/cargo.h"
#include "kernels/base/parallel.h"
#include "kernels/kernels.h"
#include "proto/error.h"
#include "proto/payload.h"

/* Version of the frames' contents. Nodes with different versions cannot exchange.
 *   1  dense sums are sent as f32
 *   2  dense sums are sent as bf16 where contributions have two bytes per value; pairwise cuts the
 *      vector into slices first, then each into segments; "allreduce" may be "one-shot"; allgather
 *      cuts large lists into segments
 *   3  frames name the run instead of the job
 *   4  frames say which tensors no rank pushed, which are not finite, and the loss scale
 *   5  pieces that a carrier moves begin with their length; nodes tell their numbers of devices
 *   6  copies tell over how many ranks a mean is taken
 *   7  pairwise cuts the vector so that frames are small, and sends two segments ahead
 *   8  dense values on devices are carried from there, each device's tensors in a vector of its own
 *   9  operations tell in which step they are called
 *  10  commits name the nodes that have come back with their residuals
 *  11  neither random choices nor 16-bit rests depend on how ranks see updates */
#ifndef EXCHANGE_VERSION /* tests build a daemon of another release */
#define EXCHANGE_VERSION 11u
#endif

#define EXCHANGE_ALL UINT32_MAX
#define EXCHANGE_PHASES_MAX 256u  /* a frame's header counts them in 8 bits */
#define EXCHANGE_SEGMENTS_MAX 16u /* frames that a member sends another at a time */

enum op_kind { OP_BARRIER = 0, OP_BROADCAST = 1, OP_ALLREDUCE = 2, OP_KIND_COUNT };

/* What a collective remembers of a tensor from turn to turn. It only makes the next turn cheaper:
 * no result depends on it. All members of a view have the same memory, because all have finished
 * the same turns in the view. A new view begins with none. */
struct exchange_memory {
    uint32_t view; /* the view in which it was made; 0: it was not made yet */
    uint32_t line; /* the cell of the line that the members voted for */
    uint32_t cuts;
    uint32_t room; /* for cuts */
    uint32_t *cut; /* positions; of malloc() */
};

/* One tensor of an exchange: what this node contributes, and what comes out. */
struct exchange_tensor {
    struct payload_shape shape;
    uint64_t numel;
    const float *acc;   /* dense, whole: residual plus gradient, memory order */
    bool unpushed;      /* in: no rank of this node pushed it, so the node contributes nothing; out:
                         * no rank of any node did */
    bool nonfinite;     /* in: a gradient of this node has NaN or Inf; out: one of any node has */
    bool summed;        /* dense, of a lone member: `dense` has the result already, acc is NULL */
    uint64_t select;    /* sparse: how many elements a node selects, whole: all nodes together; the
                         * same number on all nodes */
    struct sparse sent; /* sparse: the contribution, with values as the other nodes will decode
                         * them */
    struct sparse update; /* sparse, result: the sum, with room for update.capacity entries. If
                           * `dense` is enough it has no room and positions are NULL; the capacity
                           * is then an estimate */
    float *dense;         /* result: the sum, in memory order. Sparse: NULL unless the collective
                           * scatters, the dense form is wanted, and positions are elements */
    float *own_acc;       /* acc, where the exchange allocated it with malloc(); else NULL */
    bool own_update;      /* the exchange allocated the arrays of `update` with malloc() */
    /* Sparse, result: rounding errors of the sums that this node rounded before it sent them. They
     * go back to its residual. Room for rests.capacity entries; see exchange_reround(). */
    struct sparse rests;
    struct exchange_memory *memory; /* NULL: nothing can be remembered */
};

/* A plain operation (barrier, broadcast, sum) instead of tensors. */
struct exchange_op {
    enum op_kind kind;
    uint32_t root;            /* rank that broadcasts its bytes */
    uint32_t size;            /* bytes */
    uint64_t step;            /* the next one when the ranks called it */
    bool has_root;            /* the root is a rank of this node, and input[0] is its data */
    unsigned inputs;          /* 0: the node only watches, and contributes nothing */
    const void *const *input; /* one per local rank, in rank order */
    void *result;             /* size bytes */
};

struct exchange_frame {
    uint32_t to; /* index of a member, or EXCHANGE_ALL: all but this one */
    struct payload_writer frame;
};

/* Dense, values narrower than f32: rounding errors of the sums that this node rounded
 * (kernels/cpu/rest.h). These sums are one slice of the bucket's tensors, laid end to end. */
struct exchange_rest {
    int16_t *low; /* room for `room` of them; NULL: none, and sums are sent as f32 */
    uint64_t room;
    uint64_t first, count; /* result: the slice; count 0: nothing was rounded */
};

/* A rank pushed with this loss scale. */
struct exchange_loss {
    float scale; /* 0: none did */
    uint32_t rank;
};

struct exchange_input {
    const uint8_t *bytes; /* NULL: not there yet */
    size_t size;
    bool known;   /* whether `crc` is */
    uint32_t crc; /* crc32c() of all bytes */
};

/* What nodes tell the leader of groups, by their numbers; 0: none. */
struct carried_groups {
    uint64_t seen;   /* the highest that the node knows */
    uint64_t broken; /* the highest that is of no use any more */
    uint64_t since;  /* those that were told before this view are not either */
};

struct carried_state;

/* Of a collective whose values a carrier moves; see carried.h. */
struct exchange_carried {
    struct carried_groups said; /* in: by this node */
    uint64_t proposed; /* in, when phases of numbers are produced: the node's for the operation */
    unsigned devices;  /* in: of each member; 0: one */
    bool on_devices;   /* in: dense, the values are on devices. The caller adds the orders to the
                        * operation (cargo.h), which then writes the results, factor included */
    struct cargo_group group; /* in, as `proposed`, on the leader: the group to use */
    struct cargo *cargo; /* out of phases of numbers; it must be done before the next phase, and
                          * before finish() */
    struct carried_state *state;
};

/* One round on one node. */
struct exchange {
    const struct collective_ops *ops;
    unsigned members;
    unsigned self;
    const uint16_t *node;         /* id of each member, ascending; for errors */
    struct payload_header header; /* of every frame this node produces; the phase is filled in, and
                                   * the loss scale as soon as it is known */
    enum payload_index index;
    enum payload_value value;
    uint64_t segment; /* elements of a dense vector that are sent at a time, or many times the
                       * entries of lists; 0: all */
    float scale;      /* factor of the sum: 1, or one over the number of ranks */
    struct exchange_loss other; /* a frame named another loss scale than the header; 0: none did */
    unsigned tensors;
    struct exchange_tensor *tensor;
    struct exchange_rest rest;
    struct exchange_op *op;
    struct exchange_carried carried;

    struct exchange_frame *outgoing; /* of the last phase that was produced; the core takes the
                                      * bytes */
    unsigned outgoing_count;
    void *state;                  /* of the collective */
    struct exchange_input *input; /* [phase * members + member] */

    struct parallel parallel; /* for the loops of the compute that runs; zero: none */
};

/* Which of a node's sent entries become part of the update. These leave its residual. */
enum collective_picks {
    PICKS_NOTHING = 0, /* all entries that a node sends */
    PICKS_ENTRIES,     /* the entries where the update is not 0; the others stay in the residual */
    PICKS_POSITIONS    /* the collective picks the positions, the same on every node. Each node
                        * contributes its residual's values where the update is not 0, whatever it
                        * sent before */
};

/* A bucket on one node, for predictions. */
struct collective_load {
    unsigned members;
    double elements;
    double entries; /* entries that one node contributes; 0: dense */
    double saved;   /* bytes by which the value of such an entry is narrower than bf16 */
    double growth;  /* entries of the sum divided by the entries of one contribution */
    bool wide;      /* dense: sums are sent as f32, otherwise as bf16 */
};

/* The cost of a round for one node; daemon/collective/README.md derives the formulas. */
struct collective_cost {
    double (*bytes)(const struct collective_load *load);    /* received, without headers */
    double (*messages)(const struct collective_load *load); /* received */
    double (*hops)(const struct collective_load *load);     /* messages that wait for one another */
    double (*summed)(const struct collective_load *load); /* sparse: entries that a node adds up */
};

/* The properties of a collective. The policy's checks, the planner, memory and settling read them
 * here and nowhere else. */
struct collective_traits {
    bool dense; /* sums whole tensors, or values at positions that all nodes know; otherwise
                 * lists */
    enum collective_picks picks;
    bool node_only;       /* not for residuals of single ranks (scope "rank") */
    unsigned values;      /* encodings that it takes, one bit 1 << enum payload_value for each */
    bool scatters;        /* sparse: can write the dense form of the update too, even alone */
    bool streams;         /* sparse: writes results from its second phase on */
    bool rerounds;        /* sparse: encodes sums again, by exchange_reround() */
    unsigned members_max; /* 0: any number */

    /* Dense: how many sums of so many elements a member rounds and so needs room for. NULL: none.
     */
    uint64_t (*rests)(unsigned members, uint64_t elements);
    bool partial; /* each sum has two values and is not scaled yet: the rests themselves are kept,
                   * as rest_sum() writes them. Otherwise the lower halves of rest_round() are */

    const struct collective_cost *cost; /* NULL: the planner cannot choose it */

    /* Not NULL: a carrier moves the values (carried.h), and this collective takes its place where
     * some node has no carrier. It takes the same values and picks the same entries. What moves is
     * that collective's frames (carried_frames.h), unless this one sums dense tensors. */
    const struct collective_ops *framed;
};

/* Encodings for traits: all, and those for lists that are cut into parts. The latter exclude
 * encodings in blocks, which depend on where a list begins (payload_value_is_blocked()). */
#define COLLECTIVE_VALUES_CUT                                                                      \
    (1u << PAYLOAD_VALUE_F32 | 1u << PAYLOAD_VALUE_BF16 | 1u << PAYLOAD_VALUE_F16)
#define COLLECTIVE_VALUES_ALL ((1u << PAYLOAD_VALUE_COUNT) - 1)

struct collective_ops {
    const char *name;
    struct collective_traits traits;

    /* Number of phases, 1 to EXCHANGE_PHASES_MAX. */
    unsigned (*phases)(const struct exchange *exchange);

    /* Whether member `from` sends this node a frame in `phase`, the last phase that was produced.
     */
    bool (*expects)(const struct exchange *exchange, unsigned phase, unsigned from);

    /* Compute: fills exchange->outgoing for `phase` from the inputs of the phase before. Older
     * inputs are gone. */
    enum adtopk_status (*produce)(struct exchange *exchange, unsigned phase, struct error *err);

    /* Compute: writes the results from the inputs of the last phase. */
    enum adtopk_status (*finish)(struct exchange *exchange, struct error *err);

    /* Frees exchange->state; NULL: it has none. */
    void (*drop)(struct exchange *exchange);
};

/* Every collective that a policy may name; a new one gets a line here. */
#define COLLECTIVES(entry)                                                                         \
    entry(allreduce) entry(oneshot) entry(pairwise) entry(ring) entry(halving) entry(allgather)    \
        entry(balanced) entry(hierarchical) entry(oktopk) entry(exclusive) entry(nccl_allreduce)   \
            entry(nccl_allgather) entry(nccl_balanced) entry(nccl_exclusive)

#define COLLECTIVE_DECLARE(name) extern const struct collective_ops collective_##name;
COLLECTIVES(COLLECTIVE_DECLARE)

/* Plain operations (barrier, broadcast, sum), which no policy names. */
extern const struct collective_ops collective_plain;
/** Reads the description of the operation from another node's frame; false: there is none. */
bool plain_peek(const uint8_t *frame, size_t size, struct exchange_op *op);

/** The collective of that name among those that a policy may name, or NULL. */
const struct collective_ops *collective_find(const char *name);

/** All that a policy may name, NULL-terminated. */
extern const struct collective_ops *const collective_table[];

/** Begins a frame with the exchange's header and marks. Only for the files of this folder. */
enum adtopk_status exchange_begin_frame(
    const struct exchange *exchange, unsigned phase, struct payload_writer *frame);

/** Adds an empty frame to outgoing, begun with the exchange's header. Returns NULL if memory runs
 * out. Only for the files of this folder. */
struct payload_writer *exchange_add_frame(struct exchange *exchange, unsigned phase, uint32_t to);

/** Opens the frame that `from` sent in `phase`: checks it, and names the node in errors. Callable
 * from any thread; if it returns OK the caller must call exchange_note(). */
enum adtopk_status exchange_open(const struct exchange *exchange, unsigned phase, unsigned from,
    struct payload_reader *reader, struct error *err);

/** Notes the loss scale of a frame that was opened, and which tensors its sender knows to be pushed
 * or not to be finite. */
void exchange_note(struct exchange *exchange, const struct payload_reader *reader);

/** MISMATCH, which names the ranks, if frames that were opened have different loss scales. */
enum adtopk_status exchange_check_scales(const struct exchange *exchange, struct error *err);

/** What the sum of all contributions is multiplied by, as the last thing, to become the update: the
 * exchange's scale times the loss scale. Only known when the sum is complete. What leaves a node
 * has no loss scale in it. */
float exchange_factor(const struct exchange *exchange);

/** For collective_ops.expects, if in every phase each member sends a frame to all others. */
bool exchange_expects_all(const struct exchange *exchange, unsigned phase, unsigned from);

/** Puts "node N sent a bad frame ..." before an error of a decoder. Returns its code. */
enum adtopk_status exchange_blame(
    const struct exchange *exchange, unsigned from, struct error *err);

/** "no memory to VERB bucket ...", as an error. */
enum adtopk_status exchange_no_memory(
    const struct exchange *exchange, const char *verb, struct error *err);

/**
 * Rounds the sums of a tensor that this node is about to send, to the values that the others will
 * decode. Adds the rounding errors to tensor->rests. Returns the encoding of the sums: f32,
 * without rounding, if there is no room for the errors.
 */
enum payload_value exchange_reround(
    const struct exchange *exchange, struct exchange_tensor *tensor, struct sparse *sum);

/** Frees outgoing frames. */
void exchange_drop_frames(struct exchange *exchange);

/** Frees the outgoing frames, the collective's state, its operation and its own updates. The inputs
 * belong to the caller. */
void exchange_drop(struct exchange *exchange);

#endif
