/*
 * Engines: who holds the residuals of a job, and makes the passes over them.
 *
 * The core decides; an engine reads and writes elements. The core tells it what to do in *orders*:
 * plain numbers, with places instead of addresses, so that an order can cross into another process
 * or wait in a queue. host.c is the first row of the table and the one to read: it carries orders
 * out at once, with the kernels of this processor, in the memory where the residuals lie.
 *
 * Happy path: the core fills a batch with orders, of any number of tensors. A *near* engine runs
 * the batch inside a compute. A *far* engine takes it with submit() and tells the driver when all
 * its orders are done; the driver passes that on as EVENT_ENGINE_DONE. Then the results count, and
 * the core goes on with what depends on them.
 *
 * What an engine may rely on, and what it promises:
 * - While orders of a tensor are under way, what they change belongs to the engine: nobody else
 *   writes its residual, its lists or its update until the batch is done (engine_pass()).
 * - Orders of one tensor run in the order of the batch. Those of different tensors may run side by
 *   side and end in any order.
 * - Where an order finds no memory, the engine leaves out those of the same tensor that are behind
 *   it (engine_leaves_out()): they rely on what it has not done. The job ends.
 * - Every order may be repeated after it was cut off at any point, and then leaves the same bits.
 *   An order that changes a residual carries a stamp, by which the engine knows what is done.
 * - An engine that dies and comes back with its memory carries out again what it had, from the
 *   start. One that has lost its memory says so: EVENT_ENGINE_LOST ends the jobs on this node.
 */
#ifndef ADTOPK_ENGINE_H
#define ADTOPK_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/sparsify/sparsifier.h"
#include "kernels/base/dtype.h"
#include "kernels/base/parallel.h"
#include "kernels/base/quantise.h"
#include "kernels/base/view.h"
#include "proto/error.h"

struct journal;

/* Where something lies: an arena, and bytes from its beginning. Arenas below ENGINE_RESULTS are the
 * parts of the job's store (daemon/core/store.h). */
enum engine_arena {
    ENGINE_BATCHES = 8, /* of tensors that a job commits one after the other */
    ENGINE_STORE_PARTS = 6 + 4 * (ENGINE_BATCHES - 1),
    ENGINE_RESULTS = ENGINE_STORE_PARTS, /* the updates of the first batch, which the ranks read;
                                          * those of the others follow */
    ENGINE_HERE = ENGINE_RESULTS + ENGINE_BATCHES, /* memory of this process: the offset is the
                                                    * address. A far engine copies it */
    ENGINE_NOWHERE,                                /* there is none */
    ENGINE_GRADIENTS /* of the first local rank and batch; the other ranks follow, then the other
                      * batches */
};

#define ENGINE_READ_STEP 8192u           /* where a READ begins is a multiple of this */
#define ENGINE_RANGE (UINT64_C(1) << 18) /* default of engine_memory.range */

struct engine_place {
    uint32_t arena;
    uint64_t offset;
};

/** The arenas of a job. The core writes it before the first order; an engine only reads it. */
struct engine_memory {
    uint64_t job;                       /* its number on this node */
    uint8_t *store[ENGINE_STORE_PARTS]; /* NULL: the part is not open */
    uint8_t *results[ENGINE_BATCHES];   /* NULL: not open */
    const uint8_t **gradients;          /* one arena per local rank and batch */
    struct journal *journal;            /* one per thread; NULL: no pass is repeated */
    uint64_t range;                     /* elements of a tensor that are worth a worker; 0:
                                         * ENGINE_RANGE */
};

enum engine_kind {
    ENGINE_ADD,      /* residual += gradients; select */
    ENGINE_WITHDRAW, /* residual -= gradients */
    ENGINE_JOIN,     /* residual += residuals of other ranks, which become zeros */
    ENGINE_TAKE,     /* of a dense tensor: subtract what was sent, add the rests that come back */
    ENGINE_DIRECT,   /* look at gradients that go past an empty residual, and sum them */
    ENGINE_PASSED,   /* the ledger's sums of what went past */
    ENGINE_LEAVE,    /* subtract entries that were sent and accepted */
    ENGINE_RETURN,   /* add entries that come back */
    ENGINE_GATHER,   /* read elements at positions */
    ENGINE_READ,     /* read a stretch of the elements, in f32 */
    ENGINE_UPDATE,   /* write the update that ranks see */
    ENGINE_NARROW,   /* write its 16-bit form, from the list or the dense form that is there */
    ENGINE_SUMS,     /* the ledger's sums of a residual */
    ENGINE_CONVERT,  /* fill another residual with this one, in f32 or bf16 */
    ENGINE_CARRY,    /* fill another velocity with these */
    ENGINE_KINDS
};

