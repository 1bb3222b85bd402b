/*
 * Engines hold the residuals of a job and make the passes over them.
 *
 * The core decides; an engine reads and writes elements. The core tells it what to do in *orders*.
 * An order is plain numbers, with places instead of addresses, so it can cross into another process
 * or wait in a queue. host.c is the first row of the table, and the one to read. It carries orders
 * out at once, with this processor's kernels, in the memory where the residuals lie.
 *
 * Happy path: the core fills a batch with orders for any number of tensors. A *near* engine runs
 * the batch inside a compute. A *far* engine takes it with submit() and tells the driver when all
 * its orders are done. The driver passes that on as EVENT_ENGINE_DONE. Then the results count, and
 * the core goes on with the work that depends on them.
 *
 * What an engine may rely on, and what it promises:
 * - While orders of a tensor are under way, the engine owns the memory that they change. Nobody
 *   else writes the tensor's residual, lists or update until the batch is done (engine_pass()).
 * - Orders of one tensor run in the order of the batch. Orders of different tensors may run at the
 *   same time and end in any order.
 * - If an order finds no memory, the engine leaves out the later orders of the same tensor
 *   (engine_leaves_out()), because they rely on its result. The job ends.
 * - Every order may be repeated after it was cut off at any point, and then leaves the same bits.
 *   An order that changes a residual carries a stamp, by which the engine knows which parts are
 *   done.
 * - A batch has at most one pass over each residual: ADD, WITHDRAW, JOIN or TAKE. A far engine may
 *   repeat the whole batch, and a pass finds only the last stamp.
 * - An engine that dies and comes back with its memory carries out its orders again, from the
 *   start. If it comes back without the content of that memory, residuals and velocities are zeros,
 *   and it does not withdraw what is no longer there. The results say so (`emptied`). An engine
 * that has no memory for a job any more reports it: EVENT_ENGINE_LOST ends that job.
 */
#ifndef ADTOPK_ENGINE_H
#define ADTOPK_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/engine/wait.h"
#include "daemon/sparsify/sparsifier.h"
#include "kernels/base/dtype.h"
#include "kernels/base/parallel.h"
#include "kernels/base/quantise.h"
#include "kernels/base/view.h"
#include "proto/error.h"

struct journal;

/* A place in memory: an arena, and bytes from its beginning. Arenas below ENGINE_RESULTS are the
 * parts of the job's store (daemon/job/store.h). */
enum engine_arena {
    ENGINE_BATCHES = 8, /* batches of tensors that a job commits one after the other */
    ENGINE_STORE_PARTS = 8 + 4 * (ENGINE_BATCHES - 1),
    /* The updates of the first batch, which the ranks read. The updates of later batches follow. */
    ENGINE_RESULTS = ENGINE_STORE_PARTS,
    /* Memory of this process, where the offset is the address. A far engine copies it. */
    ENGINE_HERE = ENGINE_RESULTS + ENGINE_BATCHES,
    /* The vector of a device, of the operation that brings the order (collective/cargo.h). */
    ENGINE_CARRIED,
    ENGINE_NOWHERE, /* no memory */
    /* The gradients of the first local rank and batch. The other ranks follow, then the other
     * batches, then what processes pushed whose place another process took. */
    ENGINE_GRADIENTS
};

#define ENGINE_SHARDS 16u                /* devices over which a job's tensors may be spread */
#define ENGINE_READ_STEP 8192u           /* a READ begins at a multiple of this */
#define ENGINE_HINTED 128u               /* elements of the shortest fibre that has a hint */
#define ENGINE_RANGE (UINT64_C(1) << 18) /* default of engine_memory.range */

struct engine_place {
    uint32_t arena;
    uint64_t offset;
};

/** The arenas of a job. The core writes it before the first order; an engine only reads it. */
struct engine_memory {
    uint64_t job;                       /* the job's number on this node */
    uint8_t *store[ENGINE_STORE_PARTS]; /* NULL: the part is not open */
    uint8_t *results[ENGINE_BATCHES];   /* NULL: not open */
    const uint8_t **gradients;          /* one arena per local rank and batch */
    struct journal *journal;            /* one per thread; NULL: no pass is repeated */
    /* Elements of a tensor for which another worker pays; 0: ENGINE_RANGE. */
    uint64_t range;
    /* The tensors' devices (shards.h): of batch b shard s has the tensors below shard_end[b][s],
     * and of a part of the store the bytes below cut[part][s]. */
    unsigned shards, batches;
    uint32_t shard_end[ENGINE_BATCHES][ENGINE_SHARDS];
    uint64_t cut[ENGINE_STORE_PARTS][ENGINE_SHARDS];
};

