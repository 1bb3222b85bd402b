/*
 * What feed.c, feed_copies.c, feed_here.c, feed_lost.c and feed_cargo.c share: batches, or an
 * operation of NCCL, that are being fed.
 */
#ifndef ADTOPK_DEVICE_FEEDING_H
#define ADTOPK_DEVICE_FEEDING_H

#include "daemon/device/feed.h"
#include "daemon/device/order.h"

#define FEED_OUTPUTS 3u /* most outputs of an order: those of an image */

/* What is to be done here when an entry is done. */
struct flight {
    void *to; /* copy `size` bytes of staging memory there; NULL: nothing */
    const struct feed_item
        *outputs; /* not NULL: the bytes are outputs of the run with these orders */
    uint64_t at;  /* where the bytes begin among the outputs */
    uint64_t staging, size;
    uint64_t end;                 /* staging memory is free up to here */
    uint64_t room;                /* bytes of scratch memory that were asked for last */
    const struct feed_item *item; /* not NULL: the orders of the struct page_run at `staging` */
    bool carries;                 /* a struct page_carry is at `staging` */
};

/* An output of an order, in memory of the daemon. */
struct feed_output {
    uint8_t *to; /* NULL: there is none */
    uint64_t size;
};

/* An order of the batch, or one of a rule. */
struct feed_item {
    struct feed_item *next;     /* in the same run */
    struct engine_order *order; /* as the daemon has it */
    struct engine_part *part;
    struct engine_result *result;
    struct page_ask ask;        /* its list is in memory of the daemon */
    struct page_answer *answer; /* NULL: nothing is asked */
    uint64_t inputs, outputs;   /* bytes in scratch memory */
    struct feed_output output[FEED_OUTPUTS];
};

/* Orders that become a run. */
struct feed_group {
    struct feed_item *first, *last;
    unsigned orders, parts;
    uint64_t inputs, outputs; /* bytes in scratch memory */
};

/* The slice of inputs that is being filled. */
struct feed_slice {
    uint8_t *to;      /* the next byte */
    uint64_t room;    /* bytes that are free; 0: it is the worker's, or there was none */
    uint64_t left;    /* bytes of inputs that no slice has room for yet */
    uint64_t scratch; /* where the next slice goes */
};

struct feed {
    struct worker *worker;
    const struct engine_wait *waiting; /* the batches, all of one job */
    struct engine_batch *batch;        /* the one at hand */
    unsigned shard;                    /* of the batches, what is fed here */
    struct part *first;                /* of the batches' job */
    struct page *page;
    uint32_t posted, retired; /* numbers of entries */
    uint64_t staged, freed;   /* bytes of staging memory that were ever used, and given back */
    uint64_t room;            /* bytes of scratch memory that were asked for last */
    bool asks;                /* for as much as was refused before */
    bool again;               /* some orders found no memory: each goes alone */
    uint64_t input, output;   /* places in scratch memory for the next ones of the run */
    struct feed_slice slice;
    uint64_t copies; /* slices that were copied in or out */
    uint64_t vector; /* bytes of an operation's vector, at the beginning of scratch memory */
    const struct engine_order *order; /* at hand, as the daemon has it */
    struct rule *rules;               /* have been asked about, and have yet to select */
    struct feed_item *items;          /* one per order of all batches */
    struct feed_item *item;           /* those of the batch at hand */
    struct feed_group group;          /* grows */
    struct cargo *cargo;              /* instead of a batch */
    struct error *said;               /* of it, by NCCL */
    uint32_t carry;                   /* the entry that makes it; 0: it is not posted */
    struct error error;
    enum adtopk_status status;
    struct flight flight[PAGE_ENTRIES];
};

/** The worker's beat, while it may wait for NCCL as long as it shows that it does. The core ends
 * such an operation after round_timeout. From then on, and in everything else, the beat means
 * nothing: a worker that hangs may still write it. */
static inline uint32_t feed_beat(const struct feed *feed)
{
    const bool waits =
        feed->carry != 0 && feed->cargo->kind != CARGO_NAME && !atomic_load(&feed->cargo->aborted);

    return waits ? atomic_load(&feed->page->beat) : 0;
}

/* feed.c */

/** Begins to feed something. */
struct feed *feed_begin(struct worker *worker);

/** Awaits everything. Returns what feed_batches() does. */
enum adtopk_status feed_end(struct feed *feed, struct error *err);

/** Makes an entry with so many bytes of staging memory, which its flight says where; NULL if the
 * worker is to be ended. Then nothing of it is looked at any more. The entry is the worker's with
 * feed_post(). */
struct page_entry *feed_entry(
    struct feed *feed, enum page_command command, uint64_t size, struct flight **made);
void feed_post(struct feed *feed);

/** Asks for so much scratch memory. What was there may be gone. */
void feed_ask_room(struct feed *feed, uint64_t size);

/** Counts the scratch memory that the entry had. */
void feed_note_room(const struct feed *feed, const struct flight *flight);

/** Copies in slices, between `bytes` here and scratch memory. */
void feed_copy(
    struct feed *feed, enum page_command command, void *bytes, uint64_t scratch, uint64_t size);

/** The same, or an arena. */
void feed_copy_with(struct feed *feed, enum page_command command, void *bytes, uint32_t arena,
    uint64_t scratch, uint64_t size);

/** Awaits everything that is under way. False: the worker is to be ended. */
bool feed_drain(struct feed *feed);

/** Whether the order is for this worker. */
bool feed_has(const struct feed *feed, unsigned at);

/** Blocks of the largest launch. */
unsigned feed_blocks(const struct feed *feed);

/** Adds an order to a group. If it does not fit, the worker gets the group first. */
void feed_add(struct feed *feed, struct feed_group *group, struct feed_item *item);

/** Gives the worker a group. */
void feed_close(struct feed *feed, struct feed_group *group);

/* feed_copies.c */

/** The arena on a device that has this gradient; NULL: the place is no gradient, or it is in memory
 * of this process. */
const struct part *feed_arena(const struct feed *feed, const struct engine_place *place);

/** The job's first part. Its job may have ended meanwhile: it is dropped, but still there. */
struct part *feed_home(const struct feed *feed, uint64_t job);

/** Finds out what is copied for an order: fills in the item's inputs and outputs. */
void feed_measure(const struct feed *feed, struct feed_item *item);

/** The places of an order become the worker's, the next ones of the run. */
void feed_places(struct feed *feed, struct feed_item *item);

/** Copies the inputs of a group's orders into scratch memory, or has the outputs come back. */
void feed_inputs(struct feed *feed, const struct feed_group *group);
void feed_outputs(struct feed *feed, const struct feed_group *group);

/** Takes a slice of outputs that came back. */
void feed_land(const struct feed *feed, const struct flight *flight);

/* feed_lost.c */

/** The job has lost what was in its memory here. False: without memory this is noted with the next
 * batch. */
bool feed_note_loss(const struct feed *feed, struct part *first);

/** Whether there is nothing to withdraw. Notes what comes in. */
bool feed_is_lost(const struct feed *feed, const struct engine_order *order);

/** The batch at hand is done: the owners of residuals hear what was lost. */
void feed_tell_losses(const struct feed *feed);

/* feed_cargo.c */

/** Takes over what NCCL said of the operation. */
void feed_carried(const struct feed *feed, const struct flight *flight);

/* feed_here.c */

/** Carries out an order of the batch whose places are in memory of this process, but perhaps the
 * gradients. */
void feed_here(struct feed *feed, unsigned at);

#endif
