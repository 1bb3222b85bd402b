/*
 * Memory that a trainer and its daemon share: four mappings, each written by one side only.
 *
 *   ring       written by the client (sealed against resizing): its submissions
 *   page       written by the daemon, read-only for the client: the progress
 *   gradients  written by the client, read by the daemon: one arena per rank
 *   results    written by the daemon, read-only for the client: one arena per job and node
 *
 * Progress only ever grows, so the daemon reports it in counters instead of a completion ring. A
 * client that stops reading cannot fill up anything. The client may change everything in the ring
 * at any moment, so the daemon copies an entry, then checks the copy.
 *
 * On a GPU. If a rank's gradients lie in a GPU's memory, its arena begins in host memory as usual,
 * and goes on in device memory, which client and device worker map. Behind the operation area the
 * host memory has flags: one 32-bit word per tensor. (Arenas of later batches begin with them.) The
 * rank's stream writes step + 1 there when it has written the gradient. The daemon takes a
 * LOCAL_PUSH, and the entries behind it, only when it reads that number or a later one. So a push
 * that the daemon takes means what it means without a GPU, and no stream of the daemon ever waits
 * for a trainer.
 *
 * The rank's streams may wait for updates. In pages behind the flags there is a struct local_word
 * per tensor, and in the first arena one for the step. The daemon writes them and never reads them.
 * When the session ends, streams are let go, as if all was over: by the daemon, after it has
 * written `failed`, or by the client, when it leaves or fails, or the daemon is gone. Both write
 * the same number. A stream that is let go may write a gradient that it made with an old update. So
 * the client first writes `let_go`, and the daemon takes no push when it reads that behind a flag.
 *
 * Waking. Neither side can write the other's words, so a number marks each sleep. A side that is
 * about to sleep stores the number of this sleep (never 0) in its `asleep` word, checks once more
 * for work, and sleeps on the session socket. When it is awake it stores 0. The other side reads
 * that word after it has written. It sends a one-byte message (LOCAL_WAKE) for each number other
 * than 0 that it has not answered yet. These stores and loads are sequentially consistent, so at
 * least one side sees what the other wrote. All words are naturally aligned.
 */
#ifndef ADTOPK_LOCAL_H
#define ADTOPK_LOCAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LOCAL_VERSION 2
#define LOCAL_LIBRARY "1.0"      /* of the client library, the first that speaks LOCAL_VERSION */
#define LOCAL_RING_ENTRIES 1024u /* a power of two */
#define LOCAL_TEXT_SIZE 240
#define LOCAL_PART 8192u /* most elements of a part of a residual */
/* What a LocalKeep is about; daemon/job/events.h has the same as enum keep_section. */
enum local_section {
    LOCAL_KEEP_JOB = 0, /* CheckpointJob; written first */
    LOCAL_KEEP_POLICY,
    LOCAL_KEEP_TENSOR,   /* CheckpointTensor */
    LOCAL_KEEP_ELEMENTS, /* from here on the arrays of checkpoint_content.h */
    LOCAL_KEEP_CARRIES,
    LOCAL_KEEP_VELOCITY,
    LOCAL_KEEP_END, /* written last; it is read when all nodes have saved */
    LOCAL_KEEP_SECTIONS
};
#define LOCAL_KEEP_SIZE (LOCAL_PART * 4 + 256) /* most bytes of a LocalKeep or its answer */
#define LOCAL_PARTS 36u                        /* numbers of the parts of a job's store are below */
#define LOCAL_WAKE 0x57

enum local_submit {
    LOCAL_PUSH = 1,     /* tensor, number = step, scale, lookahead */
    LOCAL_STEP_END = 2, /* number = step */
    LOCAL_WAIT = 3,     /* tensor, number = step */
    LOCAL_OP = 4        /* tensor = enum op_kind, root, size, number = operation */
};

/* Whether a flag has reached a number. Numbers may wrap around. */
static inline bool local_flag_is(const _Atomic uint32_t *flag, uint32_t number)
{
    return (int32_t)(atomic_load_explicit(flag, memory_order_acquire) - number) >= 0;
}

/* The number by which a rank's stream says that its gradient of this step is written, and by which
 * the daemon says that something of this step is over. */
static inline uint32_t local_flag_of(uint64_t step)
{
    return (uint32_t)(step + 1);
}

/* Of a tensor in a step, or of the step itself. */
struct local_word {
    _Atomic uint32_t over;  /* a stream waits until this has reached the step's number */
    _Atomic uint32_t right; /* the step's number, if its update is on the GPU and may be applied */
};

/* Lets go of all streams that wait. steps_done: of the page, so that whoever calls this twice, or
 * calls it after the other side, changes nothing. */