enum engine_kind {
    ENGINE_ADD,      /* residual += gradients; select */
    ENGINE_WITHDRAW, /* residual -= gradients */
    ENGINE_JOIN,     /* residual += residuals of other ranks, which become zeros */
    ENGINE_TAKE,   /* for a dense tensor: subtract the sent values, add the rests that come back */
    ENGINE_DIRECT, /* for a dense tensor with an empty residual: check the gradients and sum them */
    ENGINE_PASSED, /* the ledger's sums of such gradients */
    ENGINE_LEAVE,  /* subtract entries that were sent and accepted */
    ENGINE_RETURN, /* add entries that come back */
    ENGINE_GATHER, /* read elements at positions */
    ENGINE_READ,   /* read a stretch of the elements, in f32, or show all of them to ranks */
    ENGINE_SAVE,   /* copy a stretch of the residual out, as it is */
    ENGINE_LOAD,   /* the reverse: a stretch becomes what was saved */
    ENGINE_UPDATE, /* write the update that ranks see */
    ENGINE_NARROW, /* write the update's 16-bit form, from its list or its dense form */
    ENGINE_SHOW,   /* write the update to memory of ranks that see it on a GPU (a far engine) */
    ENGINE_SUMMED, /* make the update of the sum in a device's vector, and write it (a carrier) */
    ENGINE_SUMS,   /* the ledger's sums of a residual */
    ENGINE_CONVERT, /* fill another residual with this one, in f32 or bf16 */
    ENGINE_CARRY,   /* fill another velocity with these */
    ENGINE_KINDS
};

/** A residual, and the memory that goes with it. */
struct engine_residual {
    struct engine_place element;  /* f32, or bf16 with its carries */
    struct engine_place progress; /* progress of its passes */
    struct engine_place momentum; /* NOWHERE: no momentum correction */
    bool rounded;                 /* it is in bf16 */
    uint64_t salt;                /* salt of the random numbers for its rounding */
    uint64_t number;              /* its number in journals */
};

/** Entries: positions of a view, ascending, and f32 values. */
struct engine_list {
    struct engine_place position, value;
    uint64_t count; /* if the engine writes the list: its capacity */
};

/** An input of an order, one per local rank. It is a gradient (element), a residual to join
 * (element and momentum), or a rank's selection (all fields). Or it is where a rank sees an update:
 * all elements (element), and entries (list; `count`: so many have room). Or it is where a rank
 * sees a residual (element). */
struct engine_part {
    struct engine_place element; /* NOWHERE: the rank did not push */
    struct engine_place momentum;
    struct engine_list list;
};

/** ADD, WITHDRAW: the treatment of the gradients, and the selection. The residual decays by
 * params.beta before gradients are added, and these are multiplied by params.gamma after the limit.
 */
struct engine_add {
    float unscale;             /* factor of the gradients' sum, before the limit: normal, above 0 */
    double clip;               /* limit of the norm of the sum; 0: none */
    bool selects;              /* false: the pass selects nothing */
    uint32_t sparsifier;       /* its number in sparsifier_table */
    struct tensor_shape shape; /* this and the next fields are those of struct sparsifier_turn */
    struct sparsifier_params params;
    struct sparsifier_agreed agreed;
    uint64_t turn, seed;
    struct sparsifier_state state;
    struct engine_place hints; /* floats: one for the tensor, then one per fibre. NOWHERE: none */
    uint64_t fibres;           /* how many fibres have a hint */
    struct engine_list list;   /* receives the selected entries */
};

/** Rests that come back (struct rest of kernels/cpu/rest.h). They are of sums that this node
 * rounded or, with `exact`, of the update, which ranks see in the type of the gradients. */
struct engine_rest {
    struct engine_place rounded, low, exact;
    uint64_t first, count; /* count 0: no rests come back */
    float unscale, shrink;
};

/** TAKE: how the tensor was sent, and the rests that come back. */
struct engine_take_out {
    enum quantisation values; /* f32, bf16 or f16 */
    bool nothing;             /* nothing was sent: the engine adds rests and subtracts nothing */
    struct engine_rest sums, update;
};

/** DIRECT: the place for the scaled sum; NOWHERE: it is not needed. */
struct engine_direct {
    struct engine_place sum;
    float scale;
};

