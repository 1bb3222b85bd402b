/*
 * Memory that a trainer and its daemon share: three mappings, each written by one side only.
 *
 *   ring       written by the client (sealed against resizing): what it submits
 *   page       written by the daemon, read-only for the client: how far things are
 *   gradients  written by the client, read by the daemon: one arena a rank
 *   results    written by the daemon, read-only for the client: one arena a job and node
 *
 * Progress only ever grows, so the daemon tells it in counters instead of a completion ring:
 * there is nothing that a client which stops reading could fill up. Everything in the ring may
 * change at any moment under the daemon's eyes: it copies an entry, then checks the copy.
 *
 * Waking: neither side can write the other's words, so a sleep is told by a number. A side that
 * is about to sleep stores the number of this sleep (never 0) in its `asleep` word, looks once
 * more, and sleeps on the session socket; when it is awake it stores 0. The other side, after it
 * has written, reads that word, and sends a one-byte message (LOCAL_WAKE) for each number other
 * than 0 that it has not answered yet. These stores and loads are sequentially consistent, so at
 * least one side sees what the other wrote. All words are naturally aligned.
 */
#ifndef ADTOPK_LOCAL_H
#define ADTOPK_LOCAL_H

#include <stdatomic.h>
#include <stdint.h>

#define LOCAL_VERSION 1
#define LOCAL_RING_ENTRIES 1024u /* a power of two */
#define LOCAL_TEXT_SIZE 240
#define LOCAL_WAKE 0x57

enum local_submit {
    LOCAL_PUSH = 1,     /* tensor, number = step */
    LOCAL_STEP_END = 2, /* number = step */
    LOCAL_WAIT = 3,     /* tensor, number = step */
    LOCAL_OP = 4        /* tensor = enum op_kind, root, size, number = operation */
};

struct local_entry {
    uint32_t type; /* enum local_submit */
    uint32_t tensor;
    uint64_t number;
    uint32_t root;
    uint32_t size;
    uint64_t reserved;
};

/* Client-written. Single producer (the rank), single consumer (the daemon). */
struct local_ring {
    _Alignas(64) _Atomic uint64_t tail;          /* entries ever submitted */
    _Alignas(64) _Atomic uint32_t client_asleep; /* number of the sleep; 0: awake */
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
    uint64_t op_gradient_offset; /* of the operation area in a rank's gradient arena */
    uint64_t op_result_offset;   /* ... and in this arena */
    struct {
        uint64_t gradient_offset;
        uint64_t update_offset;
    } tensor[];
};

enum local_form { LOCAL_FORM_LIST = 1, LOCAL_FORM_DENSE = 2 };

/* One tensor's update. Offsets count from the start of the result arena. */
struct local_update {
    uint64_t numel;
    uint64_t capacity;     /* entries that the list can hold */
    uint64_t count;        /* entries of the list */
    uint64_t step;         /* whose update this is */
    uint64_t index_offset; /* u32 each; 0: no list */
    uint64_t value_offset; /* f32 each */
    uint64_t dense_offset; /* f32 each, numel of them; 0: no dense form */
    uint32_t forms;        /* enum local_form: which of them are filled now */
    uint32_t turn;
};

#endif