/** A residual, and what belongs to it. */
struct engine_residual {
    struct engine_place element;  /* f32, or bf16 with its carries */
    struct engine_place progress; /* of its passes */
    struct engine_place momentum; /* NOWHERE: no momentum correction */
    bool rounded;                 /* it is in bf16 */
    uint64_t salt;                /* of the random numbers by which it is rounded */
    uint64_t number;              /* in journals */
};

/** Entries: positions of a view, ascending, and f32 values. */
struct engine_list {
    struct engine_place position, value;
    uint64_t count; /* or, where the engine writes the list, its capacity */
};

/** An input of an order, one per local rank: a gradient (its element), a residual to join (element
 * and momentum), or what a rank selected (all of it). */
struct engine_part {
    struct engine_place element; /* NOWHERE: the rank pushed none */
    struct engine_place momentum;
    struct engine_list list;
};

/** ADD, WITHDRAW: what happens to the gradients, and what is selected. */
struct engine_add {
    float unscale;             /* factor of their sum, before the limit: normal, above 0 */
    double clip;               /* limit of the norm of their sum; 0: none */
    bool selects;              /* else nothing is selected */
    uint32_t sparsifier;       /* its number in sparsifier_table */
    struct tensor_shape shape; /* from here on as struct sparsifier_turn */
    struct sparsifier_params params;
    struct sparsifier_agreed agreed;
    uint64_t turn, seed;
    struct sparsifier_state state;
    struct engine_place hints; /* floats: one for the tensor, then one per fibre. NOWHERE: none */
    uint64_t fibres;           /* so many fibres have a hint */
    struct engine_list list;   /* where the selected entries go */
};

/** Rests that come back (struct rest of kernels/cpu/rest.h): of sums that this node rounded, or,
 * with `exact`, of the update, which is shown in the type of the gradients. */
struct engine_rest {
    struct engine_place rounded, low, exact;
    uint64_t first, count; /* count 0: none come back */
    float unscale, shrink;
};

/** TAKE: how the tensor was sent, and which rests come back. */
struct engine_take_out {
    enum quantisation values; /* f32, bf16 or f16 */
    bool nothing;             /* nothing was sent: rests are added, nothing is subtracted */
    struct engine_rest sums, update;
};

/** DIRECT: where the scaled sum goes; NOWHERE: it is not wanted. */
struct engine_direct {
    struct engine_place sum;
    float scale;
};

/** LEAVE: with parts, the ranks' residuals, else the order's residual. */
struct engine_leave {
    struct view view;
    struct engine_list sent;
    struct engine_place accepted; /* one bit per entry; NOWHERE: all are */
    struct engine_place kept;     /* what the elements were when they were selected */
    bool masks;                   /* what leaves the residual leaves the velocity too */
};

/** RETURN: each taken entry is added to what LEAVE wrote there, else to what the element was. */
struct engine_return {
    struct view view;
    struct engine_list list;
    struct engine_place taken;    /* one bit per entry; NOWHERE: all are */
    struct engine_place kept;     /* what the elements were */
    struct engine_list sent, own; /* what was sent; what this residual selected of it */
    struct engine_place accepted; /* one bit per entry of `sent` */
};

/** GATHER: elements at a list's positions into its values. READ: list.count elements from `first`
 * on, which is a multiple of ENGINE_READ_STEP, into list.value. */
struct engine_gather {
    struct view view;
    struct engine_list list;
    uint64_t first;
};

/** UPDATE: from positions of the view to elements. */
struct engine_update {
    struct view view;
    struct engine_list list;
    struct engine_place index, value; /* the list that ranks see; NOWHERE: none, or already there */
    struct engine_place dense;        /* the dense form; NOWHERE: none, or already there */
};

/** NARROW: see struct narrow of kernels/cpu/narrow.h. The type is that of the gradients. */
struct engine_narrow {
    struct engine_place dense;        /* NOWHERE: see the list */
    struct engine_place index, value; /* elements, and their values */
    uint64_t count;
    struct engine_place half;
    struct engine_place shown; /* NOWHERE: no rank asked for the list */
};

/** CONVERT: where to, and in which type. */
struct engine_convert {
    struct engine_place element;
    bool rounded;
};

/** CARRY: the velocity becomes the sum of those of the parts, zeros if there are none. */
struct engine_carry {
    struct engine_place momentum;
};

