/*
 * A rank whose gradients lie in a GPU's memory: its arena, and its pushes, which wait for the
 * rank's stream (gpu.c). For the loop's thread.
 */
#ifndef ADTOPK_LOCAL_GPU_H
#define ADTOPK_LOCAL_GPU_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/core.h"
#include "proto/error.h"
#include "proto/local.h"
#include "proto/local.pb-c.h"

#define GPU_UUID_SIZE 48

struct action;
struct local;
struct local_session;
struct segment;
struct session;

/* The arena of a batch of tensors. */
struct local_gpu_batch {
    bool open;            /* there is device memory, which the loop's gpu_drop() gives back */
    int descriptor;       /* of that memory, which owns it */
    uint64_t begin, size; /* offset of that memory in the arena, and its bytes */
    void *behind;         /* addresses behind the host part; NULL: none */
    uint64_t behind_size;
    uint32_t first, tensors;      /* the batch's tensors */
    const _Atomic uint32_t *flag; /* one per tensor, in the host part; NULL: no arena */
    struct local_word *word;      /* on which streams wait (proto/local.h); NULL: none */
};

struct local_gpu {
    char uuid[GPU_UUID_SIZE]; /* "": the gradients are in host memory */
    struct local_gpu_batch batch[CORE_MAX_BATCHES];
    bool hidden; /* an update of this step is not on the GPU, or not right */
    bool holds;  /* `held` waits for the rank's stream */
    struct local_entry held;
    uint64_t held_us; /* since when */
};

/** Whether gradients of the session may lie on a GPU of this daemon. */
bool gpu_may_hold(const struct local_session *session);

/** The operation `place` of struct connection. */
enum adtopk_status gpu_place(
    struct session *session, const char *tensor, const char *gpu, struct error *err);

/** Bytes of the arena of the batch that is committed now that lie in host memory. Errors: STATE:
 * another batch, of a client that cannot map one. */
enum adtopk_status gpu_host_size(
    struct local_session *session, unsigned batch, uint64_t *size, struct error *err);

/** Makes the rest of a batch's arena of `size` bytes, of which `segment` is the host part. Maps
 * that. Errors: MEMORY with the numbers, SYSTEM with the device. */
enum adtopk_status gpu_arena(struct local_session *session, unsigned batch, struct segment *segment,
    uint64_t size, struct error *err);

/** Gives the device memory and the addresses of a batch back, but not the words. Without an arena
 * it does nothing. `base`: the arena's address. */
void gpu_drop(struct local_session *session, unsigned batch, const void *base);

/** Fills in what the client needs to map a batch's device memory. Returns the memory's descriptor;
 * -1: there is none. */
int gpu_describe(const struct local_session *session, unsigned batch, Adtopk__LocalArena *arena);

/** The next batch takes part from this step on: prepares the words on which streams wait. */
void gpu_begin(struct local_session *session, uint64_t step);

/** Notes in these words what the core says by an action DELIVERED or STEP. */
void gpu_tell(struct local_session *session, const struct action *action);

/** The session has failed, which its page says: streams need not wait any more. */
void gpu_let_go(struct local_session *session);

/** Unmaps the words, when the session is closed. */
void gpu_close(struct local_session *session);

/** Does what ring_reader_take() does, but holds back an entry whose gradient is not written yet.
 * -1, STATE: a gradient that may be wrong, as the rank's streams were let go. */
int gpu_take(struct local_session *session, struct local_entry *entry, struct error *err);

/** Opens the timer that ends the loop's sleep; has the loop watch it. */
enum adtopk_status gpu_open_look(struct local *local, struct error *err);
void gpu_watch_look(struct local *local);

/** True if an entry that was held can be taken now. Otherwise notes when to look again. */
bool gpu_must_look(struct local_session *session);

/** Sets the timer: a session must be looked at. */
void gpu_look_later(struct local *local);

#endif