static inline void local_let_go(struct local_word *word, uint32_t words, uint64_t steps_done)
{
    for (uint32_t i = 0; i < words; i++) {
        atomic_store(&word[i].over, local_flag_of(steps_done) + (UINT32_C(1) << 30));
    }
}

struct local_entry {
    uint32_t type; /* enum local_submit */
    uint32_t tensor;
    uint64_t number;
    uint32_t root;
    uint32_t size;
    float scale;     /* the loss scale; 0: 1 */
    float lookahead; /* of a push: the share by which the rank looked ahead; 0: it did not */
};

/* Client-written. Single producer (the rank), single consumer (the daemon). */
struct local_ring {
    _Alignas(64) _Atomic uint64_t tail;          /* entries ever submitted */
    _Alignas(64) _Atomic uint32_t client_asleep; /* number of the sleep; 0: awake */
    _Atomic uint32_t let_go; /* 1: the client has let go of the rank's streams, or is about to */
    _Alignas(64) struct local_entry entry[LOCAL_RING_ENTRIES];
};

/* Daemon-written, one a session. */
struct local_page {
    uint32_t version;
    uint32_t tensors;
    _Alignas(64) _Atomic uint64_t head;          /* entries ever consumed */
    _Alignas(64) _Atomic uint32_t daemon_asleep; /* number of the sleep; 0: awake */
    /* Steps accepted or withdrawn so far: step s is over when steps_done > s. */
    _Alignas(64) _Atomic uint64_t steps_done;
    _Atomic uint32_t step_status; /* enum adtopk_status of the last one */
    _Atomic uint64_t ops_done;
    _Atomic uint64_t progress; /* grows after each change of the words above and of `delivered` */
    /* Who takes part in the next step; written before steps_done. */
    _Atomic uint32_t ranks; /* how many; 0: the daemon does not tell */
    _Atomic uint32_t place; /* this rank's among them, from 0 */
    _Atomic uint32_t root;  /* the lowest of them that took part in the step before */
    _Atomic uint32_t due; /* 1: before it they save a checkpoint, for which an operator has asked */
    _Atomic uint64_t joined; /* the step from which those that joined last take part; 0: none did */
    /* Non-zero ends the session: enum adtopk_status; text is complete before it is set. */
    _Alignas(64) _Atomic uint32_t failed;
    char text[LOCAL_TEXT_SIZE];
    /* Per tensor: (step + 1) << 8 | status of its last delivered round; 0: none yet. */
    _Alignas(64) _Atomic uint64_t delivered[];
};

/* In the result arena: a table of tensors, then each tensor's update. */
struct local_results {
    uint32_t tensors;
    uint32_t reserved;
    uint64_t op_gradient_offset; /* place of the operation area in a rank's gradient arena */
    uint64_t op_result_offset;   /* place of the operation area in this arena */
    struct {
        uint64_t gradient_offset;
        uint64_t update_offset;
    } tensor[];
};

/* Where the residual lies that a rank looks ahead with: in a part of the job's store, of which the
 * rank maps a read-only descriptor (LocalShow). Of a rank with a residual of its own (rank_size is
 * not 0) and the index r > 0 among the node's ranks it lies in rank_part, at
 * rank_offset + (r - 1) * rank_size. */
struct local_pending {
    uint64_t offset;      /* in the part, bytes */
    uint64_t rank_offset; /* bytes */
    uint64_t rank_size;   /* bytes; 0: the node's ranks share one */
    uint32_t since;       /* grows when a part may be another one; 0: none was ever shown */
    float scale;          /* by it a residual becomes what the update lacks, as far as known here */
    float lookahead;   /* of the policy: share of that by which a rank looks ahead; 0: it cannot */
    uint8_t part;      /* number of the part; LOCAL_PARTS: none in host memory is shown */
    uint8_t rank_part; /* the part with the residuals of ranks but the first */
    uint8_t dtype;     /* 0 f32, 2 bf16 */
    uint8_t corrected; /* 1: the policy corrects momentum, so updates have it already */
};

/* LocalTensor.memory. With LOCAL_SHOWN_ON_GPU the rank sees updates on its GPU, too: in its arena,
 * behind all gradients, in the order of the tensors. Each begins at a multiple of 64 bytes, and has
 * all elements: in 16 bits with LOCAL_FORM_DENSE16, else in f32. With LOCAL_LISTED_ON_GPU it sees
 * lists of them, too: behind these, in the same order. Behind all that is what updates lack of
 * tensors with LOCAL_FORM_PENDING (local_pending_size()). */
#define LOCAL_ON_GPU 1u
#define LOCAL_SHOWN_ON_GPU 2u
#define LOCAL_LISTED_ON_GPU 3u
#define LOCAL_SHOWN_ALIGNMENT 64u

