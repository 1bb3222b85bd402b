/*
 * What adtopkd and one of its device workers share: a page of memory, and a socket.
 *
 * The page has a ring of entries, which the daemon writes and the worker carries out in order, in
 * one stream; and staging memory through which inputs and outputs go in slices. Entries are
 * numbered 1, 2, ... in each life of a worker. When everything of an entry has happened on the
 * device, the stream writes its number to `done`. So an entry's slot and its staging memory are
 * free again when `done` has reached it, and the daemon reads outputs then.
 *
 * A side that is about to sleep sets its `asleep` word, looks once more for work, and sleeps on
 * the socket. The other side reads that word after it has written, and sends a MESSAGE_WAKE. These
 * stores and loads are sequentially consistent, so at least one side sees what the other wrote.
 *
 * The daemon makes the page (memfd) and both ends of the socket, and the worker is its child, of
 * the same build. So they trust each other, and `size` is all that is checked. But a context that
 * is spoilt may bring anything: what an order has selected is checked before anybody uses it.
 */
#ifndef ADTOPK_DEVICE_PAGE_H
#define ADTOPK_DEVICE_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/collective/cargo.h"
#include "daemon/device/pool.h"
#include "daemon/engine/engine.h"
#include "daemon/loop/spin.h"
#include "kernels/base/stats.h"
#include "kernels/cuda/add.h"
#include "kernels/cuda/whole.h"
#include "proto/error.h"

/* The daemon's and its workers' have to be the same. A test has another one. */
#ifndef PAGE_RELEASE
#define PAGE_RELEASE ADTOPK_VERSION
#endif
#define PAGE_RELEASE_SIZE 32u
_Static_assert(sizeof(PAGE_RELEASE) <= PAGE_RELEASE_SIZE, "a release fits into the page");
#define PAGE_ENTRIES 256u        /* a power of two */
#define PAGE_STAGING (16u << 20) /* bytes */
#define PAGE_SLICE (1u << 20)    /* most bytes of an entry's copy */
#define PAGE_ALIGNMENT 64u       /* of staging and scratch memory */
#define PAGE_ARENAS 1024u        /* parts of stores that a worker has mapped at a time */
#define PAGE_BLOCKS 3u           /* most blocks of a launch, per multiprocessor; where a kernel */
#define PAGE_BLOCKS_LARGE 2u     /* is large (kernels/cuda/device.cuh), more would take turns */

/* In the orders that a worker gets, arenas are its own: numbers from PAGE_ARENA on are parts of
 * stores that it has mapped, ENGINE_HERE is its scratch memory. */
#define PAGE_ARENA ((uint32_t)ENGINE_GRADIENTS)

/** Bytes with the padding behind them. */
static inline uint64_t page_align(uint64_t bytes)
{
    return (bytes + PAGE_ALIGNMENT - 1) / PAGE_ALIGNMENT * PAGE_ALIGNMENT;
}

enum page_command {
    PAGE_ROOM = 1, /* scratch memory of `size` bytes: a run begins, or an operation of NCCL */
    PAGE_COPY_IN,  /* from staging to scratch memory, or an arena */
    PAGE_RUN,      /* the struct page_run at `staging`, with room for its tables */
    PAGE_COPY_OUT, /* from scratch memory, or an arena, to staging memory */
    PAGE_CLEAR,    /* zeros into scratch memory */
    PAGE_CARRY     /* the struct page_carry at `staging` */
};

struct page_entry {
    uint32_t command;
    uint32_t
        arena; /* of a copy: PAGE_ARENA and more, and `scratch` counts there; 0: scratch memory */
    uint64_t staging, scratch, size; /* offsets, bytes */
    bool keeps; /* of room: the worker gives back what it has when it has more, not before */
};

/* What the kernels of an order have found. */
union page_result {
    struct add_result add;   /* of a pass */
    struct whole_sums whole; /* of SUMS */
};

/* What a rule asks of the residual of an ADD (kernels/cuda/survey.h). */
enum page_question {
    PAGE_NO_QUESTION = 0, /* the order is carried out, and nothing else */
    PAGE_BESIDE,          /* the order is carried out, then the question REACH is answered */
    PAGE_REACH,           /* statistics of the elements whose key is at least `least`, and a list */
    PAGE_RANKED,          /* the magnitude of the rank-th of every stride-th element from `start` */
    PAGE_TOP              /* a list of the `rank` largest */
};

struct page_ask {
    uint32_t question; /* enum page_question */
    uint32_t least;    /* 0: no element is looked for */
    uint32_t all;      /* not 0: statistics of all elements, too */
    uint64_t start, stride, rank;
    struct engine_list list; /* in scratch memory; nowhere: no list is wanted */
};

struct page_answer {
    struct stats all;   /* of the elements that are not 0 */
    struct stats reach; /* if there are more than the list has room for, the list is not complete */
    float magnitude;    /* RANKED */
};