/** LEAVE: subtracts from the ranks' residuals if there are parts, else from the order's residual.
 */
struct engine_leave {
    struct view view;
    struct engine_list sent;
    struct engine_place accepted; /* one bit per entry; NOWHERE: all were accepted */
    struct engine_place before;   /* the elements' values when they were selected */
    bool masks;                   /* entries leave the velocity, too */
};

/** RETURN: adds each taken entry to the value that LEAVE wrote there, or else to the element's
 * earlier value. */
struct engine_return {
    struct view view;
    struct engine_list list;
    struct engine_place taken;    /* one bit per entry; NOWHERE: all were taken */
    struct engine_place before;   /* the elements' earlier values */
    struct engine_list sent, own; /* the sent entries; those of them that this residual selected */
    struct engine_place accepted; /* one bit per entry of `sent` */
};

/** GATHER: reads the elements at a list's positions into its values. READ: reads list.count
 * elements, times `factor`, into list.value. It begins at `first`, a multiple of ENGINE_READ_STEP.
 * If there are parts it reads all elements into each of them, where ranks see them on a GPU, and
 * into no list. Then the residual's element may be NOWHERE (zeros). For an operation of a carrier
 * it may be that, too, or in ENGINE_HERE (a gradient). */
struct engine_gather {
    struct view view;
    struct engine_list list;
    uint64_t first;
    float factor; /* READ */
};

/** SAVE, LOAD: elements of the residual's type, `count` of them from `first` on, a multiple of
 * ENGINE_READ_STEP. Those of a residual in bf16 are without their carries, which come beside them.
 * What is NOWHERE is left alone. A velocity is saved and loaded as a residual in f32. With the
 * progress of its residual it counts as moved by the same passes. */
struct engine_image {
    struct engine_place element;
    struct engine_place carry;    /* bf16: one struct carry per chunk */
    struct engine_place progress; /* of all elements: progress_size() bytes, as the engine wants.
                                   * Passes that are done stay done, so they may be repeated */
    uint64_t first, count;
};

/** UPDATE: converts positions of the view to elements. */
struct engine_update {
    struct view view;
    struct engine_list list;
    /* The list that ranks see; NOWHERE: there is none, or it is written already. */
    struct engine_place index, value;
    struct engine_place dense; /* the dense form; NOWHERE: as above */
};

/** NARROW: see struct narrow of kernels/cpu/narrow.h. The type is that of the gradients. */
struct engine_narrow {
    struct engine_place dense;        /* NOWHERE: use the list */
    struct engine_place index, value; /* elements, and their values */
    uint64_t count;
    struct engine_place half;
    struct engine_place shown; /* NOWHERE: no rank asked for the list */
};

/** SHOW: the parts are the ranks' places. The update is a list, or lies whole in memory of this
 * process, as ranks see it there. In front of a rank's positions is the count of its list, or
 * LOCAL_NO_LIST (proto/local.h). */
struct engine_show {
    struct view view;
    struct engine_list list;   /* positions of the view, if `whole` is NOWHERE */
    struct engine_place whole; /* all elements */
    bool half;                 /* the elements that ranks see have the order's dtype; or f32 */
};

/** SUMMED: the update is (0 + sum) * factor. The parts are the ranks' places, as for SHOW. */
struct engine_summed {
    struct engine_place sum;   /* in ENGINE_CARRIED */
    struct engine_place dense; /* the dense form in the results */
    float factor;
    bool half; /* the elements that ranks see have the order's dtype; or f32 */
};

/** CONVERT: the destination and its type. */
struct engine_convert {
    struct engine_place element;
    bool rounded;
};

/** CARRY: the new velocity is the sum of the velocities in the parts; zeros if there are none. */
struct engine_carry {
    struct engine_place momentum;
};

struct engine_order {
    enum engine_kind kind;
    uint32_t tensor; /* the tensor's number in the job */
    uint64_t numel;
    struct engine_residual residual;
    uint64_t stamp; /* of a pass: never 0, each has its own, and they grow. Other orders have one
                     * that is less than those of all later passes */
    unsigned first; /* index of its first part in the batch */
    unsigned parts;
    enum dtype dtype;           /* of the gradients */
    struct engine_place ledger; /* two doubles: the sums before a pass, then after it */
    struct engine_place lost;   /* the same of what decay took; NOWHERE: nothing decays */
    union {
        struct engine_add add;
        struct engine_take_out take;
        struct engine_direct direct;
        struct engine_leave leave;
        struct engine_return back;
        struct engine_gather gather;
        struct engine_image image;
        struct engine_update update;
        struct engine_narrow narrow;
        struct engine_show show;
        struct engine_summed summed;
        struct engine_convert convert;
        struct engine_carry carry;
    };
};