/* LocalOpen.abilities: what the client can do with memory of a GPU, combined. */
enum local_ability {
    LOCAL_CAN_BATCH = 1,  /* commit more tensors there while it trains */
    LOCAL_CAN_RETURN = 2, /* return to another daemon, whose memory there is another one */
    LOCAL_CAN_FOLLOW = 4  /* come back for another process, whose updates are not there */
};

/* LocalOpened.memory: in which memory gradients may lie. */
enum local_memory {
    LOCAL_MEMORY_UNKNOWN, /* a daemon of an earlier version does not say */
    LOCAL_MEMORY_HOST,
    LOCAL_MEMORY_GPU,  /* there, too */
    LOCAL_MEMORY_LISTS /* the same, of a daemon that knows LOCAL_LISTED_ON_GPU */
};

/* What a rank asks for of a tensor. An update has the first three. LOCAL_FORM_PENDING asks for the
 * residual to look ahead with: a tensor that was registered without it has none to show. */
enum local_form {
    LOCAL_FORM_LIST = 1,
    LOCAL_FORM_DENSE = 2,
    LOCAL_FORM_DENSE16 = 4,
    LOCAL_FORM_PENDING = 8
};
#define LOCAL_FORMS 15u /* all of them */
/* In local_update.forms: ranks with LOCAL_SHOWN_ON_GPU see this update there. They do not if the
 * daemon has it from another node, after a change of members. */
#define LOCAL_FORM_SHOWN 16u
/* Also there: the list of such an update had room, and ranks with LOCAL_LISTED_ON_GPU see it. */
#define LOCAL_FORM_LISTED 32u

/* Bytes of an update on a GPU, with the padding behind it. */
static inline uint64_t local_shown_size(uint64_t numel, unsigned forms)
{
    const uint64_t bytes = numel * ((forms & LOCAL_FORM_DENSE16) != 0 ? 2 : 4);

    return (bytes + LOCAL_SHOWN_ALIGNMENT - 1) / LOCAL_SHOWN_ALIGNMENT * LOCAL_SHOWN_ALIGNMENT;
}

/* A list on a GPU begins with its count, a 32-bit word, or LOCAL_NO_LIST in place of a list that is
 * not there. LOCAL_LIST_BEGIN bytes behind that word are so many positions (u32), and behind the
 * room for positions the values (f32). No policy changes that room. Longer lists would cost a
 * kernel about as much as all elements do: an entry takes two sectors of 32 bytes. */
#define LOCAL_NO_LIST UINT32_MAX
#define LOCAL_LIST_BEGIN 64u

static inline uint64_t local_list_room(uint64_t numel)
{
    return (numel / 8 + 16) / 16 * 16;
}

/* Bytes of the positions, and as many of the values. */
static inline uint64_t local_list_half(uint64_t numel)
{
    return local_list_room(numel) * sizeof(uint32_t);
}

static inline uint64_t local_list_size(uint64_t numel)
{
    return LOCAL_LIST_BEGIN + 2 * local_list_half(numel);
}

/* Bytes on a GPU of what the updates of a tensor lack: its residual times local_pending.scale, all
 * elements in f32; zeros where no residual is shown. It is written before a step is accepted. A
 * daemon of an earlier version has no such place. */
static inline uint64_t local_pending_size(uint64_t numel, unsigned forms)
{
    return (forms & LOCAL_FORM_PENDING) != 0 ? local_shown_size(numel, LOCAL_FORM_DENSE) : 0;
}

/* One tensor's update, in two cache lines. Offsets count from the start of the result arena. Where
 * a rank asked for the 16-bit form, that is always filled. List and dense form are then the
 * daemon's: they have the values before rounding. A rank that asked for the list reads its values
 * at `shown_offset`. */
struct local_update {
    uint64_t numel;
    uint64_t capacity;     /* entries that the list can hold */
    uint64_t count;        /* entries of the list */
    uint64_t step;         /* the step of this update */
    uint64_t index_offset; /* u32 each; 0: no list */
    uint64_t value_offset; /* f32 each */
    uint64_t dense_offset; /* f32 each, numel of them; 0: no dense form */
    uint32_t forms;        /* enum local_form: which are filled now; the two above */
    uint32_t turn;
    bool unpushed;  /* no rank of the job pushed the tensor: the update is empty */
    bool nonfinite; /* a gradient had NaN or Inf, and the policy passes that on: all is NaN */
    bool final;     /* no step is withdrawn: the update stays until its tensor's next push */
    uint8_t reserved[5];
    struct local_pending pending;
    uint64_t half_offset;  /* u16 each, numel of them; 0: no 16-bit form */
    uint64_t shown_offset; /* f32 each: the list's values after rounding; 0: nobody reads them */
};
_Static_assert(sizeof(struct local_update) == 128, "each tensor has one");

#endif