/** An order, whose `first` counts the parts of its run. */
struct page_order {
    struct engine_order order;
    struct page_ask ask;
    union page_result result;  /* written by kernels */
    struct page_answer answer; /* the same */
};

/** Orders that are launched together, with their parts behind them. The worker makes addresses of
 * their places. Behind the parts it makes the tables that kernels read (tables.h). */
struct page_run {
    uint32_t orders, parts;
    uint64_t copies; /* bytes of scratch memory that the orders' copies have */
    uint32_t status; /* enum adtopk_status, of the worker: OK, MEMORY, or SYSTEM: NCCL has failed */
    uint32_t launches;         /* kernels that the worker has launched for it */
    struct page_order order[]; /* `orders` of them */
};

/* An operation of NCCL. Its values are in scratch memory. */
struct page_carry {
    uint32_t kind;                 /* enum cargo_kind */
    uint32_t arena;                /* of the job's first part */
    uint32_t device;               /* its number among those of the node that take part */
    struct cargo_group group;      /* the worker writes the names that it was asked for */
    uint64_t bytes, input, output; /* output: equal to input where the values are summed */
    struct error error;            /* of the worker: code OK, or why NCCL has failed */
};

/** The time, of CLOCK_MONOTONIC. */
uint64_t page_now_us(void);

/** The parts of a run, behind its orders. */
static inline struct engine_part *page_parts(struct page_run *run)
{
    return (struct engine_part *)(void *)(run->order + run->orders);
}

/** Bytes of a run in the page, tables not included. */
static inline uint64_t page_run_size(unsigned orders, unsigned parts)
{
    return page_align(sizeof(struct page_run) + orders * sizeof(struct page_order) +
                      parts * sizeof(struct engine_part));
}

/** A worker maps all parts into one range of addresses, the *window*, where each part has its place
 * as long as it lives. There is more room than memory, so that parts which come and go find some.
 */
static inline uint64_t page_window(uint64_t device_memory)
{
    return ((device_memory >> 30) + 1) << 32;
}

struct page {
    char release[PAGE_RELEASE_SIZE]; /* of the daemon */
    uint32_t multiprocessors; /* that the daemon sees, and has made pools and scratch memory for */
    _Alignas(64) _Atomic uint32_t tail; /* the last entry; written by the daemon */
    _Atomic uint32_t daemon_asleep;     /* written by the daemon */
    _Alignas(64) _Atomic uint32_t done; /* the last entry that is done; written by the stream */
    _Alignas(64) _Atomic uint32_t worker_asleep; /* written by the worker */
    _Atomic uint32_t beat;                       /* written by the worker while it waits for NCCL */
    _Atomic uint64_t nccl; /* written by the worker: bytes of the device that communicators have */
    _Alignas(64) _Atomic uint32_t abort; /* written by the daemon: an entry to give up */
    _Alignas(64) uint64_t mark;          /* of a part that the worker maps; its own */
    _Alignas(64) struct page_entry entry[PAGE_ENTRIES];
    _Alignas(4096) uint8_t staging[PAGE_STAGING];
};

/** Whether entry `number` is done. Numbers may wrap around. */
static inline bool page_is_done(const struct page *page, uint32_t number)
{
    return (int32_t)(atomic_load(&page->done) - number) >= 0;
}

/** The release of the page's daemon, in words. Returns `text`. */
const char *page_release(const struct page *page, char text[PAGE_RELEASE_SIZE]);

/** Passes a moment of waiting, which begins with `spin` all zero. False: it is time to sleep. */
bool page_pass_time(struct spin *spin);

enum message_type {
    MESSAGE_WAKE = 1, /* either side */
    MESSAGE_READY,    /* worker: it takes entries */
    MESSAGE_MAP,      /* daemon: map `arena`, of `size` bytes, at `place` of the window, from the
                       * descriptor that comes along. With a `mark`, its last word is that. `fresh`:
                       * fill it with zeros */
    MESSAGE_MAPPED,   /* worker: done; `fresh`: it had not its mark, and so is zeros now */
    MESSAGE_UNMAP,    /* daemon: `arena` is no longer used */
    MESSAGE_FAILED    /* worker: `text` says why it ends */
};

struct message {
    uint32_t type;
    uint32_t arena;
    uint64_t size, place;
    uint64_t mark;    /* 0: it has none */
    struct pool pool; /* its slots */
    uint32_t fresh;
    uint32_t reserved;
    char text[ERROR_TEXT_SIZE];
};

/** Sends a message, and a descriptor unless that is -1. False: the other side is gone, or for a
 * MESSAGE_WAKE that one is already waiting to be read. */
bool message_send(int socket, const struct message *message, int descriptor);

enum message_outcome { MESSAGE_GOT, MESSAGE_NONE, MESSAGE_GONE };

/** Takes a message, waiting up to `wait_ms` (-1: for ever). *descriptor: what came along, or -1. */
enum message_outcome message_take(
    int socket, int wait_ms, struct message *message, int *descriptor);

#endif