/** The first element that a pass left out, and the gradient that has it. */
struct engine_fault {
    bool found;       /* false: the gradients are finite, and their sum is not */
    unsigned part;    /* its number among the order's parts */
    uint64_t element; /* of the tensor */
    float value;
};

/** The result of an order. A field that its kind does not fill is 0. */
struct engine_result {
    enum adtopk_status status; /* OK or MEMORY */
    uint32_t emptied;   /* not 0: what was in the residual before this batch, or a part of it, is
                         * lost.   A loss is told once per tensor */
    uint64_t count;     /* ADD: selected entries */
    uint64_t nonfinite; /* ADD, DIRECT: elements that the pass left out */
    struct engine_fault fault;     /* the first of these */
    double sums[2];                /* PASSED, SUMS, TAKE (of the subtracted values) */
    double before[2];              /* PASSED: the sums without these gradients */
    double magnitude;              /* SUMS: of all elements */
    struct sparsifier_state state; /* ADD: for the next turn */
};

/** Orders that the core gives together. The core owns the batch; between submit() and done the
 * engine does. */
struct engine_batch {
    const struct engine_memory *memory;
    struct engine_order *order;
    struct engine_result *result; /* one per order */
    unsigned count, room;
    struct engine_part *part;
    unsigned parts, part_room;
    void *context;                             /* the first argument of run and submit */
    unsigned pending;                          /* for a far engine */
    struct engine_wait waiting[ENGINE_SHARDS]; /* for a far engine */
    uint64_t took_us; /* set by a far engine: how long it carried the batch out; 0: not known */
};

struct engine_ops {
    const char *name;
    uint32_t alignment; /* a residual begins at a multiple of so many bytes; 0: any */
    /** Carries the batch out on this thread, and on the threads of `parallel`. A far engine has it
     * for callers that inspect a residual, or has NULL. */
    void (*run)(void *context, const struct engine_batch *batch, const struct parallel *parallel);
    /** For a far engine; else NULL. Takes the batch; never blocks or fails. The end of the batch is
     * an event, even if the job has ended. An engine that died carries out its unfinished orders
     * again, from the start. */
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

/** The place of an address in a part of the store, or in the results; ENGINE_NOWHERE for NULL. */
struct engine_place engine_place_of(
    const struct engine_memory *memory, uint32_t arena, const void *address);

/** The place of an address of this process; ENGINE_NOWHERE for NULL. */
struct engine_place engine_here(const void *address);

/** The address of a place in this process; NULL for ENGINE_NOWHERE. */
void *engine_address(const struct engine_memory *memory, struct engine_place place);

/* ------------------------------------------------------------------ batches */

/** Makes room for this many orders with this many parts together. False: no memory, and the batch
 * is empty. */
bool engine_batch_init(struct engine_batch *batch, const struct engine_memory *memory,
    unsigned orders, unsigned parts);
void engine_batch_free(struct engine_batch *batch);
void engine_batch_clear(struct engine_batch *batch); /* removes all orders and keeps the room */

/** Adds an order without residual, stamp, parts, ledger or decay. The caller fills in the rest,
 * with the whole structure of its kind. There must be room. */
struct engine_order *engine_batch_add(struct engine_batch *batch, enum engine_kind kind);

/** Adds a part to the order that was added last. There must be room. */
struct engine_part *engine_batch_part(struct engine_batch *batch);

/** Whether the batch has at most one pass over each residual, as it must. */
bool engine_passes_once(const struct engine_batch *batch);

/** Whether the engine must leave an order out, because the one before it, of the same tensor, had
 * no memory. The order's own status becomes MEMORY, too. */
bool engine_leaves_out(const struct engine_batch *batch, unsigned at);

/* ------------------------------------------------------------------ the owner of a tensor */

/** The owner may change a tensor's residual, or its update. */
enum engine_owner {
    ENGINE_OWNER_CORE = 0, /* the core's thread */
    ENGINE_OWNER_COMPUTE,  /* the compute of its round, or of the job */
    ENGINE_OWNER_ENGINE    /* an engine that is carrying out its orders */
};

/** Passes one of them on. Aborts if `from` is not the owner: that is a bug of this program. */
void engine_pass(enum engine_owner *owner, enum engine_owner from, enum engine_owner to);

#endif