struct engine_order {
    enum engine_kind kind;
    uint32_t tensor; /* its number in the job */
    uint64_t numel;
    struct engine_residual residual;
    uint64_t stamp; /* of passes: never 0, each has one of its own */
    unsigned first; /* its parts in the batch */
    unsigned parts;
    enum dtype dtype;           /* of the gradients */
    struct engine_place ledger; /* two doubles: the sums before a pass, then after it */
    union {
        struct engine_add add;
        struct engine_take_out take;
        struct engine_direct direct;
        struct engine_leave leave;
        struct engine_return back;
        struct engine_gather gather;
        struct engine_update update;
        struct engine_narrow narrow;
        struct engine_convert convert;
        struct engine_carry carry;
    };
};

/** The first element that a pass left out, and the gradient that has it. */
struct engine_fault {
    bool found;       /* false: gradients are finite, and their sum is not */
    unsigned part;    /* of the order's parts */
    uint64_t element; /* of the tensor */
    float value;
};

/** What an order came to. A field that its kind does not fill is 0. */
struct engine_result {
    enum adtopk_status status;     /* OK or MEMORY */
    uint64_t count;                /* ADD: entries that were selected */
    uint64_t nonfinite;            /* ADD, DIRECT: elements that were left out */
    struct engine_fault fault;     /* if there are any */
    double sums[2];                /* PASSED, SUMS, TAKE (what was subtracted) */
    double before[2];              /* PASSED: those without it */
    double magnitude;              /* SUMS: of all elements */
    struct sparsifier_state state; /* ADD: for the next turn */
};

/** Orders that are given together. Owned by the core; by the engine between submit() and done. */
struct engine_batch {
    const struct engine_memory *memory;
    struct engine_order *order;
    struct engine_result *result; /* one per order */
    unsigned count, room;
    struct engine_part *part;
    unsigned parts, part_room;
    void *context; /* the core's */
};

struct engine_ops {
    const char *name;
    /** Carries the batch out on this thread, and on those of `parallel`. A far engine has it for
     * those who inspect a residual, or NULL. */
    void (*run)(void *context, const struct engine_batch *batch, const struct parallel *parallel);
    /** A far engine; else NULL. Takes the batch: never blocks or fails. The end of the batch is an
     * event, also where the job has ended. An engine that died carries out again, from the start,
     * what it had not finished. */
    void (*submit)(void *context, struct engine_batch *batch);
};

/** The processor's own kernels, in the memory of this process. */
extern const struct engine_ops engine_host;

static inline bool engine_is_near(const struct engine_ops *ops)
{
    return ops->submit == NULL;
}

/* ------------------------------------------------------------------ places */

static const struct engine_place engine_nowhere = {.arena = ENGINE_NOWHERE};

static inline bool engine_is_there(struct engine_place place)
{
    return place.arena != ENGINE_NOWHERE;
}

/** The place of an address in a part of the store, or in the results; NULL is nowhere. */
struct engine_place engine_place_of(
    const struct engine_memory *memory, uint32_t arena, const void *address);

/** The place of an address of this process; NULL is nowhere. */
struct engine_place engine_here(const void *address);

/** The address of a place in this process; NULL for nowhere. */
void *engine_address(const struct engine_memory *memory, struct engine_place place);

/* ------------------------------------------------------------------ batches */

/** Room for so many orders with so many parts in all. False: no memory, the batch is empty. */
bool engine_batch_init(struct engine_batch *batch, const struct engine_memory *memory,
    unsigned orders, unsigned parts);
void engine_batch_free(struct engine_batch *batch);
void engine_batch_clear(struct engine_batch *batch); /* no orders, the same room */

/** The next order: it has no residual, stamp, parts or ledger yet. The caller fills in the rest,
 * with all of its kind's structure. There must be room. */
struct engine_order *engine_batch_add(struct engine_batch *batch, enum engine_kind kind);

/** The next part of the order that was added last. There must be room. */
struct engine_part *engine_batch_part(struct engine_batch *batch);

/** Whether an order is not to be carried out: the one before it, of the same tensor, has no memory.
 * Its own status becomes MEMORY, too. */
bool engine_leaves_out(const struct engine_batch *batch, unsigned at);

/* ------------------------------------------------------------------ who owns a tensor */

/** Who may change a tensor's residual, or its update. */
enum engine_owner {
    ENGINE_OWNER_CORE = 0, /* the core's thread */
    ENGINE_OWNER_COMPUTE,  /* the compute of its round, or of the job */
    ENGINE_OWNER_ENGINE    /* an engine that carries out its orders */
};

/** Passes one of them on. Aborts if `from` does not own it: that is a fault of this program. */
void engine_pass(enum engine_owner *owner, enum engine_owner from, enum engine_owner to);

#endif
